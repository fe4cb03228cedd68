"""Launching on a real Slurm of two nodes, with ranks that say what a test tells them to."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from strongroom.canonical import JsonObject
from strongroom.errors import (
    PreemptedError,
    RankLostError,
    TrainingError,
)
from strongroom.storage.store import Store, create_store
from strongroom.training.launching import slurm_job
from strongroom.training.launching.slurm import launch_on_slurm
from strongroom.training.launching.slurm_commands import (
    FORGOTTEN,
    Slurm,
)
from strongroom.training.launching.slurm_settings import SlurmSettings
from strongroom.training.launching.spec import Launch
from tests.support.scripted_slurm import (
    FINISHED,
    STARTED,
    STOPPED,
    hear,
    interruption,
    left_in,
)
from tests.support.slurm import SlurmCluster, cluster, slurm, slurm_of_session
from tests.support.slurm_stand_in import variables, write_stand_in

__all__ = ["cluster", "slurm", "slurm_of_session"]


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
