from __future__ import annotations

import io

import pytest
import torch

from strongroom.checkpoint.container import dtype_name, dtype_of, frame, from_raw, raw_bytes
from strongroom.checkpoint.entries import DTYPE_BYTES
from strongroom.checkpoint.shard import ALIGNMENT, SHARD_NAME, ShardHeader, shard_name
from strongroom.errors import InputError
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import bits, checkpoint_name, mixed_state, write_checkpoint

HEADER = ShardHeader(name=checkpoint_name(12), save_id="0" * 32, rank=3)


def test_a_header_is_one_line_of_canonical_json_with_zeros_behind() -> None:
    data = HEADER.to_bytes()
    assert len(data) % ALIGNMENT == 0
    line, _, rest = data.partition(b"\n")
    assert line == (
        b'{"attempt":1,"format":"strongroom.shard/1","rank":3,"run":"nightly-7","save_id":"'
        + b"0" * 32
        + b'","step":12}'
    )
    assert rest == bytes(len(rest))


def test_shard_names_are_those_of_stock_writers() -> None:
    assert shard_name(12) == "__12_0.distcp"
    match = SHARD_NAME.fullmatch(shard_name(12, 3))
    assert match is not None
    assert match.groups() == ("12", "3")


@pytest.mark.parametrize(
    "name",
    [
        "__00_0.distcp",
        "__0_01.distcp",
        "__0_0.distcp.bak",
        "__-1_0.distcp",
        "__٣_0.distcp",
        "__1234567890_0.distcp",
        "_0_0.distcp",
        "__0_0_distcp",
        "a/__0_0.distcp",
    ],
)
def test_other_names_are_no_shards(name: str) -> None:
    assert SHARD_NAME.fullmatch(name) is None


@pytest.mark.parametrize("name", mixed_state())
def test_torch_loads_a_container_around_the_raw_bytes(name: str) -> None:
    tensor = mixed_state()[name].contiguous()
    around = frame(tuple(tensor.shape), tensor.dtype)
    data = around.header + bytes(raw_bytes(tensor)) + around.trailer
    assert len(data) == around.num_bytes
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


@pytest.mark.parametrize("name", mixed_state())
def test_a_container_depends_on_dtype_and_shape_alone(name: str) -> None:
    tensor = mixed_state()[name].contiguous()
    shape = tuple(tensor.shape)
    again = frame.__wrapped__(shape, tensor.dtype)
    assert again == frame(shape, tensor.dtype)
    plain = io.BytesIO()
    torch.save(tensor.clone(), plain)
    assert plain.getvalue().startswith(again.header[:64])
    assert len(plain.getvalue()) == again.num_bytes


def test_raw_bytes_stand_where_the_manifest_says() -> None:
    storage = MemoryStorage()
    state = mixed_state()
    committed = write_checkpoint(storage, tensors=state)
    for entry in committed.manifest.tensors:
        (chunk,) = entry.chunks
        data = storage.read(
            f"{committed.folder}/{chunk.file}",
            offset=chunk.offset + chunk.data_offset,
            num_bytes=entry.raw_bytes(chunk),
        )
        assert data == bytes(raw_bytes(state[entry.name].contiguous()))
