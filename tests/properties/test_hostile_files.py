"""Files of an attacker: every one of 100,000 is refused by name, or loads what it says, no more.

The attacker can write the store: manifest, seal and shards, but not what the ledger knows. So a
changed manifest may say something else; it must not make the reader fail in any other way than by
an error of strongroom, execute anything, read outside of the checkpoint and those it borrows from,
or take memory that no stored byte pays for. Shards under the right manifest load right or not.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
import resource
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import rfc8785
import torch
from torch import Tensor

from strongroom.checkpoint.catalogue import Committed, read_checkpoint
from strongroom.checkpoint.container import dtype_name
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE, seal_bytes
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.errors import IntegrityError, StrongroomError
from strongroom.names import CheckpointId, Digest
from strongroom.storage.base import ObjectInfo
from strongroom.storage.memory import MemoryStorage
from strongroom.verification import stored
from strongroom.verification.structure import structure_faults
from tests.support.checkpoints import same, zeros_like
from tests.support.crafted import craft, whole

pytestmark = pytest.mark.timeout(900)  # less than one minute where nothing else runs

NUM_WORKERS = 2
NUM_CASES = {
    "document": 25_000,
    "text": 10_000,
    "sizes": 3_000,
    "header": 25_000,
    "shard": 40_000,
}
BATCH = 2_000
SPARE_BYTES = 64 * 2**20
"""Address space left to a worker: what asks for more fails, by no error of strongroom."""
INSIDE = re.compile(r"runs/nightly-7/attempt-\d{4}/step-\d{8}/[^/]+")
MARK = "executed"
BORROWED = "attempt-0001/step-00000005/__0_0.distcp"
HEADER_BYTES = 128


State = dict[str, Tensor]


class Bomb:
    """Leaves a mark in the current folder where it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (MARK,)


class Guarded(MemoryStorage):
    """Notes every look at what is outside of checkpoints of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def _guard(self, key: str) -> None:
        if not INSIDE.fullmatch(key):
            self.outside.append(key)

    def read(self, key: str, *, offset: int = 0, num_bytes: int | None = None) -> bytes:
        self._guard(key)
        return super().read(key, offset=offset, num_bytes=num_bytes)

    def stat(self, key: str) -> ObjectInfo | None:
        self._guard(key)
        return super().stat(key)

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        self._guard(f"{folder}/x")
        return super().walk(folder)


class Target:
    """A delta, the checkpoint it borrows from, and what is none of theirs."""

    def __init__(self) -> None:
        self.storage = Guarded()
        self.state = small_state()
        changed = {**self.state, "model.w": torch.zeros(4, 3)}
        bomb = pickle.dumps(Bomb())
        self.base = craft(self.storage, [whole(changed)], 5, index=bomb)
        self.committed = craft(self.storage, [whole(self.state)], base=self.base, index=bomb)
        for key in ("runs/other/attempt-0001/step-00000010/__0_0.distcp", "ledger/1", "secret"):
            self.storage.create(key, bytes(1000))
        self.manifest = self.committed.manifest.to_bytes()
        self.manifest_key = f"{self.committed.folder}/{MANIFEST_FILE}"
        own, borrowed = map(self.committed.manifest.key_of, ("__0_0.distcp", BORROWED))
        self.shards = {key: self.storage.read(key) for key in (own, borrowed)}
        # Which checkpoint is read with which shard forged; reading a delta takes longer.
        self.victims = [(self.base, changed, borrowed)] * 8 + [
            (self.committed, self.state, key) for key in (own, borrowed)
        ]

    def seal(self, manifest: bytes) -> None:
        """Put a manifest in place, with the seal it needs."""
        seal = seal_bytes(CheckpointId(Digest.of(manifest)))
        self.storage.replace(self.manifest_key, manifest)
        self.storage.replace(f"{self.committed.folder}/{SEAL_FILE}", seal)


def small_state() -> State:
    return {
        "model.w": torch.arange(12.0).reshape(4, 3),
        "optim.state.w.exp_avg": torch.arange(12.0).reshape(4, 3) / 8,
        "scalar": torch.tensor(3),
    }


# --- what the attacker does ------------------------------------------------------------

VALUES: list[Any] = [
    *(
        0,
        1,
        -1,
        2,
        64,
        2**31,
        2**53 - 1,
        2**53,
        10**30,
        10**400,
        1.5,
        1e308,
        -0.0,
        True,
        None,
        "",
        "w",
    ),
    *([], {}, [0], [[]], {"a": {}}, [2**26, 2**26], [1] * 70, [1] * 3000, [0, 2**53 - 1]),
    *("../../secret", "/etc/passwd", "..", "a/b", "attempt-0001/step-00000005/../../../secret"),
    *(BORROWED, "attempt-0000/step-00000005/__0_0.distcp", "__0_0.distcp", "manifest.json"),
    *("attempt-0001/step-00000010/__0_0.distcp", "attempt-9999/step-99999999/__0_0.distcp"),
    *(f"__{'9' * 5000}_0.distcp", f"attempt-0001/step-00000005/__{'9' * 5000}_0.distcp"),
    *("sha256:" + "0" * 64, "x" * 100_000, "\ud800", "\0", "float64", "bool", "float8_e5m2"),
    *("", "w", "strongroom.manifest/1", "strongroom.manifest/2", "nightly-7", "a\u0301", "1e5"),
]
TEXTS = [
    *(b"", b"null", b"[]", b"{}", b"[" * 100_000, b'{"a":' * 100_000, b"NaN", b"Infinity", b"-0"),
    *(
        b"9" * 400,
        b"9" * 5000,
        b"1e999",
        b"\xff",
        b"\0",
        b"\xef\xbb\xbf",
        b'"\\ud800"',
        b"\x80\x04.",
    ),
]


def forged_document(choose: random.Random, manifest: bytes) -> bytes:
    """Change some fields of a manifest; spell it canonically where that can be."""
    document = json.loads(manifest)
    for _ in range(choose.choice([1, 1, 1, 2, 4])):
        places = list(_places(document))
        holder, key = choose.choice(places)
        change = choose.randrange(6)
        if change == 0:
            del holder[key]
        elif change == 1 and type(holder[key]) is int:
            holder[key] = choose.choice(
                [holder[key] + 1, holder[key] - 1, holder[key] * 2, holder[key] << 20]
            )
        elif change == 2:
            other, place = choose.choice(places)
            holder[key] = deepcopy(other[place])
        elif change == 3 and isinstance(holder, list):
            holder.insert(key, deepcopy(holder[key]))
        elif change == 4 and isinstance(holder, dict):
            holder[choose.choice(["x", "lender", "__0_1.distcp", ""])] = deepcopy(
                choose.choice(VALUES)
            )
        else:
            holder[key] = deepcopy(choose.choice(VALUES))
    try:
        return rfc8785.dumps(document)
    except (rfc8785.CanonicalizationError, ValueError):
        return json.dumps(document).encode()


def inflated(choose: random.Random, manifest: bytes) -> bytes:
    """Have a manifest claim more of a tensor than is stored, in all places that must agree."""
    document = json.loads(manifest)
    tensor = choose.choice([tensor for tensor in document["tensors"] if tensor["shape"]])
    (chunk,) = tensor["chunks"]
    factor = choose.choice([2, 3, 2**10, 2**25, 2**40])
    rows, row_bytes = chunk["shape"][0], 4 * math.prod(chunk["shape"][1:])
    tensor["shape"][0] *= factor
    if choose.random() < 0.5:
        chunk["shape"][0] *= factor
        chunk["num_bytes"] += rows * (factor - 1) * row_bytes
        for file in document["files"]:
            if file["name"] == chunk["file"] and choose.random() < 0.9:
                file["num_bytes"] += rows * (factor - 1) * row_bytes
    else:
        copies = min(factor, 100)
        tensor["chunks"] = [{**chunk, "at": [rows * number, 0]} for number in range(copies)]
        tensor["shape"][0] = rows * copies
    return rfc8785.dumps(document)


def _places(value: object) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a document, as what holds it and its key there."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def forged_bytes(choose: random.Random, data: bytes, texts: list[bytes]) -> bytes:
    """Flip, cut out, repeat, insert or overwrite some bytes, or end early."""
    start = choose.randrange(len(data) + 1)
    end = min(start + choose.choice([1, 1, 2, 8, 64, 4096]), len(data))
    text = choose.choice(texts)
    flip = 1 << choose.randrange(8)
    return choose.choice(
        [
            data[:start] + bytes(byte ^ flip for byte in data[start:end]) + data[end:],
            data[:start] + data[end:],
            data[:end] + data[start:],
            data[:start] + text + data[start:],
            data[:start] + text + data[start + len(text) :],
            data[:start],
            data[:start] + bytes(end - start) + data[end:],
        ]
    )


# --- what must come of it --------------------------------------------------------------


def manifest_case(target: Target, manifest: bytes) -> bool:
    """Return whether the checkpoint loads under a forged manifest; what it says must be so."""
    target.seal(manifest)
    try:
        committed = read_checkpoint(target.storage, target.committed.name)
    except StrongroomError:
        return False
    structure_faults(committed.manifest)
    faults = stored.stored_faults(target.storage, committed)
    reader = CheckpointReader(target.storage, committed, threads=1)
    try:
        read = reader.read_all(committed.manifest.tensors, threads=1)
        state_digest(reader)
    except StrongroomError:
        return False
    for entry in committed.manifest.tensors:
        tensor = read[entry.name]
        assert (dtype_name(tensor.dtype), tuple(tensor.shape)) == (entry.dtype, entry.shape)
    expected = manifest == target.manifest
    assert not expected or (faults == [] and same(read, target.state))
    return True


def shard_case(
    target: Target, victim: tuple[Committed, State, str], shard: bytes, *, by_loading: bool
) -> bool:
    """Return whether a checkpoint loads with a forged shard; then every value must be right."""
    committed, state, key = victim
    target.storage.replace(key, shard)
    reader = CheckpointReader(target.storage, committed, threads=1)
    faults = stored.stored_faults(target.storage, committed)
    try:
        if by_loading:
            read = zeros_like(state)
            reader.load_into(read)
        else:
            read = reader.read_all(committed.manifest.tensors, threads=1)
    except IntegrityError as error:
        if error.file != key or not faults:
            raise RuntimeError(f"named {error.file}, verification found {faults}") from error
        return False
    finally:
        target.storage.replace(key, target.shards[key])
    assert same(read, state), "wrong values were loaded in silence"
    return True


def one_case(target: Target, kind: str, number: int) -> bool:
    choose = random.Random(f"{kind} {number}")  # noqa: S311 -- the same cases every time
    if kind == "document":
        return manifest_case(target, forged_document(choose, target.manifest))
    if kind == "sizes":
        return manifest_case(target, inflated(choose, target.manifest))
    if kind == "text":
        return manifest_case(target, forged_bytes(choose, target.manifest, TEXTS))
    victim = choose.choice(target.victims)
    right = target.shards[victim[-1]]
    texts = [pickle.dumps(Bomb()), *target.shards.values(), b"\xff" * 100]
    if kind == "header":
        shard = forged_bytes(choose, right[:HEADER_BYTES], texts) + right[HEADER_BYTES:]
    else:
        shard = forged_bytes(choose, right, texts)
    return shard_case(target, victim, shard, by_loading=number % 20 == 0)


@dataclass(kw_only=True, slots=True)
class Found:
    """What came of some cases."""

    loaded: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


def cases(kind: str, numbers: range) -> Found:
    """Run some cases, in a process of their own that cannot take much memory."""
    torch.set_num_threads(1)
    target = Target()
    found = Found()
    with patch.object(stored, "reading_threads", return_value=1):
        assert manifest_case(target, target.manifest)
        for victim in target.victims:
            assert shard_case(target, victim, target.shards[victim[-1]], by_loading=True)
        with little_memory():
            for number in numbers:
                try:
                    loaded = one_case(target, kind, number)
                except BaseException:  # noqa: BLE001 -- what is looked for, whatever it is
                    found.failures.append(f"{kind} {number}: {traceback.format_exc()}")
                else:
                    found.loaded += loaded
                    found.refused += not loaded
    found.outside = target.storage.outside
    return found


@contextmanager
def little_memory() -> Iterator[None]:
    """Leave this process `SPARE_BYTES` of address space beyond what it has."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = used * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    folder = tmp_path_factory.mktemp("hostile")
    results = {kind: Found() for kind in NUM_CASES}
    with ProcessPoolExecutor(
        NUM_WORKERS, mp_context=get_context("spawn"), initializer=os.chdir, initargs=(folder,)
    ) as pool:
        pending = [
            (kind, pool.submit(cases, kind, range(start, min(start + BATCH, count))))
            for kind, count in NUM_CASES.items()
            for start in range(0, count, BATCH)
        ]
        for kind, future in pending:
            add(results[kind], future.result())
    results["executed"] = Found(failures=[MARK] if (folder / MARK).exists() else [])
    return results


def add(total: Found, part: Found) -> None:
    total.loaded += part.loaded
    total.refused += part.refused
    total.failures += part.failures
    total.outside += part.outside


@pytest.mark.parametrize("kind", NUM_CASES)
def test_every_forged_file_is_refused_by_name_or_loads_what_it_says(
    results: dict[str, Found], kind: str
) -> None:
    found = results[kind]
    assert found.failures == []
    assert found.loaded + found.refused == NUM_CASES[kind]
    assert found.loaded > 0, "nothing was forged so little that it loads"
    assert found.refused > NUM_CASES[kind] / 2


def test_nothing_is_executed_or_read_elsewhere(
    results: dict[str, Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert results["executed"].failures == []
    assert [key for found in results.values() for key in found.outside] == []
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Bomb()))  # noqa: S301 -- the control: this bomb does go off
    assert (tmp_path / MARK).exists()


def test_there_are_at_least_100000_cases() -> None:
    assert sum(NUM_CASES.values()) >= 100_000
