"""What the laws of tiling do not say: that a forged manifest gets an answer, and soon."""

from __future__ import annotations

from strongroom.checkpoint.entries import Chunk, TensorEntry
from strongroom.checkpoint.tiling import DIMS_MAX, FAULTS_MAX, row_major_bands, tile_faults
from strongroom.names import Digest

NOTHING = Digest.of(b"")


def entry(
    shape: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> TensorEntry:
    chunks = tuple(
        Chunk(at=at, shape=size, file="f", offset=0, num_bytes=0, sha256=NOTHING)
        for at, size in boxes
    )
    return TensorEntry(name="w", dtype="uint8", shape=shape, chunks=chunks)


def test_of_many_overlaps_the_first_few_are_told() -> None:
    faults = tile_faults(entry((10,), [((0,), (10,))] * 3000))
    assert len(faults) == FAULTS_MAX
    assert all("overlap" in fault for fault in faults)


def test_a_tensor_of_more_dimensions_than_any_has_is_refused() -> None:
    shape = (1,) * DIMS_MAX
    assert tile_faults(entry(shape, [((0,) * DIMS_MAX, shape)])) == []
    (fault,) = tile_faults(entry((*shape, 1), [((0,) * (DIMS_MAX + 1), (*shape, 1))]))
    assert "65 dimensions" in fault


def test_many_chunks_along_any_dimension_are_compared_with_their_neighbours_alone() -> None:
    num = 20_000  # pairs of which would take minutes
    for shape, place, size in (
        ((num,), lambda n: (n,), (1,)),
        ((1, num), lambda n: (0, n), (1, 1)),
        ((3, num, 2), lambda n: (0, n, 0), (3, 1, 2)),
    ):
        whole = entry(shape, [(place(n), size) for n in range(num)])
        assert tile_faults(whole) == []
        assert sum(len(band.chunks) for band in row_major_bands(whole)) == num
