"""Rules and numbers are data, each with its source; a configuration changes them by name."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

import strongroom.training.preflight
from strongroom.errors import ConfigError
from strongroom.training.preflight.config import PreflightConfig
from strongroom.training.preflight.numbers import NUMBERS, values
from strongroom.training.preflight.report import preflight
from strongroom.training.preflight.rules import RULES
from tests.support.preflight import SMALL, SMALL_FACTS, changed

SOURCES = Path(strongroom.training.preflight.__file__).parent
PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "check-a-run-before-it-starts.md"


def test_every_rule_and_number_says_where_it_comes_from() -> None:
    for rule in RULES.values():
        assert all((rule.looks_for, rule.why, rule.source)), rule.name
    for number in NUMBERS.values():
        assert all((number.unit, number.meaning, number.source)), number.name


def test_every_number_is_used_by_a_check() -> None:
    others = [path for path in SOURCES.rglob("*.py") if path.name != "numbers.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in others)
    text += "\n".join(
        (SOURCES.parents[1] / "custody").joinpath("doctor.py").read_text().split("\n")
    )
    unused = [
        name for name in NUMBERS if f'"{name}"' not in text and not re.match(r"days_[a-z_]+$", name)
    ]
    assert not unused
    assert 'f"days_{' in text


def test_every_document_that_a_rule_names_is_there_or_said_to_come() -> None:
    root = Path(__file__).parents[4]
    sources = [rule.source for rule in RULES.values()] + [n.source for n in NUMBERS.values()]
    named = {path for source in sources for path in re.findall(r"docs/[\w/-]+\.md", source)}
    assert named >= {"docs/design.md", "docs/reliability.md"}
    missing = [path for path in named - {"docs/reliability.md"} if not (root / path).is_file()]
    assert not missing


def test_the_page_names_every_check() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [name for name in RULES if f"`{name}`" not in text]
    assert not missing


def test_the_section_that_the_page_shows_is_right() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    section = yaml.safe_load(example)["preflight"]
    assert set(section) == {item.name for item in fields(PreflightConfig)}
    assert changed(SMALL, preflight=section).preflight.numbers == {"allreduce_ms": 8.0}


def test_a_number_is_its_own_or_the_one_given() -> None:
    assert values({})["allreduce_ms"] == 12.0
    assert values({"allreduce_ms": 3.0})["allreduce_ms"] == 3.0
    assert set(values({"allreduce_ms": 3.0})) == set(NUMBERS)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"numbers": {"allreduce": 3}}, ("there is no number allreduce", "allreduce_ms")),
        ({"ignore": ["memory", "luck"]}, ("there is no check luck", "synchronous-saves")),
        ({"numbers": {"mfu": -1.0}}, ("preflight.numbers.mfu", "greater than or equal to 0")),
        ({"step_s": 0}, ("preflight.step_s",)),
    ],
)
def test_an_unknown_name_is_a_fault_that_tells_those_there_are(
    section: dict[str, Any], said: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as raised:
        changed(SMALL, preflight=section)
    assert len(raised.value.faults) == 1
    assert all(part in raised.value.faults[0] for part in said)


def test_faults_of_the_preflight_section_are_told_with_all_others() -> None:
    with pytest.raises(ConfigError) as raised:
        changed(SMALL, preflight={"ignore": ["luck"]}, train={"steps": 0})
    assert len(raised.value.faults) == 2


def test_a_number_that_is_given_decides() -> None:
    strict = changed(SMALL, preflight={"numbers": {"lost_minutes": 60}})
    assert [item.check for item in preflight(strict, SMALL_FACTS).findings] == ["save-interval"]
    assert preflight(changed(SMALL), SMALL_FACTS).findings == ()


def test_the_section_is_no_part_of_what_a_run_is() -> None:
    plain, checked = changed(SMALL), changed(SMALL, preflight={"ignore": ["memory"], "step_s": 2.0})
    assert plain.digest == checked.digest
