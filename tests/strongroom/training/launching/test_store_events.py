"""What a training tells through the store arrives once and in order, whatever the store does."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import list_checkpoints
from strongroom.checkpoint.layout import launches_folder
from strongroom.errors import (
    FormatError,
    InputError,
    StorageDeniedError,
    StorageError,
    StoreUnreachableError,
)
from strongroom.names import RunKey
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import MemoryStorage
from strongroom.training.launching import store_events
from strongroom.training.launching.store_events import (
    FLUSH_MAX_S,
    LaunchId,
    StoreEvents,
    discard_old_launches,
    flush_after_s,
    launch_folder,
    reporting_to_store,
)
from strongroom.training.reporting import reporting
from tests.support.slurm import wait_until

RUN = RunKey("nightly-7")
LAUNCH = LaunchId("20260131T081500Z-0123abcd")
FOLDER = launch_folder(RUN, LAUNCH)
COMMITTED = {"kind": "checkpoint.committed", "step": 10}
STOPPED = {"kind": "training.stopped", "step": 11}
FAILED = {"kind": "training.failed", "rank": 3, "error": "KeyError"}
WAIT_S = 60.0


def step(number: int) -> JsonObject:
    return {"kind": "training.step", "step": number, "loss": float("inf") if number % 7 else 1.5}


class Failing(MemoryStorage):
    """A storage of which some calls fail, for as long as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.create_fails: StorageError | None = None
        self.loses_answers = False
        self.read_fails: StorageError | None = None
        self.readable = 0
        self.delete_fails: StorageError | None = None
        self.tries = 0

    def create(self, key: str, data: bytes) -> None:
        self.tries += 1
        if self.create_fails:
            raise self.create_fails
        super().create(key, data)
        if self.loses_answers:
            self.loses_answers = False
            raise StoreUnreachableError("the answer was lost")

    def read(self, key: str, *, offset: int = 0, num_bytes: int | None = None) -> bytes:
        if self.read_fails and self.readable == 0:
            raise self.read_fails
        self.readable -= 1
        return super().read(key, offset=offset, num_bytes=num_bytes)

    def delete_many(self, keys: Iterable[str]) -> None:
        if self.delete_fails:
            raise self.delete_fails
        super().delete_many(keys)


@pytest.fixture
def storage() -> Failing:
    return Failing()


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_events, "RETRY_S", 0.01)


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are not told by themselves while a test lasts."""
    monkeypatch.setattr(store_events, "FLUSH_MIN_S", 1000.0)
    monkeypatch.setattr(store_events, "FLUSH_MAX_S", 1000.0)


def tell(storage: MemoryStorage, events: list[JsonObject], *, rank: int = 0) -> None:
    with reporting_to_store(storage, RUN, LAUNCH, rank) as report:
        for event in events:
            report(event)


def stored(storage: MemoryStorage) -> list[str]:
    return [info.key for info in storage.walk(FOLDER)]


def heard(storage: MemoryStorage) -> list[JsonObject]:
    return StoreEvents(storage, RUN, LAUNCH).read()


# --- telling --------------------------------------------------------------------------


texts = st.text(st.characters(codec="utf-8"), max_size=8)
event_lists = st.lists(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["training.step", "save.skipped"]), "text": texts}
    ),
    max_size=6,
)


@given(told=st.dictionaries(st.integers(0, 99_999), st.lists(event_lists, max_size=3), max_size=3))
def test_everything_arrives_once_and_in_order(told: dict[int, list[list[JsonObject]]]) -> None:
    storage = MemoryStorage()
    reader = StoreEvents(storage, RUN, LAUNCH)
    got: list[JsonObject] = []
    expected: list[JsonObject] = []
    tellers = {rank: reporting_to_store(storage, RUN, LAUNCH, rank) for rank in sorted(told)}
    for rank, teller in tellers.items():
        with teller as report:
            for events in told[rank]:
                for event in events:
                    report({**event, "rank": rank})
                    expected.append({**event, "rank": rank})
                got += reader.read()
        got += reader.read()
    assert got == expected
    assert reader.read() == []
    assert stored(storage) == []


@pytest.mark.usefixtures("slowly")
def test_a_fast_training_does_not_write_an_object_for_every_step(storage: Failing) -> None:
    events = [step(number) for number in range(50)]
    with reporting_to_store(storage, RUN, LAUNCH, 0) as report:
        for event in events:
            report(event)
            time.sleep(0.001)
    assert len(stored(storage)) == 1
    assert json.dumps(heard(storage)) == json.dumps(events)


def test_steps_are_told_while_training_goes_on(
    storage: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_events, "FLUSH_MIN_S", 0.01)
    with reporting_to_store(storage, RUN, LAUNCH, 0) as report:
        report(step(1))
        wait_until(lambda: len(stored(storage)) == 1, WAIT_S, "the step is not told")
        report(step(2))
        wait_until(lambda: len(stored(storage)) == 2, WAIT_S, "the step is not told")


@pytest.mark.usefixtures("slowly")
def test_a_commit_is_told_at_once_and_what_came_before_it_too(storage: Failing) -> None:
    with reporting_to_store(storage, RUN, LAUNCH, 0) as report:
        report(step(7))
        report(COMMITTED)
        wait_until(lambda: len(stored(storage)) == 1, WAIT_S, "the commit is not told")
        assert heard(storage) == [step(7), COMMITTED]


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize("word", [STOPPED, FAILED, {"kind": "training.finished", "step": 9}])
def test_a_last_word_is_stored_before_report_returns(storage: Failing, word: JsonObject) -> None:
    with reporting_to_store(storage, RUN, LAUNCH, 3) as report:
        report(step(7))
        report(word)
        assert stored(storage) == [f"{FOLDER}/events/00003-00000001.jsonl"]


@pytest.mark.usefixtures("quickly")
def test_a_store_that_does_not_answer_holds_up_nothing(storage: Failing) -> None:
    storage.create_fails = StoreUnreachableError("nobody there")
    events = [COMMITTED, step(7), step(14), COMMITTED]
    with reporting_to_store(storage, RUN, LAUNCH, 0) as report:
        for event in events:
            report(event)
        wait_until(lambda: storage.tries > 3, WAIT_S, "it is not tried again")
        assert stored(storage) == []
        storage.create_fails = None
    assert heard(storage) == events


@pytest.mark.usefixtures("quickly")
def test_an_answer_that_was_lost_doubles_nothing(storage: Failing) -> None:
    storage.loses_answers = True
    tell(storage, [COMMITTED, step(7)])
    assert heard(storage) == [COMMITTED, step(7)]


@pytest.mark.usefixtures("quickly")
def test_what_waits_is_bounded_and_steps_are_forgotten_first(
    storage: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_events, "MAX_WAITING", 10)
    storage.create_fails = StoreUnreachableError("nobody there")
    with reporting_to_store(storage, RUN, LAUNCH, 0) as report:
        report(COMMITTED)
        wait_until(lambda: storage.tries > 0, WAIT_S, "it is not tried")  # this one is under way
        report({**COMMITTED, "step": 20})
        for number in range(100):
            report(step(number * 7))
        storage.create_fails = None
    told = heard(storage)
    assert [event["step"] for event in told[:2]] == [10, 20]
    assert told[2:] == [step(number * 7) for number in range(91, 100)]


@pytest.mark.usefixtures("quickly")
def test_a_store_that_never_answers_does_not_keep_a_rank_from_ending(
    storage: Failing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_events, "CLOSE_S", 0.05)
    storage.create_fails = StorageDeniedError("read only")
    tell(storage, [FAILED])
    assert "events were never told: num=1" in caplog.text
    assert "read only" in caplog.text


def test_a_month_that_nobody_listens_to_makes_a_bounded_number_of_objects() -> None:
    age_s, num = 0.0, 0
    while age_s < 30 * 86_400:
        age_s += flush_after_s(age_s)
        num += 1
    assert num < 46_000
    assert flush_after_s(0.0) == 1.0
    assert flush_after_s(age_s) == FLUSH_MAX_S


def test_reporting_tells_the_store_beside_the_file(storage: Failing, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    through_store = reporting_to_store(storage, RUN, LAUNCH, 1)
    with reporting(file, through_store) as report:
        report(COMMITTED)
    assert json.loads(file.read_text()) == COMMITTED
    assert heard(storage) == [COMMITTED]


# --- hearing --------------------------------------------------------------------------


def test_what_was_heard_is_deleted_and_what_is_left_at_the_end(storage: Failing) -> None:
    storage.create(f"{FOLDER}/launch.json", b"{}")
    reader = StoreEvents(storage, RUN, LAUNCH)
    tell(storage, [COMMITTED])
    assert reader.read() == [COMMITTED]
    assert len(stored(storage)) == 2, "not before it is handed on"
    assert reader.read() == []
    assert stored(storage) == [f"{FOLDER}/launch.json"]
    tell(storage, [FAILED], rank=3)
    reader.clear()
    assert stored(storage) == []


def test_reading_that_failed_loses_nothing(storage: Failing) -> None:
    reader = StoreEvents(storage, RUN, LAUNCH)
    tell(storage, [COMMITTED])
    tell(storage, [FAILED], rank=3)
    storage.read_fails, storage.readable = StoreUnreachableError("nobody there"), 1
    with pytest.raises(StoreUnreachableError):
        reader.read()
    storage.read_fails = None
    assert reader.read() == [COMMITTED, FAILED]


def test_without_the_right_to_delete_nothing_is_heard_twice(
    storage: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    storage.delete_fails = StorageDeniedError("s3:DeleteObject is missing")
    reader = StoreEvents(storage, RUN, LAUNCH)
    with reporting_to_store(storage, RUN, LAUNCH, 0) as report:
        report(COMMITTED)
        wait_until(lambda: bool(stored(storage)), WAIT_S, "nothing is told")
        assert reader.read() == [COMMITTED]
        report(STOPPED)
        assert reader.read() == [STOPPED]
    assert reader.read() == []
    reader.clear()
    assert caplog.text.count("s3:DeleteObject") == 1


def test_other_launches_and_other_names_are_left_alone(storage: Failing) -> None:
    other = LaunchId("20260131T081500Z-0123abce")
    with reporting_to_store(storage, RUN, other, 0) as report:
        report(COMMITTED)
    storage.create(f"{FOLDER}/events/notes.txt", b"not ours")
    assert heard(storage) == []
    assert StoreEvents(storage, RUN, other).read() == [COMMITTED]
    assert f"{FOLDER}/events/notes.txt" in stored(storage)


def test_what_is_no_event_is_an_error_that_names_it(storage: Failing) -> None:
    storage.create(f"{FOLDER}/events/00000-00000001.jsonl", b"half a li")
    with pytest.raises(FormatError, match=r"-00000001\.jsonl: expected one JSON object a line"):
        heard(storage)


def test_checkpoints_are_listed_as_if_there_were_no_launches(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with reporting_to_store(storage, RUN, LAUNCH, 0) as report:
        report(COMMITTED)
    catalogue = list_checkpoints(storage)
    assert (catalogue.checkpoints, catalogue.ignored) == ((), ())
    assert StoreEvents(storage, RUN, LAUNCH).read() == [COMMITTED]


# --- launches -------------------------------------------------------------------------


@given(st.datetimes(datetime(2000, 1, 1), datetime(2999, 1, 1)), st.integers(0, 2**32 - 1))  # noqa: DTZ001 -- hypothesis wants them so
def test_a_launch_is_read_as_it_is_written(when: datetime, number: int) -> None:
    launch = LaunchId(f"{when:%Y%m%dT%H%M%SZ}-{number:08x}")
    assert LaunchId.parse(str(launch)) == launch
    assert launch.began == when.replace(microsecond=0, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    ["", "20260131T081500Z", "20260231T081500Z-0123abcd", "20260131T081500Z-0123ABCD", "../x"],
)
def test_what_is_no_launch_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected a time and 8 hex digits"):
        LaunchId.parse(text)


def test_a_new_launch_begins_now_and_is_another_every_time() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    launches = {LaunchId.new() for _ in range(20)}
    assert len(launches) == 20
    assert all(before <= launch.began <= datetime.now(UTC) for launch in launches)


def test_old_launches_are_discarded_and_nothing_else(storage: Failing) -> None:
    old, young = LAUNCH, LaunchId("20260131T201500Z-0123abcd")
    keys = [f"{launch_folder(RUN, launch)}/events/x" for launch in (old, young)]
    keys.append(f"{launches_folder(RUN)}/not-ours/x")
    keys.append(f"{launches_folder(RunKey('nightly-77'))}/{old}/x")
    for key in keys:
        storage.create(key, b"")
    now = old.began + timedelta(days=1, seconds=1)
    assert discard_old_launches(storage, RUN, now=now) == [str(old)]
    assert [info.key for info in storage.walk("launches")] == sorted(keys[1:])


def test_telling_and_hearing_need_no_torch() -> None:
    code = (
        "import sys, strongroom.training.launching.slurm; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
