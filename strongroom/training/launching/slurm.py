"""Launch a training as a job of Slurm, and hand on what it reports through the store.

Order: jobs of the same run whose launcher died are stopped and waited for; a job is submitted under
the run's name; its events are followed until Slurm says that it has ended. Invariant: when
`launch_on_slurm` ends, by whatever end short of kill -9, its job has ended or is being killed.
Asked to stop, the ranks get SIGTERM and `grace_s` seconds to commit a last checkpoint; what they
report in that time is still handed on; then they are killed. Never imports torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import sleep

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.clock import now_utc
from strongroom.errors import ConfigError, PreemptedError, StorageError, TrainingError
from strongroom.storage.store import Store, open_store
from strongroom.training.launching.ending import Ending
from strongroom.training.launching.slurm_commands import CommandFailedError, Slurm
from strongroom.training.launching.slurm_job import Job, Patience, last_lines
from strongroom.training.launching.slurm_settings import (
    LOG_FILE,
    SOURCE,
    SlurmSettings,
    batch_script,
    checked,
    job_name,
    sbatch_options,
)
from strongroom.training.launching.spec import Launch
from strongroom.training.launching.store_events import (
    LAST_WORDS,
    LaunchId,
    StoreEvents,
    discard_old_launches,
    launch_folder,
)
from strongroom.training.launching.torchrun import stop_signal
from strongroom.training.reporting import ReportKind

FORMAT = "strongroom.launch/1"

logger = logging.getLogger(__name__)


def launch_on_slurm(
    spec: Launch,
    cluster: SlurmSettings,
    *,
    tell: Callable[[str], object] = logger.info,
    slurm: Slurm | None = None,
) -> Generator[JsonObject, None, None]:
    """Submit the training and yield its events (see `reporting`) until its job has ended.

    An exception that is raised in here, such as KeyboardInterrupt or Dagster's interruption, stops
    the training as described above and is raised again at the end. SIGTERM stops it too where the
    process has no handler of its own for it. Close the generator if you leave it early.

    Args:
        spec: what to launch.
        cluster: how.
        tell: is told in words where the job has come to: that it was submitted, why it waits, where
            it runs.
        slurm: the cluster's commands.

    Raises:
        ConfigError: the settings are wrong, or do not fit the run.
        PreemptedError: the training was stopped, and its newest state is committed.
        StrongroomError: what the training failed with, of the same class.
        RankLostError: a rank or its node died and could not say why.
        TrainingError: its job was refused, ended without a word, or did not stop in time.
    """
    checked(cluster, spec)
    _check_passed(cluster)
    slurm = slurm or Slurm()
    store = open_store(spec.store_url)
    plan = _Plan(spec=spec, cluster=cluster, store=store, launch=LaunchId.new())
    with stop_signal() as is_stop_asked:
        _end_older(slurm, plan)
        if is_stop_asked():
            raise PreemptedError(f"run {spec.run}: stopped as asked, before its first step")
        _discard_abandoned(plan)
        events = StoreEvents(store.storage, spec.run, plan.launch)
        try:
            _announce(plan)
            job = _submit(slurm, plan)
        except BaseException:
            events.clear()
            raise
        training = _Training(plan, job, events, tell)
        told: list[JsonObject] = []
        try:
            for event in training.follow(is_stop_asked):
                if event["kind"] != ReportKind.STEP:
                    told.append(event)
                yield event
        finally:
            training.end()
        training.conclude(told)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """One launch, before there is a job."""

    spec: Launch
    cluster: SlurmSettings
    store: Store
    launch: LaunchId

    @property
    def job_name(self) -> str:
        return job_name(self.spec.run, self.store.store_id)

    @property
    def folder(self) -> Path:
        return self.cluster.shared_folder / self.job_name / str(self.launch)

    @property
    def log(self) -> Path:
        return self.folder / LOG_FILE

    def job(self, slurm: Slurm, job_id: str) -> Job:
        """Return a job of this run to look after."""
        return Job(
            slurm,
            job_id,
            grace_s=self.spec.grace_s,
            poll_s=self.cluster.job_poll_s,
            patience=Patience(self.cluster.unreachable_s),
        )


class _Training:
    """A job, and what is heard of the training in it."""

    def __init__(
        self, plan: _Plan, job: Job, events: StoreEvents, tell: Callable[[str], object]
    ) -> None:
        self._plan = plan
        self._job = job
        self._events = events
        self._tell = tell
        self._poll_s = plan.cluster.poll_s
        self._patience = Patience(plan.cluster.unreachable_s)
        self._told = ""

    def follow(self, is_stop_asked: Callable[[], bool]) -> Iterator[JsonObject]:
        """Yield events until the job has ended; raise again what interrupted this."""
        interruption: BaseException | None = None
        has_ended = False
        while not has_ended:
            events: list[JsonObject] = []
            try:
                if is_stop_asked():
                    self._job.stop()
                self._job.attend()
                self._tell_state()
                # Looked at before reading: what was said before the end is not missed.
                job_has_ended = self._job.has_ended
                with self._patience.with_silence():
                    events = self._events.read()
                    has_ended = job_has_ended
                if any(event["kind"] in LAST_WORDS for event in events):
                    self._job.expect_end()
                if not events and not has_ended:
                    sleep(self._poll_s)
            except BaseException as error:
                if interruption is not None:
                    self._job.stop_now()  # asked twice: no more grace
                    raise
                interruption = error
                self._job.stop()
            yield from events
        if interruption is not None:
            raise interruption

    def end(self) -> None:
        """Return when the job has ended; one that was not asked to stop yet is asked now."""
        self._job.stop()
        try:
            while not self._job.has_ended:
                self._job.attend()
                if not self._job.has_ended:
                    sleep(self._poll_s)
        except BaseException:
            self._job.kill()
            raise
        self._events.clear()

    def conclude(self, told: list[JsonObject]) -> None:
        """Raise what the training ended with, if it did not finish."""
        run, job = self._plan.spec.run, self._job
        logger.info("job ended: run=%s job=%s %s", run, job.job_id, job.state)
        log = self._plan.log
        ending = Ending(
            who=f"run {run}: job {job.job_id}",
            told=told,
            end=str(job.state),
            hint=lambda: f"its log is {log}{last_lines(log)}",
            grace_s=self._plan.spec.grace_s,
            was_asked=job.is_stopping,
            was_killed=job.was_killed,
            was_cancelled=job.state.was_cancelled,
            lost_a_rank=job.state.lost_a_rank,
        )
        ending.check()

    def _tell_state(self) -> None:
        """Tell where the job has come to, once."""
        state = self._job.state
        words = f"job {self._job.job_id} of Slurm: {state}; its log will be {self._plan.log}"
        if words != self._told and not state.has_ended and state.name != "COMPLETING":
            self._tell(words)
            self._told = words


def _check_passed(cluster: SlurmSettings) -> None:
    if missing := [name for name in cluster.pass_environment if name not in os.environ]:
        raise ConfigError(
            SOURCE,
            [f"pass_environment: {name} is not set where the launcher runs" for name in missing],
        )


def _end_older(slurm: Slurm, plan: _Plan) -> None:
    """Stop jobs of the run that are still there: their launcher is dead, or this one replaces it.

    The fence would keep them from committing, but not from taking the nodes.
    """
    run = plan.spec.run
    try:
        jobs = [plan.job(slurm, job_id) for job_id in slurm.find(plan.job_name)]
    except CommandFailedError as error:
        raise TrainingError(
            f"run {run}: Slurm cannot be asked whether an older job is still there: {error}"
        ) from error
    for job in jobs:
        logger.warning("an older job of this run is stopped first: run=%s job=%s", run, job.job_id)
        job.stop()
    while left := [job for job in jobs if not job.has_ended]:
        for job in left:
            job.attend()
        if not all(job.has_ended for job in left):
            sleep(plan.cluster.poll_s)


def _submit(slurm: Slurm, plan: _Plan) -> Job:
    options = sbatch_options(plan.cluster, plan.spec, name=plan.job_name, folder=plan.folder)
    plan.folder.mkdir(parents=True, mode=0o700)
    script = plan.folder / "job.sh"
    script.write_text(batch_script(plan.cluster, plan.spec, plan.launch), encoding="utf-8")
    try:
        job_id = slurm.submit(script, options)
    except BaseException:
        _kill_named(slurm, plan.job_name)  # it may be there all the same
        raise
    logger.info("job submitted: run=%s job=%s script=%s %s", plan.spec.run, job_id, script, options)
    return plan.job(slurm, job_id)


def _kill_named(slurm: Slurm, name: str) -> None:
    try:
        for job_id in slurm.find(name):
            slurm.kill(job_id)
    except CommandFailedError as error:
        logger.warning("the next launch stops what may have been submitted: %s: %s", name, error)


def _announce(plan: _Plan) -> None:
    """Make the launch's folder in the store, where its ranks look for one another."""
    document: JsonObject = {
        "format": FORMAT,
        "run": str(plan.spec.run),
        "launch": str(plan.launch),
        "job_name": plan.job_name,
        "began": now_utc(),
    }
    key = f"{launch_folder(plan.spec.run, plan.launch)}/launch.json"
    plan.store.storage.create(key, canonical.dumps(document))


def _discard_abandoned(plan: _Plan) -> None:
    """Clear away what launches left whose launcher died; a launch can do without that."""
    run = plan.spec.run
    try:
        discarded = discard_old_launches(plan.store.storage, run, now=datetime.now(UTC))
    except StorageError as error:
        logger.warning("news of old launches were not cleared away: %s", error)
        return
    if discarded:
        logger.info("old launches discarded: run=%s count=%d", run, len(discarded))
