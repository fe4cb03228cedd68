from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks.reliability.command import FORMAT, Measured, Options, run_command
from benchmarks.reliability.report import main, markdown, updated

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "reliability.md"

CELLS: list[dict[str, Any]] = [
    {"method": "full", "saved": "fsdp2@1", "resumed": "fsdp2@1", "difference": 0.0},
    {"method": "full", "saved": "fsdp2@1", "resumed": "zero3@2", "difference": 4.9e-8},
    {"method": "full", "saved": "zero3@2", "resumed": "fsdp2@1", "difference": 0.0},
    {"method": "full", "saved": "zero3@2", "resumed": "zero3@2", "difference": 0.0},
    {"method": "lora, dropout", "saved": "zero3@2", "resumed": "zero3@2", "difference": 0.0},
]
SOAK: dict[str, Any] = {
    "soak": "zero3",
    "steps": 30,
    "kills": 3,
    "phases": {"shards": 2, "training": 1},
    "targets": {"rank 1": 3},
    "attempts": 4,
    "restarts": 0,
    "checkpoints": 6,
    "lost_steps": 11,
    "most_lost_steps": 5,
    "most_lost_intervals": 1,
    "seconds": 150.0,
}


def document(part: str, results: list[dict[str, Any]], *faults: str) -> dict[str, Any]:
    listed = [{**result, "faults": []} for result in results]
    listed[-1]["faults"] = list(faults)
    return {
        "format": FORMAT,
        "part": part,
        "machine": {
            "cpu": "Abacus",
            "cores": 2,
            "memory_gib": 4.0,
            "kernel": "6",
            "python": "3.11",
            "packages": {"torch": "2"},
            "load_average_1min": 0.25,
        },
        "settings": {"seed": 3, "save interval, steps": 5},
        "seconds": 90.0,
        "results": listed,
    }


def cells(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} ")]
    return [cell.strip() for cell in line.strip("| ").split("|")][1:]


def test_the_matrix_shows_every_cell_in_its_place() -> None:
    text = markdown(document("matrix", CELLS))
    assert cells(text, "full: saved by") == ["fsdp2@1", "zero3@2"]
    assert cells(text, "fsdp2@1") == ["=", "5e-08"]
    assert cells(text, "zero3@2") == ["0", "="]  # losses alone are equal there
    assert cells(text, "lora, dropout") == ["zero3@2"]
    assert cells(text, "goes on as it was: losses and final state") == ["3", "3"]
    assert cells(text, "goes on otherwise: losses within 1e-6, at most 4.9e-08 seen") == ["2", "2"]
    assert cells(text, "together") == ["5", "5"]
    assert "Abacus, 2 cores" in text
    assert "seed 3, save interval, steps 5" in text
    assert "not hold" not in text


def test_a_cell_that_fails_is_shown_counted_and_explained() -> None:
    text = markdown(document("matrix", CELLS[:2], "losses: expected"))
    assert cells(text, "fsdp2@1") == ["=", "**fails**"]
    assert cells(text, "together") == ["2", "1"]
    assert "- full: fsdp2@1 -> zero3@2: losses: expected" in text


def test_the_soak_shows_what_each_kill_met() -> None:
    text = markdown(document("soak", [SOAK]))
    assert cells(text, "met: shards") == ["2"]
    assert cells(text, "met: manifest") == ["0"]
    assert cells(text, "killed: rank 1") == ["3"]
    assert cells(text, "final state and all losses") == ["="]
    bad = markdown(document("soak", [SOAK], "ledger: it lies"))
    assert cells(bad, "final state and all losses") == ["**differ**"]
    assert "- zero3: ledger: it lies" in bad


def test_the_page_takes_its_tables_again_and_again() -> None:
    page = PAGE.read_text(encoding="utf-8")
    documents = [document("matrix", CELLS), document("soak", [SOAK])]
    once = updated(page, documents)
    assert updated(once, documents) == once
    assert cells(once, "met: shards") == ["2"]
    assert "**fails**" not in page
    assert "not hold" not in page


def test_the_report_updates_a_page_in_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "soak.json"
    found.write_text(json.dumps(document("soak", [SOAK])), encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("# P\n<!-- bench:soak -->\nold\n<!-- /bench:soak -->\nrest\n", encoding="utf-8")
    with patch("sys.argv", ["report", str(found), "--update", str(page)]):
        main()
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert text.startswith("# P\n")
    assert text.endswith("-->\nrest\n")
    with patch("sys.argv", ["report", str(found)]):
        main()
    assert "| met: shards" in capsys.readouterr().out


# --- the command ----------------------------------------------------------------------


def run(measure: Callable[[Options], Measured], *arguments: str) -> int:
    with patch("sys.argv", ["soak", *arguments]), pytest.raises(SystemExit) as ended:
        run_command("soak", measure, parts=["a", "b"], seed=5)
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_the_command_hands_on_what_it_was_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Options] = []

    def measure(options: Options) -> Measured:
        assert options.folder.is_dir()
        told.append(options)
        return Measured(settings={"x": 1}, results=[{**SOAK, "faults": []}])

    out = tmp_path / "soak.json"
    assert run(measure, "--out", str(out), "--short", "--only", "b", "--seed", "9") == 0
    (options,) = told
    assert (options.seed, options.is_short) == (9, True)
    assert (options.wants("a"), options.wants("b")) == (False, True)
    assert not options.folder.exists()
    written = json.loads(out.read_text(encoding="utf-8"))
    assert (written["format"], written["part"]) == (FORMAT, "soak")
    assert written["settings"] == {"seed": 9, "x": 1}
    assert "| met: shards" in capsys.readouterr().out
    assert run(measure) == 0
    assert told[1].seed == 5
    assert told[1].wants("a")


@pytest.mark.parametrize("results", [[], [{**SOAK, "faults": ["it does not hold"]}]])
def test_what_does_not_hold_or_was_not_tried_ends_with_1(results: list[dict[str, Any]]) -> None:
    assert run(lambda _options: Measured(settings={}, results=results)) == 1
