from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from strongroom.checkpoint.manifest import MANIFEST_FILE
from strongroom.checkpoint.reading.files import CheckpointFiles, shard_header
from strongroom.checkpoint.shard import METADATA_FILE
from strongroom.errors import IntegrityError
from strongroom.storage.base import ObjectInfo
from strongroom.storage.memory import MemoryStorage
from tests.support.crafted import Placed, craft, whole


class Counting(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.looks: Counter[str] = Counter()

    def read(self, key: str, *, offset: int = 0, num_bytes: int | None = None) -> bytes:
        self.looks[f"read {key}"] += 1
        return super().read(key, offset=offset, num_bytes=num_bytes)

    def stat(self, key: str) -> ObjectInfo | None:
        self.looks[f"stat {key}"] += 1
        return super().stat(key)


def test_a_shard_begins_with_what_its_manifest_and_name_say() -> None:
    storage = MemoryStorage()
    ranks = [{f"w{rank}": [Placed((), torch.ones(()))]} for rank in range(2)]
    committed = craft(storage, ranks)
    for name in ("__0_0.distcp", "__1_0.distcp"):
        header = shard_header(committed.manifest, name)
        assert header is not None
        assert storage.read(f"{committed.folder}/{name}").startswith(header)
    assert shard_header(committed.manifest, METADATA_FILE) is None
    assert shard_header(committed.manifest, f"__{'9' * 5000}_0.distcp") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\n", b" "),
        (b"shard/1", b"shard/2"),
        (b'"rank":0,', b""),
        (b'{"attempt"', b'{ "attempt"'),
        (b'"save_id"', b'"colour":1,"save_id"'),
        (b'"attempt":1', b'"attempt":2'),
        (b'"rank":0', b'"rank":1'),
    ],
)
def test_any_other_header_is_refused(old: bytes, new: bytes) -> None:
    storage = MemoryStorage()
    committed = craft(storage, [whole({"w": torch.ones(5)})])
    key = f"{committed.folder}/__0_0.distcp"
    shard = storage.read(key)
    header = shard_header(committed.manifest, "__0_0.distcp")
    assert header is not None
    assert old in header
    other = header.replace(old, new)[: len(header)].ljust(len(header), b"\0")
    storage.replace(key, other + shard[len(header) :])
    with pytest.raises(IntegrityError, match="does not begin with the header of its save"):
        CheckpointFiles(storage, committed).check(["__0_0.distcp"], threads=1)


def test_each_file_is_looked_at_once_and_a_lender_too() -> None:
    storage = Counting()
    tensors = {"v": torch.ones(3), "w": torch.ones(5)}
    base = craft(storage, [whole(tensors)], 5)
    committed = craft(storage, [whole({**tensors, "v": torch.zeros(3)})], base=base)
    files = CheckpointFiles(storage, committed)
    storage.looks.clear()
    names = [file.name for file in committed.manifest.files]
    for _ in range(3):
        files.check(names, threads=4)
    assert set(storage.looks.values()) == {1}
    assert f"read {base.folder}/{MANIFEST_FILE}" in storage.looks
    assert f"stat {base.folder}/__0_0.distcp" in storage.looks


def test_what_was_not_sound_is_looked_at_again() -> None:
    storage = MemoryStorage()
    committed = craft(storage, [whole({"w": torch.ones(5)})])
    key = f"{committed.folder}/__0_0.distcp"
    right = storage.read(key)
    storage.replace(key, right[1:])
    files = CheckpointFiles(storage, committed)
    for _ in range(2):
        with pytest.raises(IntegrityError, match="the size is another"):
            files.check(["__0_0.distcp"], threads=1)
    storage.replace(key, right)
    files.check(["__0_0.distcp"], threads=1)


def test_a_file_of_which_nothing_says_what_it_holds_is_refused() -> None:
    committed = craft(MemoryStorage(), [whole({"w": torch.ones(5)})])
    index, _ = committed.manifest.files
    stray = replace(index, sha256=None)
    manifest = replace(committed.manifest, files=(stray,))
    files = CheckpointFiles(MemoryStorage(), replace(committed, manifest=manifest))
    with pytest.raises(IntegrityError, match="nothing says what a file should hold"):
        files.check_file(stray, num_bytes=stray.num_bytes)
