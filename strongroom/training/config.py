"""The configuration of a run: frozen dataclasses, read from YAML, every fault reported at once.

Each room owns its part; this module adds training's own and composes the whole. The digest of a
configuration is that of its canonical JSON, so comments and key order do not matter.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.data.config import DataConfig
from strongroom.errors import ConfigError
from strongroom.evaluation.config import EvaluationConfig
from strongroom.model.config import AdapterConfig, ModelConfig
from strongroom.names import Digest
from strongroom.parsing import STRICT, parse, plain, to_json
from strongroom.training.placement import (
    PLACEMENT_FIELDS,
    Placement,
    StrategyName,
    placement_faults,
)
from strongroom.training.preflight.config import PreflightConfig
from strongroom.training.strategies.config import Fsdp2Config, Zero3Config
from strongroom.training.tracking.config import TrackingConfig

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
    strategy: StrategyName = "fsdp2"
    world_size: Positive = 2
    replicas: Positive = 1
    """HSDP: how many groups of ranks hold the whole model, sharded inside each; fsdp2 alone."""
    threads_per_rank: Positive = 1
    micro_batch_rows: Positive | None = None
    """Most rows of one forward and backward pass on one rank; None: all of a rank's part. What is
    more is accumulated, so that the rows of an optimizer step stay `batch_rows`."""
    seed: Annotated[int, Field(ge=0)] = 0
    compute_dtype: Literal["bfloat16"] | None = None
    """What forward and backward passes are computed in where it is not `model.dtype`; parameters,
    gradients and optimizer stay float32."""
    activation_checkpointing: bool = False
    """Whether activations of a layer are computed again for its backward pass."""
    on_nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """What a loss or gradient that is not finite does: the run stops; the step's rows are passed
    over; or it goes back to the newest checkpoint that verifies, and passes over them then."""
    max_nonfinite_steps: Positive = 3
    """How many steps of a run may be passed over; one more stops it."""
    fsdp2: Fsdp2Config = field(default_factory=Fsdp2Config)
    zero3: Zero3Config = field(default_factory=Zero3Config)

    @property
    def placement(self) -> Placement:
        """How the work is spread, where a launch does not say otherwise."""
        return Placement(**{name: getattr(self, name) for name in PLACEMENT_FIELDS})

    def placed(self, placement: Placement) -> TrainConfig:
        """Return it with the work spread as `placement` says."""
        return replace(self, **{name: getattr(placement, name) for name in PLACEMENT_FIELDS})


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


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchConfig:
    """How a run's attempts are started and watched; no part of what the run is."""

    __pydantic_config__ = STRICT

    max_restarts: Annotated[int, Field(ge=0)] = 2
    """How often a training that lost a rank, hung or lost its store is started again by itself."""
    restart_delay_s: Annotated[float, Field(ge=0.0)] = 5.0
    """Seconds before the first restart; they double with each."""
    min_world_size: Positive | None = None
    """The fewest ranks to go on with where ranks are lost again and again; None: all are needed."""
    hang_timeout_s: Annotated[float, Field(gt=0.0)] = 1800.0
    """A training that takes no step for so long is taken for hung: stacks are written, it ends."""


OUTSIDE_SECTIONS = ("launch", "tracking", "preflight")
"""Sections that are no part of what a run is."""

ADDED_FIELDS = {
    "data": ("packing", "shuffle_window_rows"),
    "train": (
        "replicas",
        "micro_batch_rows",
        "compute_dtype",
        "activation_checkpointing",
        "on_nonfinite",
        "max_nonfinite_steps",
        "fsdp2",
        "zero3",
    ),
    "save": ("staging", "writer", "when_busy", "full_every", "delta_min_share"),
}
"""Fields that the first release did not have; what they are set to by default is for ever what it
did."""


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
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    preflight: PreflightConfig = field(default_factory=PreflightConfig)

    def to_json(self) -> JsonObject:
        """Return as JSON what the run's record keeps of it; tuples become lists.

        That is all but how it is launched, tracked and checked before. A field of a later release
        is left out where it has its default: a configuration that does not use it keeps the digest
        under which runs were begun before.
        """
        document = to_json(self)
        for section in OUTSIDE_SECTIONS:
            del document[section]
        for section, names in ADDED_FIELDS.items():
            defaults = _defaults(type(getattr(self, section)))
            for name in names:
                if document[section][name] == defaults[name]:
                    del document[section][name]
        return document

    @property
    def digest(self) -> Digest:
        """Digest of the canonical JSON."""
        return canonical.digest(self.to_json())


def same_run(one: JsonObject, other: JsonObject) -> bool:
    """Return whether two configurations, as JSON, differ at most in how the work is spread."""
    return _without_placement(one) == _without_placement(other)


def _without_placement(config: JsonObject) -> JsonObject:
    train = {k: v for k, v in config["train"].items() if k not in PLACEMENT_FIELDS}
    return {**config, "train": train}


def _defaults(kind: type[Any]) -> JsonObject:
    """Return the defaults of a section's fields, as JSON."""
    return {
        item.name: plain(
            item.default if item.default_factory is MISSING else item.default_factory()
        )
        for item in fields(kind)
        if not (item.default is MISSING and item.default_factory is MISSING)
    }


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
    train = config.train
    faults = [
        *(f"train.{fault}" for fault in placement_faults(train.placement, train.batch_rows)),
        *_option_faults(config),
    ]
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


def _option_faults(config: RunConfig) -> list[str]:
    faults = []
    if config.train.compute_dtype is not None and config.model.dtype != "float32":
        faults.append(
            "train.compute_dtype: must be left out unless model.dtype is float32, which the "
            f"optimizer then works in; got {config.train.compute_dtype} "
            f"with model.dtype {config.model.dtype}"
        )
    if config.train.zero3.partition_activations and not config.train.activation_checkpointing:
        faults.append(
            "train.zero3.partition_activations: must be left out unless "
            "train.activation_checkpointing is true, which keeps what it shards"
        )
    if (config.train.zero3.offload == "nvme") != (config.train.zero3.nvme_folder is not None):
        faults.append(
            "train.zero3.nvme_folder: must be given with train.zero3.offload nvme, and only then"
        )
    return faults
