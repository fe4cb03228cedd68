"""Laws of the ledger: nothing acknowledged is lost, nothing changed goes unseen."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strongroom.errors import FormatError, LedgerError, SignatureError
from strongroom.ledger.events import Event, EventKind
from strongroom.ledger.history import History
from strongroom.ledger.log import Ledger
from strongroom.ledger.tiles import tiles_of
from strongroom.signing.keyring import KeyFolder
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import Faults, MemoryStorage, SimulatedCrash
from strongroom.storage.store import make_store
from tests.support.ledgers import (
    MemoryLedger,
    about,
    checkpoint_id,
    checkpoint_name,
    committed,
    digest_of,
)

NUM_APPENDS = 3


@cache
def _contents(num_events: int) -> dict[str, bytes]:
    world = MemoryLedger.new(num_events)
    contents = {info.key: world.storage.read(info.key) for info in world.storage.walk("")}
    if num_events > 100:
        # Of a large ledger only what its tree head needs: verifying reads every file there is.
        needed = {f"ledger/{tile.path}" for tile in tiles_of(num_events)}
        contents = {key: contents[key] for key in contents if "tile" not in key or key in needed}
    return contents


def grown_to(num_events: int) -> MemoryLedger:
    """Return a fresh ledger of that many events, made once."""
    storage = MemoryStorage()
    storage._process.disk.objects.update(_contents(num_events))
    return MemoryLedger(storage)


def append_until_the_crash(world: MemoryLedger, first: int) -> list[int]:
    """Append some; return the numbers of those that were acknowledged."""
    acknowledged: list[int] = []
    try:
        for number in range(first, first + NUM_APPENDS):
            world.open().append(committed(number))
            acknowledged.append(number)
    except SimulatedCrash:
        pass
    return acknowledged


def numbers_of(events: list[Event]) -> list[int]:
    return [event.facts["num_bytes"] - 1000 for event in events]


@pytest.mark.parametrize("size", [0, 1, 2, 254, 255, 256])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_moment_loses_nothing_acknowledged(size: int, when: str) -> None:
    clean = grown_to(size)
    append_until_the_crash(clean, 1000)
    num_operations = len(clean.storage.operations)
    assert num_operations >= 3 * NUM_APPENDS
    for number in range(1, num_operations + 1):
        world = grown_to(size)
        crash = Faults(crash_before=number) if when == "before" else Faults(crash_after=number)
        acknowledged = append_until_the_crash(world.reopened(crash), 1000)
        before = list(range(size))
        seen = numbers_of(world.open().events())
        # What was acknowledged is seen at once; what was begun may be seen later, in its place.
        assert seen[: size + len(acknowledged)] == before + acknowledged
        assert world.open().verify().size == len(seen)
        index = world.open().append(committed(2000))
        after = numbers_of(world.open().events())
        begun = after[size + len(acknowledged) : -1]
        assert after == [*before, *acknowledged, *begun, 2000]
        assert begun in ([], [1000 + len(acknowledged)])
        assert index == len(after) - 1
        report = world.open().verify()
        assert (report.size, report.num_unfinished) == (len(after), 0)


@pytest.mark.parametrize("size", [1, 255])
def test_a_crash_while_mending_a_crash_loses_nothing(size: int) -> None:
    for first in range(1, 5):
        for second in range(1, 5):
            world = grown_to(size)
            append_until_the_crash(world.reopened(Faults(crash_before=first)), 1000)
            append_until_the_crash(world.reopened(Faults(crash_after=second)), 2000)
            world.open().append(committed(3000))
            numbers = numbers_of(world.open().events())
            assert numbers[:size] == list(range(size))
            assert numbers[-1] == 3000
            assert numbers[size:] == sorted(set(numbers[size:])), "doubled, or out of order"
            assert world.open().verify().num_unfinished == 0


def _flip_and_verify(world: MemoryLedger, source: random.Random) -> None:
    key = source.choice(list(world.files))
    data = bytearray(world.storage.read(key))
    place = source.randrange(len(data))
    data[place] ^= 1 << source.randrange(8)
    world.storage.replace(key, bytes(data))
    with pytest.raises((LedgerError, SignatureError, FormatError)):
        world.open(signer=None).verify()


@pytest.mark.parametrize("seed", range(20))
def test_any_flipped_bit_of_any_file_is_found(seed: int) -> None:
    source = random.Random(seed)  # noqa: S311 -- a test's choice, not a secret
    for _ in range(25):
        _flip_and_verify(grown_to(9), source)


@pytest.mark.parametrize("seed", range(20))
def test_any_flipped_bit_of_a_ledger_with_full_tiles_is_found(seed: int) -> None:
    source = random.Random(1000 + seed)  # noqa: S311 -- as above
    for _ in range(3):
        _flip_and_verify(grown_to(257), source)


@given(st.integers(0, 2**32), st.integers(0, 40))
@settings(max_examples=60)
def test_any_file_cut_short_or_continued_is_found(seed: int, num_bytes: int) -> None:
    source = random.Random(seed)  # noqa: S311 -- as above
    world = grown_to(9)
    key = source.choice(list(world.files))
    data = world.storage.read(key)
    changed = data + bytes(num_bytes) if source.random() < 0.5 else data[:num_bytes]
    if changed != data:
        world.storage.replace(key, changed)
        with pytest.raises((LedgerError, SignatureError, FormatError)):
            world.open(signer=None).verify()


D = str(digest_of("evidence"))
numbers = st.integers(1, 4)
stages = st.sampled_from(["staging", "production"])
events = st.one_of(
    numbers.map(committed),
    st.builds(lambda n: about(EventKind.CHECKPOINT_QUARANTINED, n, reason="bad"), numbers),
    st.builds(
        lambda n, stage: about(
            EventKind.CHECKPOINT_PROMOTED,
            n,
            stage=stage,
            policy=D,
            attestation=D,
            replaces=None,
        ),
        numbers,
        stages,
    ),
)


@given(st.lists(events, max_size=12))
def test_a_history_says_what_its_events_said(said: list[Event]) -> None:
    history = History.of(said)
    for number in range(1, 5):
        mine = [event for event in said if event.checkpoint_id == checkpoint_id(number)]
        record = history.by_name(checkpoint_name(number))
        assert (record is not None) == bool(mine)
        if record is not None:
            kinds = {event.kind for event in mine}
            assert (record.committed is not None) == (EventKind.CHECKPOINT_COMMITTED in kinds)
            assert (record.quarantined is not None) == (EventKind.CHECKPOINT_QUARANTINED in kinds)
            assert [said[index] for index in record.indexes] == mine
    for stage in ("staging", "production"):
        moves = [event.checkpoint_id for event in said if event.facts.get("stage") == stage]
        assert history.in_stage(stage) == (moves[-1] if moves else None)
        holders = [r.checkpoint_id for r in history.records.values() if stage in r.stages]
        assert holders == moves[-1:]


# --- several processes ----------------------------------------------------------------------


def _ledger(root: Path, patience_s: float) -> Ledger:
    keys = KeyFolder(root / "keys")
    return Ledger(
        LocalStorage(root / "store"), keys.keyring(), keys.service_signer(), patience_s=patience_s
    )


def _append_many(root: Path, worker: int, num_events: int, patience_s: float) -> None:
    """Append, and note every event in a file once it was acknowledged."""
    ledger = _ledger(root, patience_s)
    with (root / f"acknowledged-{worker}").open("w") as notes:
        for place in range(num_events):
            number = worker * 1000 + place
            ledger.append(committed(number))
            notes.write(f"{number}\n")
            notes.flush()


def _acknowledged(root: Path) -> list[int]:
    files = root.glob("acknowledged-*")
    return sorted(int(line) for file in files for line in file.read_text().split())


@contextmanager
def _workers(root: Path, num_events: int, patience_s: float) -> Iterator[Sequence[BaseProcess]]:
    make_store(LocalStorage(root / "store"))
    KeyFolder(root / "keys").service_signer()
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_append_many, args=(root, worker, num_events, patience_s))
        for worker in range(1, 4)
    ]
    for process in workers:
        process.start()
    try:
        yield workers
    finally:
        for process in workers:
            process.join()


def test_processes_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    with _workers(tmp_path, 12, patience_s=3.0):
        pass
    ledger = _ledger(tmp_path, 3.0)
    assert sorted(numbers_of(ledger.events())) == _acknowledged(tmp_path)
    assert len(_acknowledged(tmp_path)) == 3 * 12
    assert ledger.verify().num_unfinished == 0


@pytest.mark.parametrize("seed", range(3))
def test_processes_that_are_killed_lose_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)  # noqa: S311 -- as above
    with _workers(tmp_path, 40, patience_s=0.5) as workers:
        for victim in source.sample(workers, 2):
            target = len(_acknowledged(tmp_path)) + source.randrange(3, 9)
            while len(_acknowledged(tmp_path)) < target and victim.is_alive():
                time.sleep(0.001)
            if victim.pid is not None:
                os.kill(victim.pid, signal.SIGKILL)
    ledger = _ledger(tmp_path, 0.5)
    ledger.append(committed(9000))
    stored = numbers_of(ledger.events())
    assert len(stored) == len(set(stored))
    assert set(_acknowledged(tmp_path)) <= set(stored)
    assert ledger.verify().num_unfinished == 0
