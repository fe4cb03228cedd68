from __future__ import annotations

import pytest

from strongroom.errors import FormatError
from strongroom.ledger.events import Event
from tests.support.ledgers import committed, run_created

EVENTS = [committed(7), run_created()]


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_survives_its_json(event: Event) -> None:
    assert Event.from_json(event.to_json()) == event


def test_an_event_without_a_checkpoint_has_no_fields_for_it() -> None:
    assert "checkpoint" not in run_created().to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"format": "strongroom.event/2"},
        {"kind": "checkpoint.polished"},
        {"kind": ["checkpoint.committed"]},
        {"time": None},
        {"actor": 7},
        {"facts": None},
        {"facts": []},
        {"checkpoint": None},
        {"checkpoint": "nightly-7/40"},
        {"checkpoint_id": 7},
        {"checkpoint_id": "sha256:00"},
        {"owner": "x"},
    ],
)
def test_a_malformed_event_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(FormatError, match="ledger entry"):
        Event.from_json({**committed(7).to_json(), **change})


@pytest.mark.parametrize("name", ["kind", "time", "actor", "facts", "checkpoint", "checkpoint_id"])
def test_a_missing_field_is_refused(name: str) -> None:
    document = committed(7).to_json()
    del document[name]
    with pytest.raises(FormatError, match="ledger entry"):
        Event.from_json(document)
