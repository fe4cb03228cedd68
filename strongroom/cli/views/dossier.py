"""Everything that is known of one checkpoint, section by section.

What is absent is said to be absent; what speaks against the record stands first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from strongroom.canonical import JsonObject
from strongroom.checkpoint.attempts import AttemptRecord
from strongroom.cli.blocks import NOTHING, Block, Cell, Column, Fields, Heading, Line, Table, Tone
from strongroom.cli.views.ledger import actor_cell, event_document, event_table
from strongroom.cli.views.listing import passed_cell, stage_cell
from strongroom.cli.views.phrases import facts_in_words, metric_in_words, to_second
from strongroom.governance.audit_record import AuditedReview, AuditRecord
from strongroom.governance.lineage import state_of
from strongroom.governance.summary import summarise
from strongroom.governance.wording import ABSENT, counted, figure, size


def dossier_blocks(record: AuditRecord) -> tuple[Block, ...]:
    """Return the sections, in the order a reader asks."""
    return (
        *_checkpoint(record),
        *_contents(record),
        *_inputs(record),
        *_verification(record),
        *_evaluation(record),
        *_reviews(record.reviews),
        *_stages(record),
        *_events(record),
    )


def dossier_document(record: AuditRecord) -> JsonObject:
    """Return the same for a program, with the manifest and the run's record in full."""
    return {
        "name": str(record.name),
        "checkpoint_id": str(record.checkpoint_id),
        "state": state_of(record.record),
        "quarantined": record.record.quarantined,
        "stages": list(record.record.stages),
        "manifest": None if record.manifest is None else json.loads(record.manifest.to_bytes()),
        "run": None if record.run is None else json.loads(record.run.to_bytes()),
        "attempt": None if record.attempt is None else json.loads(record.attempt.to_bytes()),
        "verifications": [
            {
                "index": item.fact.index,
                "time": item.fact.time,
                "passed": item.fact.passed,
                "rung": item.fact.rung,
                "state_digest": item.fact.state_digest,
                "attestation": item.fact.attestation,
                "rungs": None if item.evidence is None else list(item.evidence.rungs),
            }
            for item in record.verifications
        ],
        "evaluations": [
            {
                "index": item.fact.index,
                "time": item.fact.time,
                "passed": item.fact.passed,
                "attestation": item.fact.attestation,
                "report": None if item.evidence is None else item.evidence.report.to_json(),
                "reasons": None if item.evidence is None else list(item.evidence.reasons),
            }
            for item in record.evaluations
        ],
        "reviews": [_review_document(review) for review in record.reviews],
        "decisions": [
            {
                "stage": decision.policy.stage,
                "allowed": decision.allowed,
                "policy": decision.policy.digest,
                "checks": [
                    {"rule": check.rule, "met": check.met, "found": check.found}
                    for check in decision.checks
                ],
            }
            for decision in record.decisions
        ],
        "events": [
            {**event_document(entry.index, entry.event), "proved": not entry.fault}
            for entry in record.entries
        ],
        "faults": list(summarise(record).alarms),
    }


def _computed(attempt: AttemptRecord) -> Iterator[tuple[str, Cell]]:
    """Say how an attempt was spread and what it computed on, of what its record holds."""
    strategy, replicas = (attempt.placement.get(name) for name in ("strategy", "replicas"))
    if strategy is not None:
        yield "spread by", Cell(f"{strategy}, {replicas} replica(s)")
    if (device := attempt.environment.get("device")) is not None:
        yield "computed on", Cell(str(device))


def _checkpoint(record: AuditRecord) -> Iterator[Block]:
    state = state_of(record.record)
    tone: Tone = "good" if state == "verified" else "bad" if "not" not in state else "plain"
    pairs = [
        ("id", Cell(str(record.checkpoint_id))),
        ("name", Cell(str(record.name))),
        ("state", Cell(state, tone)),
        ("stage", stage_cell(record.record.stages)),
    ]
    if record.record.quarantined is not None:
        pairs.append(("reason", Cell(record.record.quarantined, "bad")))
    if (manifest := record.manifest) is not None:
        parent = manifest.parent
        pairs += [
            ("saved", Cell(to_second(manifest.created))),
            ("size", Cell(f"{size(manifest.num_bytes)} in {counted(len(manifest.files), 'file')}")),
            ("ranks", Cell(str(manifest.world_size))),
            ("save id", Cell(manifest.save_id)),
            ("resumed from", NOTHING if parent is None else Cell(str(parent))),
            ("exact resume", Cell("yes") if manifest.exact_resume else Cell("no", "bad")),
        ]
        pairs += [
            (metric_in_words(name), Cell(figure(value)))
            for name, value in sorted(manifest.metrics.items())
        ]
    if record.attempt is not None:
        pairs += _computed(record.attempt)
    pairs += [("not exact", Cell(reason, "bad")) for reason in record.inexact]
    summary = summarise(record)
    yield Heading(f"checkpoint {record.name.short}: {summary.headline}")
    for alarm in summary.alarms:
        yield Line.of(alarm, "bad")
    yield Fields(tuple(pairs))


def _contents(record: AuditRecord) -> Iterator[Block]:
    yield Heading("contents")
    yield Table(
        columns=(
            Column(title="part"),
            Column(title="tensors", right=True),
            Column(title="elements", right=True),
            Column(title="size", right=True),
            Column(title="dtype"),
        ),
        rows=tuple(
            (
                Cell(group.name),
                Cell(f"{group.num_tensors:,}"),
                Cell(f"{group.num_elements:,}"),
                Cell(size(group.num_bytes)),
                Cell(", ".join(group.dtypes)),
            )
            for group in record.tensors
        ),
        empty="The manifest cannot be read.",
    )


def _inputs(record: AuditRecord) -> Iterator[Block]:
    yield Heading("made from")
    pairs: list[tuple[str, Cell]] = []
    if (run := record.run_fact) is not None:
        pairs += [
            ("run", Cell(str(run.key))),
            ("author", Cell(run.author)),
            ("base model", Cell(str(run.base_model))),
            ("dataset", Cell(str(run.dataset))),
            ("tokenizer", Cell(str(run.tokenizer))),
            ("configuration", Cell(str(run.config))),
        ]
    if record.run is not None:
        pairs += [
            ("code", Cell(facts_in_words(record.run.code) or ABSENT)),
            ("environment", Cell(facts_in_words(record.run.environment) or ABSENT)),
        ]
    yield Fields(tuple(pairs)) if pairs else Line.of("The ledger does not say.", "bad")


def _verification(record: AuditRecord) -> Iterator[Block]:
    yield Heading("verification")
    if record.verification is not None and record.verification.state_digest is not None:
        yield Fields((("state digest", Cell(str(record.verification.state_digest))),))
    yield Table(
        columns=(
            Column(title="entry", right=True),
            Column(title="time"),
            Column(title="result"),
            Column(title="climbed to"),
            Column(title="seconds", right=True),
            Column(title="found", wraps=True),
        ),
        rows=tuple(
            (
                Cell(str(item.fact.index)),
                Cell(to_second(item.fact.time)),
                passed_cell(item.fact.passed),
                Cell(f"rung {item.fact.rung}"),
                *(
                    (NOTHING, Cell("the signed record is missing", "bad"))
                    if item.evidence is None
                    else (
                        Cell(f"{sum(rung.seconds for rung in item.evidence.rungs):.2f}"),
                        _findings([text for rung in item.evidence.rungs for text in rung.findings]),
                    )
                ),
            )
            for item in record.verifications
        ),
        empty=f"Never verified: strongroom verify {record.name.short}",
    )


def _findings(findings: Sequence[str]) -> Cell:
    return Cell("; ".join(findings), "bad") if findings else Cell("nothing amiss", "good")


def _evaluation(record: AuditRecord) -> Iterator[Block]:
    yield Heading("evaluation")
    if not record.evaluations:
        yield Line.of(f"Never evaluated: strongroom evaluate {record.name.short}", "faint")
        return
    if (evaluation := record.evaluation) is None:
        yield Line.of("The signed report that the ledger names is missing.", "bad")
        return
    report = evaluation.report
    yield Fields(
        (
            ("result", passed_cell(evaluation.passed)),
            ("held-out loss", _against(report.loss, report.base_loss)),
            ("bits per byte", _against(report.bits_per_byte, report.base_bits_per_byte)),
            ("scored", Cell(f"{counted(report.num_rows, 'row')}, {report.num_tokens:,} tokens")),
            ("rules", Cell("\n".join(evaluation.reasons) or ABSENT)),
        )
    )


def _against(value: float, base: float) -> Cell:
    return Cell(f"{figure(value)} (base model: {figure(base)})", "good" if value < base else "bad")


def _reviews(reviews: Sequence[AuditedReview]) -> Iterator[Block]:
    yield Heading("approvals and rejections")
    yield Table(
        columns=(
            Column(title="entry", right=True),
            Column(title="time"),
            Column(title="who"),
            Column(title="says"),
            Column(title="stage"),
            Column(title="counts", wraps=True),
            Column(title="comment", wraps=True),
        ),
        rows=tuple(
            (
                Cell(str(review.recorded.fact.index)),
                Cell(to_second(review.recorded.fact.time)),
                actor_cell(review.recorded.fact.actor),
                Cell("approves", "good") if review.recorded.approves else Cell("rejects", "bad"),
                Cell(review.recorded.fact.stage),
                Cell("yes") if review.counts else Cell(f"no: {'; '.join(review.reasons)}", "bad"),
                Cell(review.said.comment) if review.said and review.said.comment else NOTHING,
            )
            for review in reviews
        ),
        empty="None.",
    )


def _review_document(review: AuditedReview) -> JsonObject:
    fact, said = review.recorded.fact, review.said
    return {
        "index": fact.index,
        "time": fact.time,
        "actor": fact.actor,
        "approves": review.recorded.approves,
        "stage": fact.stage,
        "policy": fact.policy,
        "attestation": fact.attestation,
        "expires": fact.expires,
        "comment": None if said is None else said.comment,
        "counts": review.counts,
        "reasons": list(review.reasons),
    }


def _stages(record: AuditRecord) -> Iterator[Block]:
    yield Heading("stages")
    yield Fields(
        tuple(
            (
                decision.policy.stage,
                Cell("it is there now", "good")
                if decision.policy.stage in record.record.stages
                else Cell("its policy allows it", "good")
                if decision.allowed
                else Cell("not yet:\n" + "\n".join(decision.reasons)),
            )
            for decision in record.decisions
        )
    )


def _events(record: AuditRecord) -> Iterator[Block]:
    yield Heading("events")
    yield event_table([(entry.index, entry.event) for entry in record.entries])
