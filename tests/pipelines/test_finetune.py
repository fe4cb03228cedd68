"""The main path in one command, with a tiny model: real processes, no daemon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner
from dagster._cli.asset import asset_materialize_command

from assets.promotion import production_is_due
from pipelines.definitions import defs
from pipelines.finetune import MainPath
from pipelines.summary import show
from pipelines.terminal import Terminal
from resources.recipe import Recipe
from resources.store import ROOT, StoreResource
from strongroom.checkpoint.catalogue import list_checkpoints
from strongroom.custody.context import Custody
from strongroom.custody.promote import review_checkpoint
from strongroom.custody.resolve import resolve
from strongroom.errors import (
    ConfigError,
    ConflictError,
    DataError,
    ModelSourceError,
    StoreUnreachableError,
)
from strongroom.names import RunKey
from tests.support.dagster_world import QUIET
from tests.support.tiny_recipe import EVERY_STEPS, STEPS, make_tiny_recipe

pytestmark = pytest.mark.e2e

RUN = RunKey("tiny")
KEYS = {f"{RUN}@{step}" for step in range(EVERY_STEPS, STEPS + 1, EVERY_STEPS)}


@dataclass(frozen=True)
class Place:
    """A folder in which everything of one run stands."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "DAGSTER_HOME": str(self.root / "home"),
            "STRONGROOM_STORE": str(self.root / "store"),
            "STRONGROOM_KEYS": str(self.root / "keys"),
            "STRONGROOM_CACHE": str(self.root / "cache"),
            "STRONGROOM_PERSON": "ada",
        }

    def finetune(self, *arguments: str, **changed: str) -> subprocess.CompletedProcess[str]:
        """Run the command as a person would."""
        recipe = self.root / "tiny.yaml"
        return subprocess.run(
            [
                *(sys.executable, "-m", "pipelines.finetune", str(recipe)),
                *("--run", str(RUN), "--reports", str(self.root / "reports"), *arguments),
            ],
            cwd=ROOT,
            env={**os.environ, **self.environment, **changed},
            capture_output=True,
            text=True,
            check=False,
        )

    def custody(self) -> Custody:
        return StoreResource(
            store_url=self.environment["STRONGROOM_STORE"],
            keys_folder=self.environment["STRONGROOM_KEYS"],
            cache_folder=self.environment["STRONGROOM_CACHE"],
        ).custody()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("main-path")
    make_tiny_recipe(root)
    return Place(root)


@pytest.fixture(scope="module")
def finished(place: Place) -> subprocess.CompletedProcess[str]:
    """The main path, gone once for all tests of this module."""
    return place.finetune()


@pytest.fixture
def instance(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    with dg.DagsterInstance.get() as opened:
        yield opened


def test_it_ends_with_the_table_the_losses_the_report_and_what_comes_next(
    place: Place, finished: subprocess.CompletedProcess[str]
) -> None:
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "Checkpoints of run tiny" in finished.stdout
    for step in range(EVERY_STEPS, STEPS + 1, EVERY_STEPS):
        assert f"│ {step:>4} │" in finished.stdout
    assert "Held-out loss: " in finished.stdout
    assert f"strongroom approve {RUN}/{STEPS} --stage production --as" in finished.stdout
    report = place.root / "reports" / f"{RUN}-{STEPS}.html"
    assert str(report) in finished.stdout
    assert report.read_text().startswith("<!")
    assert "Traceback" not in finished.stdout + finished.stderr


@pytest.mark.usefixtures("finished")
def test_dagster_shows_every_checkpoint_at_every_station(instance: dg.DagsterInstance) -> None:
    for asset in (
        "checkpoint",
        "verified_checkpoint",
        "evaluated_checkpoint",
        "promoted_checkpoint",
    ):
        assert instance.get_materialized_partitions(dg.AssetKey(asset)) == KEYS, asset
    assert instance.get_materialized_partitions(dg.AssetKey("finetune_run")) == {str(RUN)}


@pytest.mark.usefixtures("finished")
def test_checkpoints_are_linked_to_the_run_and_step_that_made_them(
    place: Place, instance: dg.DagsterInstance
) -> None:
    records = instance.fetch_materializations(dg.AssetKey("checkpoint"), limit=100).records
    ids = {
        f"{committed.name.run}@{committed.name.step.number}": str(committed.checkpoint_id)
        for committed in list_checkpoints(place.custody().storage)
    }

    assert len(records) == len(KEYS)
    for record in records:
        event = record.asset_materialization
        run = instance.get_run_by_id(record.run_id)
        assert event is not None
        assert run is not None
        assert run.job_name == "finetune"
        assert record.event_log_entry.step_key == "finetune_run"
        assert (event.tags or {})["dagster/data_version"] == ids[str(record.partition_key)]
        for number in ("train_loss", "num_bytes", "pause_s", "durable_s", "step"):
            assert isinstance(event.metadata[number].value, int | float), number


@pytest.mark.usefixtures("finished")
def test_the_same_command_again_trains_nothing_and_reports(place: Place) -> None:
    again = place.finetune()

    assert again.returncode == 0
    assert "trained already" in again.stdout
    assert "training starts" not in again.stdout
    assert "Checkpoints of run tiny" in again.stdout


@pytest.mark.usefixtures("finished")
def test_the_same_key_with_another_recipe_is_refused(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    text = (place.root / "tiny.yaml").read_text()
    shutil.copy(place.root / "rows.jsonl", tmp_path)
    other.write_text(text.replace("learning_rate: 0.02", "learning_rate: 0.03"))

    refused = subprocess.run(
        [sys.executable, "-m", "pipelines.finetune", str(other), "--run", str(RUN)],
        cwd=ROOT,
        env={**os.environ, **place.environment},
        capture_output=True,
        text=True,
        check=False,
    )

    assert refused.returncode == ConflictError.exit_code
    assert "choose another run key" in refused.stderr


@pytest.mark.usefixtures("finished")
def test_a_damaged_checkpoint_is_quarantined_and_the_others_go_on(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    elsewhere = Place(tmp_path / "copy")
    shutil.copytree(place.root, elsewhere.root, ignore=shutil.ignore_patterns("home"))
    for name, value in elsewhere.environment.items():
        monkeypatch.setenv(name, value)
    custody = elsewhere.custody()
    damaged = next(iter(list_checkpoints(custody.storage, RUN)))
    shard = elsewhere.root / "store" / damaged.folder / damaged.manifest.files[-1].name
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        path = MainPath(
            run=RUN,
            recipe=Recipe(config_path=str(elsewhere.root / "tiny.yaml")),
            instance=instance,
            terminal=Terminal(log=None),
        )
        path._govern(custody)
        code = show(path.terminal.out, custody, instance, RUN, reports=elsewhere.root / "reports")
        verified = instance.get_materialized_partitions(dg.AssetKey("verified_checkpoint"))

    bad = f"{RUN}@{damaged.name.step.number}"
    assert verified == KEYS - {bad}
    assert code == 0
    record = custody.history().by_name(damaged.name)
    assert record is not None
    assert record.quarantined is not None
    out = capfd.readouterr().out
    assert f"{bad}: verified_checkpoint: check intact FAILED" in out
    assert "quarantined" in out


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (("steps: 6", "steps: 0"), ConfigError, "train.steps"),
        (('source: "', 'source: "/nowhere'), ModelSourceError, "/nowhere"),
        (("uri: rows.jsonl", "uri: empty.jsonl"), DataError, "empty.jsonl"),
    ],
)
def test_bad_input_is_told_in_one_message(
    place: Place, tmp_path: Path, change: tuple[str, str], error: type[ConfigError], told: str
) -> None:
    bad = Place(tmp_path)
    text = (place.root / "tiny.yaml").read_text()
    (tmp_path / "tiny.yaml").write_text(text.replace(*change))
    (tmp_path / "empty.jsonl").touch()

    failed = bad.finetune()

    assert failed.returncode == error.exit_code
    assert error.__name__ in failed.stderr
    assert told in failed.stderr
    assert "Traceback" not in failed.stderr


def test_an_unreachable_store_is_told(place: Place) -> None:
    # Port 9 discards; nobody listens there.
    url = "s3://bucket/store?endpoint_url=http://127.0.0.1:9&path_style=true&region=us-east-1"
    failed = place.finetune(
        STRONGROOM_STORE=url,
        AWS_ACCESS_KEY_ID="test-key",
        AWS_SECRET_ACCESS_KEY="test-secret",  # noqa: S106 -- nobody asks for it
    )

    assert failed.returncode == StoreUnreachableError.exit_code
    assert "Traceback" not in failed.stderr


def test_the_main_path_against_s3(place: Place, s3_url: str, tmp_path: Path) -> None:
    shutil.copytree(place.root / "model", tmp_path / "model")
    shutil.copy(place.root / "rows.jsonl", tmp_path)
    shutil.copy(place.root / "tiny.yaml", tmp_path)

    done = Place(tmp_path).finetune(STRONGROOM_STORE=s3_url)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"strongroom approve {RUN}/{STEPS} --stage production --as" in done.stdout
    assert not (tmp_path / "store").exists()


@pytest.mark.usefixtures("finished", "instance")
@pytest.mark.parametrize(
    ("asset", "partition"),
    [
        ("base_model", None),
        ("curated_dataset", None),
        ("adapted_tokenizer", None),
        ("finetune_run", str(RUN)),
        ("verified_checkpoint", f"{RUN}@{STEPS}"),
        ("evaluated_checkpoint", f"{RUN}@{STEPS}"),
        ("promoted_checkpoint", f"{RUN}@{STEPS}"),
        ("production_model", None),
    ],
)
def test_every_station_can_be_materialised_from_the_command_line(
    place: Place, asset: str, partition: str | None
) -> None:
    config = {"resources": {"recipe": {"config": {"config_path": str(place.root / "tiny.yaml")}}}}
    needs_recipe = asset in {"base_model", "curated_dataset", "adapted_tokenizer", "finetune_run"}

    result = CliRunner().invoke(
        asset_materialize_command,
        [
            *("-f", str(ROOT / "pipelines" / "definitions.py"), "-d", str(ROOT)),
            *("--select", asset),
            *(["--partition", partition] if partition else []),
            *(["--config-json", json.dumps(config)] if needs_recipe else []),
        ],
    )

    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("finished")
def test_staging_does_not_go_back_to_an_earlier_checkpoint_by_itself(
    place: Place, instance: dg.DagsterInstance
) -> None:
    result = defs.resolve_job_def("govern").execute_in_process(
        instance=instance,
        partition_key=f"{RUN}@{EVERY_STEPS}",
        asset_selection=[dg.AssetKey("promoted_checkpoint")],
        run_config=QUIET,
    )

    assert result.success
    (check,) = result.get_asset_check_evaluations()
    assert not check.passed
    assert f"staging holds {RUN}/{STEPS}" in str(check.metadata["reasons"].value)
    assert resolve(place.custody(), "@staging").name.step.number == STEPS


@pytest.mark.usefixtures("finished")
def test_production_follows_the_approval_of_two_persons(
    place: Place, instance: dg.DagsterInstance
) -> None:
    custody = place.custody()
    staged = resolve(custody, "@staging")
    production = defs.resolve_job_def("production")

    def materialised() -> str | None:
        event = instance.get_latest_materialization_event(dg.AssetKey("production_model"))
        if event is None or event.asset_materialization is None:
            return None
        return (event.asset_materialization.tags or {})["dagster/data_version"]

    for person in ("bora", "cem"):
        assert not production_is_due(instance, custody)
        assert production.execute_in_process(instance=instance, run_config=QUIET).success
        assert materialised() is None
        custody.keys.add_person(person)
        review_checkpoint(custody, staged, "production", person=person, approves=True)

    assert production_is_due(instance, custody)
    assert production.execute_in_process(instance=instance, run_config=QUIET).success
    assert materialised() == str(staged.checkpoint_id)
    assert resolve(custody, "@production") == staged
    assert not production_is_due(instance, custody)
