"""What the preflight judges by: facts, gathered elsewhere. None is what is not known.

Invariant: nothing here is guessed. A check whose fact is not known finds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strongroom.model.flops import ModelFlops
from strongroom.planning.model_shape import ModelShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """One accelerator of this machine.

    Attributes:
        capability: its compute capability, such as 9.0.
        pcie_generation, pcie_lanes: of its link at its best.
    """

    name: str
    memory_bytes: int
    capability: float | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RdmaDevice:
    """One port that speaks RDMA; `link` is `InfiniBand`, or `Ethernet` for RoCE."""

    name: str
    link: str
    is_active: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFacts:
    """The machine that the ranks start on.

    Attributes:
        memory_bytes: what processes can still get of the host's memory.
        accelerators: none where it is empty; None where there are some that cannot be asked.
        interfaces: names of its network interfaces.
        environment: variables of NCCL.
        is_virtual: whether a hypervisor runs it.
        topology_fault: what is wrong with the file that NCCL_TOPO_FILE names.
        has_topology: whether NCCL finds a description of the topology in its usual place.
        packages: those of the optional packages that are installed.
    """

    cores: int
    memory_bytes: int | None
    accelerators: tuple[Accelerator, ...] | None
    rdma: tuple[RdmaDevice, ...] = ()
    interfaces: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    is_virtual: bool | None = None
    topology_fault: str | None = None
    has_topology: bool = False
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """The base model, read from its configuration and the headers of its weights.

    Attributes:
        shape: None where its configuration does not say what a decoder's does.
        flops: of its training; None where they do not follow from its sizes.
        positions: the longest sequence it was made for, in tokens.
        linear_names: last parts of the names of its linear layers.
        dtypes: of the weights as they are stored, by the names of `model.dtype` where it has them.
        left_behind: files beside the weights that hold another training's state.
    """

    architecture: str
    shape: ModelShape | None
    flops: ModelFlops | None
    positions: int | None
    linear_names: tuple[str, ...]
    dtypes: tuple[str, ...]
    left_behind: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerFacts:
    """The tokenizer of the base model.

    Attributes:
        has_marks: whether the template marks what the assistant says (`{% generation %}`).
        template_fault: why a conversation cannot be rendered so that answers are found.
    """

    padding: str | None
    end: str | None
    has_template: bool
    has_marks: bool
    template_fault: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFacts:
    """The rows, as far as they are at hand.

    Attributes:
        num_rows: all that are trained on; None where they were not counted.
        sampled_rows: how many the statistics come from.
        mean_tokens, longest_tokens: of the sampled rows that fit, once rendered.
    """

    num_rows: int | None
    sampled_rows: int
    mean_tokens: float
    longest_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFacts:
    """Where checkpoints go.

    Attributes:
        exists: whether there is a store already.
        is_remote: whether it is reached over a network.
        storage_class: of new objects; None leaves it to the bucket, or there are no classes.
        free_bytes: on the disk of a local store.
    """

    url: str
    exists: bool
    is_remote: bool
    storage_class: str | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """One committed checkpoint of the run, by its manifest and the ledger.

    Attributes:
        name: `RUN/step`, as people write it.
        created_s: when, in seconds of the epoch; None where its manifest gives no time.
        is_verified: whether there is a verification record, whatever it says.
        without_optimizer: how many of its `parameters` lack optimizer state.
        has_optimizer_settings: whether it says how the optimizer was set.
        lacks: what it lacks of data cursor, random state, schedule and counts.
    """

    name: str
    attempt: int
    step: int
    world_size: int
    num_bytes: int
    created_s: float | None
    is_verified: bool
    is_quarantined: bool
    parameters: int
    without_optimizer: int
    has_optimizer_settings: bool = True
    lacks: tuple[str, ...] = ()

    @property
    def is_weights_only(self) -> bool:
        """Whether no parameter has optimizer state."""
        return self.without_optimizer == self.parameters

    @property
    def has_whole_optimizer(self) -> bool:
        """Whether the optimizer can be made again as it was."""
        return not self.without_optimizer and self.has_optimizer_settings

    @property
    def is_whole(self) -> bool:
        """Whether everything is there that a resume needs."""
        return self.has_whole_optimizer and not self.lacks


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What the store knows of this run, and of resumes at other sizes.

    Attributes:
        num_checkpoints: how many it has.
        checkpoints: the newest of them, newest first.
        resharded: sizes of resumes in this store: saved with so many ranks, resumed with so many.
        fresh_start: whether the launch is to begin anew where none can be used.
    """

    key: str
    num_checkpoints: int = 0
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    resharded: tuple[tuple[int, int], ...] = ()
    fresh_start: bool = False

    @property
    def newest(self) -> SavedCheckpoint | None:
        """The newest checkpoint that may be loaded."""
        return next((saved for saved in self.checkpoints if not saved.is_quarantined), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Everything that is known before a launch.

    Attributes:
        machine: None where the ranks start elsewhere, as under a scheduler of a cluster.
        allreduce_ms: latency of an all-reduce over the ranks of the run, where it was measured.
    """

    machine: MachineFacts | None = None
    model: ModelFacts | None = None
    tokenizer: TokenizerFacts | None = None
    data: DataFacts | None = None
    store: StoreFacts | None = None
    run: RunFacts | None = None
    allreduce_ms: float | None = None
