"""Launching on a Slurm that does what a script says."""

from __future__ import annotations

import signal
from contextlib import closing
from dataclasses import replace

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
from strongroom.storage.store import Store
from strongroom.training.launching import slurm as launching
from strongroom.training.launching import slurm_job
from strongroom.training.launching.restarts import is_accident
from strongroom.training.launching.slurm import launch_on_slurm
from strongroom.training.launching.slurm_commands import (
    FORGOTTEN,
    JobState,
)
from strongroom.training.launching.slurm_settings import SlurmSettings, job_name
from strongroom.training.launching.spec import Launch
from strongroom.training.launching.store_events import (
    StoreEvents,
)
from tests.support.scripted_slurm import (
    COMPLETED,
    FAILED,
    FINISHED,
    PENDING,
    RUN,
    RUNNING,
    STARTED,
    STEP,
    STOPPED,
    Scripted,
    hear,
    interruption,
    left_in,
)


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
