from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strongroom.training.batches import micro_parts, rank_part
from strongroom.training.config import TrainConfig
from strongroom.training.placement import PLACEMENT_FIELDS, Placement, placement_faults

HSDP = Placement(strategy="fsdp2", world_size=4, replicas=2)


@pytest.mark.parametrize(
    ("placement", "batch_rows"),
    [
        (Placement(strategy="fsdp2", world_size=1), 1),
        (Placement(strategy="zero3", world_size=4), 8),
        (HSDP, 4),
        (replace(HSDP, replicas=4), 12),
        (replace(HSDP, micro_batch_rows=3), 8),  # 2 rows a rank: a micro-batch is never full
    ],
)
def test_what_fits(placement: Placement, batch_rows: int) -> None:
    assert placement_faults(placement, batch_rows) == []


@pytest.mark.parametrize(
    ("placement", "batch_rows", "fault"),
    [
        (HSDP, 6, "batch_rows: must be a multiple of world_size (4), got 6"),
        (
            Placement(strategy="zero3", world_size=4, replicas=2),
            8,
            "replicas: must be 1 with strategy zero3, got 2",
        ),
        (replace(HSDP, replicas=3), 8, "replicas: must divide world_size (4), got 3"),
        (replace(HSDP, replicas=8), 8, "replicas: must divide world_size (4), got 8"),
    ],
)
def test_what_does_not_fit_is_told_by_field(
    placement: Placement, batch_rows: int, fault: str
) -> None:
    assert placement_faults(placement, batch_rows) == [fault]


def test_every_fault_is_told_at_once() -> None:
    wrong = Placement(strategy="zero3", world_size=4, replicas=3)
    named = [fault.split(":")[0] for fault in placement_faults(wrong, 6)]
    assert named == ["batch_rows", "replicas", "replicas"]


@pytest.mark.parametrize(
    ("world_size", "micro_batch_rows", "passes"),
    [(1, None, 1), (4, None, 1), (1, 2, 4), (2, 2, 2), (4, 2, 1), (1, 3, 3), (4, 100, 1)],
)
def test_fewer_ranks_take_more_passes(
    world_size: int, micro_batch_rows: int | None, passes: int
) -> None:
    placement = Placement(
        strategy="fsdp2", world_size=world_size, micro_batch_rows=micro_batch_rows
    )
    assert placement.micro_batches(8) == passes


@given(
    world_size=st.integers(1, 9),
    rank_rows=st.integers(1, 9),
    micro_batch_rows=st.none() | st.integers(1, 12),
)
def test_the_rows_of_a_step_and_their_order_are_the_same_however_they_are_spread(
    world_size: int, rank_rows: int, micro_batch_rows: int | None
) -> None:
    placement = Placement(
        strategy="zero3", world_size=world_size, micro_batch_rows=micro_batch_rows
    )
    rows = list(range(world_size * rank_rows))
    assert placement_faults(placement, len(rows)) == []
    parts = [
        micro_parts(rank_part(rows, rank=rank, world_size=world_size), micro_batch_rows)
        for rank in range(world_size)
    ]
    assert [row for of_rank in parts for micro in of_rank for row in micro] == rows
    # As many passes on every rank: each is a collective.
    assert {len(of_rank) for of_rank in parts} == {placement.micro_batches(len(rows))}


@pytest.mark.parametrize(("world_size", "replicas"), [(4, 2), (2, 2), (6, 2), (1, 1), (3, 1)])
def test_on_other_ranks_it_keeps_its_replicas_where_they_divide_them(
    world_size: int, replicas: int
) -> None:
    other = replace(HSDP, micro_batch_rows=1).with_world_size(world_size)
    assert other == replace(HSDP, world_size=world_size, replicas=replicas, micro_batch_rows=1)
    assert placement_faults(other, world_size) == []


def test_its_json_gives_it_again_and_names_what_may_change_between_attempts() -> None:
    placement = replace(HSDP, threads_per_rank=3, micro_batch_rows=5)
    document = placement.to_json()
    assert tuple(document) == PLACEMENT_FIELDS
    assert Placement(**document) == placement


def test_a_configuration_spreads_as_it_says() -> None:
    train = TrainConfig(
        steps=1,
        batch_rows=8,
        learning_rate=0.1,
        strategy="fsdp2",
        world_size=4,
        replicas=2,
        threads_per_rank=3,
        micro_batch_rows=1,
    )
    assert train.placement == replace(HSDP, threads_per_rank=3, micro_batch_rows=1)
