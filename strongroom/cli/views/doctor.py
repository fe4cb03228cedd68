"""What the preflight saw, what follows from it, and what it found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from strongroom.canonical import JsonObject
from strongroom.cli.blocks import Block, Cell, Column, Fields, Heading, Line, Table
from strongroom.names import RunKey
from strongroom.training.preflight.numbers import NUMBERS
from strongroom.training.preflight.rules import RULES
from strongroom.training.preflight.wording import in_bytes, in_count, in_seconds

if TYPE_CHECKING:
    from strongroom.training.preflight.estimates import Estimates, Room
    from strongroom.training.preflight.facts import (
        DataFacts,
        Facts,
        MachineFacts,
        ModelFacts,
        RunFacts,
        StoreFacts,
        TokenizerFacts,
    )
    from strongroom.training.preflight.findings import Finding
    from strongroom.training.preflight.report import PreflightReport

UNKNOWN = Cell("not known", "faint")


def report_document(run: RunKey, report: PreflightReport) -> JsonObject:
    """Return everything as JSON; null is what is not known."""
    return {"run": str(run), "facts": report.facts, **report.to_json()}


def report_blocks(config: str, report: PreflightReport) -> Iterator[Block]:
    """Say what was found, first in one line and then each finding, and what it was found from."""
    yield Line.of(f"{config}: {_verdict(report)}", "bad" if report.stopping else "good")
    yield Heading("seen")
    yield Fields(tuple(_seen(report.facts)))
    yield Heading("expected")
    yield Fields(tuple(_expected(report.estimates)))
    for found in report.findings:
        yield Heading(f"{_weight(found, report)}: {found.check}")
        yield Fields(
            (
                ("saw", Cell(found.saw, "bad" if report.stops(found) else "plain")),
                ("why", Cell(found.why)),
                ("mend", Cell(found.mend)),
                ("source", Cell(found.source, "faint")),
            )
        )


def rule_document(numbers: Mapping[str, float]) -> JsonObject:
    """Return every check and every number as JSON."""
    return {
        "checks": list(RULES.values()),
        "numbers": [
            {
                "name": number.name,
                "value": numbers[number.name],
                "default": number.value,
                "unit": number.unit,
                "meaning": number.meaning,
                "source": number.source,
            }
            for number in NUMBERS.values()
        ],
    }


def rule_blocks(numbers: Mapping[str, float]) -> Iterator[Block]:
    """Return every check and every number as tables."""
    yield Heading("checks")
    yield Table(
        columns=(
            Column(title="name"),
            Column(title="looks for", wraps=True),
            Column(title="source", wraps=True),
        ),
        rows=tuple(
            (Cell(rule.name), Cell(rule.looks_for), Cell(rule.source, "faint"))
            for rule in RULES.values()
        ),
        empty="",
    )
    yield Heading("numbers")
    yield Table(
        columns=(
            Column(title="name"),
            Column(title="value", right=True),
            Column(title="unit"),
            Column(title="meaning", wraps=True),
            Column(title="source", wraps=True),
        ),
        rows=tuple(
            (
                Cell(number.name),
                Cell(f"{numbers[number.name]:g}"),
                Cell(number.unit),
                Cell(number.meaning),
                Cell(number.source, "faint"),
            )
            for number in NUMBERS.values()
        ),
        empty="",
    )


def _verdict(report: PreflightReport) -> str:
    num_stopping = len(report.stopping)
    num_others = len(report.findings) - num_stopping
    if not report.findings:
        return "nothing found"
    parts = []
    if num_stopping:
        parts.append(f"{num_stopping} finding(s) that stop a launch")
    if num_others:
        parts.append(f"{num_others} to think about")
    return ", ".join(parts)


def _weight(found: Finding, report: PreflightReport) -> str:
    if report.stops(found):
        return "stop"
    return "ignored" if found.severity == "stop" else "warn"


def _seen(facts: Facts) -> Iterator[tuple[str, Cell]]:
    yield "machine", _or_unknown(facts.machine, _machine)
    yield "model", _or_unknown(facts.model, _model)
    yield "tokenizer", _or_unknown(facts.tokenizer, _tokenizer)
    yield "rows", _or_unknown(facts.data, _data)
    yield "store", _or_unknown(facts.store, _store)
    yield "run", _or_unknown(facts.run, _run)
    if facts.allreduce_ms is not None:
        yield "all-reduce", Cell(f"{facts.allreduce_ms:.3g} ms for 1 MiB")


def _or_unknown(value: Any, in_words: Any) -> Cell:  # noqa: ANN401 -- any of the facts
    return UNKNOWN if value is None else Cell(in_words(value))


def _machine(machine: MachineFacts) -> str:
    parts = [f"{machine.cores} cores"]
    if machine.memory_bytes is not None:
        parts.append(f"{in_bytes(machine.memory_bytes)} of memory left")
    if machine.accelerators is None:
        parts.append("accelerators that do not answer")
    elif machine.accelerators:
        first = machine.accelerators[0]
        parts.append(
            f"{len(machine.accelerators)} x {first.name}, {in_bytes(first.memory_bytes)} each"
        )
    else:
        parts.append("no accelerator")
    if machine.rdma:
        active = sum(device.is_active for device in machine.rdma)
        parts.append(f"{active} of {len(machine.rdma)} RDMA ports active")
    return ", ".join(parts)


def _model(model: ModelFacts) -> str:
    shape = model.shape
    if shape is None:
        return f"{model.architecture}, of sizes that are not known here"
    positions = "positions not known" if model.positions is None else f"{model.positions} positions"
    return (
        f"{model.architecture}, {in_count(shape.parameters)} parameters, "
        f"{in_count(shape.trainable)} trained, {shape.layers} layers, {positions}"
    )


def _tokenizer(tokenizer: TokenizerFacts) -> str:
    padding = tokenizer.padding or tokenizer.end
    same = padding is not None and padding == tokenizer.end
    what = "no padding token" if padding is None else f"padding {padding}"
    told = ", the end token too, told apart by its place" if same else ""
    if not tokenizer.has_template:
        return f"{what}{told}; no chat template"
    marks = "with" if tokenizer.has_marks else "without"
    return f"{what}{told}; a template {marks} marks, answers found by rendering prompts"


def _data(data: DataFacts) -> str:
    rows = "" if data.num_rows is None else f"{data.num_rows} rows, "
    return (
        f"{rows}{data.mean_tokens:.0f} tokens on average, {data.longest_tokens} at most, "
        f"of {data.sampled_rows} looked at"
    )


def _store(store: StoreFacts) -> str:
    parts = [store.url, "there" if store.exists else "not made yet"]
    if store.storage_class is not None:
        parts.append(store.storage_class)
    if store.free_bytes is not None:
        parts.append(f"{in_bytes(store.free_bytes)} free")
    return ", ".join(parts)


def _run(run: RunFacts) -> str:
    newest = run.newest
    if newest is None:
        return f"{run.key}, no checkpoint to go on from"
    return f"{run.key}, {run.num_checkpoints} checkpoints, newest {newest.name}"


def _expected(estimates: Estimates) -> Iterator[tuple[str, Cell]]:
    yield "tokens of a step", _number(estimates.step_tokens, in_count)
    step = _number(estimates.step_s, in_seconds)
    if estimates.step_source is not None:
        step = Cell(f"{step.text} ({estimates.step_source})")
    yield "time of a step", step
    yield "time between saves", Cell(f"at most {in_seconds(estimates.interval_s)}")
    size = _number(estimates.checkpoint_bytes, in_bytes)
    yield "checkpoint", size
    yield "checkpoints to come", Cell(str(estimates.num_checkpoints))
    yield "time to store one", _number(estimates.upload_s, in_seconds)
    if estimates.device is not None:
        yield "memory of a rank's accelerator", _room(estimates.device)
    yield "memory of this machine", UNKNOWN if estimates.host is None else _room(estimates.host)


def _number(value: float | None, in_words: Any) -> Cell:  # noqa: ANN401 -- number to text
    return UNKNOWN if value is None else Cell(in_words(value))


def _room(room: Room) -> Cell:
    there = "what is not known" if room.there_bytes is None else in_bytes(room.there_bytes)
    return Cell(f"about {in_bytes(room.needed_bytes)} of {there}")
