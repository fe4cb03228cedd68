from __future__ import annotations

import getpass
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import gettempdir

import pytest

from strongroom.canonical import JsonObject
from strongroom.errors import ConfigError
from strongroom.training.tracking import following
from strongroom.training.tracking import wandb as tracking_wandb
from strongroom.training.tracking.base import Tracked, Tracker
from strongroom.training.tracking.config import TrackingConfig, WandbConfig
from strongroom.training.tracking.opening import open_trackers
from strongroom.training.tracking.wandb import mode_of
from tests.support.processes import free_port, start, tail
from tests.support.wandb_files import WandbRun, read_wandb, wandb_files
from tests.support.wandb_server import wandb_server

KEY = "0123456789abcdef0123456789abcdef01234567"
RUN = "nightly-7"
LONG_S = 60.0
ROOT = Path(__file__).parents[4]
SETTINGS = {"train": {"steps": 3}, "adapter": {"method": "lora"}}

PROGRAM = f"""
import json, os, signal, sys, time
from pathlib import Path
from strongroom.training.tracking.config import TrackingConfig, WandbConfig
from strongroom.training.tracking.opening import open_trackers
from strongroom.training.tracking import following, wandb as tracking_wandb

failures = []
tracker = open_trackers(TrackingConfig(wandb=WandbConfig(project="tests")),
    folder=Path(sys.argv[1]), run="{RUN}", attempt=1, step=0, settings={{}},
    on_failure=failures.append)

def step(number):
    tracker.tell({{"kind": "training.step", "step": number, "loss": 1.0}})

def say(*words):
    print(json.dumps(words), flush=True)
"""
"""The beginning of a training of its own process, which tells steps to W&B, offline."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    # What the tracker sets itself is taken back after the test, too.
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture
def failures() -> list[JsonObject]:
    return []


@pytest.fixture
def open_wandb(tmp_path: Path, failures: list[JsonObject]) -> Iterator[Callable[..., Tracker]]:
    """Open a tracker, and end it with the test in any case."""
    import wandb

    def opened(config: WandbConfig | None = None, *, attempt: int = 1, step: int = 0) -> Tracker:
        config = WandbConfig(project="tests", group="nightly") if config is None else config
        return open_trackers(
            TrackingConfig(wandb=config),
            folder=tmp_path,
            run=RUN,
            attempt=attempt,
            step=step,
            settings=SETTINGS,
            on_failure=failures.append,
        )

    yield opened
    wandb.teardown()
    assert cores() == []


def step_event(step: int, **fields: object) -> JsonObject:
    return {"kind": "training.step", "step": step, "loss": 10.0 - step, **fields}


def cores(parent: int | None = None) -> list[int]:
    """Return the pids of wandb-core processes that a process has started."""
    parent = os.getpid() if parent is None else parent
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = file.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has ended
            continue
        state, its_parent = rest.split()[:2]
        if name == "wandb-core" and int(its_parent) == parent and state != "Z":
            found.append(int(file.parent.name))
    return found


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or is dead and only waits to be noticed."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def wait_until(holds: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + LONG_S
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def only_run(folder: Path) -> WandbRun:
    [file] = wandb_files(folder)
    return read_wandb(file)


def rows(run: WandbRun) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k != "attempt"} for row in run.history]


def test_what_is_told_offline_is_in_the_file_to_be_synchronised(
    open_wandb: Callable[..., Tracker], tmp_path: Path, failures: list[JsonObject]
) -> None:
    tracker = open_wandb()
    tracker.tell({"kind": "training.started", "run": RUN, "attempt": 1})
    tracker.tell(step_event(1, mfu=None, tokens_per_s=1000.0))
    tracker.tell(step_event(2, mfu=0.5, tokens_per_s=2000.0))
    tracker.tell({"kind": "step.passed_over", "step": 3, "reason": "loss is nan"})
    tracker.tell({"kind": "training.finished", "step": 3})
    tracker.close()
    run = only_run(tmp_path)
    assert (run.run_id, run.project, run.group) == (RUN, "tests", "nightly")
    assert {name: run.config[name] for name in SETTINGS} == SETTINGS
    assert rows(run) == [
        {"step": 0, "events/training.started": f"run: {RUN}, attempt: 1"},
        {"step": 1, "train/loss": 9.0, "speed/tokens_per_s": 1000.0},
        {"step": 2, "train/loss": 8.0, "speed/tokens_per_s": 2000.0, "speed/mfu": 0.5},
        {"step": 3, "events/step.passed_over": "step: 3, reason: loss is nan"},
        {"step": 3, "events/training.finished": "step: 3"},
    ]
    assert run.step_metrics == {"*": "step"}
    assert run.exit_code == 0
    assert failures == []


@pytest.mark.parametrize("loss", [math.nan, "nan", "inf", "-inf"])
def test_what_is_not_finite_is_kept_as_such(
    open_wandb: Callable[..., Tracker], tmp_path: Path, failures: list[JsonObject], loss: object
) -> None:
    tracker = open_wandb()
    tracker.tell(step_event(1, grad_norm=1.0) | {"loss": loss})
    tracker.close()
    [row] = rows(only_run(tmp_path))
    kept = row["train/loss"]
    assert isinstance(kept, float | str)
    assert str(float(kept)) == str(loss)
    assert row["grad_norm" if "grad_norm" in row else "train/grad_norm"] == 1.0
    assert failures == []


def test_attempts_are_one_run_there_and_keep_their_number(
    open_wandb: Callable[..., Tracker], tmp_path: Path
) -> None:
    first = open_wandb(attempt=1)
    first.tell(step_event(1))
    first.tell({"kind": "training.stopped", "step": 1})
    first.close()
    second = open_wandb(attempt=2, step=1)
    second.tell({"kind": "training.started", "attempt": 2})
    second.tell(step_event(2))
    second.close()
    runs = [read_wandb(file) for file in wandb_files(tmp_path)]
    assert [run.run_id for run in runs] == [RUN, RUN]
    numbers = [[(row["step"], row["attempt"]) for row in run.history] for run in runs]
    assert sorted(numbers) == [[(1, 1), (1, 1)], [(1, 2), (2, 2)]]


def test_what_was_told_offline_can_be_synchronised_later(
    open_wandb: Callable[..., Tracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt, step in ((1, 0), (2, 2)):
        tracker = open_wandb(attempt=attempt, step=step)
        tracker.tell(step_event(step + 1))
        tracker.close()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        folders = [str(file.parent) for file in wandb_files(tmp_path)]
        command = [sys.executable, "-m", "wandb", "sync", *folders]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    # In the order of the attempts, the second as what goes on with the first.
    assert [(row["attempt"], row["step"]) for row in server.history] == [(1, 1), (2, 3)]
    assert server.asked.count("RunResumeStatus") == 2
    assert {upsert["name"] for upsert in server.upserts} == {RUN}


@pytest.mark.parametrize(
    ("last", "exit_code", "is_preempting"),
    [("training.finished", 0, False), ("training.stopped", 75, True), (None, 60, False)],
)
def test_the_run_ends_there_as_it_ends_here(
    open_wandb: Callable[..., Tracker],
    tmp_path: Path,
    last: str | None,
    exit_code: int,
    *,
    is_preempting: bool,
) -> None:
    tracker = open_wandb()
    if last is not None:
        tracker.tell({"kind": last, "step": 1})
    tracker.close()
    run = only_run(tmp_path)
    assert (run.exit_code, run.is_preempting) == (exit_code, is_preempting)


def test_nothing_of_the_key_or_the_machine_is_written(
    open_wandb: Callable[..., Tracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    tracker = open_wandb()
    print("a word to the console")  # noqa: T201 -- what must not be captured
    tracker.tell(step_event(1))
    tracker.close()
    files = [file for file in (tmp_path / "wandb").rglob("*") if file.is_file()]
    assert all(KEY not in file.read_text(errors="replace") for file in files)
    [data] = [file.read_bytes() for file in files if file.suffix == ".wandb"]
    private = (
        b"a word to the console",
        socket.gethostname().encode() + b"\x00",
        f"{getpass.getuser()}@".encode(),
        sys.argv[0].encode(),
        os.getcwd().encode(),  # noqa: PTH109 -- as it is
        b"torch==",
    )
    assert [word for word in private if word in data] == []
    assert not list((tmp_path / "wandb").rglob("wandb-metadata.json"))
    assert not list((tmp_path / "wandb").rglob("requirements.txt"))


def test_nothing_of_the_machine_is_asked_for_and_what_is_told_is_written_soon(
    tmp_path: Path,
) -> None:
    # Some of it would come only after a while, as the use of the processor does.
    tracked = Tracked(folder=tmp_path, run=RUN, attempt=1, step=0, settings={})
    tracker = tracking_wandb.Wandb(WandbConfig(project="tests"), tracked, mode="offline")
    settings = tracker._run.settings
    tracker.close()
    assert settings.x_disable_stats
    assert settings.x_disable_meta
    assert settings.x_disable_machine_info
    assert settings.disable_git
    assert settings.disable_code
    assert not settings.save_code
    assert settings.x_transaction_log_flush_interval == tracking_wandb.FLUSH_S <= 5.0
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"


def test_offline_no_connection_is_opened(tmp_path: Path) -> None:
    program = PROGRAM + (
        "say('open')\n"
        "for number in range(100): step(number); time.sleep(0.01)\n"
        "tracker.close()\n"
        "say(failures)\n"
    )
    seen: set[str] = set()
    core_was_there = False
    with socket.create_server(("127.0.0.1", 0)) as proxy:  # who connects stays connected
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        environment = {
            name: value for name, value in os.environ.items() if name.lower() != "no_proxy"
        }
        environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "https_proxy"), url)
        training = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "WANDB_API_KEY": KEY},
        )
        while training.poll() is None:
            for pid in [training.pid, *cores(training.pid)]:
                core_was_there |= pid != training.pid
                seen |= internet_sockets(pid)
        output, _ = training.communicate()
        proxy.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    assert output.splitlines() == ['["open"]', "[[]]"]
    assert core_was_there
    assert seen == set()


def internet_sockets(pid: int) -> set[str]:
    """Return the sockets that a process has open, but for those of its own machine's files."""
    process = Path(f"/proc/{pid}")
    found = set()
    try:
        inodes = {
            name[len("socket:[") : -1]
            for name in (str(file.readlink()) for file in (process / "fd").iterdir())
            if name.startswith("socket:[")
        }
        for protocol in ("tcp", "tcp6", "udp", "udp6"):
            for line in (process / "net" / protocol).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] in inodes:
                    found.add(f"{protocol} {fields[1]} {fields[2]}")
    except OSError:  # it has ended
        return set()
    return found


def test_wandb_core_ends_with_the_tracker(
    open_wandb: Callable[..., Tracker], failures: list[JsonObject]
) -> None:
    tracker = open_wandb()
    [core] = cores()
    tracker.close()
    assert has_ended(core)
    assert cores() == []
    assert "WANDB_SERVICE" not in os.environ
    assert failures == []


def test_wandb_core_ends_with_a_training_that_is_killed(tmp_path: Path) -> None:
    program = PROGRAM.replace("failures = []", "tracking_wandb.FLUSH_S = 0.05; failures = []") + (
        "for number in range(1, 51): step(number)\nsay('told')\ntime.sleep(600)\n"
    )
    log = tmp_path / "log"
    training = start([sys.executable, "-c", program, tmp_path], log=log)
    assert wait_until(lambda: bool(log.read_text())), tail(log)
    [core] = cores(training.pid)
    # What was told is written while training goes on, and outlives it.
    assert wait_until(lambda: len(written(tmp_path)) == 50)
    training.kill()
    training.wait()
    assert wait_until(lambda: has_ended(core))
    assert [row["step"] for row in written(tmp_path)] == list(range(1, 51))


def written(folder: Path) -> list[dict[str, object]]:
    """Return the rows that are in the file by now."""
    return [row for file in wandb_files(folder) for row in read_wandb(file).history]


def test_a_wandb_core_of_somebody_else_is_not_used(
    open_wandb: Callable[..., Tracker], monkeypatch: pytest.MonkeyPatch, failures: list[JsonObject]
) -> None:
    monkeypatch.setenv("WANDB_SERVICE", "3-1-unix-/nowhere/socket")
    tracker = open_wandb()
    assert len(cores()) == 1
    tracker.close()
    assert failures == []


def test_a_wandb_core_that_dies_ends_the_tracker_and_not_the_training(
    open_wandb: Callable[..., Tracker], failures: list[JsonObject]
) -> None:
    tracker = open_wandb()
    tracker.tell(step_event(1))
    [core] = cores()
    os.kill(core, signal.SIGKILL)
    assert wait_until(lambda: has_ended(core))
    for left in Path(gettempdir()).glob(f"wandb-{os.getpid()}-{core}-*"):
        shutil.rmtree(left)  # of its socket; one that is not killed takes it away itself
    for step in range(2, 200):
        tracker.tell(step_event(step))
    tracker.close()
    assert [(event["kind"], event["tracker"]) for event in failures] == [
        ("tracker.failed", "wandb")
    ]


def test_a_wandb_core_that_hangs_holds_no_step_up_and_the_end_not_for_long(tmp_path: Path) -> None:
    program = PROGRAM.replace(
        "failures = []", "failures = []\nfollowing.Follower.__init__.__kwdefaults__['close_s'] = 1"
    ) + (
        "from tests.strongroom.training.tracking.test_wandb import cores\n"
        "[core] = cores(os.getpid())\n"
        "os.kill(core, signal.SIGSTOP)\n"
        "begun = time.monotonic()\n"
        "for number in range(9000): step(number)\n"
        "told = time.monotonic()\n"
        "tracker.close()\n"
        "say(core, told - begun, time.monotonic() - told, failures[0]['kind'],"
        " failures[0]['message'])\n"
        "os._exit(0)\n"  # as a training ends
    )
    # Not into a pipe: wandb-core has it, too, and so it does not end with the training.
    log = tmp_path / "log"
    training = start([sys.executable, "-c", program, tmp_path], log=log, cwd=ROOT)
    assert training.wait(LONG_S) == 0, tail(log)
    core, tell_s, close_s, kind, message = json.loads(log.read_text().splitlines()[-1])
    os.kill(core, signal.SIGCONT)
    assert wait_until(lambda: has_ended(core))
    assert tell_s < 5.0
    assert close_s < 10.0
    assert (kind, message) == ("tracker.failed", "it did not end within 1 s")


def test_a_full_disk_is_noticed_though_wandb_core_says_nothing(tmp_path: Path) -> None:
    # The limit of a file's size is as good as a full disk.
    program = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))\n"
        + PROGRAM
        + "for number in range(1000): step(number)\n"
        "tracker.close()\n"
        "say([event['error'] for event in failures])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout) == [["OSError"]]
    [file] = wandb_files(tmp_path)
    assert len(read_wandb(file).history) < 1000


def test_a_disk_that_becomes_full_at_the_end_is_noticed(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from strongroom.training.tracking.wandb import _FileWatch\n"
        "file = Path(sys.argv[1])\n"
        "with _FileWatch(file).ending(): file.write_text('all of it')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))\n"
        "try:\n"
        "    with _FileWatch(file).ending(): file.write_text('all of it, and some more')\n"
        "except OSError as error: print(error.strerror)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run.wandb")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "File too large"
    assert [file.name for file in tmp_path.iterdir()] == ["run.wandb"]


def test_a_file_that_does_not_grow_is_noticed_while_training_goes_on(
    open_wandb: Callable[..., Tracker],
    tmp_path: Path,
    failures: list[JsonObject],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracker = open_wandb()
    tracker.tell(step_event(1))
    [file] = wandb_files(tmp_path)
    assert file.exists()
    monkeypatch.setattr(tracking_wandb, "WRITTEN_S", 0.0)
    monkeypatch.setattr(tracking_wandb._FileWatch, "_size_now", lambda _: 7)
    for step in range(2, 5):
        tracker.tell(step_event(step))
    assert wait_until(lambda: bool(failures))
    tracker.close()
    assert failures[0]["error"] == "OSError"
    assert f"{file}: expected more than" in failures[0]["message"]


def test_what_is_not_written_yet_is_given_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("strongroom.training.tracking.wandb.time.monotonic", lambda: now_s)
    file = tmp_path / "run.wandb"
    watch = tracking_wandb._FileWatch(file)
    now_s = 1000.0
    watch.check()  # nothing is expected
    watch.expect()
    now_s = 1000.0 + tracking_wandb.WRITTEN_S
    watch.expect()  # of the first alone it is late
    watch.check()
    file.write_bytes(b"x")
    now_s += 1.0
    watch.check()
    now_s += 1000.0
    watch.check()  # nothing is expected
    watch.expect()
    now_s += tracking_wandb.WRITTEN_S + 1.0
    with pytest.raises(OSError, match="expected more than 1 bytes, got 1"):
        watch.check()


@pytest.mark.parametrize(
    ("configured", "environment", "mode"),
    [
        ("offline", {}, "offline"),
        ("online", {"WANDB_API_KEY": KEY}, "online"),
        ("online", {"WANDB_MODE": "offline"}, "offline"),
        ("online", {"WANDB_MODE": "disabled"}, "disabled"),
        ("offline", {"WANDB_MODE": "online", "WANDB_API_KEY": KEY}, "online"),
    ],
)
def test_the_environment_has_the_last_word(
    configured: str, environment: dict[str, str], mode: str
) -> None:
    config = WandbConfig(project="tests", mode=configured)  # type: ignore[arg-type]
    assert mode_of(config, environment) == mode


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "WANDB_API_KEY"),
        ({"WANDB_API_KEY": ""}, "WANDB_API_KEY"),
        ({"WANDB_MODE": "shared", "WANDB_API_KEY": KEY}, "got 'shared'"),
    ],
)
def test_a_mode_that_cannot_work_is_refused(environment: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        mode_of(WandbConfig(project="tests", mode="online"), environment)


def test_a_project_that_wandb_refuses_is_a_fault_of_the_configuration(
    open_wandb: Callable[..., Tracker],
) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.wandb.*\n.*a/b"):
        open_wandb(WandbConfig(project="a/b"))
    assert cores() == []


def test_a_key_that_cannot_be_one_is_a_fault_of_the_configuration(
    open_wandb: Callable[..., Tracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "too-short")
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ConfigError, match="WANDB_API_KEY") as raised:
        open_wandb(WandbConfig(project="tests", mode="online"))
    assert "too-short" not in str(raised.value)
    assert cores() == []


def test_a_server_that_does_not_answer_ends_the_tracker_and_not_the_training(
    open_wandb: Callable[..., Tracker],
    monkeypatch: pytest.MonkeyPatch,
    failures: list[JsonObject],
) -> None:
    assert tracking_wandb.INIT_S <= 30.0
    monkeypatch.setattr(tracking_wandb, "INIT_S", 1.0)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    begun_s = time.monotonic()
    tracker = open_wandb(WandbConfig(project="tests", mode="online"))
    assert time.monotonic() - begun_s < LONG_S / 2
    assert cores() == []
    tracker.tell(step_event(1))
    tracker.close()
    assert [(event["tracker"], event["error"]) for event in failures] == [("wandb", "CommError")]
    assert KEY not in json.dumps(failures)


def test_online_what_is_told_arrives_and_the_key_stays_in_the_header(
    open_wandb: Callable[..., Tracker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: list[JsonObject],
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        tracker = open_wandb(WandbConfig(project="tests", entity="team", mode="online"))
        tracker.tell(step_event(1))
        tracker.tell(step_event(2, mfu=0.5))
        tracker.tell({"kind": "training.finished", "step": 2})
        tracker.close()
    assert failures == []
    assert [(row["step"], row.get("train/loss")) for row in server.history] == [
        (1, 9.0),
        (2, 8.0),
        (2, None),
    ]
    assert server.exit_code == 0
    assert len(server.keys) == 1
    told = {name: value for upsert in server.upserts for name, value in upsert.items() if value}
    assert (told["name"], told["entity"], told["program"]) == (RUN, "team", "strongroom.training")
    assert not {"host", "repo", "commit"} & set(told)
    for file in (tmp_path / "wandb").rglob("*"):
        assert file.is_dir() or KEY not in file.read_text(errors="replace"), file


def test_a_server_that_goes_away_delays_the_end_for_a_while_and_nothing_is_lost(
    open_wandb: Callable[..., Tracker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: list[JsonObject],
) -> None:
    assert tracking_wandb.UPLOAD_S < following.CLOSE_S
    monkeypatch.setattr(tracking_wandb, "UPLOAD_S", 1.0)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        tracker = open_wandb(WandbConfig(project="tests", mode="online"))
    begun_s = time.monotonic()
    for step in range(1, 4):
        tracker.tell(step_event(step))
    tracker.close()
    assert time.monotonic() - begun_s < LONG_S / 2
    assert [(event["tracker"], event["error"]) for event in failures] == [("wandb", "TimeoutError")]
    assert [row["step"] for row in only_run(tmp_path).history] == [1, 2, 3]
