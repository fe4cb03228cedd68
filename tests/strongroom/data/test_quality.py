from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strongroom.data.quality import CHECKS, QualityReport, judge
from strongroom.data.rows import Message, Row
from strongroom.errors import DataError

PRIVATE = "gizli-not-4711"


def chat(*contents: Any) -> list[dict[str, Any]]:  # noqa: ANN401 -- broken on purpose, too
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]


def good(prompt: str, response: str) -> dict[str, Any]:
    messages = (Message(role="user", content=prompt), Message(role="assistant", content=response))
    return Row.of(messages, "tr").to_json()


def rows(n: int, tag: str) -> list[Any]:
    return [good(f"{tag} sorusu {i}?", f"{tag} cevabı {i}: {PRIVATE}") for i in range(n)]


def write(path: Path, records: list[Any]) -> Path:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in records]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def judged(folder: Path, train: list[Any], held_out: list[Any]) -> QualityReport:
    return judge(write(folder / "train", train), write(folder / "held_out", held_out))


def failed(report: QualityReport) -> set[str]:
    return {check.name for check in report.checks if not check.passed}


def unexpected(report: QualityReport, name: str) -> Any:  # noqa: ANN401 -- a number
    return next(c.observed["num_unexpected"] for c in report.checks if c.name == name)


def test_a_good_set_passes_every_check(tmp_path: Path) -> None:
    report = judged(tmp_path, rows(8, "a"), rows(2, "b"))
    assert report.passed
    assert tuple(check.name for check in report.checks) == CHECKS
    lengths = next(check.observed for check in report.checks if check.name == "length_bounds")
    assert lengths["num_rows"] == 10
    assert lengths["shortest_response_chars"] == len(f"a cevabı 0: {PRIVATE}")


def with_messages(messages: object) -> dict[str, Any]:
    return {"id": "sha256:" + "0" * 64, "language": "tr", "messages": messages}


# What is added to a good training set, and which checks must then fail.
FAULTS: dict[str, tuple[Any, set[str]]] = {
    "not JSON": ("{", set(CHECKS) - {"non_empty"}),
    "not an object": (["a"], set(CHECKS) - {"non_empty"}),
    "half a surrogate pair": (
        '{"id": "\\ud83d", "language": null, "messages": [{"role": "\\ud83d"}], "\\ud83d": 1}',
        set(CHECKS) - {"non_empty"},
    ),
    "another field": (good("yeni?", "evet") | {"puan": 3}, {"schema"}),
    "a missing field": ({"messages": chat("yeni?", "evet")}, {"schema"}),
    "an id of other messages": (with_messages(chat("yeni?", "evet")), {"schema"}),
    "null content": (
        with_messages(chat("yeni?", None)),
        {"schema", "complete", "length_bounds", "leakage"},
    ),
    "blank content": (good("yeni?", "  "), {"complete"}),
    "empty content": (good("", "evet"), {"complete"}),
    "a null in the middle": (
        with_messages(chat("yeni?", None, "peki?", "evet")),
        {"schema", "complete", "leakage"},
    ),
    "no messages": (
        with_messages([]),
        {"schema", "complete", "length_bounds", "roles", "leakage"},
    ),
    "messages that are text": (
        with_messages("yeni"),
        {"schema", "complete", "length_bounds", "roles", "leakage"},
    ),
    "two users": (
        with_messages([*chat("yeni?"), *chat("yine?", "evet")]),
        {"schema", "roles"},
    ),
    "no answer": (
        with_messages(chat("yeni?")),
        {"schema", "complete", "length_bounds", "roles"},
    ),
    "an unknown role": (
        with_messages([{"role": "bot", "content": "a"}, *chat("yeni?", "evet")]),
        {"schema", "roles"},
    ),
    "a very long text": (good("uzun?", "x" * 100_001), {"length_bounds"}),
    "a duplicate": (rows(1, "a")[0], {"duplicates"}),
    "a row of the other side": (rows(1, "b")[0], {"duplicates", "leakage"}),
    "a prompt of the other side": (good("B SORUSU 0", "başka"), {"leakage"}),
    "an answer of the other side": (good("başka?", f"B cevabı 0: {PRIVATE}!"), {"leakage"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_one_bad_row_fails_its_checks_and_no_other(tmp_path: Path, name: str) -> None:
    record, checks = FAULTS[name]
    report = judged(tmp_path, [*rows(8, "a"), record], rows(2, "b"))
    assert failed(report) == checks


def test_nulls_count_among_all_rows(tmp_path: Path) -> None:
    blank = [with_messages(chat("yeni?", value)) for value in (None, None, None, None, "", "  ")]
    report = judged(tmp_path, [*rows(3, "a"), *blank], rows(1, "b"))
    assert "complete" in failed(report)
    assert unexpected(report, "complete") == 6


def test_duplicates_are_judged_on_nested_rows_whatever_the_order_of_their_keys(
    tmp_path: Path,
) -> None:
    one = '[{"role": "user", "content": "q", "tags": ["a"]}, {"role": "assistant", "content": "a"}]'
    two = '[{"tags": ["a"], "content": "q", "role": "user"}, {"content": "a", "role": "assistant"}]'
    lines = [f'{{"id": "x", "language": null, "messages": {text}}}' for text in (one, two)]
    report = judged(tmp_path, [*rows(3, "a"), *lines], rows(1, "b"))
    assert "duplicates" in failed(report)
    assert unexpected(report, "duplicates") == 2


@pytest.mark.parametrize("empty", ["train", "held_out"])
def test_an_empty_side_fails(tmp_path: Path, empty: str) -> None:
    sides = {"train": rows(4, "a"), "held_out": rows(2, "b")} | {empty: []}
    assert failed(judged(tmp_path, sides["train"], sides["held_out"])) == {"non_empty"}


def test_nothing_at_all_fails(tmp_path: Path) -> None:
    report = judged(tmp_path, [], [])
    assert "non_empty" in failed(report)
    assert not report.passed


def test_a_rule_that_cannot_be_computed_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strongroom.data import quality

    original: Callable[..., list[Any]] = quality._expectations

    def with_unknown_column(gx: Any, max_chars: int) -> list[Any]:  # noqa: ANN401 -- as there
        unknown = gx.expectations.ExpectColumnValuesToBeBetween(
            column="yok", min_value=0, meta={"check": "roles"}
        )
        return [*original(gx, max_chars), unknown]

    monkeypatch.setattr(quality, "_expectations", with_unknown_column)
    report = judged(tmp_path, rows(4, "a"), rows(2, "b"))
    assert failed(report) == {"roles"}
    roles = next(check for check in report.checks if check.name == "roles")
    assert roles.observed["not_computed"] == "expect_column_values_to_be_between(yok)"


def test_no_text_of_a_row_stands_in_the_report(tmp_path: Path) -> None:
    bad = [with_messages(chat(PRIVATE, None)), good(PRIVATE, " "), *rows(1, "b")]
    report = judged(tmp_path, [*rows(4, "a"), *bad], rows(2, "b"))
    assert len(failed(report)) >= 4
    assert PRIVATE not in repr(report)


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        judge(tmp_path / "none", tmp_path / "none")


def test_a_psycopg2_built_for_another_python_does_not_stop_the_judge(tmp_path: Path) -> None:
    broken = tmp_path / "site/psycopg2"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise SystemError('built for another Python')")
    write(tmp_path / "train", rows(4, "a"))
    write(tmp_path / "held_out", rows(2, "b"))
    program = (
        "import sys; from pathlib import Path; import strongroom.data.quality as quality;"
        "assert not {'great_expectations', 'pandas', 'torch'} & set(sys.modules);"
        "assert quality.judge(Path('train'), Path('held_out')).passed;"
        "assert 'psycopg2' not in sys.modules;"
        "import os; assert os.environ['GX_ANALYTICS_ENABLED'] == 'false'"
    )
    path = os.pathsep.join([str(tmp_path / "site"), str(Path.cwd())])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
