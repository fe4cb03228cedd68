"""The resource says to the engine what its fields say, and reads the environment only then."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from resources.slurm import SlurmLauncher
from resources.store import ROOT
from strongroom.canonical import JsonObject
from strongroom.custody.context import Custody
from strongroom.errors import ConfigError, RankLostError
from strongroom.names import RunKey
from strongroom.training.config import LaunchConfig
from strongroom.training.launching.slurm_settings import SlurmSettings, checked
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.placement import Placement
from tests.support.training_run import TrainingRun, make_training_run

STARTED = {"kind": "training.started"}
SETTINGS = LaunchSettings(
    placement=Placement(strategy="fsdp2", world_size=4),
    launch=LaunchConfig(max_restarts=1, restart_delay_s=0.0),
)


@pytest.fixture
def run(tmp_path: Path) -> TrainingRun:
    return make_training_run(tmp_path)


class Engine:
    """Takes the engine's place: keeps what it was asked for, and fails the first time."""

    def __init__(self) -> None:
        self.asked: list[tuple[Launch, SlurmSettings]] = []

    def launch(
        self, spec: Launch, cluster: SlurmSettings, *, tell: Callable[[str], object]
    ) -> Iterator[JsonObject]:
        self.asked.append((spec, cluster))
        tell("job 7 of Slurm: RUNNING")
        yield STARTED
        if len(self.asked) == 1:
            raise RankLostError("job 7: NODE_FAIL")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr("resources.slurm.launch_on_slurm", engine.launch)
    return engine


def stream(launcher: SlurmLauncher, run: TrainingRun) -> list[JsonObject]:
    custody = Custody.open(run.store_url, keys=run.keys, cache=run.cache)
    context = dg.build_asset_context(partition_key=str(run.record.run))
    return list(launcher.stream(context, custody, run.record, SETTINGS))


def test_fields_become_settings() -> None:
    launcher = SlurmLauncher(
        shared_folder="/shared",
        tasks_per_node=4,
        partition="gpu",
        gpus_per_task=1,
        time_limit_minutes=60,
        extra_options=["--exclusive"],
        setup=["module load cuda"],
        environment={"NCCL_DEBUG": "INFO"},
        pass_environment=["AWS_PROFILE"],
        grace_s=30.0,
        poll_s=1.0,
    )
    assert launcher.settings() == SlurmSettings(
        shared_folder=Path("/shared"),
        tasks_per_node=4,
        partition="gpu",
        gpus_per_task=1,
        time_limit_minutes=60,
        extra_options=("--exclusive",),
        setup=("module load cuda",),
        environment={"NCCL_DEBUG": "INFO"},
        pass_environment=("AWS_PROFILE",),
        poll_s=1.0,
    )


def test_what_is_left_empty_has_its_default() -> None:
    expected = SlurmSettings(shared_folder=Path("/shared"), tasks_per_node=1)
    assert SlurmLauncher(shared_folder="/shared", tasks_per_node=1).settings() == expected


def test_the_page_shows_a_launcher_that_works_and_explains_every_field() -> None:
    page = (ROOT / "docs" / "how-to" / "run-on-slurm.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)  # noqa: S102 -- what people are told to write
    launcher = names["launcher"]
    assert isinstance(launcher, SlurmLauncher)
    spec = Launch(
        store_url="s3://models",
        run=RunKey("nightly-7"),
        keys=Path("/keys"),
        cache=Path("/cache"),
        settings=SETTINGS,
    )
    assert checked(launcher.settings(), spec).gpus_per_task == 1
    rows = re.findall(r"^\| (`.*?) \| ", page, re.MULTILINE)
    explained = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert set(SlurmLauncher.model_fields) <= explained


def test_every_wrong_field_is_told(run: TrainingRun, engine: Engine) -> None:
    launcher = SlurmLauncher(shared_folder="/shared", tasks_per_node=0, gpus_per_task=-1)
    with pytest.raises(ConfigError, match=r"(?s)tasks_per_node.*gpus_per_task"):
        stream(launcher, run)
    assert engine.asked == []


def test_an_accident_is_launched_again_with_the_paths_of_the_nodes(
    run: TrainingRun, engine: Engine
) -> None:
    launcher = SlurmLauncher(
        shared_folder="/shared",
        tasks_per_node=4,
        keys_folder="/cluster/keys",
        cache_folder="/cluster/cache",
        grace_s=30.0,
    )
    kinds = [event["kind"] for event in stream(launcher, run)]
    assert kinds == ["training.started", "training.restarting", "training.started"]
    expected = Launch(
        store_url=run.store_url,
        run=run.record.run,
        keys=Path("/cluster/keys"),
        cache=Path("/cluster/cache"),
        settings=SETTINGS,
        grace_s=30.0,
    )
    assert engine.asked == [(expected, launcher.settings())] * 2


def test_without_paths_of_their_own_the_nodes_use_those_of_this_machine(
    run: TrainingRun, engine: Engine
) -> None:
    stream(SlurmLauncher(shared_folder="/shared", tasks_per_node=4), run)
    spec, _ = engine.asked[0]
    assert (spec.keys, spec.cache) == (run.keys, run.cache)


def test_fields_may_come_from_the_environment_of_the_run(
    run: TrainingRun, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLUSTER_FOLDER", raising=False)
    launcher = SlurmLauncher(shared_folder=dg.EnvVar("CLUSTER_FOLDER"), tasks_per_node=4)
    monkeypatch.setattr(os, "environ", {**os.environ, "CLUSTER_FOLDER": "/from/there"})
    custody = Custody.open(run.store_url, keys=run.keys, cache=run.cache)
    context = dg.build_asset_context(partition_key=str(run.record.run))
    resolved = launcher.process_config_and_initialize()
    list(resolved.stream(context, custody, run.record, SETTINGS))
    assert engine.asked[0][1].shared_folder == Path("/from/there")
