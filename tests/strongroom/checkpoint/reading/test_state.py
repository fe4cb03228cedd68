from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from strongroom.checkpoint.boxes import Box
from strongroom.checkpoint.entries import TensorEntry
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.errors import IntegrityError
from strongroom.storage.memory import MemoryStorage
from tests.support.checkpoints import bits
from tests.support.crafted import craft, spread, whole

MIB = 2**20


def large(num_bytes: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randint(256, (num_bytes // MIB, MIB), dtype=torch.uint8, generator=source)


def test_every_part_is_looked_at_once_and_in_order() -> None:
    storage = MemoryStorage()
    tensors = {"large": large(33 * MIB), "small": torch.arange(5), "none": torch.empty(0, 2)}
    seen: dict[str, list[Tensor]] = {name: [] for name in tensors}

    def look(entry: TensorEntry, part: Tensor) -> None:
        seen[entry.name].append(bits(part).clone())

    reader = CheckpointReader(storage, craft(storage, [whole(tensors)]))
    assert state_digest(reader, look=look) == state_digest(reader)
    for name, tensor in tensors.items():
        assert torch.equal(torch.cat([bits(tensor)[:0], *seen[name]]), bits(tensor))
    assert max(part.numel() for part in seen["large"]) <= 2 * MIB, "memory grows with the tensor"


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_large_tensors_mean_the_same_however_they_are_cut(columns: bool) -> None:
    tensor = large(20 * MIB)
    size = tuple(tensor.shape)
    half = (size[0], size[1] // 2) if columns else (size[0] // 2, size[1])
    at = (0, half[1]) if columns else (half[0], 0)
    boxes = {"w": [[Box((0, 0), half)], [Box(at, half)]]}
    one, two = MemoryStorage(), MemoryStorage()
    of_two = craft(two, spread({"w": tensor}, boxes))
    assert state_digest(CheckpointReader(one, craft(one, [whole({"w": tensor})]))) == state_digest(
        CheckpointReader(two, of_two)
    )


def test_tensors_are_hashed_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=20)

    class Meeting(MemoryStorage):
        def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> None:
            if sum(buffer.nbytes for buffer in buffers) >= MIB and len(first) < 3:
                first.append(offset)
                meeting.wait()  # is left only when three are here
            super().read_into(key, offset, buffers)

    first: list[int] = []
    storage = Meeting()
    tensors = {f"w{number}": large(17 * MIB, number) for number in range(3)}
    committed = craft(storage, [whole(tensors)])
    digest = state_digest(CheckpointReader(storage, committed, threads=3))
    assert digest == state_digest(CheckpointReader(storage, committed, threads=1))


def test_damage_gives_no_digest() -> None:
    storage = MemoryStorage()
    committed = craft(storage, [whole({"v": torch.ones(3), "w": large(17 * MIB)})])
    for name in ("v", "w"):
        entry = committed.manifest.tensor(name)
        (chunk,) = entry.chunks
        key = f"{committed.folder}/{chunk.file}"
        right = storage.read(key)
        broken = bytearray(right)
        broken[chunk.offset + chunk.num_bytes - 1] ^= 1
        storage.replace(key, bytes(broken))
        with pytest.raises(IntegrityError) as caught:
            state_digest(CheckpointReader(storage, committed))
        assert caught.value.tensor == name
        storage.replace(key, right)
    other = replace(committed.manifest, state={**committed.manifest.state, "counters": {}})
    reader = CheckpointReader(storage, replace(committed, manifest=other))
    assert state_digest(reader) != state_digest(CheckpointReader(storage, committed))
