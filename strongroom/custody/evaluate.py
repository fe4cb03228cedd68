"""Evaluate a checkpoint on the held-out rows beside its base model, and record the result.

The base model is scored once for each (base, dataset, tokenizer, rows) and the signed result is
kept in the store; every checkpoint of every run on the same inputs is held against the same one.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import Committed, read_checkpoint
from strongroom.checkpoint.run_record import RunRecord, read_run
from strongroom.custody.context import Custody
from strongroom.custody.inputs import HELD_OUT_FILE
from strongroom.data.config import DataConfig
from strongroom.data.rows import read_curated
from strongroom.errors import QuarantinedError
from strongroom.evaluation.config import EvaluationConfig
from strongroom.evaluation.metrics import Metrics, held_out_metrics, model_scorer
from strongroom.evaluation.report import EvaluationReport, Verdict, judge
from strongroom.ledger.attestations import attestations_of
from strongroom.ledger.events import EventKind
from strongroom.model.config import ModelConfig
from strongroom.names import CheckpointName
from strongroom.parsing import parse
from strongroom.signing.statement import BASELINE, EVALUATION, Statement
from strongroom.storage.trees import fetch_tree

if TYPE_CHECKING:
    import torch

    from strongroom.data.packing import Encoded

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """A report and what the run's evaluation rules say of it."""

    report: EvaluationReport
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class _HeldOut:
    rows: list[Encoded]
    completion_bytes: int
    pad_id: int


def evaluate_checkpoint(custody: Custody, name: CheckpointName) -> Evaluation:
    """Score one checkpoint; every chunk read is checked against the manifest.

    Raises:
        QuarantinedError: the checkpoint may not be loaded.
        IntegrityError: a chunk differs from its manifest.
    """
    from strongroom.verification.load import load_model

    _refuse_quarantined(custody, name)
    committed = read_checkpoint(custody.storage, name)
    run = read_run(custody.storage, name.run)
    rules = parse(EvaluationConfig, run.config["evaluation"], source=f"run {name.run}")
    held_out = _held_out(custody, run, rules)
    base = _baseline(custody, run, rules, held_out)
    model = load_model(custody.storage, committed, run, custody.cache)
    report = EvaluationReport.of(
        committed.checkpoint_id,
        _score(model, held_out),
        base,
        dataset=run.inputs.dataset,
        base_model=run.inputs.base_model,
    )
    verdict = judge(report, rules)
    _record(custody, committed, report, verdict, rules)
    return Evaluation(report=report, verdict=verdict)


def _refuse_quarantined(custody: Custody, name: CheckpointName) -> None:
    record = custody.history().by_name(name)
    if record is not None and record.quarantined is not None:
        raise QuarantinedError(f"evaluate {name}", [f"it is quarantined: {record.quarantined}"])


def _record(
    custody: Custody,
    committed: Committed,
    report: EvaluationReport,
    verdict: Verdict,
    rules: EvaluationConfig,
) -> None:
    predicate: JsonObject = {
        "report": report.to_json(),
        "rules": asdict(rules),
        "passed": verdict.passed,
        "reasons": list(verdict.reasons),
    }
    attestation = custody.attest(
        Statement(
            subject_name=str(committed.name),
            subject=committed.checkpoint_id,
            predicate_type=EVALUATION,
            predicate=predicate,
        )
    )
    custody.record(
        EventKind.CHECKPOINT_EVALUATED,
        checkpoint_id=committed.checkpoint_id,
        checkpoint=committed.name,
        passed=verdict.passed,
        attestation=str(attestation),
    )
    logger.info(
        "checkpoint evaluated: checkpoint=%s loss=%.4f base_loss=%.4f bits_per_byte=%.4f passed=%s",
        committed.name,
        report.loss,
        report.base_loss,
        report.bits_per_byte,
        verdict.passed,
    )


def _held_out(custody: Custody, run: RunRecord, rules: EvaluationConfig) -> _HeldOut:
    from strongroom.data.packing import encode_row
    from strongroom.model.build import pad_id_of, tokenizer_from

    storage, cache = custody.storage, custody.cache
    folder = fetch_tree(storage, "datasets", run.inputs.dataset, cache)
    tokenizer = tokenizer_from(fetch_tree(storage, "tokenizers", run.inputs.tokenizer, cache))
    limit = parse(DataConfig, run.config["data"], source=f"run {run.run}").max_tokens
    rows = read_curated(folder / HELD_OUT_FILE)[: rules.max_rows]
    return _HeldOut(
        rows=[encode_row(tokenizer, row, limit) for row in rows],
        completion_bytes=sum(
            len(message.content.encode())
            for row in rows
            for message in row.messages
            if message.role == "assistant"
        ),
        pad_id=pad_id_of(tokenizer),
    )


def _score(model: torch.nn.Module, held_out: _HeldOut) -> Metrics:
    from strongroom.model.loss import completion_loss_sum

    scorer = model_scorer(model, held_out.pad_id, completion_loss_sum)
    return held_out_metrics(held_out.rows, held_out.completion_bytes, scorer)


def _baseline(
    custody: Custody, run: RunRecord, rules: EvaluationConfig, held_out: _HeldOut
) -> Metrics:
    from strongroom.model.build import build_base

    dtype = parse(ModelConfig, run.config["model"], source=f"run {run.run}").dtype
    key: JsonObject = {
        "dataset": str(run.inputs.dataset),
        "tokenizer": str(run.inputs.tokenizer),
        "max_rows": rules.max_rows,
        "dtype": dtype,
    }
    keyring = custody.keys.keyring()
    for sealed in attestations_of(custody.storage, run.inputs.base_model, keyring):
        statement = sealed.statement
        if statement.predicate_type == BASELINE and statement.predicate["key"] == key:
            return Metrics(**statement.predicate["metrics"])
    folder = fetch_tree(custody.storage, "models", run.inputs.base_model, custody.cache)
    metrics = _score(build_base(folder, dtype), held_out)
    custody.attest(
        Statement(
            subject_name="base model",
            subject=run.inputs.base_model,
            predicate_type=BASELINE,
            predicate={"key": key, "metrics": asdict(metrics)},
        )
    )
    return metrics
