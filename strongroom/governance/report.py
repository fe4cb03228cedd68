"""Make one self-contained page of an audit record: no scripts, nothing fetched, printable.

Every value passes through autoescaping and `printable`, whoever wrote it, and the page's own
Content-Security-Policy (`default-src 'none'`) forbids a browser to load or run anything. Shown are
digests, numbers, settings and the words of reviewers; never a row of data and never a token.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from strongroom.checkpoint.attempts import AttemptRecord
from strongroom.governance.audit_record import AuditRecord
from strongroom.governance.lineage_drawing import draw_lineage
from strongroom.governance.loss_drawing import LossPoint, draw_loss
from strongroom.governance.summary import summarise
from strongroom.governance.wording import ABSENT, brief, counted, figure, listed, moment, size, who
from strongroom.ledger.events import Event, EventKind

TEMPLATE = "report.html.j2"


def render(record: AuditRecord) -> str:
    """Return the page as text; the same record gives the same page."""
    run = record.run
    return (
        _environment()
        .get_template(TEMPLATE)
        .render(
            record=record,
            summary=summarise(record),
            title=f"{record.name.run}, step {record.name.step.number:,}",
            lineage=None if record.lineage is None else _drawn(draw_lineage(record.lineage)),
            plot=_plot(record),
            settings=() if run is None else tuple(flatten(run.config)),
            code=() if run is None else tuple(flatten(run.code)),
            environment=() if run is None else tuple(flatten(run.environment)),
            attempt=() if record.attempt is None else tuple(_computed(record.attempt)),
        )
    )


def _computed(attempt: AttemptRecord) -> Iterator[tuple[str, str]]:
    """Yield nothing of an attempt whose record says nothing of it."""
    yield from flatten(attempt.placement) if attempt.placement else ()
    yield from flatten(attempt.environment) if attempt.environment else ()


def flatten(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of a JSON value as (dotted path, text); nothing is left out."""
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from flatten(value[key], f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for index, item in enumerate(value):
            yield from flatten(item, f"{path}.{index}")
    elif isinstance(value, list):
        yield path, ", ".join(map(_leaf, value)) or "none"
    elif isinstance(value, dict):
        yield path, "none"
    else:
        yield path, _leaf(value)


def printable(value: object) -> object:
    """Return what stands in the page for `value`: absence in words, unwritable characters shown.

    Control characters, lone surrogates and the characters that reorder text could make a page say
    something else than what is stored; each becomes a visible `U+XXXX`.
    """
    if value is None or value == "":
        return ABSENT
    if isinstance(value, Markup):
        return value
    return _UNPRINTABLE.sub(lambda match: f"[U+{ord(match[0]):04X}]", str(value))


_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff"
    "\ud800-\udfff]"
)


def told(event: Event) -> str:
    """Say in a sentence what an event reports."""
    facts = event.facts
    outcome = facts.get("passed") is True
    words = {
        EventKind.RUN_CREATED: "The run was created for {author}.",
        EventKind.CHECKPOINT_COMMITTED: "The checkpoint was committed, {num_bytes:,} bytes.",
        EventKind.CHECKPOINT_VERIFIED: "Verified: it holds up to rung {rung}."
        if outcome
        else "Verified: it does not hold above rung {rung}.",
        EventKind.CHECKPOINT_QUARANTINED: "Quarantined: {reason}",
        EventKind.CHECKPOINT_EVALUATED: "Evaluated: it meets the run's rules."
        if outcome
        else "Evaluated: it fails the run's rules.",
        EventKind.CHECKPOINT_APPROVED: "Approved for {stage}.",
        EventKind.CHECKPOINT_REJECTED: "Rejected for {stage}.",
        EventKind.CHECKPOINT_PROMOTED: "Promoted to {stage}.",
        EventKind.CHECKPOINT_EXPORTED: "A copy left the store, {num_bytes:,} bytes, as {format}.",
        EventKind.PROMOTION_REFUSED: "Promotion to {stage} was refused.",
    }
    return words.get(event.kind, str(event.kind)).format(**facts)


RUNGS = {
    1: ("Bytes", "Every stored file was read again and its digest compared."),
    2: ("Structure", "All parts are there, fit together, and are of one and the same save."),
    3: ("Load", "A fresh process loaded it and scored the row recorded at the save."),
    4: ("Reshard", "It loads at other numbers of processes with the same meaning."),
}
"""What each rung of the verification ladder proves, for people."""

TENSORS = {
    "model": "Trained parameters",
    "optim": "Optimizer state, needed to resume",
    "rng": "Random generators, needed to resume",
}
"""What the first part of a tensor's name stands for."""

STATEMENTS = {
    "https://slsa.dev/provenance/v1": "Provenance: what it was made from",
    "urn:strongroom:verification:1": "Verification record",
    "urn:strongroom:evaluation:1": "Evaluation report",
    "urn:strongroom:approval:1": "Approval",
    "urn:strongroom:rejection:1": "Rejection",
    "urn:strongroom:promotion:1": "Promotion",
}
"""What each predicate type says, for people."""


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("strongroom.governance", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=printable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "brief": brief,
        "counted": counted,
        "figure": figure,
        "listed": listed,
        "moment": moment,
        "size": size,
        "told": told,
        "who": who,
    }
    environment.globals |= {"RUNGS": RUNGS, "TENSORS": TENSORS, "STATEMENTS": STATEMENTS}
    return environment


def _plot(record: AuditRecord) -> Markup | None:
    reported = [point for point in record.series if point.report is not None]
    reports = [point.report for point in reported if point.report is not None]
    if not reports:
        return None
    own = record.evaluation
    base = reports[-1].base_loss if own is None else own.report.base_loss
    # A step saved by two attempts is drawn once: the subject, else the newest attempt's.
    by_step = {
        point.record.name.step.number: point
        for point in sorted(reported, key=lambda item: (item.subject, item.record.name.attempt))
    }
    drawn = draw_loss(
        [
            LossPoint(step=step, loss=point.report.loss, subject=point.subject)
            for step, point in by_step.items()
            if point.report is not None
        ],
        base_loss=base,
    )
    return None if drawn is None else _drawn(drawn)


def _drawn(svg: str) -> Markup:
    return Markup(svg)  # noqa: S704 -- written by our own XML writer, which escapes every text


def _leaf(value: object) -> str:
    if value is None:
        return "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
