from __future__ import annotations

import io

import pytest
import torch

from strongroom.checkpoint.container import dtype_name, dtype_of, frame, from_raw, raw_bytes
from strongroom.checkpoint.manifest import DTYPE_BYTES
from strongroom.checkpoint.shard import ALIGNMENT, SHARD_NAME, ShardHeader, read_parts, shard_name
from strongroom.errors import FormatError, InputError
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import bits, checkpoint_name, mixed_state, save_checkpoint

HEADER = ShardHeader(name=checkpoint_name(12), save_id="0" * 32, rank=3)


def test_a_header_reads_back_whatever_follows_it() -> None:
    data = HEADER.to_bytes()
    assert len(data) % ALIGNMENT == 0
    assert ShardHeader.from_bytes(data, where="f") == HEADER
    assert ShardHeader.from_bytes(data + b"\xff" * 900, where="f") == HEADER


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\n", b" "),
        (b"shard/1", b"shard/2"),
        (b'"rank":3,', b""),
        (b'{"attempt"', b'{ "attempt"'),
        (b'"save_id"', b'"colour":1,"save_id"'),
        (b'"attempt":1', b'"attempt":0'),
    ],
)
def test_what_is_no_header_is_refused(old: bytes, new: bytes) -> None:
    data = HEADER.to_bytes()
    assert old in data
    with pytest.raises(FormatError, match="f"):
        ShardHeader.from_bytes(data.replace(old, new), where="f")


def test_shard_names_are_those_of_stock_writers() -> None:
    match = SHARD_NAME.fullmatch(shard_name(12))
    assert match is not None
    assert match[1] == "12"
    assert SHARD_NAME.fullmatch("__0_1.distcp") is None


@pytest.mark.parametrize("name", mixed_state())
def test_torch_loads_a_container_around_the_raw_bytes(name: str) -> None:
    tensor = mixed_state()[name].contiguous()
    around = frame(tuple(tensor.shape), tensor.dtype)
    data = around.header + bytes(raw_bytes(tensor)) + around.trailer
    loaded = torch.load(io.BytesIO(data), weights_only=True)
    assert (loaded.dtype, loaded.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(bits(loaded), bits(tensor))


def test_every_dtype_of_a_manifest_has_its_size() -> None:
    for name, num_bytes in DTYPE_BYTES.items():
        assert dtype_of(name).itemsize == num_bytes
        assert dtype_name(dtype_of(name)) == name
    with pytest.raises(InputError, match="complex64"):
        dtype_name(torch.complex64)


def test_raw_bytes_are_a_view_and_little_endian() -> None:
    tensor = torch.tensor([1.0, 0.0], dtype=torch.bfloat16)
    view = raw_bytes(tensor)
    assert bytes(view) == b"\x80\x3f\x00\x00"
    tensor[1] = 1.0
    assert bytes(view) == b"\x80\x3f\x80\x3f"
    raw = torch.frombuffer(bytearray(view), dtype=torch.uint8)
    assert torch.equal(from_raw(raw, "bfloat16", (2, 1)), torch.ones(2, 1, dtype=torch.bfloat16))


def test_chunks_stand_where_the_manifest_says_and_are_aligned() -> None:
    storage = MemoryStorage()
    state = mixed_state()
    committed = save_checkpoint(storage, tensors=state)
    for entry in committed.manifest.tensors:
        (chunk,) = entry.chunks
        key = f"{committed.folder}/{chunk.file}"
        if chunk.num_bytes:
            assert chunk.offset % ALIGNMENT == 0
        data = storage.read(key, offset=chunk.offset, num_bytes=chunk.num_bytes)
        assert data == bytes(raw_bytes(state[entry.name].contiguous()))


def test_parts_join_to_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strongroom.checkpoint.shard.READ_BYTES", 4)
    storage = MemoryStorage()
    storage.create("k", bytes(range(20)))
    parts = list(read_parts(storage, "k", offset=3, num_bytes=9))
    assert [len(part) for part in parts] == [4, 4, 1]
    assert b"".join(parts) == bytes(range(3, 12))
