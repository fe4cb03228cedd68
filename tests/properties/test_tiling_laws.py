"""Any tiling of any tensor reads back equal and means the same; no gap or overlap goes unseen."""

from __future__ import annotations

import math
from itertools import product

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch import Tensor

from strongroom.checkpoint.boxes import Box, cut
from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.container import dtype_of, frame
from strongroom.checkpoint.entries import DTYPE_BYTES, Chunk, FileEntry, TensorEntry
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.checkpoint.shard import ShardHeader
from strongroom.checkpoint.tiling import row_major_bands, tile_faults
from strongroom.checkpoint.writing.pieces import Piece
from strongroom.checkpoint.writing.shard_writer import ShardWriter
from strongroom.names import Digest
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import INPUTS, bits, checkpoint_name, same

SAVE_ID = "0" * 32


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def tilings(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Cut a box in two, and the parts again, in any dimension and at any place, ends included."""
    boxes = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 5)) if shape else 0):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(0, box.shape[dim]))
        before = (*box.shape[:dim], cut, *box.shape[dim + 1 :])
        after = (*box.shape[:dim], box.shape[dim] - cut, *box.shape[dim + 1 :])
        start = (*box.at[:dim], box.at[dim] + cut, *box.at[dim + 1 :])
        boxes += [Box(box.at, before), Box(start, after)]
    return draw(st.permutations(boxes))


@st.composite
def tiled_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    shape = draw(shapes)
    return shape, draw(tilings(shape))


@st.composite
def any_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """Return a shape and boxes that may stick out, overlap and leave gaps, or tile it."""
    shape, boxes = draw(tiled_shapes())
    place = st.tuples(*(st.integers(0, size + 1) for size in shape))
    extra = draw(st.lists(st.builds(Box, place, place), max_size=2))
    kept = draw(st.lists(st.sampled_from(boxes), unique=True)) if draw(st.booleans()) else boxes
    return shape, [*kept, *extra]


def entry_of(shape: tuple[int, ...], boxes: list[Box]) -> TensorEntry:
    chunks = tuple(
        Chunk(at=at, shape=size, file="f", offset=0, num_bytes=0, sha256=Digest.of(b""))
        for at, size in boxes
    )
    return TensorEntry(name="w", dtype="uint8", shape=shape, chunks=chunks)


def tiles(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    """Count, element by element: the plain meaning of the law."""
    counts = dict.fromkeys(product(*map(range, shape)), 0)
    for box in boxes:
        ranges = (range(at, at + size) for at, size in zip(box.at, box.shape, strict=True))
        for element in product(*ranges):
            if element not in counts:
                return False
            counts[element] += 1
    # An empty box that starts or ends outside is outside too, though it holds no element.
    inside = all(
        at + size <= whole
        for box in boxes
        for at, size, whole in zip(box.at, box.shape, shape, strict=True)
    )
    return inside and all(count == 1 for count in counts.values())


@given(any_boxes())
def test_faults_are_found_exactly_where_there_are_some(
    case: tuple[tuple[int, ...], list[Box]],
) -> None:
    shape, boxes = case
    assert (tile_faults(entry_of(shape, boxes)) == []) == tiles(shape, boxes)


@given(tiled_shapes(), st.data())
def test_any_tile_taken_away_or_given_twice_is_noticed(
    case: tuple[tuple[int, ...], list[Box]], data: st.DataObject
) -> None:
    shape, boxes = case
    solid = [box for box in boxes if math.prod(box.shape)]
    if not solid:
        return
    box = data.draw(st.sampled_from(solid))
    without = [other for other in boxes if other != box]
    assert "lie in no chunk" in tile_faults(entry_of(shape, without))[0]
    assert "overlap" in tile_faults(entry_of(shape, [*boxes, box]))[0]


def saved(
    tensors: dict[str, Tensor], boxes: dict[str, list[Box]], *, position: int = 7
) -> CheckpointReader:
    """Write each box of each tensor as a chunk of its own, over two shards, into a checkpoint."""
    storage = MemoryStorage()
    name = checkpoint_name(1)
    folder = "runs/nightly-7/attempt-0001/step-00000001"
    chunks: dict[str, list[Chunk]] = {key: [] for key in tensors}
    entries: list[FileEntry] = []
    for rank in range(2):
        pieces = [
            Piece(
                tensor=key, at=box.at, source=tensor, box=box, frame=frame(box.shape, tensor.dtype)
            )
            for key, tensor in tensors.items()
            for box in boxes[key][rank::2]
        ]
        header = ShardHeader(name=name, save_id=SAVE_ID, rank=rank)
        written = ShardWriter(
            storage=storage, folder=folder, header=header, pieces=pieces, threads=2
        ).write()
        entries += written.files
        for piece, chunk in zip(pieces, written.chunks, strict=True):
            chunks[piece.tensor].append(chunk)
    manifest = Manifest(
        name=name,
        save_id=SAVE_ID,
        created="2026-01-31T08:15:00.123Z",
        world_size=2,
        parent=None,
        inputs=INPUTS,
        files=tuple(entries),
        tensors=tuple(
            TensorEntry(
                name=key,
                dtype=str(tensors[key].dtype).removeprefix("torch."),
                shape=tuple(tensors[key].shape),
                chunks=tuple(chunks[key]),
            )
            for key in sorted(tensors)
        ),
        state={"cursor": position},
        metrics={},
        exact_resume=True,
    )
    again = Manifest.from_bytes(manifest.to_bytes(), where=folder)
    assert again == manifest
    return CheckpointReader(
        storage, Committed(name=name, checkpoint_id=again.checkpoint_id, manifest=again)
    )


@given(tiled_shapes(), st.sampled_from(sorted(DTYPE_BYTES)), st.integers(0, 2**32))
def test_any_tiling_reads_back_equal_and_means_the_same(
    case: tuple[tuple[int, ...], list[Box]], dtype: str, seed: int
) -> None:
    shape, boxes = case
    source = torch.Generator().manual_seed(seed)
    num_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
    raw = torch.randint(2 if dtype == "bool" else 256, (num_bytes,), generator=source)
    tensor = raw.to(torch.uint8).view(dtype_of(dtype)).reshape(shape)
    whole = Box((0,) * len(shape), shape)
    reader = saved({"w": tensor}, {"w": boxes})
    assert same({"w": reader.read("w")}, {"w": tensor})
    target = {"w": torch.zeros_like(tensor)}
    reader.load_into(target)
    assert same(target, {"w": tensor})
    assert state_digest(reader) == state_digest(saved({"w": tensor}, {"w": [whole]}))


@given(tiled_shapes())
def test_bands_follow_each_other_in_row_major_order_and_hold_every_chunk_once(
    case: tuple[tuple[int, ...], list[Box]],
) -> None:
    shape, boxes = case
    tensor = torch.arange(math.prod(shape), dtype=torch.int64).reshape(shape)
    bands = row_major_bands(entry_of(shape, boxes))
    parts = [bits(tensor[Box(band.at, band.shape).slices]) for band in bands]
    assert torch.equal(torch.cat([bits(tensor)[:0], *parts]), bits(tensor))
    held = [Box(chunk.at, chunk.shape) for band in bands for chunk in band.chunks]
    assert sorted(held) == sorted(box for box in boxes if math.prod(box.shape))
    for band in bands:
        back = tuple(-index for index in band.at)
        inside = [Box(chunk.at, chunk.shape).moved(back) for chunk in band.chunks]
        assert tiles(band.shape, inside)


@given(shapes, st.integers(1, 40))
def test_what_a_save_cuts_is_read_in_order_without_putting_chunks_together(
    shape: tuple[int, ...], max_bytes: int
) -> None:
    boxes = list(cut(shape, item_bytes=1, max_bytes=max_bytes))
    bands = row_major_bands(entry_of(shape, boxes))
    solid = [box for box in boxes if math.prod(box.shape)]
    assert [[Box(chunk.at, chunk.shape) for chunk in band.chunks] for band in bands] == [
        [box] for box in solid
    ]


@given(st.integers(0, 7))
def test_the_state_digest_changes_with_any_bit_name_shape_dtype_or_state(bit: int) -> None:
    tensor = torch.arange(6, dtype=torch.uint8)
    reader = saved({"w": tensor}, {"w": [Box((0,), (6,))]})
    changed = tensor.clone()
    changed[3] ^= 1 << bit
    others = [
        saved({"w": changed}, {"w": [Box((0,), (6,))]}),
        saved({"v": tensor}, {"v": [Box((0,), (6,))]}),
        saved({"w": tensor.reshape(2, 3)}, {"w": [Box((0, 0), (2, 3))]}),
        saved({"w": tensor.view(torch.int8)}, {"w": [Box((0,), (6,))]}),
        saved({"w": tensor}, {"w": [Box((0,), (6,))]}, position=8),
    ]
    assert len({state_digest(other) for other in [reader, *others]}) == 6
