"""Train a run and watch its checkpoints arrive, as a stream of events.

The launcher starts the training and yields what it reports; this module adds what custody owes each
checkpoint the moment it is committed: a signed statement of where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import read_checkpoint
from strongroom.checkpoint.run_record import RunRecord
from strongroom.custody.context import Custody
from strongroom.custody.provenance import attest_provenance
from strongroom.names import CheckpointName
from strongroom.training.reporting import ReportKind


def follow_training(
    custody: Custody, run: RunRecord, events: Iterable[JsonObject]
) -> Iterator[JsonObject]:
    """Yield each event of a launched training after custody has done its part."""
    for event in events:
        if event["kind"] == ReportKind.COMMITTED:
            name = CheckpointName.parse(event["checkpoint"])
            attest_provenance(custody, read_checkpoint(custody.storage, name), run)
        yield event
