"""Where a checkpoint comes from and what was made beside and from it, as a graph of named things.

inputs -> run -> attempts -> checkpoints -> stages; an attempt that resumed has an edge from the
checkpoint it resumed from. Pure data: `lineage_drawing` draws it, the command line lists it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from strongroom.checkpoint.manifest import Inputs
from strongroom.ledger.history import CANDIDATE, STAGES, AttemptFact, CheckpointRecord
from strongroom.names import Attempt, CheckpointId, Digest, RunKey


class NodeKind(StrEnum):
    """What a node of the graph is; in the order things come from one another."""

    BASE_MODEL = "base model"
    DATASET = "dataset"
    TOKENIZER = "tokenizer"
    CONFIGURATION = "configuration"
    RUN = "run"
    ATTEMPT = "attempt"
    CHECKPOINT = "checkpoint"
    STAGE = "stage"


INPUT_KINDS = (
    NodeKind.BASE_MODEL,
    NodeKind.DATASET,
    NodeKind.TOKENIZER,
    NodeKind.CONFIGURATION,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One thing of the graph.

    Attributes:
        key: names the node within its graph.
        digest: None for things that have none: attempts and stages.
        state: what is known of a checkpoint in a word or two, '' for other things.
        subject: whether the graph was traced for this node.
    """

    key: str
    kind: NodeKind
    title: str
    digest: Digest | None = None
    state: str = ""
    subject: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """`target` comes from `source`; `relation` reads as `source relation target`."""

    source: str
    target: str
    relation: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """A graph without cycles; nodes stand in the order things come from one another."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    @property
    def subject(self) -> Node:
        """The checkpoint the graph was traced for."""
        return next(node for node in self.nodes if node.subject)

    def of_kind(self, *kinds: NodeKind) -> tuple[Node, ...]:
        """Return the nodes of these kinds, in order."""
        return tuple(node for node in self.nodes if node.kind in kinds)

    def title_of(self, key: str) -> str:
        """Return the title of one node."""
        return next(node.title for node in self.nodes if node.key == key)


def trace(
    subject: CheckpointId,
    *,
    run: RunKey,
    inputs: Inputs,
    attempts: Sequence[AttemptFact],
    checkpoints: Sequence[CheckpointRecord],
) -> Lineage:
    """Build the graph of `subject` from what the ledger says of its run.

    Args:
        subject: the checkpoint the graph is for; one of `checkpoints`.
        run: the run that made it.
        inputs: what the run was made from.
        attempts: every launch of the run.
        checkpoints: every committed checkpoint of the run.
    """
    known = {record.checkpoint_id for record in checkpoints}
    ordered = sorted(checkpoints, key=lambda record: (record.name.attempt, record.name.step))
    # A launch may be missing from the ledger (a crash); what it saved names it all the same.
    numbers = sorted(
        {launch.number for launch in attempts} | {r.name.attempt.number for r in ordered}
    )
    held = {stage for record in ordered for stage in _held(record)}
    stages = [stage for stage in STAGES if stage in held]
    run_key = f"run:{run}"
    nodes = [
        *(
            Node(key=_input_key(kind), kind=kind, title=str(kind), digest=digest)
            for kind, digest in zip(INPUT_KINDS, _digests(inputs), strict=True)
        ),
        Node(key=run_key, kind=NodeKind.RUN, title=str(run)),
        *(
            Node(
                key=str(Attempt(number)),
                kind=NodeKind.ATTEMPT,
                title=f"attempt {number}",
            )
            for number in numbers
        ),
        *(
            Node(
                key=str(record.checkpoint_id),
                kind=NodeKind.CHECKPOINT,
                title=f"step {record.name.step.number}",
                digest=record.checkpoint_id,
                state=state_of(record),
                subject=record.checkpoint_id == subject,
            )
            for record in ordered
        ),
        *(Node(key=f"stage:{stage}", kind=NodeKind.STAGE, title=stage) for stage in stages),
    ]
    edges = [
        *(
            Edge(source=_input_key(kind), target=run_key, relation="is an input of")
            for kind in INPUT_KINDS
        ),
        *(
            Edge(source=run_key, target=str(Attempt(number)), relation="was started as")
            for number in numbers
        ),
        *(
            Edge(
                source=str(launch.resumed_from),
                target=str(Attempt(launch.number)),
                relation="was resumed by",
            )
            for launch in attempts
            if launch.resumed_from in known
        ),
        *(
            Edge(
                source=str(record.name.attempt),
                target=str(record.checkpoint_id),
                relation="saved",
            )
            for record in ordered
        ),
        *(
            Edge(source=str(record.checkpoint_id), target=f"stage:{stage}", relation="is in stage")
            for record in ordered
            for stage in _held(record)
        ),
    ]
    return Lineage(nodes=tuple(nodes), edges=tuple(edges))


def state_of(record: CheckpointRecord) -> str:
    """Say in a word or two what the ledger knows of a checkpoint."""
    if record.quarantined is not None:
        return "quarantined"
    if record.verified is None:
        return "not verified"
    return "verified" if record.verified.passed else "failed verification"


def _held(record: CheckpointRecord) -> tuple[str, ...]:
    """Return the stages it was promoted to and holds; all are candidates, which says nothing."""
    return tuple(stage for stage in record.stages if stage != CANDIDATE)


def _digests(inputs: Inputs) -> tuple[Digest, Digest, Digest, Digest]:
    return (inputs.base_model, inputs.dataset, inputs.tokenizer, inputs.config)


def _input_key(kind: NodeKind) -> str:
    return f"input:{kind}"
