from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from strongroom.errors import ConflictError, LedgerError
from strongroom.ledger.log import Ledger
from strongroom.storage.memory import Faults, MemoryStorage, SimulatedCrash
from tests.support.ledgers import KEYRING, SIGNER, MemoryLedger, committed

HEAD = "ledger/checkpoint"


class Interrupted(MemoryStorage):
    """A process over the same bytes that is interrupted at chosen moments."""

    def __init__(self, world: MemoryLedger) -> None:
        super().__init__()
        self._process = world.storage.reopen()._process
        self.before_replace: Callable[[], object] = lambda: None
        self.before_create: Callable[[], object] = lambda: None
        self.after_create: Callable[[str], object] = lambda key: key

    def replace(self, key: str, data: bytes) -> None:
        interrupt, self.before_replace = self.before_replace, lambda: None
        interrupt()
        super().replace(key, data)

    def create(self, key: str, data: bytes) -> None:
        interrupt, self.before_create = self.before_create, lambda: None
        interrupt()
        try:
            super().create(key, data)
        finally:
            self.after_create(key)


def ledger_of(storage: MemoryStorage, patience_s: float, limit_s: float = 60.0) -> Ledger:
    return Ledger(storage, KEYRING, SIGNER, patience_s=patience_s, limit_s=limit_s)


def crashed(world: MemoryLedger, *, crash_before: int, number: int) -> None:
    """Let a process die while it appends."""
    with pytest.raises(SimulatedCrash):
        world.reopened(Faults(crash_before=crash_before)).open().append(committed(number))


def test_an_append_takes_three_writes_in_order() -> None:
    world = MemoryLedger.new(1).reopened()
    world.open().append(committed(2))
    assert world.storage.operations == [
        "create ledger/tile/entries/000.p/2",
        "create ledger/tile/0/000.p/2",
        f"replace {HEAD}",
    ]


@pytest.mark.parametrize("crash_before", [2, 3])
def test_an_unfinished_append_is_invisible_then_finished(crash_before: int) -> None:
    world = MemoryLedger.new(1)
    crashed(world, crash_before=crash_before, number=50)
    assert world.open().events() == [committed(0)]
    assert world.open().verify().num_unfinished == 1
    assert world.open().append(committed(60)) == 2
    assert world.open().events() == [committed(0), committed(50), committed(60)]


def test_an_append_that_died_before_its_entry_leaves_nothing() -> None:
    world = MemoryLedger.new(1)
    crashed(world, crash_before=1, number=50)
    assert world.open().append(committed(60)) == 1
    assert world.open().events() == [committed(0), committed(60)]


def test_recovery_finishes_without_appending(caplog: pytest.LogCaptureFixture) -> None:
    world = MemoryLedger.new()
    crashed(world, crash_before=3, number=50)
    with caplog.at_level(logging.WARNING, logger="strongroom.ledger"):
        assert world.open().recover() == 1
    assert "finished for a dead process: index=0" in caplog.text
    assert world.open().events() == [committed(50)]
    assert world.open().recover() == 0


def test_an_answer_that_was_lost_does_not_double_the_event() -> None:
    world = MemoryLedger.new(1)
    storage = Interrupted(world)

    def lose_the_answer(key: str) -> None:
        # The first request was carried out; its client asked again and was told of a conflict.
        if key == "ledger/tile/entries/000.p/2":
            raise ConflictError(key)

    storage.after_create = lose_the_answer
    assert ledger_of(storage, patience_s=30.0).append(committed(50)) == 1
    assert world.open().events() == [committed(0), committed(50)]


def test_a_slow_appender_does_not_set_the_head_back() -> None:
    world = MemoryLedger.new(1)
    storage = Interrupted(world)

    def others_go_on() -> None:
        for number in (60, 70):
            world.reopened().open().append(committed(number))

    # At this very moment the slow one has made sure that no newer head stands.
    storage.before_replace = others_go_on
    assert ledger_of(storage, patience_s=0.0).append(committed(50)) == 1
    assert world.open().events() == [committed(n) for n in (0, 50, 60, 70)]
    assert world.open().verify().num_unfinished == 0


def test_a_slow_appender_whose_work_was_done_for_it_writes_no_head() -> None:
    world = MemoryLedger.new(1)
    storage = Interrupted(world)

    def others_go_on(key: str) -> None:
        if key == "ledger/tile/entries/000.p/2":
            storage.after_create = lambda key: key
            world.reopened().open().append(committed(60))

    storage.after_create = others_go_on
    assert ledger_of(storage, patience_s=0.0).append(committed(50)) == 1
    assert not [op for op in storage.operations if op.startswith("replace")]
    assert world.open().events() == [committed(n) for n in (0, 50, 60)]


def test_a_living_appender_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    world = MemoryLedger.new(1)
    first, second = Interrupted(world), Interrupted(world)
    begun, met = threading.Event(), threading.Event()
    num_tries = [0]

    def note_the_meeting(key: str) -> None:
        num_tries[0] += key == "ledger/tile/entries/000.p/2"
        if num_tries[0] == 3:
            met.set()

    def wait_for_the_other() -> None:
        begun.set()
        assert met.wait(60)

    first.before_replace = wait_for_the_other
    second.after_create = note_the_meeting
    thread = threading.Thread(target=ledger_of(first, patience_s=60.0).append, args=[committed(50)])
    with caplog.at_level(logging.WARNING, logger="strongroom.ledger"):
        thread.start()
        assert begun.wait(60)
        assert ledger_of(second, patience_s=60.0).append(committed(60)) == 2
        thread.join()
    assert caplog.text == ""
    assert world.open().events() == [committed(0), committed(50), committed(60)]


def test_waiting_has_an_end() -> None:
    world = MemoryLedger.new(1)
    crashed(world, crash_before=2, number=50)
    before = world.files
    with pytest.raises(ConflictError, match="never got its turn"):
        ledger_of(world.storage, patience_s=60.0, limit_s=0.05).append(committed(60))
    assert world.files == before


def test_a_head_that_was_set_back_is_not_waited_for() -> None:
    world = MemoryLedger.new(1)
    old_head = world.files[HEAD]
    for number in (50, 60, 70):
        world.open().append(committed(number))
    world.storage.replace(HEAD, old_head)
    # Every entry but the last proves by the one behind it that its appender is done.
    with pytest.raises(ConflictError):
        ledger_of(world.storage, patience_s=60.0, limit_s=0.2).append(committed(80))
    assert world.open().head().size == 3
    assert world.open().append(committed(80)) == 4


def test_nobody_is_taken_for_dead_who_was_only_faster(caplog: pytest.LogCaptureFixture) -> None:
    world = MemoryLedger.new(1)
    storage = Interrupted(world)

    def others_were_faster() -> None:
        for number in (60, 70):
            ledger_of(world.storage.reopen(), patience_s=60.0).append(committed(number))

    storage.before_create = others_were_faster
    with caplog.at_level(logging.WARNING, logger="strongroom.ledger"):
        assert ledger_of(storage, patience_s=60.0).append(committed(50)) == 3
    assert caplog.text == ""


def test_a_tile_laid_beforehand_stops_the_append() -> None:
    world = MemoryLedger.new(1)
    world.storage.create("ledger/tile/0/000.p/2", bytes(64))
    with pytest.raises(LedgerError, match=r"tile/0/000\.p/2: differs at byte 0"):
        world.open().append(committed(50))
    assert world.open().events() == [committed(0)]


def test_threads_that_append_at_once_lose_nothing() -> None:
    world = MemoryLedger.new()
    numbers = range(24)

    def append_some(first: int) -> None:
        for number in numbers[first::4]:
            ledger_of(world.storage.reopen(), patience_s=3.0).append(committed(number))

    threads = [threading.Thread(target=append_some, args=[first]) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = world.open().events()
    assert sorted(str(event.checkpoint) for event in events) == sorted(
        str(committed(number).checkpoint) for number in numbers
    )
    assert world.open().verify().num_unfinished == 0
