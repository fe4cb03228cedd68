"""Checks of saves, each found by its name, alone."""

from __future__ import annotations

import pytest

from strongroom.training.preflight.report import preflight
from tests.support.preflight import (
    LARGE_FACTS,
    SMALL_FACTS,
    found,
    in_store,
    large,
    only,
    saved,
    small,
    with_checkpoints,
)


def test_synchronous_saves() -> None:
    finding = only(small(save={"asynchronous": False}), SMALL_FACTS)
    assert (finding.check, finding.severity) == ("synchronous-saves", "warn")
    assert "8.67 MB" in finding.saw


@pytest.mark.parametrize(
    ("storage_class", "keep_days", "names"),
    [
        ("STANDARD_IA", 7, ["storage-tier"]),
        ("STANDARD_IA", 30, []),
        ("GLACIER_IR", 30, ["storage-tier"]),
        ("GLACIER_IR", 90, []),
        ("ONEZONE_IA", 30, ["storage-tier"]),
        ("ONEZONE_IA", 7, ["storage-tier", "storage-tier"]),
        ("INTELLIGENT_TIERING", 1, []),
        (None, 1, []),
    ],
)
def test_storage_tier(storage_class: str | None, keep_days: int, names: list[str]) -> None:
    facts = in_store(LARGE_FACTS, storage_class=storage_class)
    findings = preflight(large(preflight={"keep_days": keep_days}), facts).findings
    assert [item.check for item in findings] == names
    assert all(str(storage_class) in item.saw for item in findings)


def test_blocking_upload() -> None:
    # 96.4 GB at 20 MB/s take 1.3 h; 500 steps of 4.2 s take 0.6 h.
    finding = only(large(preflight={"upload_bytes_per_s": 2e7}), LARGE_FACTS)
    assert (finding.check, finding.severity) == ("blocking-upload", "stop")
    assert "every save waits" in finding.saw
    skips = large(preflight={"upload_bytes_per_s": 2e7}, save={"when_busy": "skip"})
    assert only(skips, LARGE_FACTS).severity == "warn"
    deltas = large(preflight={"upload_bytes_per_s": 2e7}, save={"full_every": 3})
    assert found(deltas, LARGE_FACTS) == []
    given = large(preflight={"upload_bytes_per_s": 2e7, "step_s": 12.0})
    assert found(given, LARGE_FACTS) == []
    just = {"step_s": 1.0, "upload_bytes_per_s": 866_760.0}  # ten seconds, and ten apart
    assert found(small(preflight=just), SMALL_FACTS) == []


def test_a_synchronous_save_to_a_remote_store_blocks_too() -> None:
    names = found(large(save={"asynchronous": False}), LARGE_FACTS)
    assert names == [("synchronous-saves", "warn"), ("blocking-upload", "warn")]


def test_checkpoint_space() -> None:
    facts = in_store(SMALL_FACTS, free_bytes=30_000_000)
    finding = only(small(), facts)
    assert (finding.check, finding.severity) == ("checkpoint-space", "stop")
    assert "4 more checkpoints" in finding.saw
    assert found(small(), in_store(SMALL_FACTS, free_bytes=35_000_000)) == []
    # Three of the four stand already; one more is to come, and one beside those that are kept.
    assert found(small(), with_checkpoints(facts, *(saved(s) for s in (30, 20, 10)))) == []
    kept = small(train={"steps": 400}, preflight={"keep_checkpoints": 2})
    assert found(kept, facts) == []
    assert "3 more" in only(kept, in_store(SMALL_FACTS, free_bytes=20_000_000)).saw
    here = with_checkpoints(in_store(SMALL_FACTS, free_bytes=10_000_000), saved(20), saved(10))
    assert found(kept, here) == []


def test_save_interval() -> None:
    finding = only(small(save={"every_minutes": 300.0}), SMALL_FACTS)
    assert (finding.check, finding.severity) == ("save-interval", "warn")
    assert "5 h apart" in finding.saw
    quick = {"step_s": 10.0}
    assert found(small(save={"every_minutes": 300.0}, preflight=quick), SMALL_FACTS) == []
    slow = small(save={"every_minutes": 300.0, "every_steps": 40}, preflight={"step_s": 500.0})
    assert "5 h apart" in only(slow, SMALL_FACTS).saw
    allowed = small(save={"every_minutes": 300.0}, preflight={"numbers": {"lost_minutes": 300.0}})
    assert found(allowed, SMALL_FACTS) == []
