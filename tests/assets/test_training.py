"""The training step: checkpoints are told as they are committed, and none is lost at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import dagster as dg
import pytest

from assets.registration import CHECKPOINT
from assets.training import finetune_run
from resources.launcher import Events, TorchrunLauncher
from resources.recipe import Recipe
from resources.store import StoreResource
from strongroom.canonical import JsonObject
from strongroom.checkpoint.manifest import Inputs
from strongroom.checkpoint.run_record import Probe, RunRecord, create_run
from strongroom.clock import now_utc
from strongroom.custody.context import Custody
from strongroom.errors import PreflightError, TrainingError, UnknownNameError
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.placement import Placement
from tests.support.checkpoints import INPUTS, RUN, save_checkpoint
from tests.support.dagster_world import QUIET, instance

__all__ = ["instance"]

TINY = """
model: {source: model, dtype: float32}
data: {sources: [{uri: rows.jsonl}]}
train: {steps: 40, batch_rows: 4, learning_rate: 0.01}
"""
STEP = {
    "kind": "training.step",
    "step": 9,
    "loss": 2.5,
    "learning_rate": 0.01,
    "grad_norm": 1.0,
    "tokens_per_s": 120.0,
}
Script = Callable[[Custody], Iterator[JsonObject]]


@dataclass
class FakeLauncher:
    """Tells what its script says."""

    script: Script
    ranks_are_here: ClassVar[bool] = True
    contexts: list[dg.AssetExecutionContext] = field(default_factory=list)

    def stream(
        self,
        context: dg.AssetExecutionContext,
        custody: Custody,
        _record: RunRecord,
        _settings: LaunchSettings,
    ) -> Events:
        self.contexts.append(context)
        yield from self.script(custody)


@dataclass
class Examined:
    """What a preflight found: the inputs of these runs are made up, no check can look at them."""

    found: list[JsonObject] = field(default_factory=list)
    stops: bool = False

    def events(self) -> list[JsonObject]:
        return self.found

    def raise_if_stopped(self) -> None:
        if self.stops:
            raise PreflightError([])


@pytest.fixture(autouse=True)
def examined(monkeypatch: pytest.MonkeyPatch) -> Examined:
    report = Examined()
    monkeypatch.setattr("assets.training.preflight_run", lambda *_, **__: report)
    return report


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
        person="ada",
    )


@pytest.fixture
def record(store: StoreResource, recipe: Recipe) -> RunRecord:
    """The run stands already, so that nothing has to be prepared."""
    config = recipe.load()
    return create_run(
        store.custody(create=True).storage,
        RunRecord(
            run=RUN,
            author="ada",
            created=now_utc(),
            config=config.to_json(),
            inputs=Inputs(
                base_model=INPUTS.base_model,
                dataset=INPUTS.dataset,
                tokenizer=INPUTS.tokenizer,
                config=config.digest,
            ),
            code={"strongroom": "test"},
            environment={},
            probe=Probe(token_ids=(1, 2), trained=(False, True)),
        ),
    )


def commit(custody: Custody, step: int) -> JsonObject:
    """Commit a checkpoint and return what rank 0 tells of it."""
    committed = save_checkpoint(custody.storage, step)
    return {
        "kind": "checkpoint.committed",
        "checkpoint": str(committed.name),
        "checkpoint_id": str(committed.checkpoint_id),
        "step": step,
        "num_bytes": committed.manifest.num_bytes,
        "pause_s": 0.1,
        "durable_s": 1.5,
        "train_loss": 1.25,
        "probe_loss": 1.5,
    }


def train(
    instance: dg.DagsterInstance,
    store: StoreResource,
    recipe: Recipe,
    launcher: FakeLauncher,
    *,
    raise_on_error: bool = True,
) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [finetune_run],
        instance=instance,
        partition_key=str(RUN),
        resources={"store": store, "recipe": recipe, "launcher": launcher},
        run_config=QUIET,
        raise_on_error=raise_on_error,
    )


def told(instance: dg.DagsterInstance) -> dict[str, dg.EventLogRecord]:
    records = instance.fetch_materializations(CHECKPOINT, limit=100).records
    assert len({record.partition_key for record in records}) == len(records), "told twice"
    return {str(record.partition_key): record for record in records}


@pytest.mark.usefixtures("record")
def test_a_checkpoint_is_told_while_training_goes_on(
    instance: dg.DagsterInstance, store: StoreResource, recipe: Recipe
) -> None:
    heard: list[dict[str, dg.EventLogRecord]] = []

    def script(custody: Custody) -> Iterator[JsonObject]:
        yield STEP
        yield commit(custody, 10)
        heard.append(told(instance))
        yield {"kind": "training.finished", "step": 10}

    result = train(instance, store, recipe, FakeLauncher(script))

    (record,) = heard[0].values()
    event = record.asset_materialization
    assert event is not None
    assert event.partition == "nightly-7@10"
    assert record.run_id == result.run_id
    assert record.event_log_entry.step_key == "finetune_run"
    assert event.metadata["durable_s"].value == 1.5
    assert event.metadata["tokens_per_s"].value == 120.0


@pytest.mark.usefixtures("record")
def test_what_a_failing_training_committed_is_told_all_the_same(
    instance: dg.DagsterInstance, store: StoreResource, recipe: Recipe
) -> None:
    def script(custody: Custody) -> Iterator[JsonObject]:
        yield commit(custody, 10)
        commit(custody, 20)  # and dies before it can say so
        raise TrainingError("rank 1 is gone")

    with pytest.raises(TrainingError, match="rank 1 is gone"):
        train(instance, store, recipe, FakeLauncher(script))

    assert set(told(instance)) == {"nightly-7@10", "nightly-7@20"}


@pytest.mark.usefixtures("record")
def test_the_checkpoint_of_a_stop_is_told_though_nobody_listens_any_more(
    instance: dg.DagsterInstance,
    store: StoreResource,
    recipe: Recipe,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> str:
        raise dg.DagsterExecutionInterruptedError

    def script(custody: Custody) -> Iterator[JsonObject]:
        try:
            yield STEP
        finally:
            commit(custody, 9)  # asked to stop, it saves what it has

    monkeypatch.setattr("assets.training.in_words", interrupt)
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        train(instance, store, recipe, FakeLauncher(script))

    assert set(told(instance)) == {"nightly-7@9"}


@pytest.mark.usefixtures("record")
def test_a_loss_that_is_not_finite_is_text(
    instance: dg.DagsterInstance, store: StoreResource, recipe: Recipe
) -> None:
    def script(custody: Custody) -> Iterator[JsonObject]:
        yield commit(custody, 10)
        yield {**STEP, "loss": float("nan")}

    result = train(instance, store, recipe, FakeLauncher(script))

    event = result.asset_materializations_for_node("finetune_run")[-1]
    assert event.asset_key == finetune_run.key
    assert event.metadata["loss"] == dg.MetadataValue.text("not finite: nan")
    assert event.metadata["tokens_per_s"] == dg.MetadataValue.float(120.0)


def test_a_new_run_needs_the_inputs_of_its_recipe(
    instance: dg.DagsterInstance, store: StoreResource, recipe: Recipe
) -> None:
    store.custody(create=True)
    launcher = FakeLauncher(lambda _custody: iter(()))

    with pytest.raises(UnknownNameError, match="materialise base_model"):
        train(instance, store, recipe, launcher)

    assert launcher.contexts == []


def test_torchrun_is_launched_with_the_store_keys_and_grace(
    store: StoreResource, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs: list[Launch] = []

    def launch(spec: Launch) -> Iterator[JsonObject]:
        specs.append(spec)
        yield STEP

    monkeypatch.setattr("resources.launcher.launch", launch)
    custody = store.custody()
    context = dg.build_asset_context(partition_key=str(RUN))
    settings = LaunchSettings(placement=Placement(strategy="zero3", world_size=4))
    events = list(TorchrunLauncher(grace_s=7.0).stream(context, custody, record, settings))

    assert events == [STEP]
    assert specs == [
        Launch(
            store_url=custody.store.url,
            run=RUN,
            keys=custody.keys.path,
            cache=custody.cache,
            settings=settings,
            grace_s=7.0,
        )
    ]


@pytest.mark.usefixtures("record")
def test_what_the_preflight_stops_is_not_launched(
    instance: dg.DagsterInstance, store: StoreResource, recipe: Recipe, examined: Examined
) -> None:
    examined.stops = True
    launcher = FakeLauncher(lambda _custody: iter(()))
    with pytest.raises(PreflightError):
        train(instance, store, recipe, launcher)
    assert launcher.contexts == []
