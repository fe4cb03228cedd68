"""Checks of how often checkpoints are saved, how long that takes, and where they go."""

from __future__ import annotations

from collections.abc import Iterator

from strongroom.training.preflight.findings import Case, Finding, finding
from strongroom.training.preflight.wording import in_bytes, in_seconds

ONE_ZONE = frozenset({"ONEZONE_IA", "EXPRESS_ONEZONE"})
"""Storage classes whose objects stand in a single zone."""


def synchronous_saves(case: Case) -> Iterator[Finding]:
    """Find saves that hold training until the checkpoint is committed."""
    if case.config.save.asynchronous:
        return
    size = case.estimates.checkpoint_bytes
    what = "each checkpoint" if size is None else f"each checkpoint of about {in_bytes(size)}"
    yield finding(
        "synchronous-saves",
        "warn",
        saw=f"save.asynchronous is false: training waits until {what} is committed",
        mend="leave save.asynchronous out, or set it to true",
    )


def blocking_upload(case: Case) -> Iterator[Finding]:
    """Find checkpoints that are not stored by the time the next ones are due."""
    save, store, estimates = case.config.save, case.facts.store, case.estimates
    if not save.asynchronous:
        if store is not None and store.is_remote:
            yield finding(
                "blocking-upload",
                "warn",
                saw=f"save.asynchronous is false, and {store.url} is reached over a network: "
                "training waits for each upload",
                mend="leave save.asynchronous out, or set it to true",
            )
        return
    # Of deltas it is not known how much they hold; one of `full_every` checkpoints is full.
    apart_s = estimates.interval_s * save.full_every
    if estimates.upload_s is None or estimates.upload_s <= apart_s:
        return
    held = save.when_busy == "wait"
    yield finding(
        "blocking-upload",
        "stop" if held else "warn",
        saw=f"a checkpoint of about {in_bytes(estimates.checkpoint_bytes or 0)} takes "
        f"{in_seconds(estimates.upload_s)} to store, and full ones are at most "
        f"{in_seconds(apart_s)} apart: "
        + ("every save waits for the one before" if held else "saves that are due are left out"),
        mend="save less often (save.every_steps, save.every_minutes), or find a faster way to the "
        "store than preflight.upload_bytes_per_s says",
    )


def save_interval(case: Case) -> Iterator[Finding]:
    """Find runs that could lose more to a crash than they should."""
    estimates, most_s = case.estimates, case.numbers["lost_minutes"] * 60.0
    lost_s = estimates.interval_s
    if estimates.step_s is not None:
        lost_s = min(lost_s, case.config.train.steps * estimates.step_s)
    if lost_s <= most_s:
        return
    yield finding(
        "save-interval",
        "warn",
        saw=f"checkpoints may be {in_seconds(lost_s)} apart, more than {in_seconds(most_s)}",
        mend="lower save.every_minutes, or save.every_steps",
    )


def checkpoint_space(case: Case) -> Iterator[Finding]:
    """Find local stores that cannot hold what the run will save."""
    store, estimates, run = case.facts.store, case.estimates, case.facts.run
    if store is None or store.free_bytes is None or estimates.checkpoint_bytes is None:
        return
    most = case.config.preflight.keep_checkpoints
    more = estimates.num_checkpoints
    if most is not None:
        # One more than are kept stands while it is written.
        more = min(more, max(most + 1 - (0 if run is None else run.num_checkpoints), 1))
    needed = more * estimates.checkpoint_bytes
    if needed <= store.free_bytes:
        return
    yield finding(
        "checkpoint-space",
        "stop",
        saw=f"{more} more checkpoints of about {in_bytes(estimates.checkpoint_bytes)} need "
        f"{in_bytes(needed)} in {store.url}, {in_bytes(store.free_bytes)} are free",
        mend="save less often, use a larger store, or say in preflight.keep_checkpoints how many "
        "stand at once where others are deleted meanwhile",
    )


def storage_tier(case: Case) -> Iterator[Finding]:
    """Find storage classes that bill longer than checkpoints live, or that one zone can lose."""
    store, keep_days = case.facts.store, case.config.preflight.keep_days
    if store is None or store.storage_class is None:
        return
    least_days = case.numbers.get(f"days_{store.storage_class.lower()}", 0.0)
    if keep_days < least_days:
        yield finding(
            "storage-tier",
            "warn",
            saw=f"storage_class={store.storage_class} bills at least {least_days:.0f} days of each "
            f"object, and checkpoints are kept for {keep_days} (preflight.keep_days)",
            mend="leave storage_class out of the store's URL, or keep checkpoints longer",
        )
    if store.storage_class in ONE_ZONE:
        yield finding(
            "storage-tier",
            "warn",
            saw=f"storage_class={store.storage_class} keeps each checkpoint in one zone alone",
            mend="leave storage_class out of the store's URL, or use a class of several zones",
        )
