"""Turn what a person types into one committed checkpoint.

`RUN/step`, `RUN@latest`, `RUN@verified`, `@staging`, `@production`, a prefix of a checkpoint id, or
a full name `RUN/attempt-0001/step-00000010`. A name that fits nothing, or more than one thing, is
refused with what was near.

A name is found without reading a manifest, so that what is damaged or lost can still be named.
"""

from __future__ import annotations

import difflib
import re

from strongroom.checkpoint.catalogue import Committed, checkpoint_names, read_checkpoint, runs
from strongroom.custody.context import Custody
from strongroom.errors import AmbiguousNameError, InputError, UnknownNameError
from strongroom.ledger.history import CheckpointRecord, History
from strongroom.names import CheckpointId, CheckpointName, RunKey

MIN_ID_PREFIX = 4


def resolve(custody: Custody, text: str) -> Committed:
    """Return the checkpoint that `text` names.

    Raises:
        UnknownNameError: nothing of that name; the message lists what is near.
        AmbiguousNameError: an id prefix fits several checkpoints; the message lists them.
        IntegrityError: the checkpoint's manifest is damaged.
    """
    return read_checkpoint(custody.storage, resolve_name(custody, text))


def resolve_name(custody: Custody, text: str) -> CheckpointName:
    """Return the name of the checkpoint that `text` means; its manifest may be damaged or lost.

    Raises:
        UnknownNameError, AmbiguousNameError: as `resolve`.
    """
    history = custody.history()
    if text.startswith("@"):
        return _in_stage(history, text.removeprefix("@"))
    if match := re.fullmatch(r"([^/@]+)@(latest|verified)", text):
        return _newest(custody, history, RunKey.parse(match[1]), verified=match[2] == "verified")
    if match := re.fullmatch(r"([^/@]+)/(\d+)", text):
        return _at_step(custody, history, RunKey.parse(match[1]), int(match[2]))
    if text.count("/") == 2:  # noqa: PLR2004 -- RUN/attempt/step
        return _of_full_name(custody, history, text)
    prefix = text.removeprefix("sha256:")
    if len(prefix) >= MIN_ID_PREFIX and re.fullmatch(r"[0-9a-f]{1,64}", prefix):
        return _by_id(history, prefix).name
    raise UnknownNameError(
        f"checkpoint {text!r}: expected RUN/step, RUN@latest, RUN@verified, @staging, @production "
        f"or at least {MIN_ID_PREFIX} hex digits of a checkpoint id; `strongroom ls` lists them"
    )


def resolve_record(custody: Custody, text: str) -> CheckpointRecord:
    """Return what the ledger says of the checkpoint that `text` names.

    Raises:
        UnknownNameError, AmbiguousNameError: as `resolve`, and where the ledger says nothing of it.
    """
    name = resolve_name(custody, text)
    record = custody.history().by_name(name)
    if record is None:
        raise UnknownNameError(
            f"checkpoint {name}: it stands in the store, but its commit was never recorded in the "
            "ledger; the next launch of its run records it"
        )
    return record


def by_id(custody: Custody, checkpoint_id: CheckpointId) -> Committed:
    """Return the checkpoint of exactly that id.

    Raises:
        UnknownNameError: the store holds no such checkpoint.
    """
    return read_checkpoint(custody.storage, _by_id(custody.history(), checkpoint_id.hex).name)


def check_run(custody: Custody, run: RunKey) -> None:
    """Return if the store has a run of that key, with or without checkpoints.

    Raises:
        UnknownNameError: it has none; the message lists what is near.
    """
    known = [str(key) for key in runs(custody.storage)]
    if str(run) in known:
        return
    near = difflib.get_close_matches(str(run), known, n=3) or known[:5]
    hint = f"near: {', '.join(near)}" if near else "this store has no runs yet"
    raise UnknownNameError(f"run {run}: there is no such run in {custody.store.url}; {hint}")


def _in_stage(history: History, stage: str) -> CheckpointName:
    checkpoint_id = history.in_stage(stage)
    if checkpoint_id is None:
        raise UnknownNameError(
            f"@{stage}: no checkpoint is in that stage; "
            f"`strongroom promote CKPT --stage {stage}` puts one there"
        )
    return history.records[checkpoint_id].name


def _newest(custody: Custody, history: History, run: RunKey, *, verified: bool) -> CheckpointName:
    found = _of_run(custody, history, run)
    if verified:
        found = [name for name in found if _is_verified(history.by_name(name))]
    if not found:
        raise UnknownNameError(
            f"run {run}: none of its checkpoints is verified and free of quarantine; "
            f"`strongroom verify {run}@latest` climbs the ladder"
        )
    # The newest attempt first: one that started afresh supersedes what came before it.
    return max(found, key=lambda name: (name.attempt, name.step))


def _at_step(custody: Custody, history: History, run: RunKey, step: int) -> CheckpointName:
    found = _of_run(custody, history, run)
    at_step = [name for name in found if name.step.number == step]
    if not at_step:
        steps = ", ".join(str(number) for number in sorted({name.step.number for name in found}))
        raise UnknownNameError(f"run {run} has no checkpoint at step {step}; it has: {steps}")
    return max(at_step, key=lambda name: name.attempt)


def _of_full_name(custody: Custody, history: History, text: str) -> CheckpointName:
    try:
        name = CheckpointName.parse(text)
    except InputError as error:
        raise UnknownNameError(f"checkpoint {text!r}: {error}") from error
    found = _of_run(custody, history, name.run)
    if name not in found:
        listing = ", ".join(str(other) for other in found)
        raise UnknownNameError(f"run {name.run} has no checkpoint {name}; it has: {listing}")
    return name


def _of_run(custody: Custody, history: History, run: RunKey) -> list[CheckpointName]:
    """Return what stands in the store and what the ledger says must stand there."""
    check_run(custody, run)
    recorded = {
        record.name
        for record in history.records.values()
        if record.name.run == run and record.committed is not None
    }
    found = sorted({*checkpoint_names(custody.storage, run), *recorded})
    if not found:
        raise UnknownNameError(f"run {run} has no checkpoints yet in {custody.store.url}")
    return found


def _by_id(history: History, prefix: str) -> CheckpointRecord:
    matches = [
        record
        for checkpoint_id, record in history.records.items()
        if checkpoint_id.hex.startswith(prefix)
    ]
    if not matches:
        raise UnknownNameError(
            f"no checkpoint id starts with {prefix!r}; `strongroom ls` lists them"
        )
    if len(matches) > 1:
        listing = ", ".join(f"{m.checkpoint_id.short} ({m.name.short})" for m in matches)
        raise AmbiguousNameError(
            f"id prefix {prefix!r} fits {len(matches)} checkpoints: {listing}; give more digits"
        )
    return matches[0]


def _is_verified(record: CheckpointRecord | None) -> bool:
    return (
        record is not None
        and record.quarantined is None
        and record.verified is not None
        and record.verified.passed
    )
