"""An audit record in plain words: what it is, is it intact, is it good, who approved, what lacks.

Written for a reader who decides and does not train models. Pure; every sentence follows from the
record, and absence of evidence is never told as good news.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from strongroom.canonical import JsonObject
from strongroom.governance.audit_record import AuditRecord
from strongroom.governance.evidence import EvaluationEvidence
from strongroom.governance.promotion import Decision
from strongroom.governance.wording import ABSENT, counted, figure, listed, moment, size
from strongroom.ledger.facts import PRODUCTION, STAGING
from strongroom.signing.statement import PROVENANCE


class Tone(StrEnum):
    """How an answer reads; shown as a sign and a word too, never by colour alone."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"
    PLAIN = "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One question, the short answer and the sentence behind it."""

    question: str
    tone: Tone
    short: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The first page of a report.

    Attributes:
        answers: in the order they are read.
        alarms: what speaks against believing the record itself; mostly empty.
        missing: what the record or the next stage still lacks; may be empty.
    """

    tone: Tone
    headline: str
    words: str
    answers: tuple[Answer, ...]
    alarms: tuple[str, ...]
    missing: tuple[str, ...]


def summarise(record: AuditRecord) -> Summary:
    """Put a record into plain words."""
    alarms = tuple(_alarms(record))
    tone, headline, words = _headline(record, alarms)
    return Summary(
        tone=tone,
        headline=headline,
        words=words,
        answers=(_what(record), _intact(record), _good(record), _approved(record)),
        alarms=alarms,
        missing=tuple(_missing(record)),
    )


def _headline(record: AuditRecord, alarms: tuple[str, ...]) -> tuple[Tone, str, str]:
    stages = record.record.stages
    if record.record.quarantined is not None:
        held = [stage for stage in (STAGING, PRODUCTION) if stage in stages]
        still = f" It still holds {listed(held)}: move the stage to another." if held else ""
        return (
            Tone.BAD,
            "Quarantined: do not use",
            f"This checkpoint failed a check and may not be loaded.{still}",
        )
    if alarms:
        return (
            Tone.BAD,
            "Do not rely on this record",
            f"{counted(len(alarms), 'contradiction')} must be explained first; see below.",
        )
    if PRODUCTION in stages:
        return (
            Tone.GOOD,
            "In production",
            "Every rule held when it was promoted, and is on record.",
        )
    if STAGING in stages:
        return (
            Tone.GOOD,
            "In staging",
            "It may be tried out. It is not released for production use.",
        )
    if record.promotions:
        return (
            Tone.OPEN,
            "Replaced",
            f"It was in {record.promotions[-1].fact.stage}; another took its place.",
        )
    return (
        Tone.OPEN,
        "A candidate",
        "It holds no stage: nothing outside training may rely on it yet.",
    )


def _what(record: AuditRecord) -> Answer:
    question = "What is this?"
    if record.run is None:
        return Answer(
            question=question,
            tone=Tone.BAD,
            short="Not on record",
            words="The record of the run that made it cannot be read.",
        )
    config = record.run.config
    method = _at(config, "adapter", "method")
    rank = _at(config, "adapter", "rank")
    kind = f"a LoRA adapter of rank {rank} for" if method == "lora" else "all parameters of"
    created = ABSENT if record.manifest is None else moment(record.manifest.created)
    return Answer(
        question=question,
        tone=Tone.PLAIN,
        short="A fine-tuned language model",
        words=(
            f"Step {record.name.step.number:,} of {_at(config, 'train', 'steps')} of run "
            f"{record.name.run}: {kind} the base model {_at(config, 'model', 'source')}, trained "
            f"for {record.run.author} and saved on {created}. "
            + (
                "Its size is not recorded."
                if record.manifest is None
                else f"It is {size(record.manifest.num_bytes)} in "
                f"{counted(len(record.manifest.files), 'file')}."
            )
        ),
    )


def _intact(record: AuditRecord) -> Answer:
    question = "Is it intact?"
    verified, evidence = record.record.verified, record.verification
    if record.record.quarantined is not None:
        return Answer(
            question=question, tone=Tone.BAD, short="No", words=_sentence(record.record.quarantined)
        )
    if verified is None:
        return Answer(
            question=question,
            tone=Tone.OPEN,
            short="Not shown",
            words="It was never verified after it was saved.",
        )
    if evidence is None:
        return Answer(
            question=question,
            tone=Tone.BAD,
            short="Not shown",
            words=(
                f"The ledger names a verification on {moment(verified.time)}, but its signed "
                "record is missing or says something else."
            ),
        )
    if not evidence.passed:
        findings = [finding for rung in evidence.rungs for finding in rung.findings]
        return Answer(
            question=question, tone=Tone.BAD, short="No", words=_sentence("; ".join(findings))
        )
    times = [
        item.fact.time
        for item in record.verifications
        if item.fact.attestation == evidence.attestation
    ]
    time = times[-1] if times else verified.time
    again = "" if time == verified.time else f" It was last looked at on {moment(verified.time)}."
    proved = [_PROVED[rung.rung] for rung in evidence.rungs if rung.rung in _PROVED]
    return Answer(
        question=question,
        tone=Tone.GOOD,
        short=f"Yes, on {moment(time)}",
        words=f"On that day {listed(proved)}.{again}",
    )


_PROVED = {
    1: "every stored byte was what was written",
    2: "all its parts were there and of one moment",
    3: "a fresh process loaded it and scored what was recorded at the save",
    4: "it loaded the same at other sizes",
}


def _good(record: AuditRecord) -> Answer:
    question = "Is it good?"
    evaluated, evidence = record.record.evaluated, record.evaluation
    if evaluated is None:
        return Answer(
            question=question,
            tone=Tone.OPEN,
            short="Not shown",
            words="It was never evaluated on rows held out from training.",
        )
    if evidence is None:
        return Answer(
            question=question,
            tone=Tone.BAD,
            short="Not shown",
            words=(
                f"The ledger names an evaluation on {moment(evaluated.time)}, but its signed "
                "report is missing or says something else."
            ),
        )
    return Answer(
        question=question,
        tone=Tone.GOOD if evidence.passed else Tone.BAD,
        short="It meets the run's rules" if evidence.passed else "It fails the run's rules",
        words=_comparison(evidence),
    )


def _comparison(evidence: EvaluationEvidence) -> str:
    report = evidence.report
    on = f"On {counted(report.num_rows, 'row')} held out from training"
    if not report.finite:
        return f"{on} a score is not a finite number: the model has diverged."
    change = (report.loss - report.base_loss) / report.base_loss
    direction = "lower" if change <= 0 else "higher"
    return (
        f"{on} its loss is {figure(report.loss, 3)}; its base model's is "
        f"{figure(report.base_loss, 3)}. That is {abs(change):.0%} {direction} (lower is better)."
    )


def _approved(record: AuditRecord) -> Answer:
    question = "Who approved it?"
    decision = _decision(record, PRODUCTION)
    verdict = None if decision is None else decision.approvals
    if decision is None or verdict is None:
        return Answer(
            question=question,
            tone=Tone.BAD,
            short="Not on record",
            words="The ledger does not know who asked for the run, so nobody can approve it.",
        )
    needed = decision.policy.approvals
    promoted = [move for move in record.promotions if move.fact.stage == PRODUCTION]
    if verdict.rejections:
        names = listed([item.person for item in verdict.rejections])
        return Answer(
            question=question,
            tone=Tone.BAD,
            short=f"Rejected by {names}",
            words="A rejection stands until the same person approves.",
        )
    if promoted and not promoted[-1].faults and promoted[-1].again is not None:
        then = promoted[-1].again.approvals
        names = listed(then.persons if then is not None else ())
        return Answer(
            question=question,
            tone=Tone.GOOD,
            short=names or "Nobody had to",
            words=(
                f"For production, on {moment(promoted[-1].fact.time)}, each with a key of their "
                f"own. The author of the run, {_author(record)}, does not count."
            ),
        )
    if len(verdict.counted) >= needed:
        return Answer(
            question=question,
            tone=Tone.GOOD,
            short=f"{listed(verdict.persons)} for production",
            words=f"{len(verdict.counted)} of {needed} approvals count now.",
        )
    return Answer(
        question=question,
        tone=Tone.OPEN,
        short="Nobody yet" if not verdict.counted else f"{listed(verdict.persons)}, not enough",
        words=(
            f"Production asks for {counted(needed, 'person')} other than the author of the run, "
            f"{_author(record)}; {len(verdict.counted)} of {needed} approvals count now."
        ),
    )


def _alarms(record: AuditRecord) -> Iterator[str]:
    """Yield what speaks against believing the record: contradictions and failed proofs."""
    yield from record.faults
    for fault in dict.fromkeys(entry.fault for entry in record.entries if entry.fault):
        indexes = [str(entry.index) for entry in record.entries if entry.fault == fault]
        entries = "entry" if len(indexes) == 1 else "entries"
        yield f"Not proved: ledger {entries} {listed(indexes)}. {_sentence(fault)}"
    for move in record.promotions:
        if move.faults:
            yield (
                f"The promotion to {move.fact.stage} at ledger entry {move.fact.index} does not "
                f"hold when it is decided again: {_ended('; '.join(move.faults))}"
            )


def _missing(record: AuditRecord) -> Iterator[str]:
    """Yield what is lacking: for the stage after the highest it holds, then in the record."""
    held = [d.policy.stage in record.record.stages for d in record.decisions]
    highest = max((place for place, holds in enumerate(held) if holds), default=-1)
    for decision in record.decisions[highest + 1 : highest + 2]:
        for check in decision.checks:
            if not check.met:
                yield f"For {decision.policy.stage}: {check.rule}. Found: {_ended(check.found)}"
        if decision.allowed:
            stage = decision.policy.stage
            yield f"The promotion to {stage} itself: every rule for it is met now."
    kinds = {sealed.statement.predicate_type for sealed in record.attestations}
    if PROVENANCE not in kinds:
        yield "A signed statement of provenance (what it was made from, by which code)."


def _decision(record: AuditRecord, stage: str) -> Decision | None:
    return next((item for item in record.decisions if item.policy.stage == stage), None)


def _author(record: AuditRecord) -> str:
    return ABSENT if record.run_fact is None else record.run_fact.author


def _at(config: JsonObject, *path: str) -> str:
    """Return one value of a configuration as text, whatever shape the configuration has."""
    value: object = config
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return ABSENT if value is None else str(value)


def _ended(words: str) -> str:
    return words if words.rstrip('"').endswith((".", "!", "?")) else f"{words}."


def _sentence(words: str) -> str:
    return _ended(words[:1].upper() + words[1:])
