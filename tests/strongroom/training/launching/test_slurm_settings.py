"""What a cluster is asked for: every option, the script as bash reads it, and no secret in it."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from strongroom.errors import ConfigError
from strongroom.names import RunKey
from strongroom.training.launching.slurm_settings import (
    SlurmSettings,
    batch_script,
    checked,
    job_name,
    sbatch_options,
)
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.launching.store_events import LaunchId
from strongroom.training.placement import Placement

LAUNCH = LaunchId("20260131T081500Z-0123abcd")
CLUSTER = SlurmSettings(shared_folder=Path("/shared"), tasks_per_node=4)
SPEC = Launch(
    store_url="s3://models/team a?path_style=true&region=x",
    run=RunKey("nightly-7"),
    keys=Path("/keys"),
    cache=Path("/cache"),
    settings=LaunchSettings(placement=Placement(strategy="fsdp2", world_size=8)),
)


def spread(world_size: int, threads: int = 1) -> Launch:
    placement = Placement(strategy="fsdp2", world_size=world_size, threads_per_rank=threads)
    return replace(SPEC, settings=replace(SPEC.settings, placement=placement))


def options(cluster: SlurmSettings, spec: Launch = SPEC) -> dict[str, str]:
    given = sbatch_options(cluster, spec, name="the-name", folder=Path("/shared/the-name/1"))
    found = [option.removeprefix("--").partition("=") for option in given]
    return {name: value for name, _, value in found}


def test_what_is_asked_for_by_default() -> None:
    assert options(CLUSTER) == {
        "job-name": "the-name",
        "comment": "1",
        "output": "/shared/the-name/1/log.txt",
        "chdir": "/shared/the-name/1",
        "nodes": "2",
        "ntasks": "8",
        "ntasks-per-node": "4",
        "cpus-per-task": "1",
        "signal": "TERM@120",
        "export": "NONE",
        "no-requeue": "",
    }


def test_what_is_asked_for_by_every_setting() -> None:
    cluster = replace(
        CLUSTER,
        partition="gpu",
        account="team-a",
        cpus_per_task=8,
        gpus_per_task=2,
        time_limit_minutes=90,
        pass_environment=("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        extra_options=("--constraint=a100", "--exclusive"),
    )
    spec = replace(SPEC, grace_s=30.2)
    assert checked(cluster, spec) is cluster
    asked = options(cluster, spec)
    assert asked["partition"] == "gpu"
    assert asked["account"] == "team-a"
    assert asked["cpus-per-task"] == "8"
    assert asked["gpus-per-node"] == "8"
    assert asked["time"] == "90"
    assert asked["signal"] == "TERM@31"
    assert asked["export"] == "AWS_ACCESS_KEY_ID,AWS_SECRET_ACCESS_KEY"
    assert asked["constraint"] == "a100"
    assert asked["exclusive"] == ""


@pytest.mark.parametrize(
    ("world_size", "nodes", "tasks_per_node"), [(1, 1, 1), (3, 1, 3), (4, 1, 4), (12, 3, 4)]
)
def test_nodes_follow_from_the_world_size(world_size: int, nodes: int, tasks_per_node: int) -> None:
    spec = spread(world_size)
    asked = options(checked(CLUSTER, spec), spec)
    assert (asked["nodes"], asked["ntasks"]) == (str(nodes), str(world_size))
    assert asked["ntasks-per-node"] == str(tasks_per_node)


def test_the_name_of_a_job_is_that_of_its_run_and_store() -> None:
    names = {job_name(RunKey(run), store) for run in ("a", "a-1") for store in ("0" * 32, "1" * 32)}
    assert len(names) == 4
    assert "strongroom-a-000000000000" in names


def run_script(script: str, tmp_path: Path) -> list[str]:
    """Run a script with an `srun` that only says what it was given, and return that."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/bash\nprintf "%s\\0" "$@" "$GREETING" "$WORD" "$OMP_NUM_THREADS"\n')
    srun.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\0")[:-1]


def test_the_script_becomes_srun_with_what_every_rank_needs(tmp_path: Path) -> None:
    cluster = replace(
        CLUSTER,
        python="/opt/my python/bin/python",
        environment={"GREETING": "it's $HOME; `x`"},
        setup=("WORD=of", 'export WORD="$WORD setup"'),
    )
    spec = spread(8, threads=3)
    script = batch_script(cluster, spec, LAUNCH)
    assert script.splitlines()[-1].startswith("exec srun "), "signals must reach it"
    *given, greeting, word, threads = run_script(script, tmp_path)
    assert (greeting, word, threads) == ("it's $HOME; `x`", "of setup", "3")
    python = given.index("/opt/my python/bin/python")
    assert given[:python] == [
        *("--export=ALL", "--label", "--kill-on-bad-exit=0", "--wait=120", "--cpus-per-task=3")
    ]
    assert given[python + 1 : python + 3] == ["-m", "strongroom.training.launching.slurm_rank"]
    assert given[python + 3 :] == [*spec.arguments(), "--launch-id", str(LAUNCH)]


def test_ranks_see_all_devices_of_their_node() -> None:
    (line,) = batch_script(replace(CLUSTER, gpus_per_task=1), SPEC, LAUNCH).splitlines()[-1:]
    assert "--gpu-bind=none" in shlex.split(line)
    assert "gpu" not in batch_script(CLUSTER, SPEC, LAUNCH)


def test_a_setup_that_fails_starts_no_rank(tmp_path: Path) -> None:
    script = batch_script(replace(CLUSTER, setup=("false",)), SPEC, LAUNCH)
    with pytest.raises(subprocess.CalledProcessError):
        run_script(script, tmp_path)


def test_no_value_that_is_passed_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    cluster = replace(CLUSTER, pass_environment=("AWS_SECRET_ACCESS_KEY",))
    written = batch_script(cluster, SPEC, LAUNCH) + json.dumps(options(cluster))
    assert "hush-hush" not in written


@pytest.mark.parametrize(
    ("changes", "spec", "fault"),
    [
        ({"tasks_per_node": 3}, SPEC, "tasks_per_node: must divide the run's world_size"),
        ({"cpus_per_task": 2}, spread(8, threads=3), "cpus_per_task: must be threads_per_rank"),
        ({"time_limit_minutes": 3}, SPEC, "time_limit_minutes: must leave time to train"),
        ({}, replace(SPEC, grace_s=70_000.0), "grace_s: must be at most 65535"),
        ({"shared_folder": Path("jobs")}, SPEC, "shared_folder: must be an absolute path"),
        ({"shared_folder": Path("/jobs/%u")}, SPEC, "shared_folder: must be an absolute path"),
        ({"python": "python3"}, SPEC, "python: must be an absolute path"),
        ({"extra_options": ("-p", "gpu")}, SPEC, "expected '--name' or '--name=value', got '-p'"),
        ({"extra_options": ("--qos=a\nb",)}, SPEC, "expected '--name' or '--name=value'"),
        ({"extra_options": ("--requeue",)}, SPEC, "--requeue cannot be given here"),
        ({"extra_options": ("--signal=B:TERM",)}, SPEC, "--signal cannot be given here"),
        ({"extra_options": ("--job-name=x",)}, SPEC, "it is how a job is found"),
        ({"environment": {"A B": "x"}}, SPEC, "environment: expected a name of letters"),
        ({"pass_environment": ("A=b",)}, SPEC, "pass_environment: expected a name of letters"),
        ({"environment": {"AWS_SECRET_ACCESS_KEY": "x"}}, SPEC, "looks like a secret"),
        ({"environment": {"WANDB_API_KEY": "x"}}, SPEC, "looks like a secret"),
        ({"setup": ("a\0b",)}, SPEC, "setup: expected lines"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    changes: dict[str, object], spec: Launch, fault: str
) -> None:
    cluster = replace(CLUSTER, **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        checked(cluster, spec)
    (found,) = caught.value.faults if "-p" not in fault else caught.value.faults[:1]
    assert fault in found


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        checked(replace(CLUSTER, tasks_per_node=3, python="python", setup=("\0",)), SPEC)
    assert len(caught.value.faults) == 3
