from __future__ import annotations

import json
import pickle

import pytest

from strongroom.cli.output import jsonable
from strongroom.errors import PreflightError
from strongroom.training.preflight.report import preflight
from tests.support.preflight import SMALL, SMALL_FACTS, changed, on_machine

BROKEN = {"data": {"max_tokens": 10_000}, "save": {"asynchronous": False}}


def test_what_cannot_work_stops_and_what_costs_does_not() -> None:
    report = preflight(changed(SMALL, **BROKEN), on_machine(SMALL_FACTS, memory_bytes=None))
    assert [item.check for item in report.findings] == ["synchronous-saves", "max-length"]
    assert [item.check for item in report.stopping] == ["max-length"]
    with pytest.raises(PreflightError) as raised:
        report.raise_if_stopped()
    assert raised.value.exit_code == 64
    (told,) = raised.value.findings
    assert told["check"] == "max-length"
    assert told["mend"] in str(raised.value)
    assert "synchronous" not in str(raised.value)
    copy = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 -- made in this line
    assert copy.findings == raised.value.findings


def test_an_ignored_finding_is_shown_and_does_not_stop() -> None:
    config = changed(SMALL, **BROKEN, preflight={"ignore": ["max-length"]})
    report = preflight(config, on_machine(SMALL_FACTS, memory_bytes=None))
    report.raise_if_stopped()
    assert [item.check for item in report.findings] == ["synchronous-saves", "max-length"]
    assert [event["severity"] for event in report.events()] == ["warn", "warn"]
    assert [item["stops"] for item in report.to_json()["findings"]] == [False, False]


def test_findings_are_events() -> None:
    report = preflight(changed(SMALL, **BROKEN), on_machine(SMALL_FACTS, memory_bytes=None))
    first, second = report.events()
    assert set(first) == {"kind", "check", "severity", "message"}
    assert (first["kind"], first["severity"]) == ("preflight.finding", "warn")
    assert (second["check"], second["severity"]) == ("max-length", "stop")
    assert "10000" in second["message"]


def test_a_report_is_json() -> None:
    document = preflight(changed(SMALL, **BROKEN), SMALL_FACTS).to_json()
    assert json.loads(json.dumps(jsonable(document)))["estimates"]["passes"] == 1
