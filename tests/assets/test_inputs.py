"""Inputs: judged before they count, and found again by what they were made from."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from assets.base_model import base_model
from assets.dataset import curated_dataset
from assets.registration import DATA_VERSION_TAG
from assets.versions import dataset_origin, model_origin, newest_version, version
from resources.recipe import Recipe
from resources.store import StoreResource
from strongroom.canonical import JsonObject
from strongroom.custody.inputs import Dataset
from strongroom.data.curate import CurationReport
from strongroom.data.quality import CHECKS, QualityCheck, QualityReport
from strongroom.errors import UnknownNameError
from strongroom.names import Digest
from tests.support.dagster_world import QUIET, instance

__all__ = ["instance"]

MODEL, ROWS = Digest.of(b"model"), Digest.of(b"rows")
TINY = """
model: {source: model, dtype: float32}
data: {sources: [{uri: rows.jsonl}]}
train: {steps: 40, batch_rows: 4, learning_rate: 0.01}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return Recipe(config_path=str(path))


@pytest.fixture
def store(tmp_path: Path) -> StoreResource:
    return StoreResource(
        store_url=str(tmp_path / "store"),
        keys_folder=str(tmp_path / "keys"),
        cache_folder=str(tmp_path / "cache"),
    )


def dataset(*, failing: str | None) -> Dataset:
    curation = CurationReport(
        format="strongroom.curation/1",
        sources=(),
        num_train=8,
        num_held_out=2,
        num_with_control_text=0,
        train=str(ROWS),
        held_out=str(ROWS),
    )
    checks = tuple(
        QualityCheck(name=name, passed=name != failing, observed={"num_unexpected": 1})
        for name in CHECKS
    )
    return Dataset(digest=ROWS, curation=curation, quality=QualityReport(checks=checks))


def materialise(
    instance: dg.DagsterInstance, store: StoreResource, recipe: Recipe
) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [base_model, curated_dataset],
        instance=instance,
        resources={"store": store, "recipe": recipe},
        run_config=QUIET,
        raise_on_error=False,
    )


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assets.base_model.prepare_model", lambda *_: MODEL)
    monkeypatch.setattr("assets.dataset.prepare_dataset", lambda *_, **__: dataset(failing=None))


@pytest.mark.usefixtures("prepared")
def test_a_dataset_that_passes_is_materialised_by_digest(
    instance: dg.DagsterInstance, store: StoreResource, recipe: Recipe
) -> None:
    result = materialise(instance, store, recipe)

    assert result.success
    (event,) = result.asset_materializations_for_node("curated_dataset")
    assert (event.tags or {})["dagster/data_version"] == str(ROWS)
    assert event.metadata["num_train"] == dg.MetadataValue.int(8)
    origin = dataset_origin(recipe.load(), recipe.base_dir, MODEL)
    assert newest_version(instance, "curated_dataset", origin) == ROWS


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("failing", CHECKS)
def test_a_dataset_that_fails_a_check_is_not(
    instance: dg.DagsterInstance,
    store: StoreResource,
    recipe: Recipe,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
) -> None:
    monkeypatch.setattr("assets.dataset.prepare_dataset", lambda *_, **__: dataset(failing=failing))

    result = materialise(instance, store, recipe)

    assert not result.success
    assert result.asset_materializations_for_node("curated_dataset") == []
    verdicts = {check.check_name: check.passed for check in result.get_asset_check_evaluations()}
    assert [name for name, passed in verdicts.items() if not passed] == [failing]


def test_every_check_of_the_dataset_stops_what_comes_after() -> None:
    specs = {spec.name: spec.blocking for spec in curated_dataset.check_specs}

    assert specs == dict.fromkeys(CHECKS, True)


def test_two_recipes_do_not_mix_their_inputs(
    instance: dg.DagsterInstance, recipe: Recipe, tmp_path: Path
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(TINY.replace("source: model", "source: larger"))
    mine, theirs = model_origin(recipe.load()), model_origin(Recipe(config_path=str(other)).load())

    def materialised(origin: JsonObject) -> None:
        result = version(MODEL, origin, metrics={})
        tags = {DATA_VERSION_TAG: str(MODEL)}
        instance.report_runless_asset_event(
            dg.AssetMaterialization("base_model", metadata=result.metadata, tags=tags)
        )

    materialised(mine)
    with pytest.raises(UnknownNameError, match="materialise base_model"):
        newest_version(instance, "base_model", theirs)
    materialised(theirs)

    assert newest_version(instance, "base_model", mine) == MODEL
