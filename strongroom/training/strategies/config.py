"""How a strategy is told to spread a model: the parts `fsdp2` and `zero3` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from strongroom.parsing import STRICT

Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fsdp2Config:
    """What torch's FSDP2 is told; none of it changes what is learnt but for rounding."""

    __pydantic_config__ = STRICT

    reshard_after_forward: bool = True
    """Whether a layer's full parameters are given back after its forward pass."""
    prefetch_layers: Annotated[int, Field(ge=0)] = 0
    """How many layers ahead parameters are gathered, forward and backward; 0 leaves it to torch."""
    compile_layers: bool = False
    """Whether each decoder layer is compiled by itself."""
    cpu_offload: bool = False
    """Whether parameters and optimizer live in the memory of the host; needs an accelerator."""
    float8: Literal["off", "on", "emulated"] = "off"
    """Whether linear layers multiply in float8, by torchao; `emulated` runs on any hardware."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Zero3Config:
    """What DeepSpeed's ZeRO stage 3 is told; none of it changes what is learnt but for rounding."""

    __pydantic_config__ = STRICT

    offload: Literal["none", "cpu", "nvme"] = "none"
    """Where optimizer state and parameters live between their uses; needs an accelerator."""
    nvme_folder: str | None = None
    """A folder on the local disk, for `offload: nvme`."""
    partition_activations: bool = False
    """Whether the activations that checkpointing keeps are sharded by DeepSpeed over the ranks of
    one model-parallel group. Here every rank is a group of its own: it saves nothing by itself."""
    persist_below_elements: Annotated[int, Field(ge=0)] = 100_000
    """Parameters smaller than this stay gathered between steps."""
    prefetch_elements: Annotated[int, Field(ge=0)] = 50_000_000
    """How many elements of parameters are gathered ahead of their use."""
    reduce_elements: Positive = 50_000_000
    """How many elements of gradients are reduced at a time."""
