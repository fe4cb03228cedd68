"""From where a launch goes on: the newest checkpoint that holds at this moment, or the start.

Law: a run that was stopped, by whatever, and went on from here ends in the same state, bit for bit,
as one that was never stopped, if it is spread the same way (`exactness`). Before the first step
after a resume the probe's loss is computed again: a model that is not the one that was saved is
refused.
"""

from __future__ import annotations

import logging

from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.run_record import RunRecord
from strongroom.data.cursor import Cursor
from strongroom.errors import NothingToResumeError, VerificationError
from strongroom.ledger.history import History
from strongroom.names import RunKey
from strongroom.storage.base import Storage
from strongroom.training.probe import undisturbed_probe_loss
from strongroom.training.progress import Progress
from strongroom.training.rng import saved_rng_keys, seed_rank, set_random_state
from strongroom.training.strategies.base import Strategy
from strongroom.training.world import World
from strongroom.verification.load import kept_otherwise
from strongroom.verification.rungs import probe_tolerance
from strongroom.verification.usable import newest_usable

logger = logging.getLogger(__name__)


def choose_resume_point(
    storage: Storage, run: RunKey, history: History, *, fresh_start: bool
) -> Committed | None:
    """Return the checkpoint to go on from, or None to start at the beginning.

    Args:
        storage: what holds the run.
        run: which run.
        history: what the ledger knows; a quarantined checkpoint is passed over, and one that it
            knows but the storage lost is not taken for one that never was.
        fresh_start: start at the beginning rather than give up where nothing can be used.

    Raises:
        NothingToResumeError: the run has checkpoints, none can be used, and no fresh start was
            asked for.
    """
    usable, rejected = newest_usable(storage, run, history=history)
    if usable is not None:
        return usable
    seen = {name for name, _ in rejected}
    lost = [
        (record.name, "the ledger knows it, but its manifest is gone")
        for record in history.records.values()
        if record.name.run == run and record.committed is not None and record.name not in seen
    ]
    reasons = [f"  - {name}: {reason}" for name, reason in (*rejected, *lost)]
    if reasons and not fresh_start:
        listed = "\n".join(reasons)
        raise NothingToResumeError(
            f"run {run}: expected a checkpoint to resume from, got {len(reasons)} of which none "
            f"can be used:\n{listed}\nrestore one from a copy, or begin anew with --fresh-start"
        )
    if reasons:
        logger.warning("fresh start as asked: run=%s unusable=%d", run, len(reasons))
    return None


def restore(  # noqa: PLR0913 -- everything that has state
    storage: Storage,
    committed: Committed,
    record: RunRecord,
    *,
    world: World,
    strategy: Strategy,
    start: Cursor,
) -> Progress:
    """Bring model, optimizer and this rank's random state to where they were saved.

    Collective. Every byte is checked before it is used. On another number of ranks, or under
    another strategy, parameters and optimizer are the same bit for bit, but that float32 copies of
    a model in bfloat16 are rounded where the strategy keeps none; a rank of which the checkpoint
    has no random state gets one by the run's seed, its number and the step, and so does an
    accelerator where the checkpoint is of processors alone.

    Args:
        storage: what holds the checkpoint.
        committed: which.
        record: of its run.
        world: this rank's place.
        strategy: the run's model, as it is before training.
        start: where the run began in its data.

    Returns:
        How far the run had come.

    Raises:
        IntegrityError: a chunk is not what the manifest promises.
        InputError: the checkpoint does not fit the run's model.
        FormatError: the random state, or the place in the data, is not one.
        VerificationError: the restored model's probe loss is not the recorded one.
    """
    progress = Progress.of(committed.manifest.state, start=start)
    reader = CheckpointReader(storage, committed)
    state = strategy.state_tensors()
    reader.load_into(
        state, prefixes=("model.", "optim."), cast=kept_otherwise(reader.manifest, state)
    )
    strategy.loaded()
    # What is not in the checkpoint stays so: a rank that was not, an accelerator that was not used.
    seed_rank(start.seed, world.rank, step=progress.step)
    if world.rank < committed.manifest.world_size:
        names = saved_rng_keys(world.rank, {tensor.name for tensor in reader.manifest.tensors})
        set_random_state({kind: reader.read(name) for kind, name in names.items()})
    expected = committed.manifest.metrics["probe_loss"]
    got = undisturbed_probe_loss(strategy.model, record.probe)
    if not abs(got - expected) <= probe_tolerance(record.config) * abs(expected):
        raise VerificationError(
            f"checkpoint {committed.name}: expected probe loss {expected} after loading, as "
            f"recorded at the save, got {got}; the loaded model is not the one that was saved: "
            f"quarantine it (strongroom quarantine {committed.name.short}) and start again"
        )
    return progress
