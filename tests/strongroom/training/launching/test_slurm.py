"""Launching on Slurm: first on one that does what a script says, then on a real one."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from strongroom.canonical import JsonObject
from strongroom.errors import (
    ConfigError,
    NothingToResumeError,
    PreemptedError,
    RankLostError,
    StorageDeniedError,
    StoreUnreachableError,
    TrainingError,
)
from strongroom.names import RunKey
from strongroom.storage.store import Store, create_store
from strongroom.training.launching import slurm as launching
from strongroom.training.launching import slurm_commands, slurm_job
from strongroom.training.launching.restarts import is_accident
from strongroom.training.launching.slurm import launch_on_slurm
from strongroom.training.launching.slurm_commands import (
    FORGOTTEN,
    CommandFailedError,
    JobState,
    Slurm,
)
from strongroom.training.launching.slurm_settings import SlurmSettings, job_name
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.launching.store_events import (
    LaunchId,
    StoreEvents,
    launch_folder,
)
from strongroom.training.placement import Placement
from tests.support.slurm import SlurmCluster, cluster, slurm, slurm_of_session
from tests.support.slurm_stand_in import variables, write_stand_in

__all__ = ["cluster", "slurm", "slurm_of_session"]

RUN = RunKey("nightly-7")
STARTED = {"kind": "training.started", "run": "nightly-7", "attempt": 1, "world_size": 2}
STEP = {"kind": "training.step", "step": 1, "loss": 2.5}
STOPPED = {"kind": "training.stopped", "step": 5}
FINISHED = {"kind": "training.finished", "step": 9}
FAILED = {
    "kind": "training.failed",
    "rank": 0,
    "error": "NothingToResumeError",
    "exit_code": 62,
    "message": "run nightly-7: none can be used",
    "facts": {},
}
PENDING = JobState(name="PENDING", reason="Resources")
RUNNING = JobState(name="RUNNING", nodes="first,second")
COMPLETED = JobState(name="COMPLETED", exit_code="0:0")
WAIT_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return create_store(str(tmp_path / "store"))


@pytest.fixture
def spec(store: Store, tmp_path: Path) -> Launch:
    return Launch(
        store_url=store.url,
        run=RUN,
        keys=tmp_path / "keys",
        cache=tmp_path / "cache",
        settings=LaunchSettings(placement=Placement(strategy="fsdp2", world_size=2)),
        grace_s=30.0,
    )


@pytest.fixture
def quick(tmp_path: Path) -> SlurmSettings:
    """Settings for a cluster that is none."""
    return SlurmSettings(
        shared_folder=tmp_path / "shared", tasks_per_node=2, poll_s=0.01, job_poll_s=0.01
    )


def interruption(number: signal.Signals) -> Callable[[], None]:
    """Return what sends this process a signal soon, when it waits in `launch_on_slurm` again."""
    return threading.Timer(1.0, os.kill, (os.getpid(), number)).start


def hear(
    events: Generator[JsonObject, None, None],
    heard: list[JsonObject],
    then: Callable[[], None],
) -> None:
    """Listen, and do something when the training has started."""
    for event in events:
        heard.append(event)
        if event == STARTED:
            then()


# --- a cluster that does what a script says -------------------------------------------


@dataclass(eq=False)
class Scripted(Slurm):
    """Slurm, with one job of ours that behaves as told.

    Attributes:
        said: what rank 0 tells once the job runs.
        at_stop: what it tells when it is asked to stop, and ends; None: it does not hear.
        states: what the job goes through, one a question; the last one stays.
        silent: how many questions about the job are not answered.
        found: older jobs of the run, each with how it ends.
        calls: what was done to which job.
        at: what else happens at a call; once.
    """

    store: Store
    said: list[JsonObject] = field(default_factory=list)
    at_stop: list[JsonObject] | None = None
    states: list[JobState] = field(default_factory=lambda: [PENDING, RUNNING])
    silent: int = 0
    refuses: str | None = None
    dies: bool = True
    found: dict[str, JobState] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    at: dict[str, signal.Signals] = field(default_factory=dict)
    launch: LaunchId | None = None
    num_told: int = 0

    def submit(self, script: Path, options: list[str]) -> str:
        found = re.search(r"--launch-id (\S+)", script.read_text())
        assert found
        self.launch = LaunchId.parse(found[1])
        self.calls.append(("submit", "7"))
        if self.refuses is not None:
            self.found["8"] = RUNNING
            raise TrainingError(self.refuses)
        self._tell(self.said)
        assert options
        return "7"

    def interrupting(self, number: signal.Signals) -> Callable[[], None]:
        """Return what has this process get a signal when its launcher looks at the job next."""
        return lambda: self.at.update(state=number)

    def state(self, job_id: str) -> JobState:
        self._happen("state")
        if job_id in self.found:
            return self.found[job_id]
        if self.silent > 0:
            self.silent -= 1
            raise CommandFailedError("Unable to contact slurm controller (connect failure)")
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def find(self, name: str) -> list[str]:
        self.calls.append(("find", name))
        return [job_id for job_id, state in self.found.items() if not state.has_ended]

    def ask_to_stop(self, job_id: str) -> None:
        self.calls.append(("ask_to_stop", job_id))
        self._happen("ask_to_stop")
        if job_id in self.found:
            self.found[job_id] = JobState(name="FAILED", exit_code="75:0")
        elif self.at_stop is not None:
            self._tell(self.at_stop)
            self.states = [RUNNING, JobState(name="COMPLETING"), JobState(name="FAILED")]

    def kill(self, job_id: str) -> None:
        self.calls.append(("kill", job_id))
        self._happen("kill")
        if job_id in self.found:
            self.found[job_id] = JobState(name="CANCELLED")
        elif self.dies:
            self.states = [JobState(name="CANCELLED")]

    def done_to(self, job_id: str) -> list[str]:
        return [call for call, what in self.calls if what == job_id]

    def _happen(self, call: str) -> None:
        if call in self.at:
            os.kill(os.getpid(), self.at.pop(call))

    def _tell(self, events: list[JsonObject]) -> None:
        assert self.launch
        for event in events:
            self.num_told += 1
            key = f"{launch_folder(RUN, self.launch)}/events/00000-{self.num_told:08d}.jsonl"
            self.store.storage.create(key, json.dumps(event).encode())


def left_in(store: Store) -> list[str]:
    return [info.key for info in store.storage.walk("launches")]


def test_events_are_handed_on_until_the_job_has_ended(
    store: Store, spec: Launch, quick: SlurmSettings
) -> None:
    states = [PENDING, PENDING, RUNNING, RUNNING, JobState(name="COMPLETING"), COMPLETED]
    scripted = Scripted(store, said=[STARTED, STEP, FINISHED], states=states)
    words: list[str] = []
    events = list(launch_on_slurm(spec, quick, tell=words.append, slurm=scripted))
    assert events == [STARTED, STEP, FINISHED]
    log = next(quick.shared_folder.glob("*/*")) / "log.txt"
    assert words == [
        f"job 7 of Slurm: PENDING (reason Resources); its log will be {log}",
        f"job 7 of Slurm: RUNNING (nodes first,second); its log will be {log}",
    ]
    assert scripted.done_to("7") == ["submit"]
    assert left_in(store) == []


@pytest.mark.timeout(60)
def test_slurm_is_rarely_asked_but_at_once_when_the_end_is_near(
    store: Store, spec: Launch, quick: SlurmSettings
) -> None:
    rarely = replace(quick, job_poll_s=3600.0)
    scripted = Scripted(store, [STARTED, FINISHED], states=[RUNNING, COMPLETED])
    assert list(launch_on_slurm(spec, rarely, slurm=scripted)) == [STARTED, FINISHED]
    scripted = Scripted(store, [STARTED], at_stop=[STOPPED], states=[RUNNING])
    with closing(launch_on_slurm(spec, rarely, slurm=scripted)) as events:
        assert next(events) == STARTED


def test_a_failure_arrives_as_the_error_it_was(
    store: Store, spec: Launch, quick: SlurmSettings
) -> None:
    states = [RUNNING, JobState(name="FAILED", exit_code="62:0")]
    with pytest.raises(NothingToResumeError, match="none can be used"):
        list(launch_on_slurm(spec, quick, slurm=Scripted(store, [STARTED, FAILED], states=states)))
    assert left_in(store) == []


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ("COMPLETED 0:0", TrainingError),
        ("FAILED 3:0", TrainingError),  # the setup, or the interpreter: the same again
        ("TIMEOUT 0:15", TrainingError),
        ("CANCELLED 0:15", TrainingError),
        ("FAILED 137:0", RankLostError),
        ("FAILED 0:9", RankLostError),
        ("NODE_FAIL 0:0", RankLostError),
        ("OUT_OF_MEMORY 0:125", RankLostError),
    ],
)
def test_an_end_without_a_word_is_an_error_that_names_slurms_state_and_the_log(
    store: Store, spec: Launch, quick: SlurmSettings, end: str, kind: type[TrainingError]
) -> None:
    state, exit_code = end.split()
    states = [RUNNING, JobState(name=state, exit_code=exit_code)]
    scripted = Scripted(store, [STARTED], states=states)
    said = rf"{state} \(exit code {exit_code}\); its log is /.*log\.txt"
    with pytest.raises(TrainingError, match=said) as caught:
        list(launch_on_slurm(spec, quick, slurm=scripted))
    assert type(caught.value) is kind


def test_what_others_say_of_a_rank_that_was_killed_is_not_the_cause(
    store: Store, spec: Launch, quick: SlurmSettings
) -> None:
    peer = {**FAILED, "rank": 1, "error": "RuntimeError", "message": "Connection closed by peer"}
    for failures, kind in (([peer], RankLostError), ([peer, FAILED], NothingToResumeError)):
        states = [RUNNING, JobState(name="FAILED", exit_code="137:0")]
        with pytest.raises(kind):
            list(launch_on_slurm(spec, quick, slurm=Scripted(store, failures, states=states)))
    states = [RUNNING, JobState(name="FAILED", exit_code="60:0")]
    with pytest.raises(TrainingError, match="Connection closed by peer"):
        list(launch_on_slurm(spec, quick, slurm=Scripted(store, [peer], states=states)))


@pytest.mark.parametrize("error", ["SaveError", "HungError", "RuntimeError"])
def test_what_was_cancelled_and_failed_of_it_is_no_accident_to_be_started_again(
    store: Store, spec: Launch, quick: SlurmSettings, error: str
) -> None:
    failed = {**FAILED, "error": error, "message": "the newest state was not committed"}
    states = [RUNNING, JobState(name="CANCELLED", exit_code="137:0")]
    with pytest.raises(TrainingError, match=r"CANCELLED|was asked to stop, and failed") as caught:
        list(launch_on_slurm(spec, quick, slurm=Scripted(store, [STARTED, failed], states=states)))
    assert not is_accident(caught.value)


def test_a_job_that_slurm_forgot_has_ended(
    store: Store, spec: Launch, quick: SlurmSettings
) -> None:
    with pytest.raises(TrainingError, match="FORGOTTEN"):
        list(launch_on_slurm(spec, quick, slurm=Scripted(store, [STARTED], states=[FORGOTTEN])))
    scripted = Scripted(store, [STARTED, FINISHED], states=[FORGOTTEN])
    assert list(launch_on_slurm(spec, quick, slurm=scripted)) == [STARTED, FINISHED]


@pytest.mark.parametrize("state", ["CANCELLED", "PREEMPTED"])
def test_cancelled_before_it_began_is_not_a_failure(
    store: Store, spec: Launch, quick: SlurmSettings, state: str
) -> None:
    states = [PENDING, JobState(name=state)]
    with pytest.raises(PreemptedError, match="before its first step"):
        list(launch_on_slurm(spec, quick, slurm=Scripted(store, states=states)))
    with pytest.raises(TrainingError, match="no rank said why"):
        list(launch_on_slurm(spec, quick, slurm=Scripted(store, [STARTED], states=states)))


def test_what_is_stopped_from_elsewhere_ends_as_stopped(
    store: Store, spec: Launch, quick: SlurmSettings
) -> None:
    states = [RUNNING, JobState(name="CANCELLED", exit_code="75:0")]
    scripted = Scripted(store, [STARTED, STOPPED], states=states)
    with pytest.raises(PreemptedError, match="step 5 is committed"):
        list(launch_on_slurm(spec, quick, slurm=scripted))


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, PreemptedError), (signal.SIGINT, KeyboardInterrupt)]
)
def test_asked_to_stop_its_last_words_are_heard(
    store: Store,
    spec: Launch,
    quick: SlurmSettings,
    number: signal.Signals,
    error: type[BaseException],
) -> None:
    scripted = Scripted(store, [STARTED], at_stop=[STOPPED])
    heard: list[JsonObject] = []
    with pytest.raises(error):
        hear(launch_on_slurm(spec, quick, slurm=scripted), heard, scripted.interrupting(number))
    assert heard == [STARTED, STOPPED]
    assert scripted.done_to("7") == ["submit", "ask_to_stop"]
    assert left_in(store) == []


def test_asked_to_stop_before_it_began_is_not_a_failure(
    store: Store, spec: Launch, quick: SlurmSettings
) -> None:
    scripted = Scripted(store, at_stop=[], at={"state": signal.SIGTERM})
    with pytest.raises(PreemptedError, match=r"before its first step: FAILED"):
        list(launch_on_slurm(spec, quick, slurm=scripted))


def test_asked_to_stop_a_failure_is_no_accident_to_be_started_again(
    store: Store, spec: Launch, quick: SlurmSettings
) -> None:
    failed = {**FAILED, "error": "SaveError", "message": "a peer was gone"}
    scripted = Scripted(store, [STARTED], at_stop=[failed])
    launched = launch_on_slurm(spec, quick, slurm=scripted)
    with pytest.raises(TrainingError, match=r"asked to stop, and failed .*: a peer") as caught:
        hear(launched, [], scripted.interrupting(signal.SIGTERM))
    assert not is_accident(caught.value)


def test_what_does_not_stop_in_time_is_asked_again_and_then_killed(
    store: Store, spec: Launch, quick: SlurmSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_job, "KILL_MARGIN_S", 0.1)
    monkeypatch.setattr(slurm_job, "REPEAT_S", 0.05)
    scripted = Scripted(store, [STARTED])
    with pytest.raises(TrainingError, match=r"did not stop within 0.2 s of SIGTERM and was killed"):
        hear(
            launch_on_slurm(replace(spec, grace_s=0.2), quick, slurm=scripted),
            [],
            interruption(signal.SIGTERM),
        )
    assert scripted.done_to("7")[:3] == ["submit", "ask_to_stop", "ask_to_stop"]
    assert scripted.done_to("7")[-2:] == ["ask_to_stop", "kill"]


def test_it_is_killed_when_its_grace_is_over_and_not_at_the_next_request(
    store: Store, spec: Launch, quick: SlurmSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_job, "KILL_MARGIN_S", 0.1)
    scripted = Scripted(store, [STARTED])
    launched = launch_on_slurm(replace(spec, grace_s=0.1), quick, slurm=scripted)
    with pytest.raises(TrainingError, match="and was killed"):
        hear(launched, [], scripted.interrupting(signal.SIGTERM))
    assert scripted.done_to("7") == ["submit", "ask_to_stop", "kill"]


def test_a_second_interruption_gives_no_more_grace(
    store: Store, spec: Launch, quick: SlurmSettings
) -> None:
    scripted = Scripted(store, [STARTED], at={"ask_to_stop": signal.SIGINT})
    heard: list[JsonObject] = []
    with pytest.raises(KeyboardInterrupt):
        hear(
            launch_on_slurm(spec, quick, slurm=scripted),
            heard,
            scripted.interrupting(signal.SIGINT),
        )
    assert scripted.done_to("7") == ["submit", "ask_to_stop", "kill"]


def test_a_third_interruption_does_not_wait_for_the_end(
    store: Store, spec: Launch, quick: SlurmSettings
) -> None:
    at = {"ask_to_stop": signal.SIGINT, "kill": signal.SIGINT}
    scripted = Scripted(store, [STARTED], dies=False, at=at)
    with pytest.raises(KeyboardInterrupt):
        hear(launch_on_slurm(spec, quick, slurm=scripted), [], scripted.interrupting(signal.SIGINT))
    assert scripted.done_to("7") == ["submit", "ask_to_stop", "kill", "kill"]


def test_a_job_that_cannot_be_killed_is_an_error(
    store: Store, spec: Launch, quick: SlurmSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KILL_MARGIN_S", "REPEAT_S", "END_TIMEOUT_S"):
        monkeypatch.setattr(slurm_job, name, 0.05)
    scripted = Scripted(store, [STARTED], dies=False)
    with pytest.raises(TrainingError, match=r"job 7: killed .* ago and still RUNNING"):
        hear(
            launch_on_slurm(replace(spec, grace_s=0.1), quick, slurm=scripted),
            [],
            interruption(signal.SIGTERM),
        )


def test_leaving_early_stops_the_job(store: Store, spec: Launch, quick: SlurmSettings) -> None:
    scripted = Scripted(store, [STARTED], at_stop=[STOPPED])
    with closing(launch_on_slurm(spec, quick, slurm=scripted)) as events:
        assert next(events) == STARTED
    assert scripted.done_to("7") == ["submit", "ask_to_stop"]
    assert scripted.states == [JobState(name="FAILED")]
    assert left_in(store) == []


def test_a_silent_controller_is_borne_with(
    store: Store, spec: Launch, quick: SlurmSettings, caplog: pytest.LogCaptureFixture
) -> None:
    states = [RUNNING, COMPLETED]
    scripted = Scripted(store, [STARTED, FINISHED], states=states, silent=20)
    assert list(launch_on_slurm(spec, quick, slurm=scripted)) == [STARTED, FINISHED]
    assert caplog.text.count("Unable to contact slurm controller") == 1


def test_but_not_for_ever(store: Store, spec: Launch, quick: SlurmSettings) -> None:
    scripted = Scripted(store, [STARTED], silent=1000)
    with pytest.raises(TrainingError, match=r"no answer for 0.1 s: Unable to contact"):
        list(launch_on_slurm(spec, replace(quick, unreachable_s=0.1), slurm=scripted))
    assert "kill" in scripted.done_to("7")


class Unreadable(StoreEvents):
    """Events of a store that answers only from the `LEFT`th time on."""

    LEFT = 5
    ERROR: StoreUnreachableError | StorageDeniedError = StoreUnreachableError("nobody there")

    def read(self) -> list[JsonObject]:
        if self.LEFT:
            self.LEFT -= 1
            raise self.ERROR
        return super().read()


def test_a_silent_store_is_borne_with_and_the_end_is_not_missed(
    store: Store, spec: Launch, quick: SlurmSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "StoreEvents", Unreadable)
    scripted = Scripted(store, [STARTED, FINISHED], states=[COMPLETED])
    assert list(launch_on_slurm(spec, quick, slurm=scripted)) == [STARTED, FINISHED]


def test_a_store_that_refuses_is_an_error_and_the_job_is_stopped(
    store: Store, spec: Launch, quick: SlurmSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unreadable, "ERROR", StorageDeniedError("no right to list"))
    monkeypatch.setattr(Unreadable, "LEFT", 1)
    monkeypatch.setattr(launching, "StoreEvents", Unreadable)
    scripted = Scripted(store, [STARTED], at_stop=[STOPPED])
    with pytest.raises(StorageDeniedError, match="no right to list"):
        list(launch_on_slurm(spec, quick, slurm=scripted))
    assert scripted.done_to("7") == ["submit", "ask_to_stop"]


def test_a_store_that_stays_silent_ends_the_launch_and_the_job_has_its_grace(
    store: Store, spec: Launch, quick: SlurmSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unreadable, "LEFT", 10**9)
    monkeypatch.setattr(launching, "StoreEvents", Unreadable)
    scripted = Scripted(store, [STARTED], at_stop=[STOPPED])
    with pytest.raises(TrainingError, match=r"no answer for 0.3 s: nobody there"):
        list(launch_on_slurm(spec, replace(quick, unreachable_s=0.3), slurm=scripted))
    assert scripted.done_to("7") == ["submit", "ask_to_stop"]


def test_older_jobs_of_the_run_are_stopped_first(
    store: Store, spec: Launch, quick: SlurmSettings, caplog: pytest.LogCaptureFixture
) -> None:
    scripted = Scripted(store, [STARTED, FINISHED], states=[COMPLETED])
    scripted.found = {"3": RUNNING, "4": JobState(name="COMPLETING")}
    list(launch_on_slurm(spec, quick, slurm=scripted))
    name = job_name(RUN, store.store_id)
    assert scripted.calls[:3] == [("find", name), ("ask_to_stop", "3"), ("ask_to_stop", "4")]
    assert scripted.calls.index(("submit", "7")) == 3
    assert "an older job of this run is stopped first: run=nightly-7 job=3" in caplog.text


def test_what_was_submitted_though_it_seemed_refused_is_killed(
    store: Store, spec: Launch, quick: SlurmSettings
) -> None:
    scripted = Scripted(store, refuses="sbatch did not answer")
    with pytest.raises(TrainingError, match="sbatch did not answer"):
        list(launch_on_slurm(spec, quick, slurm=scripted))
    assert scripted.done_to("8") == ["kill"]
    assert left_in(store) == []


def test_old_launches_are_cleared_away(store: Store, spec: Launch, quick: SlurmSettings) -> None:
    store.storage.create("launches/nightly-7/20200131T081500Z-0123abcd/launch.json", b"{}")
    store.storage.create("launches/other/20200131T081500Z-0123abcd/launch.json", b"{}")
    list(launch_on_slurm(spec, quick, slurm=Scripted(store, [FINISHED], states=[COMPLETED])))
    assert left_in(store) == ["launches/other/20200131T081500Z-0123abcd/launch.json"]


def test_nothing_is_submitted_with_settings_that_cannot_work(
    store: Store, spec: Launch, quick: SlurmSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = Scripted(store)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    for wrong, fault in (
        (replace(quick, python="python3"), "absolute path"),
        (replace(quick, pass_environment=("AWS_PROFILE",)), "AWS_PROFILE is not set"),
    ):
        with pytest.raises(ConfigError, match=fault):
            list(launch_on_slurm(spec, wrong, slurm=scripted))
    assert scripted.calls == []


def test_without_slurms_commands_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="sbatch, scancel, scontrol, squeue: no such command"):
        Slurm()


def test_slurms_own_variables_are_no_options_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "x")
    monkeypatch.setenv("SQUEUE_FORMAT", "x")
    monkeypatch.setenv("SLURM_CONF", "here")
    monkeypatch.setenv("AWS_PROFILE", "x")
    kept = slurm_commands._environment()
    assert {"SLURM_CONF", "AWS_PROFILE"} <= set(kept)
    assert not {"SBATCH_PARTITION", "SQUEUE_FORMAT"} & set(kept)


# --- its commands ---------------------------------------------------------------------


def test_states_are_read_as_slurm_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "JobId=2 JobName=try UserId=root(0) JobState=CANCELLED Reason=None Dependency=(null) "
        "ExitCode=75:0 Command=/x JobState=FAKE NodeList=vm Comment=ExitCode=1:1\n"
    )
    monkeypatch.setattr(slurm_commands, "_run", lambda *_: said)
    monkeypatch.setattr(Slurm, "__init__", lambda _self: None)
    assert Slurm().state("2") == JobState(
        name="CANCELLED", reason=None, exit_code="75:0", nodes="vm"
    )
    assert str(Slurm().state("2")) == "CANCELLED (exit code 75:0, nodes vm)"
    assert str(JobState(name="PENDING")) == "PENDING"


def test_what_is_no_answer_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_commands, "_run", lambda *_: "something else")
    monkeypatch.setattr(Slurm, "__init__", lambda _self: None)
    with pytest.raises(CommandFailedError, match="expected JobState, got 'something else'"):
        Slurm().state("2")


def test_a_command_that_never_answers_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in slurm_commands.COMMANDS:
        (tmp_path / name).write_text("#!/bin/bash\nsleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_commands, "TIMEOUT_S", 0.1)
    with pytest.raises(CommandFailedError, match=r"squeue did not answer in 0.1 s"):
        Slurm().find("x")
    with pytest.raises(CommandFailedError, match=r"scontrol did not answer"):
        Slurm().state("1")
    Slurm().kill("1")  # only its state tells whether that worked


# --- a real one -----------------------------------------------------------------------

real = pytest.mark.slurm


@pytest.fixture
def stand_in(cluster: SlurmSettings, tmp_path: Path) -> Callable[..., SlurmSettings]:
    """Settings by which the ranks are stand-ins that say what a test tells them to."""
    program = write_stand_in(tmp_path)

    def make(
        said: list[JsonObject],
        *,
        at_stop: list[JsonObject] | None = None,
        code: int | None = None,
        **more: str,
    ) -> SlurmSettings:
        environment = {**cluster.environment, **variables(said, at_stop=at_stop, code=code), **more}
        return replace(cluster, python=str(program), environment=environment)

    return make


StandIn = Callable[..., SlurmSettings]


@real
def test_a_job_of_two_ranks_on_two_nodes(
    slurm: SlurmCluster,
    store: Store,
    spec: Launch,
    stand_in: StandIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "hush-hush")
    monkeypatch.setenv("NOT_PASSED", "at home")
    settings = stand_in([STARTED, FINISHED], code=0, TELL_ALL="1")
    settings = replace(settings, pass_environment=("PATH", "AWS_PROFILE"))
    events = list(launch_on_slurm(spec, settings))
    assert [event for event in events if event["kind"] != "about"] == [STARTED, FINISHED]
    abouts = sorted((e for e in events if e["kind"] == "about"), key=lambda e: str(e["RANK"]))
    assert [(a["RANK"], a["WORLD_SIZE"], a["LOCAL_RANK"]) for a in abouts] == [
        ("0", "2", "0"),
        ("1", "2", "0"),
    ]
    assert [about["environment"]["SLURMD_NODENAME"] for about in abouts] == ["first", "second"]
    for about in abouts:
        assert about["environment"]["OMP_NUM_THREADS"] == "1"
        assert about["environment"]["AWS_PROFILE"] == "hush-hush"
        assert "NOT_PASSED" not in about["environment"]
    (script,) = settings.shared_folder.glob("*/*/job.sh")
    assert "hush-hush" not in script.read_text()
    assert slurm.jobs() == []
    assert left_in(store) == []


@real
@pytest.mark.usefixtures("slurm")
def test_events_come_through_a_bucket(spec: Launch, stand_in: StandIn, s3_url: str) -> None:
    store = create_store(s3_url)
    credentials = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    settings = stand_in([STARTED, FINISHED], code=0)
    settings = replace(settings, pass_environment=("PATH", *credentials))
    events = list(launch_on_slurm(replace(spec, store_url=store.url), settings))
    assert events == [STARTED, FINISHED]
    assert left_in(store) == []


@real
def test_scancel_reaches_the_ranks(slurm: SlurmCluster, spec: Launch, stand_in: StandIn) -> None:
    heard: list[JsonObject] = []
    jobs: list[str] = []

    def cancel() -> None:
        jobs.extend(slurm.jobs())
        slurm.run("scancel", *jobs)

    with pytest.raises(PreemptedError, match="step 5 is committed"):
        hear(launch_on_slurm(spec, stand_in([STARTED], at_stop=[STOPPED])), heard, cancel)
    assert heard == [STARTED, STOPPED]
    said = slurm.run("scontrol", "show", "job", *jobs)
    assert "JobState=CANCELLED" in said
    assert "ExitCode=75:0" in said


@real
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, PreemptedError), (signal.SIGINT, KeyboardInterrupt)]
)
def test_the_launcher_s_stop_reaches_the_ranks(
    slurm: SlurmCluster,
    spec: Launch,
    stand_in: StandIn,
    number: signal.Signals,
    error: type[BaseException],
) -> None:
    heard: list[JsonObject] = []
    words: list[str] = []
    settings = stand_in([STARTED], at_stop=[STOPPED])
    with pytest.raises(error):
        hear(launch_on_slurm(spec, settings, tell=words.append), heard, interruption(number))
    assert heard == [STARTED, STOPPED]
    said = slurm.run("scontrol", "show", "job", words[0].split()[1])
    assert "JobState=FAILED" in said, "it was the ranks that ended, not Slurm that ended them"
    assert "ExitCode=75:0" in said


@real
def test_a_job_that_does_not_stop_is_killed_without_slurms_own_grace(
    slurm: SlurmCluster, spec: Launch, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_job, "KILL_MARGIN_S", 0.0)
    monkeypatch.setattr(slurm_job, "REPEAT_S", 1.0)
    with pytest.raises(TrainingError, match="and was killed"):
        hear(
            launch_on_slurm(replace(spec, grace_s=0.5), stand_in([STARTED])),
            [],
            interruption(signal.SIGTERM),
        )
    assert slurm.jobs() == []


@real
def test_a_job_that_waits_is_cancelled(
    slurm: SlurmCluster, spec: Launch, stand_in: StandIn
) -> None:
    settings = replace(stand_in([STARTED]), extra_options=("--begin=now+1hour",))
    words: list[str] = []
    interrupt = interruption(signal.SIGTERM)

    def tell(said: str) -> None:
        words.append(said)
        if "BeginTime" in said:
            interrupt()

    with pytest.raises(PreemptedError, match=r"before its first step: CANCELLED"):
        list(launch_on_slurm(spec, settings, tell=tell))
    assert "RUNNING" not in " ".join(words)
    assert slurm.jobs() == []


@real
@pytest.mark.usefixtures("slurm")
def test_slurm_knows_nothing_of_a_job_that_never_was() -> None:
    assert Slurm().state("999999") == FORGOTTEN
    assert Slurm().find("no-such-name") == []
    Slurm().ask_to_stop("999999")
    Slurm().kill("999999")


@real
@pytest.mark.usefixtures("slurm")
def test_a_setup_that_fails_is_told_with_the_end_of_the_log(
    spec: Launch, stand_in: StandIn
) -> None:
    settings = replace(stand_in([STARTED]), setup=("echo no such module >&2", "exit 3"))
    with pytest.raises(TrainingError, match=r"(?s)FAILED .*exit code 3:0.*\n  no such module\n"):
        list(launch_on_slurm(spec, settings))


@real
@pytest.mark.usefixtures("slurm")
def test_a_rank_that_was_killed_is_a_lost_rank(spec: Launch, stand_in: StandIn) -> None:
    with pytest.raises(RankLostError, match=r"FAILED .*exit code 137:0"):
        list(launch_on_slurm(spec, stand_in([STARTED], code=-signal.SIGKILL)))


@real
@pytest.mark.usefixtures("slurm")
def test_what_slurm_refuses_is_told_in_its_words(spec: Launch, stand_in: StandIn) -> None:
    settings = replace(stand_in([STARTED]), partition="nowhere")
    with pytest.raises(TrainingError, match="Invalid partition name specified"):
        list(launch_on_slurm(spec, settings))


@real
def test_the_job_of_a_launcher_that_died_is_stopped_by_the_next(
    slurm: SlurmCluster, spec: Launch, stand_in: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    dead = launch_on_slurm(spec, stand_in([STARTED], at_stop=[STOPPED]))
    assert next(dead) == STARTED
    (job,) = slurm.jobs()
    other = slurm.run(
        *("sbatch", "--parsable", "--hold", "--output=/dev/null"),
        *("--job-name=strongroom-nightly-7", "--wrap", "true"),
    ).strip()
    heard = list(launch_on_slurm(spec, stand_in([STARTED, FINISHED], code=0)))
    assert heard == [STARTED, FINISHED]
    assert f"an older job of this run is stopped first: run=nightly-7 job={job}" in caplog.text
    assert slurm.jobs() == [other], "what is not of this run is left alone"
    slurm.run("scancel", other)
    # Where the launcher was only slow, it learns that its training was stopped in good order.
    with pytest.raises(PreemptedError, match="step 5 is committed"):
        list(dead)
