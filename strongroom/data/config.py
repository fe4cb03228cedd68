"""The data part of a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from strongroom.parsing import STRICT


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """One place rows come from."""

    __pydantic_config__ = STRICT

    uri: Annotated[str, Field(min_length=1)]
    """A `.jsonl`/`.jsonl.gz`/`.parquet` file, `pypi:chatterbot-corpus/<language>`, or
    `hub:<owner>/<dataset>[/<config>]:<split>`."""
    prompt_field: str | None = None
    """For rows that are pairs: the field of the user's text; None where rows hold `messages`."""
    response_field: str | None = None
    language: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which rows are trained on, and which are held out."""

    __pydantic_config__ = STRICT

    sources: Annotated[tuple[SourceConfig, ...], Field(min_length=1)]
    held_out_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    max_held_out_rows: Annotated[int, Field(ge=1)] = 200
    max_tokens: Annotated[int, Field(ge=8)] = 512
    """Rows longer than this once rendered are dropped, and counted."""
    max_fault_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    """A source with a larger part of broken rows stops the run; up to this they are dropped."""
    split_seed: Annotated[int, Field(ge=0)] = 0
    packing: Literal["rows", "blocks"] = "rows"
    """What a sequence of a batch is: one row, or a block of rows up to `max_tokens` long, each of
    which attends to itself alone. `train.batch_rows` counts sequences."""
    shuffle_window_rows: Annotated[int, Field(ge=1)] | None = None
    """Read the rows from disk as they are needed, and shuffle them in windows of so many; None:
    hold all in memory and shuffle them all."""
