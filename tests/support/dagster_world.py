"""Dagster for tests: an instance of its own, and the engine's acts replaced by scripted ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest

from assets.checkpoints import checkpoint, verified_checkpoint
from assets.evaluation import evaluated_checkpoint
from assets.partitions import CHECKPOINTS, RUNS
from assets.promotion import promoted_checkpoint
from assets.registration import ATTEMPT, CHECKPOINT, DATA_VERSION_TAG
from jobs.govern import govern
from resources.store import StoreResource
from strongroom.custody.evaluate import Evaluation
from strongroom.errors import PolicyError
from strongroom.evaluation.report import EvaluationReport, Verdict
from strongroom.names import Attempt, CheckpointId, CheckpointName, Digest, RunKey, Step
from strongroom.verification.ladder import Rung, RungResult, VerificationReport

RUN = RunKey("nightly-7")
BASE_LOSS = 2.0
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
NO_CAPTURE = {
    "compute_logs": {
        "module": "dagster._core.storage.noop_compute_log_manager",
        "class": "NoOpComputeLogManager",
    },
    "telemetry": {"enabled": False},
}


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance in memory."""
    with dg.DagsterInstance.ephemeral(settings=NO_CAPTURE) as opened:
        opened.add_dynamic_partitions(str(RUNS.name), [str(RUN)])
        yield opened


@pytest.fixture
def instance_in_files(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance in files: schedules do not work on one in memory."""
    home = tmp_path / "dagster"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home), overrides=NO_CAPTURE) as opened:
        opened.add_dynamic_partitions(str(RUNS.name), [str(RUN)])
        yield opened


def key_of(step: int) -> str:
    return f"{RUN}@{step}"


def name_of(step: int) -> CheckpointName:
    return CheckpointName(RUN, Attempt(1), Step(step))


def id_of(name: CheckpointName) -> CheckpointId:
    return CheckpointId(Digest.of(str(name).encode()))


def commit(instance: dg.DagsterInstance, *steps: int) -> None:
    """Let Dagster hear of committed checkpoints, as training tells it."""
    for step in steps:
        instance.add_dynamic_partitions(str(CHECKPOINTS.name), [key_of(step)])
        instance.report_runless_asset_event(
            dg.AssetMaterialization(
                CHECKPOINT,
                partition=key_of(step),
                metadata={ATTEMPT: 1},
                tags={DATA_VERSION_TAG: str(id_of(name_of(step)))},
            )
        )


def last_check(instance: dg.DagsterInstance, asset: str, check: str, step: int) -> bool | None:
    """Return the last verdict on one checkpoint, None where there is none."""
    key = dg.AssetCheckKey(dg.AssetKey(asset), check)
    records = instance.event_log_storage.get_asset_check_execution_history(
        key, limit=100, cursor=None
    )
    for record in records:
        event = record.event
        evaluation = event.asset_check_evaluation if event is not None else None
        if evaluation is not None and evaluation.partition == key_of(step):
            return evaluation.passed
    return None


@dataclass
class Script:
    """What the engine will say of each checkpoint, by step; all is well with the others.

    Attributes:
        damaged: verification fails.
        worse: evaluation fails.
        refused: the promotion policy refuses, whatever was evaluated.
        calls: what was asked for, in order.
    """

    damaged: AbstractSet[int] = frozenset()
    worse: AbstractSet[int] = frozenset()
    refused: AbstractSet[int] = frozenset()
    calls: list[tuple[str, int]] = field(default_factory=list)

    def verify(self, _custody: object, name: CheckpointName) -> VerificationReport:
        step = name.step.number
        self.calls.append(("verify", step))
        findings = ("a byte differs",) if step in self.damaged else ()
        return VerificationReport(
            name=name,
            checkpoint_id=id_of(name),
            rungs=(RungResult(rung=Rung.BYTES, seconds=0.5, findings=findings),),
            state_digest=None,
        )

    def evaluate(self, _custody: object, name: CheckpointName) -> Evaluation:
        step = name.step.number
        self.calls.append(("evaluate", step))
        loss = float("nan") if step in self.worse else 1.0
        report = EvaluationReport(
            checkpoint_id=id_of(name),
            dataset=Digest.of(b"dataset"),
            base_model=Digest.of(b"base model"),
            num_rows=4,
            num_tokens=40,
            loss=loss,
            bits_per_byte=0.5,
            base_loss=BASE_LOSS,
            base_bits_per_byte=1.0,
        )
        passed = step not in self.worse
        return Evaluation(report=report, verdict=Verdict(passed=passed, reasons=("as scripted",)))

    def promote(self, _custody: object, committed: FakeCommitted) -> list[str]:
        step = committed.name.step.number
        self.calls.append(("promote", step))
        return PolicyError("promote", ["not approved"]).reasons if step in self.refused else []


@dataclass(frozen=True)
class FakeCommitted:
    """As much of a committed checkpoint as promotion looks at."""

    name: CheckpointName

    @property
    def checkpoint_id(self) -> CheckpointId:
        return id_of(self.name)


class FakeCustody:
    """A custody that nobody looks into."""

    storage = None


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Put scripted acts in the engine's place."""
    scripted = Script()
    monkeypatch.setattr("assets.checkpoints.verify_checkpoint", scripted.verify)
    monkeypatch.setattr("assets.evaluation.evaluate_checkpoint", scripted.evaluate)
    monkeypatch.setattr("assets.promotion._promote_to_staging", scripted.promote)
    monkeypatch.setattr(
        "assets.promotion.read_checkpoint", lambda _storage, name: FakeCommitted(name)
    )
    for module in ("checkpoints", "evaluation", "promotion"):
        monkeypatch.setattr(f"assets.{module}.checkpoint_of", _name_from_key)
    monkeypatch.setattr(StoreResource, "custody", lambda _self, **_options: FakeCustody())
    return scripted


def _name_from_key(_storage: object, key: str) -> CheckpointName:
    return name_of(int(key.rpartition("@")[2]))


@functools.cache
def governance() -> dg.Definitions:
    """The governed part of the graph, with the same executor as everywhere."""
    return dg.Definitions(
        assets=[checkpoint, verified_checkpoint, evaluated_checkpoint, promoted_checkpoint],
        jobs=[govern],
        resources={"store": StoreResource()},
        executor=dg.in_process_executor,
    )


def run_govern(instance: dg.DagsterInstance, step: int, *assets: str) -> dg.ExecuteInProcessResult:
    """Run the job `govern`, or only some of its assets, for one checkpoint."""
    job = governance().resolve_job_def("govern")
    return job.execute_in_process(
        instance=instance,
        partition_key=key_of(step),
        asset_selection=[dg.AssetKey(asset) for asset in assets] or None,
        raise_on_error=False,
        run_config=QUIET,
    )
