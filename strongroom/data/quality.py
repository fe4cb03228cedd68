"""Quality: Great Expectations judges a curated set, before anything is trained on it.

The judge reads the two files by itself and trusts nothing that curation said of them. Every rule
is paired with one that refuses nulls, because Great Expectations leaves nulls out of its counts; a
rule that cannot be computed has failed. Reports hold counts and lengths, never a row's text.
Source: great_expectations issues 8899 (nulls), 1309 (unhashable values).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strongroom import canonical
from strongroom.data.rows import Message
from strongroom.data.split import overlap_keys
from strongroom.errors import DataError, FormatError

if TYPE_CHECKING:
    import pandas as pd

CHECKS = (
    "schema",
    "non_empty",
    "complete",
    "length_bounds",
    "duplicates",
    "roles",
    "leakage",
)
"""The names of the checks, in the order of the report."""

_FIELDS = "id language messages"


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityCheck:
    """One verdict; `observed` holds what it rests on: counts and lengths."""

    name: str
    passed: bool
    observed: dict[str, float | int | str]


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityReport:
    """All verdicts on one curated set."""

    checks: tuple[QualityCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def judge(train: Path, held_out: Path, *, max_chars: int = 100_000) -> QualityReport:
    """Judge the two files of a curated set; the checks are those of `CHECKS`.

    Args:
        train: the rows that are trained on, as JSON Lines.
        held_out: the rows that are held out, likewise.
        max_chars: the longest that all texts of one row may be together, in characters.

    Raises:
        DataError: a file cannot be read.
    """
    import pandas as pd

    frame = pd.DataFrame(_facts({"train": train, "held_out": held_out}), columns=_COLUMNS)
    results = _validate(frame, max_chars)
    lengths = {
        "shortest_response_chars": frame["response_chars"].min(),
        "longest_row_chars": frame["row_chars"].max(),
    }
    checks = []
    for name in CHECKS:
        outcomes = results[name]
        observed: dict[str, float | int | str] = {
            "num_rows": len(frame),
            "num_unexpected": max(outcome.num_unexpected for outcome in outcomes),
        }
        if name == "length_bounds":
            observed |= {key: int(value) for key, value in lengths.items() if pd.notna(value)}
        if failed := sorted({o.expectation for o in outcomes if not o.computed}):
            observed["not_computed"] = ", ".join(failed)
        checks.append(
            QualityCheck(
                name=name, passed=all(outcome.passed for outcome in outcomes), observed=observed
            )
        )
    return QualityReport(checks=tuple(checks))


# --- what is known of a row, as columns -----------------------------------------------

_COLUMNS = [
    "split",
    "fields",
    "digest",
    "id",
    "roles",
    "prompt",
    "response",
    "num_blank",
    "response_chars",
    "row_chars",
    "num_shared_keys",
]


def _facts(files: dict[str, Path]) -> list[dict[str, Any]]:
    """Return one dict per line; what cannot be derived from a broken line is absent."""
    keys_in_train: set[str] = set()
    facts = []
    for split, path in files.items():
        for record in _records(path):
            fact = {"split": split, **_facts_of(record)}
            keys = fact.pop("keys", None)
            # Where a row has no keys the fact stays absent: no leak was ruled out.
            if keys is not None and split == "train":
                keys_in_train |= keys
                fact["num_shared_keys"] = 0
            elif keys is not None:
                fact["num_shared_keys"] = len(keys & keys_in_train)
            facts.append(fact)
    return facts


def _records(path: Path) -> Iterator[object]:
    try:
        with path.open("rb") as lines:
            for line in lines:
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    yield None
    except OSError as error:
        raise DataError(str(path), [f"cannot be read: {error.strerror}"]) from error


def _facts_of(record: object) -> dict[str, Any]:
    if not isinstance(record, dict):
        return {}
    facts: dict[str, Any] = {"fields": _storable(" ".join(sorted(record)))}
    if isinstance(record.get("id"), str):
        facts["id"] = _storable(record["id"])
    messages = record.get("messages")
    try:
        # Canonical JSON: rows may nest, and key order makes no difference.
        facts["digest"] = str(canonical.digest({"messages": messages}))
    except FormatError:
        return facts
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        return facts
    facts["roles"] = " ".join(str(message.get("role")) for message in messages)
    contents = [message.get("content") for message in messages]
    texts = [content for content in contents if isinstance(content, str)]
    facts["num_blank"] = sum(not isinstance(c, str) or not c.strip() for c in contents)
    facts["row_chars"] = sum(map(len, texts))
    for role, column, place in (("user", "prompt", 0), ("assistant", "response", -1)):
        of_role = [message.get("content") for message in messages if message.get("role") == role]
        if of_role and isinstance(of_role[place], str):
            facts[column] = of_role[place]
    if "response" in facts:
        facts["response_chars"] = len(facts["response"])
    if texts and len(texts) == len(messages):
        facts["keys"] = overlap_keys(
            Message(role=message["role"], content=message["content"])
            for message in messages
            if message.get("role") in ("system", "user", "assistant")
        )
    return facts


def _storable(text: str) -> str:
    # A data frame cannot hold half of a surrogate pair.
    return text.encode("utf-8", "backslashreplace").decode()


# --- Great Expectations ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    expectation: str
    passed: bool
    computed: bool
    num_unexpected: int


def _validate(frame: pd.DataFrame, max_chars: int) -> dict[str, list[_Outcome]]:
    gx = _great_expectations()
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    batch = (
        context.data_sources.add_pandas("curated")
        .add_dataframe_asset("rows")
        .add_batch_definition_whole_dataframe("all")
        .get_batch({"dataframe": frame})
    )
    validation = batch.validate(
        gx.ExpectationSuite(name="curated", expectations=_expectations(gx, max_chars)),
        # Counts only: with values, the text of failing rows would stand in the result.
        result_format={"result_format": "BASIC", "partial_unexpected_count": 0},
    )
    results: dict[str, list[_Outcome]] = defaultdict(list)
    for result in validation.results:
        config, found = result.expectation_config, result.result
        results[config.meta["check"]].append(
            _Outcome(
                expectation=f"{config.type}({config.kwargs.get('column')})",
                passed=bool(result.success),
                computed="unexpected_count" in found or "observed_value" in found,
                num_unexpected=int(found.get("unexpected_count") or 0),
            )
        )
    return results


def _expectations(gx: Any, max_chars: int) -> list[Any]:  # noqa: ANN401 -- a module without types
    expect = gx.expectations
    not_null = expect.ExpectColumnValuesToNotBeNull
    between = expect.ExpectColumnValuesToBeBetween
    matches = expect.ExpectColumnValuesToMatchRegex

    def meta(check: str) -> dict[str, Any]:
        return {"meta": {"check": check}}

    splits = ["train", "held_out"]
    return [
        not_null(column="fields", **meta("schema")),
        expect.ExpectColumnValuesToBeInSet(column="fields", value_set=[_FIELDS], **meta("schema")),
        not_null(column="id", **meta("schema")),
        expect.ExpectColumnPairValuesToBeEqual(column_A="id", column_B="digest", **meta("schema")),
        expect.ExpectTableRowCountToBeBetween(min_value=2, **meta("non_empty")),
        expect.ExpectColumnDistinctValuesToEqualSet(
            column="split", value_set=splits, **meta("non_empty")
        ),
        *(not_null(column=name, **meta("complete")) for name in ("prompt", "response")),
        *(matches(column=name, regex=r"\S", **meta("complete")) for name in ("prompt", "response")),
        not_null(column="num_blank", **meta("complete")),
        between(column="num_blank", min_value=0, max_value=0, **meta("complete")),
        *(not_null(column=n, **meta("length_bounds")) for n in ("response_chars", "row_chars")),
        between(column="response_chars", min_value=1, **meta("length_bounds")),
        between(column="row_chars", min_value=2, max_value=max_chars, **meta("length_bounds")),
        not_null(column="digest", **meta("duplicates")),
        expect.ExpectColumnValuesToBeUnique(column="digest", **meta("duplicates")),
        not_null(column="roles", **meta("roles")),
        matches(column="roles", regex=r"^(?:system )?(?:user assistant ?)+$", **meta("roles")),
        not_null(column="num_shared_keys", **meta("leakage")),
        between(column="num_shared_keys", min_value=0, max_value=0, **meta("leakage")),
    ]


def _great_expectations() -> Any:  # noqa: ANN401 -- a module without types
    """Import it (seconds, so never with this module), with its analytics off.

    It imports psycopg2 where that is installed and expects nothing worse than an ImportError, but a
    build for another Python raises SystemError. Such a psycopg2 is hidden while it is imported.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    # At import it logs hundreds of lines, none of them about the data.
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    broken = _is_broken("psycopg2")
    modules: dict[str, Any] = sys.modules
    if broken:
        modules["psycopg2"] = None
    try:
        return importlib.import_module("great_expectations")
    finally:
        if broken:
            del modules["psycopg2"]


def _is_broken(module: str) -> bool:
    if module in sys.modules or importlib.util.find_spec(module) is None:
        return False
    try:
        importlib.import_module(module)
    except Exception:  # noqa: BLE001 -- whatever it raises, it cannot be imported
        return True
    return False
