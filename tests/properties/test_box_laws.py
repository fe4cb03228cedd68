"""Pieces join to their tensor; shards hold every container once, and every part can be sent."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import torch
from hypothesis import given

from strongroom.checkpoint.boxes import Box, boxes_of_range, cut
from strongroom.checkpoint.writing.shard_plan import PlannedShard, plan_shards
from tests.support.checkpoints import bits

shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)
item_sizes = st.sampled_from([1, 2, 4, 8])
limits = st.integers(1, 200)


@given(shapes, item_sizes, limits)
def test_pieces_join_to_the_tensor_in_order_and_lie_in_one_run(
    shape: tuple[int, ...], item_bytes: int, max_bytes: int
) -> None:
    dtype = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[item_bytes]
    tensor = torch.arange(math.prod(shape)).to(dtype).reshape(shape)
    pieces = [tensor[box.slices] for box in cut(shape, item_bytes=item_bytes, max_bytes=max_bytes)]
    assert all(piece.is_contiguous() for piece in pieces)
    assert torch.equal(torch.cat([bits(piece) for piece in pieces]), bits(tensor))


@given(shapes, item_sizes, limits)
def test_no_piece_is_larger_than_allowed_or_much_smaller_than_it_could_be(
    shape: tuple[int, ...], item_bytes: int, max_bytes: int
) -> None:
    sizes = [
        math.prod(box.shape) * item_bytes
        for box in cut(shape, item_bytes=item_bytes, max_bytes=max_bytes)
    ]
    assert all(size <= max(max_bytes, item_bytes) for size in sizes)
    if math.prod(shape) * item_bytes <= max_bytes:
        assert len(sizes) == 1
    else:
        # Rows that fit are shared out evenly, so a piece lacks one row of half of what it may have.
        assert all(size * 4 >= min(max_bytes, sum(sizes)) or size == item_bytes for size in sizes)


def test_a_piece_is_cut_along_the_first_dimension_that_allows_it() -> None:
    def boxes(shape: tuple[int, ...]) -> list[Box]:
        return list(cut(shape, item_bytes=4, max_bytes=64))

    assert boxes((6, 4)) == [Box((0, 0), (3, 4)), Box((3, 0), (3, 4))]
    assert boxes((5, 4)) == [Box((0, 0), (2, 4)), Box((2, 0), (3, 4))]
    assert boxes((2, 20)) == [
        Box((0, 0), (1, 10)),
        Box((0, 10), (1, 10)),
        Box((1, 0), (1, 10)),
        Box((1, 10), (1, 10)),
    ]
    assert boxes((4, 4)) == [Box((0, 0), (4, 4))]
    assert boxes(()) == [Box((), ())]
    assert boxes((0, 100)) == [Box((0, 0), (0, 100))]
    assert list(cut((2,), item_bytes=8, max_bytes=4)) == [Box((0,), (1,)), Box((1,), (1,))]


def test_a_box_is_moved_into_the_tensor_its_own_is_a_part_of() -> None:
    assert Box((1, 0), (2, 3)).moved((4, 5)) == Box((5, 5), (2, 3))
    assert Box((), ()).moved(()) == Box((), ())


@given(
    st.lists(st.integers(1, 60), max_size=40),
    st.integers(1, 30),
    st.integers(1, 40),
    st.integers(40, 300),
    st.integers(2, 6),
)
def test_shards_hold_every_container_once_in_parts_that_can_be_sent(
    sizes: list[int], header_bytes: int, part_bytes: int, shard_bytes: int, parts_max: int
) -> None:
    shards = plan_shards(
        sizes,
        header_bytes=header_bytes,
        part_bytes=part_bytes,
        shard_bytes=shard_bytes,
        parts_max=parts_max,
    )
    held = [place.container for shard in shards for part in shard.parts for place in part.places]
    assert sorted(held) == list(range(len(sizes)))
    for shard in shards:
        check_shard(shard, sizes, header_bytes)
        containers = sum(len(part.places) for part in shard.parts)
        assert shard.num_bytes <= shard_bytes or containers == 1
        assert len(shard.parts) <= parts_max
        assert all(part.num_bytes >= part_bytes for part in shard.parts[:-1])
        assert containers or len(shards) == 1


def check_shard(shard: PlannedShard, sizes: list[int], header_bytes: int) -> None:
    """The parts follow each other, and so do the header and the containers in them."""
    position = 0
    for number, part in enumerate(shard.parts, start=1):
        assert (part.number, part.offset) == (number, position)
        position += header_bytes if number == 1 else 0
        for place in part.places:
            assert place.offset == position
            position += sizes[place.container]
        assert part.offset + part.num_bytes == position
    assert position == shard.num_bytes


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 40))
def test_a_large_container_is_a_part_by_itself_unless_the_first_part_lacks_bytes(
    sizes: list[int], part_bytes: int
) -> None:
    (shard,) = plan_shards(sizes, header_bytes=1, part_bytes=part_bytes, shard_bytes=10**6)
    order = [place.container for part in shard.parts for place in part.places]
    small = [index for index, size in enumerate(sizes) if size < part_bytes]
    large = [index for index, size in enumerate(sizes) if size >= part_bytes]
    assert order == small + large
    shared = [part for part in shard.parts[1:] if len(part.places) > 1]
    mixed = [part for part in shared if any(sizes[p.container] >= part_bytes for p in part.places)]
    assert len(mixed) <= 1
    for part in mixed:
        *first, last = part.places
        assert sum(sizes[place.container] for place in first) < part_bytes
        assert sizes[last.container] >= part_bytes


def test_a_rank_with_nothing_to_write_has_a_shard_of_the_header_alone() -> None:
    (shard,) = plan_shards([], header_bytes=192, part_bytes=2**20, shard_bytes=2**30)
    assert shard.num_bytes == 192
    ((part),) = shard.parts
    assert (part.number, part.num_bytes, part.places) == (1, 192, ())


@given(shapes, st.data())
def test_the_boxes_of_a_range_join_to_its_elements_in_order(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    numel = math.prod(shape)
    start = data.draw(st.integers(0, numel))
    stop = data.draw(st.integers(start, numel))
    tensor = torch.arange(numel).reshape(shape)
    boxes = boxes_of_range(shape, start, stop)
    joined = [element for box in boxes for element in tensor[box.slices].flatten().tolist()]
    assert joined == list(range(start, stop))
    assert len(boxes) <= max(2 * len(shape) - 1, 1)
    if numel:
        assert all(math.prod(box.shape) for box in boxes)
    if numel == 0:
        assert boxes == [Box((0,) * len(shape), shape)]


@given(shapes, st.integers(1, 9))
def test_the_ranges_of_all_ranks_tile_the_tensor(shape: tuple[int, ...], ranks: int) -> None:
    numel = math.prod(shape)
    each = -(-numel // ranks)
    seen: list[int] = []
    for rank in range(ranks):
        start, stop = min(rank * each, numel), min((rank + 1) * each, numel)
        for box in boxes_of_range(shape, start, stop):
            seen += torch.arange(numel).reshape(shape)[box.slices].flatten().tolist()
    assert seen == list(range(numel))
