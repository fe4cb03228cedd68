from __future__ import annotations

import math

from strongroom.governance import wording


def test_times() -> None:
    assert wording.moment("2026-01-05T08:15:00.123Z") == "5 January 2026, 08:15 UTC"
    assert wording.brief("2026-01-05T08:15:00.123Z") == "2026-01-05 08:15"
    assert wording.moment("when it rained") == "when it rained"
    assert wording.brief("when it rained") == "when it rained"


def test_sizes() -> None:
    assert wording.size(0) == "0 bytes"
    assert wording.size(999) == "999 bytes"
    assert wording.size(12_345_678) == "12.3 MB"
    assert wording.size(3 * 10**18) == "3000.0 PB"


def test_numbers() -> None:
    assert wording.figure(-0.63218) == "\N{MINUS SIGN}0.6322"
    assert wording.figure(math.nan) == wording.figure(math.inf) == "not a finite number"
    assert wording.counted(1, "entry", "entries") == "1 entry"
    assert wording.counted(1200, "entry", "entries") == "1,200 entries"
    assert wording.counted(0, "file") == "0 files"


def test_lists_and_actors() -> None:
    assert wording.listed([]) == ""
    assert wording.listed(["a"]) == "a"
    assert wording.listed(["a", "b", "c"]) == "a, b and c"
    assert wording.who("person:selin") == "selin"
    assert wording.who("service:ed25519-0123456789abcdef") == "service 01234567"
    assert wording.who("deniz") == "deniz"
