from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from strongroom.checkpoint.entries import Chunk, TensorEntry
from strongroom.checkpoint.reading.spans import GAP_BYTES, RANGE_BYTES, Span, coalesced, spans_of
from strongroom.names import Digest

MIB = 2**20
NOTHING = Digest.of(b"")


def span(offset: int, num_bytes: int, file: str = "f", *, frame_bytes: int = 0) -> Span:
    """Return a span of a tensor of its own; a third of the frame stands before the raw bytes."""
    raw = num_bytes - frame_bytes
    chunk = Chunk(
        at=(0,),
        shape=(raw,),
        file=file,
        offset=offset,
        num_bytes=num_bytes,
        sha256=NOTHING,
        data_offset=frame_bytes // 3,
    )
    return Span(tensor=TensorEntry(name="w", dtype="uint8", shape=(raw,), chunks=()), chunk=chunk)


def places(spans: list[Span]) -> list[list[tuple[str, int]]]:
    return [[(s.chunk.file, s.chunk.offset) for s in part.spans] for part in coalesced(spans)]


def test_a_span_is_header_raw_bytes_and_trailer() -> None:
    one = span(100, 1000, frame_bytes=600)
    assert (one.raw_bytes, one.trailer_bytes, one.end) == (400, 400, 1100)


def test_neighbours_are_asked_for_together_and_others_are_not() -> None:
    near = [span(300, 50), span(0, 100), span(100, 200)]
    assert places(near) == [[("f", 0), ("f", 100), ("f", 300)]]
    assert places([span(0, 100), span(100 + GAP_BYTES, 1)]) == [[("f", 0), ("f", 100 + GAP_BYTES)]]
    assert places([span(0, 100), span(101 + GAP_BYTES, 1)]) == [
        [("f", 0)],
        [("f", 101 + GAP_BYTES)],
    ]
    assert places([span(0, 100), span(100, 1, "g")]) == [[("f", 0)], [("g", 100)]]


def test_a_range_holds_what_a_chunk_holds_and_a_larger_chunk_is_a_range_by_itself() -> None:
    chunks = [span(number * 6 * MIB, 6 * MIB) for number in range(4)]
    assert [len(part) for part in places(chunks)] == [2, 2]
    large = [span(0, 10), span(10, 40 * MIB), span(10 + 40 * MIB, 10)]
    assert [len(part) for part in places(large)] == [1, 1, 1]


def test_bytes_that_two_chunks_claim_are_read_for_each() -> None:
    assert [len(part) for part in places([span(0, 100), span(50, 100)])] == [1, 1]


def test_the_spans_of_tensors_are_those_of_their_chunks() -> None:
    chunks = tuple(span(offset, 10).chunk for offset in (20, 0, 10))
    entry = TensorEntry(name="w", dtype="uint8", shape=(30,), chunks=chunks)
    assert [(s.tensor, s.chunk) for s in spans_of([entry])] == [(entry, chunk) for chunk in chunks]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("fg"),
            st.integers(0, 40 * MIB) | st.integers(0, 4 * GAP_BYTES),
            st.integers(0, 20 * MIB) | st.integers(0, 100),
        )
    )
)
def test_every_span_lies_in_exactly_one_range_in_order(
    cases: list[tuple[str, int, int]],
) -> None:
    spans = [span(offset, num_bytes, file) for file, offset, num_bytes in cases]
    ranges = coalesced(spans)
    found = [one for part in ranges for one in part.spans]
    assert sorted(map(id, found)) == sorted(map(id, spans))
    order = [(part.file, part.offset) for part in ranges]
    assert order == sorted(order)
    for part in ranges:
        assert len(part.spans) == 1 or part.num_bytes <= RANGE_BYTES
        for before, after in zip(part.spans, part.spans[1:], strict=False):
            assert 0 <= after.chunk.offset - before.end <= GAP_BYTES
