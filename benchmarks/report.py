"""Measured figures as Markdown: for the terminal, and for the tables of docs/performance.md.

`python -m benchmarks.report FILE...` prints the tables of documents that `--json` wrote;
`--update PAGE` writes them into a page, between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`.
No figure of that page is typed by hand.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.rounds import paired_ratios

QUANTITIES: dict[str, tuple[str, str]] = {
    "pause_s": ("pause, s", ".3f"),
    "copy_s": ("warm copy, s", ".3f"),
    "pause_copies": ("pause, in copies", ".2f"),
    "durable_s": ("durable, s", ".2f"),
    "seconds": ("seconds", ".2f"),
    "gib_per_s": ("GiB/s", ".2f"),
    "steps_per_s": ("steps/s", ".3f"),
    "client_cpu_s_per_gib": ("client CPU-s/GiB", ".2f"),
    "client_cpu_s": ("client CPU-s", ".1f"),
    "waited_s": ("waited for saves, s", ".2f"),
    "server_cpu_s_per_gib": ("server CPU-s/GiB", ".1f"),
    "extra_mib": ("extra memory, MiB", ".0f"),
    "stored_mib": ("stored, MiB", ".1f"),
    "changed_mib": ("changed, MiB", ".1f"),
    "stored_per_changed": ("stored / changed", ".3f"),
}
"""How each quantity is headed and printed, in the order of the columns."""

TARGETS = "targets"
"""Name of the block that holds the targets of all documents."""


def markdown(document: Mapping[str, Any]) -> str:
    """Return the tables of one benchmark, its targets and where it was measured."""
    parts = [_machine(document)]
    parts += [_table(table) for table in document["tables"]]
    if document["targets"]:
        parts.append(_targets(document["targets"]))
    return "\n\n".join(parts)


def updated(page: str, documents: Sequence[Mapping[str, Any]]) -> str:
    """Return `page` with the blocks of these benchmarks, and of the targets, written anew.

    Raises:
        ValueError: the page has no such block.
    """
    blocks = {
        document["benchmark"]: "\n\n".join(
            [_machine(document), *(_table(table) for table in document["tables"])]
        )
        for document in documents
    }
    blocks[TARGETS] = _targets([target for doc in documents for target in doc["targets"]])
    for name, text in blocks.items():
        page = with_block(page, name, text)
    return page


def with_block(page: str, name: str, text: str) -> str:
    """Return `page` with what stands in the block `name` written anew.

    Raises:
        ValueError: the page has no such block.
    """
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise ValueError(f"the page has no {begin} ... {end} for the tables to stand in")
    return f"{before}{begin}\n{text}\n{end}{after}"


def _machine(document: Mapping[str, Any]) -> str:
    machine, settings = document["machine"], document["settings"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    return (
        f"State of {settings['mib']} MiB, medians of {settings['rounds']} rounds, "
        f"{document['seconds'] / 60:.0f} minutes in all. {machine['cpu']}, {machine['cores']} "
        f"cores, {machine['memory_gib']} GiB, Linux {machine['kernel']}, Python "
        f"{machine['python']}, Ceph {machine['ceph']}, {versions}. "
        f"Load average before: {machine['load_average_1min']:.2f}."
    )


def _table(table: Mapping[str, Any]) -> str:
    rows = table["rows"]
    quantities = [name for name in QUANTITIES if any(name in samples for samples in rows.values())]
    quantity, base = table["compared"]
    lines = [
        [
            system,
            *(
                _cell(samples.get(name, []), QUANTITIES[name][1], with_range=name == quantity)
                for name in quantities
            ),
            _cell(paired_ratios(rows, system, quantity, base), ".2f", with_range=True),
        ]
        for system, samples in rows.items()
    ]
    heads = [QUANTITIES[name][0] for name in quantities]
    heads.append(f"{QUANTITIES[quantity][0].partition(',')[0]} ÷ {base}")
    return grid([table["title"], *heads], lines)


def _cell(samples: Sequence[float], form: str, *, with_range: bool) -> str:
    """Return the median and, where wanted and to be seen, the range."""
    if not samples:
        return ""
    values = median(samples), min(samples), max(samples)
    middle, low, high = (format(value, form) for value in values)
    return middle if low == high or not with_range else f"{middle} ({low} to {high})"


def _targets(targets: Sequence[Mapping[str, Any]]) -> str:
    verdicts = {True: "reached", False: "**falls short**", None: "not measured"}
    signs = {"<=": "≤", ">=": "≥"}
    return grid(
        ["figure", "target", "measured", ""],
        [
            [
                target["what"],
                f"{signs[target['bound']]} {target['limit']:.3g}",
                "" if target["got"] is None else f"{target['got']:.3g}",
                verdicts[target["reached"]],
            ]
            for target in targets
        ],
    )


def grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns line up in a terminal too; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
        return f"| {' | '.join(padded)} |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(head), line(rule), *map(line, lines)])


def print_or_update(
    module: str,
    markdown: Callable[[Mapping[str, Any]], str],
    updated: Callable[[str, Sequence[Mapping[str, Any]]], str],
) -> None:
    """Do what the command line of `python -m module` says: print documents, or write a page anew.

    Args:
        module: its name.
        markdown: returns one document as text.
        updated: returns a page with the blocks of documents written anew.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("files", nargs="+", type=Path, help="documents that measuring wrote")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="write them into this page")
    chosen = parser.parse_args()
    documents = [json.loads(file.read_text()) for file in chosen.files]
    if chosen.update is None:
        print("\n\n".join(map(markdown, documents)))
    else:
        page = chosen.update.read_text(encoding="utf-8")
        chosen.update.write_text(updated(page, documents), encoding="utf-8")


if __name__ == "__main__":
    print_or_update("benchmarks.report", markdown, updated)
