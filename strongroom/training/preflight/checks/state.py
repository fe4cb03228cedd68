"""Checks of what the run's own checkpoints hold, and of what was ever proved of them.

A checkpoint that lacks something is passed over at a resume; where an older one is whole the run
goes on from there, and the finding is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strongroom.training.preflight.facts import RunFacts, SavedCheckpoint
from strongroom.training.preflight.findings import Case, Finding, Severity, finding


def verification_off(case: Case) -> Iterator[Finding]:
    """Find runs of whose newest checkpoints none was ever verified."""
    run, most = case.facts.run, int(case.numbers["unverified_checkpoints"])
    if run is None or len(run.checkpoints) < max(most, 1):
        return
    newest = run.checkpoints[:most]
    if any(saved.is_verified or saved.is_quarantined for saved in newest):
        return
    yield finding(
        "verification-off",
        "warn",
        saw=f"none of the {len(newest)} newest checkpoints of {run.key} has a verification record",
        mend=f"run `strongroom verify {run.key}@latest`, and let Dagster's automation run, which "
        "verifies each checkpoint as it is committed",
    )


def optimizer_left_out(case: Case) -> Iterator[Finding]:
    """Find checkpoints that lack optimizer state of what they hold."""
    run = case.facts.run
    if run is None:
        return
    lacking = [
        saved
        for saved in _usable(run)
        if not saved.has_whole_optimizer and not (saved == run.newest and saved.is_weights_only)
    ]
    if not lacking:
        return
    first = lacking[0]
    what = (
        f"optimizer state of {first.without_optimizer} of its {first.parameters} parameters"
        if first.without_optimizer
        else "the settings of the optimizer"
    )
    yield finding(
        "optimizer-left-out",
        _severity(run, lacking),
        saw=f"{first.name} lacks {what}{_and_more(lacking)}",
        mend=_mend(run, lacking),
    )


def data_state_left_out(case: Case) -> Iterator[Finding]:
    """Find checkpoints from which the order of the data cannot be taken up again."""
    run = case.facts.run
    if run is None:
        return
    lacking = [saved for saved in _usable(run) if saved.lacks]
    if not lacking:
        return
    yield finding(
        "data-state-left-out",
        _severity(run, lacking),
        saw=f"{lacking[0].name} lacks {', '.join(lacking[0].lacks)}{_and_more(lacking)}",
        mend=_mend(run, lacking),
    )


def resume_without_optimizer(case: Case) -> Iterator[Finding]:
    """Find trainings that take up weights and leave the optimizer behind."""
    run, model = case.facts.run, case.facts.model
    newest = None if run is None else run.newest
    if run is not None and newest is not None:
        if newest.parameters and newest.is_weights_only:
            yield finding(
                "resume-without-optimizer",
                _severity(run, [newest]),
                saw=f"{newest.name}, the newest to go on from, holds {newest.parameters} "
                "parameters and optimizer state of none",
                mend=_mend(run, [newest]),
            )
        return
    if model is not None and model.left_behind:
        yield finding(
            "resume-without-optimizer",
            "warn",
            saw=f"model.source {case.config.model.source} is a checkpoint of another training "
            f"({', '.join(model.left_behind)} beside the weights); its weights alone are taken",
            mend="go on with that training where it was begun; to start a new one from its weights "
            "on purpose, copy them into a folder without these files",
        )


def resharding_untested(case: Case) -> Iterator[Finding]:
    """Find runs that may need another number of ranks than any resume was tested with."""
    ranks, least = case.config.train.world_size, case.config.launch.min_world_size
    tested = case.numbers["reshard_tested_ranks"]
    is_wanted = ranks >= case.numbers["reshard_wanted_ranks"] or (
        least is not None and least < ranks
    )
    if ranks <= tested or not is_wanted:
        return
    seen = () if case.facts.run is None else case.facts.run.resharded
    if any(max(pair) >= ranks and len(set(pair)) > 1 for pair in seen):
        return
    largest = max((max(pair) for pair in seen), default=int(tested))
    yield finding(
        "resharding-untested",
        "warn",
        saw=f"the run has {ranks} ranks; going on with another number was tested with up to "
        f"{largest}",
        mend="rehearse it in this store: stop a short run of this configuration and go on with "
        f"fewer ranks than {ranks} (train.world_size); the store then shows that it was done",
    )


def _usable(run: RunFacts) -> list[SavedCheckpoint]:
    return [saved for saved in run.checkpoints if not saved.is_quarantined]


def _whole(run: RunFacts) -> SavedCheckpoint | None:
    return next((saved for saved in _usable(run) if saved.is_whole), None)


def _severity(run: RunFacts, lacking: Sequence[SavedCheckpoint]) -> Severity:
    if run.newest not in lacking or run.fresh_start or _whole(run) is not None:
        return "warn"
    return "stop"


def _mend(run: RunFacts, lacking: Sequence[SavedCheckpoint]) -> str:
    whole = _whole(run)
    if run.newest not in lacking:
        return "nothing can go on from there: keep the newer ones, and find out what wrote these"
    if whole is not None:
        return f"it is passed over, and the run goes on from {whole.name}; find out what wrote it"
    return "restore a whole one from a copy, or begin anew with --fresh-start"


def _and_more(lacking: Sequence[SavedCheckpoint]) -> str:
    others = ", ".join(saved.name for saved in lacking[1:])
    return f"; so do others: {others}" if others else ""
