"""Every rule has its check, and nothing is found where there is nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strongroom.training.config import load_config
from strongroom.training.preflight.checks.registry import CHECKS
from strongroom.training.preflight.facts import Facts
from strongroom.training.preflight.rules import RULES
from tests.support.preflight import (
    LARGE,
    LARGE_FACTS,
    SMALL,
    SMALL_FACTS,
    changed,
    found,
    large,
    on_machine,
    saved,
    small,
    with_checkpoints,
)

ROOT = Path(__file__).parents[5]

PITFALLS = (
    "synchronous-saves",
    "verification-off",
    "optimizer-left-out",
    "storage-tier",
    "resharding-untested",
    "data-state-left-out",
    "fabric",
    "cpu-offload",
    "blocking-upload",
    "batch-and-learning-rate",
    "precision",
    "resume-without-optimizer",
)


def test_every_rule_has_its_check_in_the_order_of_the_rules() -> None:
    assert tuple(CHECKS) == tuple(RULES)
    assert tuple(RULES)[:12] == PITFALLS


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_nothing_is_found_in_a_configuration_that_people_copy(config: Path) -> None:
    assert found(load_config(config), SMALL_FACTS) == []


def test_nothing_is_found_in_a_good_run_on_eight_accelerators() -> None:
    assert found(large(), LARGE_FACTS) == []


def test_nothing_is_found_in_a_good_run_over_two_machines_that_was_rehearsed() -> None:
    config = large(train={"world_size": 16, "replicas": 2}, launch={"min_world_size": 8})
    facts = replace(
        with_checkpoints(LARGE_FACTS, resharded=((16, 8),)),
        allreduce_ms=3.0,
    )
    assert found(config, facts) == []


def test_nothing_is_found_of_what_is_not_known() -> None:
    for document in (SMALL, LARGE):
        assert found(changed(document), Facts()) == []
    unknown = on_machine(LARGE_FACTS, accelerators=None, memory_bytes=None, rdma=())
    assert found(large(train={"world_size": 8, "fsdp2": {"cpu_offload": True}}), unknown) == []


def test_nothing_is_found_in_a_run_that_goes_on_and_whose_checkpoints_are_verified() -> None:
    checkpoints = [saved(step, is_verified=True) for step in (30, 20, 10)]
    assert found(small(), with_checkpoints(SMALL_FACTS, *checkpoints)) == []
