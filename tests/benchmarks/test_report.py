from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import markdown, updated
from benchmarks.rounds import Table, Target

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
NAMES = ("save", "load", "verify", "delta", "training")


def document(name: str = "save") -> dict[str, Any]:
    return {
        "format": "strongroom.benchmark/1",
        "benchmark": name,
        "machine": {
            "cpu": "Abacus",
            "cores": 2,
            "memory_gib": 4.0,
            "kernel": "6",
            "python": "3.11",
            "ceph": "16",
            "packages": {"torch": "2"},
            "load_average_1min": 0.25,
        },
        "settings": {"mib": 64, "rounds": 3},
        "seconds": 90.0,
        "tables": [
            {
                "title": f"{name}, here",
                "rows": {
                    "ours": {"durable_s": [1.0, 2.0, 4.0], "pause_s": [0.5, 0.25, 0.125]},
                    "theirs": {"durable_s": [3.0, 4.0, 4.0]},
                },
                "compared": ["durable_s", "ours"],
            }
        ],
        "targets": [
            {"what": "a", "bound": "<=", "limit": 1.5, "got": 1.25, "reached": True},
            {"what": "b", "bound": ">=", "limit": 0.9, "got": 0.5, "reached": False},
            {"what": "c", "bound": ">=", "limit": 0.9, "got": None, "reached": None},
        ],
    }


def cells(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} ")]
    return [cell.strip() for cell in line.strip("| ").split("|")]


def test_a_table_shows_medians_and_ratios_of_the_same_round() -> None:
    text = markdown(document())
    assert cells(text, "save, here") == ["save, here", "pause, s", "durable, s", "durable ÷ ours"]
    assert cells(text, "ours") == ["ours", "0.250", "2.00 (1.00 to 4.00)", "1.00"]
    # 3 / 1, 4 / 2 and 4 / 4: the median is 2, which is not that of the medians by accident alone.
    assert cells(text, "theirs") == ["theirs", "", "4.00 (3.00 to 4.00)", "2.00 (1.00 to 3.00)"]


def test_a_target_says_whether_it_was_reached() -> None:
    text = markdown(document())
    assert cells(text, "a") == ["a", "≤ 1.5", "1.25", "reached"]
    assert cells(text, "b") == ["b", "≥ 0.9", "0.5", "**falls short**"]
    assert cells(text, "c") == ["c", "≥ 0.9", "", "not measured"]


@pytest.mark.parametrize(
    ("bound", "got", "reached"),
    [("<=", 1.0, True), ("<=", 1.01, False), (">=", 1.0, True), (">=", 0.99, False)],
)
def test_a_bound_is_kept_up_to_its_limit(bound: str, got: float, *, reached: bool) -> None:
    assert Target("figure", bound, 1.0, got).reached is reached


def test_ratios_are_those_of_the_rounds() -> None:
    rows = {"ours": {"s": [1.0, 10.0, 1.0]}, "theirs": {"s": [2.0, 2.0, 4.0]}}
    table = Table(title="", rows=rows, compared=("s", "ours"))
    assert table.ratio("ours", "s", "theirs") == 0.5  # of 0.5, 5 and 0.25
    assert table.median("theirs", "s") == 2.0
    assert table.ratio("ours", "s", "nobody") is None
    assert table.median("nobody", "s") is None


def test_the_page_takes_every_table_again_and_again() -> None:
    page = PAGE.read_text(encoding="utf-8")
    documents = [document(name) for name in NAMES]
    once = updated(page, documents)
    assert updated(once, documents) == once
    for name in NAMES:
        assert f"| {name}, here" in once
    assert once.count("**falls short**") == len(NAMES)
    assert "## Rerun it" in once


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no <!-- bench:save -->"):
        updated("# A page", [document()])
