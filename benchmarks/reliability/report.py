"""What the matrix and the soak found, as Markdown: for the terminal, and for docs/reliability.md.

`python -m benchmarks.reliability.report FILE...` prints the tables of documents that `--out`
wrote; `--update PAGE` writes them into a page, between `<!-- bench:NAME -->` and
`<!-- /bench:NAME -->`. No figure of its tables is typed by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.reliability.kills import TARGETS
from benchmarks.reliability.marks import PHASES
from benchmarks.report import grid, print_or_update, with_block

Document = Mapping[str, Any]
Results = Sequence[Mapping[str, Any]]
EQUAL = "="
"""In every bit, the final state too."""


def markdown(document: Document) -> str:
    """Return the tables of one document, and where and how it was measured."""
    tables: dict[str, Callable[[Results], list[str]]] = {"matrix": _matrix, "soak": _soak}
    parts = [_circumstances(document), *tables[document["part"]](document["results"])]
    return "\n\n".join([*parts, *_faults(document["results"])])


def updated(page: str, documents: Sequence[Document]) -> str:
    """Return `page` with the blocks of these documents written anew.

    Raises:
        ValueError: the page has no such block.
    """
    for document in documents:
        page = with_block(page, document["part"], markdown(document))
    return page


def _circumstances(document: Document) -> str:
    machine = document["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    settings = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in document["settings"].items()
    )
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux "
        f"{machine['kernel']}, Python {machine['python']}, {versions}. Load average before: "
        f"{machine['load_average_1min']:.2f}; {document['seconds'] / 60:.0f} minutes in all.\n\n"
        f"Settings: {settings}."
    )


def _matrix(results: Results) -> list[str]:
    same = [result for result in results if result["saved"] == result["resumed"]]
    others = [result for result in results if result["saved"] != result["resumed"]]
    largest = max((result["difference"] for result in others), default=0.0)
    methods = dict.fromkeys(result["method"] for result in results)
    summary = grid(
        ["cells", "all", "hold"],
        [
            [title, str(len(of_it)), str(sum(not result["faults"] for result in of_it))]
            for title, of_it in (
                ("goes on as it was: losses and final state equal, bit for bit", same),
                (f"goes on otherwise: losses within 1e-6, at most {largest:.1e} seen", others),
                ("together", results),
            )
        ],
    )
    return [summary, *(_square(method, results) for method in methods)]


def _square(method: str, results: Results) -> str:
    """Return a method's cells: a row for each placement at the save, a column at the resume."""
    cells = {
        (result["saved"], result["resumed"]): _cell(result)
        for result in results
        if result["method"] == method
    }
    columns = list(dict.fromkeys(resumed for _, resumed in cells))
    rows = list(dict.fromkeys(saved for saved, _ in cells))
    if all(saved == resumed for saved, resumed in cells):
        return grid([method, *columns], [["goes on as it was", *cells.values()]])
    return grid(
        [f"{method}: saved by", *columns],
        [[saved, *(cells.get((saved, resumed), "") for resumed in columns)] for saved in rows],
    )


def _cell(result: Mapping[str, Any]) -> str:
    if result["faults"]:
        return "**fails**"
    if result["saved"] == result["resumed"]:
        return EQUAL
    return f"{result['difference']:.0e}" if result["difference"] else "0"


def _soak(results: Results) -> list[str]:
    lines: list[tuple[str, Callable[[Mapping[str, Any]], object]]] = [
        ("kills", lambda result: result["kills"]),
        *(
            (f"killed: {target}", lambda result, target=target: result["targets"].get(target, 0))
            for target in TARGETS
        ),
        *(
            (f"met: {phase}", lambda result, phase=phase: result["phases"].get(phase, 0))
            for phase in PHASES
        ),
        ("attempts that came to train", lambda result: result["attempts"]),
        ("restarts by the supervisor", lambda result: result["restarts"]),
        ("checkpoints, each verified", lambda result: result["checkpoints"]),
        ("steps of the run", lambda result: result["steps"]),
        ("steps taken again, in all", lambda result: result["lost_steps"]),
        ("steps taken again, most after a kill", lambda result: result["most_lost_steps"]),
        ("save intervals lost, most at a kill", lambda result: result["most_lost_intervals"]),
        ("final state and all losses", lambda r: "**differ**" if r["faults"] else EQUAL),
        ("minutes", lambda result: round(result["seconds"] / 60)),
    ]
    return [
        grid(
            ["soak", *(str(result["soak"]) for result in results)],
            [[title, *(str(value(result)) for result in results)] for title, value in lines],
        )
    ]


def _faults(results: Results) -> list[str]:
    listed = [
        f"- {result.get('soak') or '{method}: {saved} -> {resumed}'.format(**result)}: {fault}"
        for result in results
        for fault in result["faults"]
    ]
    return ["**What does not hold:**", "\n".join(listed)] if listed else []


def main() -> None:
    """Do what the command line says."""
    print_or_update("benchmarks.reliability.report", markdown, updated)


if __name__ == "__main__":
    main()
