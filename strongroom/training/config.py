"""The configuration of a run: frozen dataclasses, read from YAML, every fault reported at once.

Each room owns its part; this module adds training's own and composes the whole. The digest of a
configuration is that of its canonical JSON, so comments and key order do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.data.config import DataConfig
from strongroom.errors import ConfigError
from strongroom.evaluation.config import EvaluationConfig
from strongroom.model.config import AdapterConfig, ModelConfig
from strongroom.names import Digest
from strongroom.parsing import STRICT, parse, to_json

Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How it is trained."""

    __pydantic_config__ = STRICT

    steps: Positive
    batch_rows: Positive
    """Rows of one optimizer step, over all ranks."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)]
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    schedule: Literal["constant", "cosine"] = "constant"
    """What the learning rate does after its linear warm-up."""
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    strategy: Literal["fsdp2"] = "fsdp2"
    world_size: Positive = 2
    threads_per_rank: Positive = 1
    seed: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveConfig:
    """When a checkpoint is saved, besides at the end and on pre-emption."""

    __pydantic_config__ = STRICT

    every_steps: Positive = 1000
    every_minutes: Annotated[float, Field(gt=0.0)] = 240.0
    asynchronous: bool = True
    """Whether training goes on while a checkpoint is written."""
    staging: Literal["overlap", "copy"] = "overlap"
    """Whether the next step's forward and backward passes run beside the copy of the state."""
    writer: Literal["thread", "process"] = "thread"
    """Who writes: a thread of the training process, or a process of its own beside each rank."""
    when_busy: Literal["wait", "skip"] = "wait"
    """What a save does that is due while one is being written and another waits for it. The last
    save, and the one before a stop, always wait."""
    full_every: Positive = 1
    """One checkpoint in so many is full; those between are deltas. 1: every one is full."""
    delta_min_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    """A full checkpoint follows a delta that borrowed less than this share of its bytes."""


SAVE_FIELDS_ADDED = ("staging", "writer", "when_busy", "full_every", "delta_min_share")
"""Fields of SaveConfig that the first release did not have; what they are set to by default is for
ever what it did."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Everything that decides what a run does; two runs of equal digest do the same."""

    __pydantic_config__ = STRICT

    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    save: SaveConfig = field(default_factory=SaveConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def to_json(self) -> JsonObject:
        """Return it as JSON; tuples become lists.

        A field of a later release is left out where it has its default: a configuration that does
        not use it keeps the digest under which runs were begun before.
        """
        document = to_json(self)
        default = to_json(SaveConfig())
        for name in SAVE_FIELDS_ADDED:
            if document["save"][name] == default[name]:
                del document["save"][name]
        return document

    @property
    def digest(self) -> Digest:
        """Digest of the canonical JSON."""
        return canonical.digest(self.to_json())


def parse_config(document: object, *, source: str) -> RunConfig:
    """Check `document` and return the configuration it describes.

    Raises:
        ConfigError: with every fault: its field, what is allowed and what was given.
    """
    config = parse(RunConfig, document, source=source)
    if faults := _cross_field_faults(config):
        raise ConfigError(source, faults)
    return config


def load_config(path: Path) -> RunConfig:
    """Read a YAML file.

    Raises:
        ConfigError: unreadable, not YAML, or wrong; all faults at once.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), [f"cannot be read: {error.strerror}"]) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [f"is not YAML: {error}"]) from error
    return parse_config(document, source=str(path))


def _cross_field_faults(config: RunConfig) -> list[str]:
    faults = []
    train = config.train
    if train.batch_rows % train.world_size:
        faults.append(
            f"train.batch_rows: must be a multiple of train.world_size ({train.world_size}), "
            f"got {train.batch_rows}"
        )
    if train.warmup_steps > train.steps:
        faults.append(
            f"train.warmup_steps: must be at most train.steps ({train.steps}), "
            f"got {train.warmup_steps}"
        )
    for index, source in enumerate(config.data.sources):
        if (source.prompt_field is None) != (source.response_field is None):
            faults.append(
                f"data.sources.{index}: prompt_field and response_field must be given together"
            )
    return faults
