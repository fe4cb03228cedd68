"""Events of a training, told through its store: for launchers whose trainings run elsewhere.

A launch has a folder of its own, `launches/<run>/<launch id>/`. Each rank that has something to
tell creates objects of JSON lines there, `events/<rank>-<number>.jsonl`, numbered without a gap and
never rewritten; the launcher hands them on in that order and deletes what it has handed on. They
are news, not a record: a launch's folder may be deleted at any time, and costs no checkpoint.
Never imports torch.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic, sleep
from typing import ClassVar, Self

from strongroom.canonical import JsonObject
from strongroom.checkpoint.layout import launches_folder
from strongroom.errors import ConflictError, FormatError, InputError, StorageError
from strongroom.names import RunKey
from strongroom.storage.base import Storage
from strongroom.training.reporting import Report, ReportKind

FLUSH_MIN_S, FLUSH_MAX_S = 1.0, 60.0
FLUSH_SHARE = 1 / 500
"""Steps are told a second after they were taken, and later the longer a training lasts: a launch
of a month makes some 45,000 objects, even where nobody reads and deletes them."""
RETRY_S = 1.0
CLOSE_S = 30.0
"""How long a rank that ends tries to have its last words stored."""
MAX_WAITING = 1000
"""Events kept while the store does not answer; of more, the oldest steps are forgotten."""
LAST_WORDS = (ReportKind.FAILED, ReportKind.STOPPED, ReportKind.FINISHED)
ABANDONED_S = 86_400.0
"""A launch that began longer ago, and is not the one that runs, is taken for one whose launcher is
dead."""

_EVENTS_KEY = re.compile(r"(\d{5})-(\d{8})\.jsonl")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, order=True, slots=True)
class LaunchId:
    """The name of one launch: when it began, to the second in UTC, and 8 random hex digits."""

    text: str

    PATTERN: ClassVar[re.Pattern[str]] = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
    TIME: ClassVar[str] = "%Y%m%dT%H%M%SZ"

    def __post_init__(self) -> None:
        if not self.PATTERN.fullmatch(self.text) or not self._is_dated():
            raise InputError(
                f"launch {self.text!r}: expected a time and 8 hex digits, such as "
                "20260131T081500Z-0123abcd"
            )

    @classmethod
    def new(cls) -> Self:
        """Return the name of a launch that begins now."""
        return cls(f"{datetime.now(UTC).strftime(cls.TIME)}-{secrets.token_hex(4)}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a launch's name."""
        return cls(text)

    @property
    def began(self) -> datetime:
        """When it began."""
        return datetime.strptime(self.text.partition("-")[0], self.TIME).replace(tzinfo=UTC)

    def _is_dated(self) -> bool:
        try:
            return self.began is not None
        except ValueError:  # the 31st of February
            return False

    def __str__(self) -> str:
        return self.text


def launch_folder(run: RunKey, launch: LaunchId) -> str:
    """`launches/<run>/<launch id>`: what the processes of one launch tell each other."""
    return f"{launches_folder(run)}/{launch}"


def flush_after_s(age_s: float) -> float:
    """Return for how long a rank that began `age_s` ago gathers steps before it tells of them."""
    return min(max(FLUSH_MIN_S, age_s * FLUSH_SHARE), FLUSH_MAX_S)


# --- telling --------------------------------------------------------------------------


@contextmanager
def reporting_to_store(
    storage: Storage, run: RunKey, launch: LaunchId, rank: int
) -> Iterator[Report]:
    """Yield what tells an event of `rank` to the launcher; all is told when the context is left.

    Steps are gathered; anything else is stored at once, and a last word before `Report` returns.
    A store that does not answer holds up nothing else, and raises nothing.
    """
    teller = _Teller(storage, f"{launch_folder(run, launch)}/events/{rank:05d}")
    try:
        yield teller.tell
    finally:
        teller.close()


class _Teller:
    """Stores events from a thread of its own."""

    def __init__(self, storage: Storage, prefix: str) -> None:
        self._storage = storage
        self._prefix = prefix
        self._number = 1
        self._began = monotonic()
        self._changed = threading.Condition()
        self._waiting: list[JsonObject] = []
        self._is_storing = False
        self._is_urgent = False
        self._give_up_at: float | None = None
        self._thread = threading.Thread(target=self._work, name="store events", daemon=True)
        self._thread.start()

    def tell(self, event: JsonObject) -> None:
        with self._changed:
            self._waiting.append(event)
            if len(self._waiting) > MAX_WAITING:
                self._forget_one()
            self._is_urgent |= event["kind"] != ReportKind.STEP
            self._changed.notify_all()
            if event["kind"] in LAST_WORDS:  # the process may end any way it likes after this
                self._changed.wait_for(self._is_all_told, timeout=CLOSE_S)

    def close(self) -> None:
        with self._changed:
            self._give_up_at = monotonic() + CLOSE_S
            self._changed.notify_all()
        self._thread.join()

    def _is_all_told(self) -> bool:
        return not self._waiting and not self._is_storing

    def _is_closing(self) -> bool:
        return self._give_up_at is not None

    def _forget_one(self) -> None:
        steps = (i for i, event in enumerate(self._waiting) if event["kind"] == ReportKind.STEP)
        del self._waiting[next(steps, 0)]

    def _work(self) -> None:
        while batch := self._next_batch():
            self._store(batch)
            with self._changed:
                self._is_storing = False
                self._changed.notify_all()

    def _next_batch(self) -> list[JsonObject]:
        """Return what is to be told next; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing())
            self._changed.wait_for(
                lambda: self._is_urgent or self._is_closing(),
                timeout=flush_after_s(monotonic() - self._began),
            )
            batch, self._waiting = self._waiting, []
            self._is_storing = bool(batch)
            self._is_urgent = False
            return batch

    def _store(self, batch: list[JsonObject]) -> None:
        """Store events as one object, however often it takes; none after the time to close."""
        key = f"{self._prefix}-{self._number:08d}.jsonl"
        lines = [json.dumps(event, ensure_ascii=False) + "\n" for event in batch]
        tries = 0
        while True:
            tries += 1
            try:
                self._storage.create(key, "".join(lines).encode())
            except ConflictError:
                pass  # an earlier try had reached the store; its answer was lost
            except StorageError as error:
                if tries == 1:
                    logger.warning("events wait, the store does not take them: %s", error)
                if self._is_time_over():
                    logger.warning("events were never told: num=%d tries=%d", len(batch), tries)
                    return
                continue
            self._number += 1
            return

    def _is_time_over(self) -> bool:
        """Pause before another try; return whether there should be none."""
        with self._changed:
            self._changed.wait_for(self._is_closing, timeout=RETRY_S)
        if self._give_up_at is None:
            return False
        sleep(RETRY_S)
        return monotonic() >= self._give_up_at


# --- hearing --------------------------------------------------------------------------


class StoreEvents:
    """What the ranks of one launch tell, as it arrives; a launch has one reader."""

    def __init__(self, storage: Storage, run: RunKey, launch: LaunchId) -> None:
        self._storage = storage
        self._folder = launch_folder(run, launch)
        self._heard: dict[int, int] = {}
        self._handed_on: list[str] = []
        self._has_warned = False

    def read(self) -> list[JsonObject]:
        """Return what has arrived since the last call: rank by rank, in the order it was told.

        What the last call returned is deleted.

        Raises:
            StorageError: the store cannot be read; the next call returns what this one would have.
            FormatError: an object holds something else than events.
        """
        self._delete(self._handed_on)
        self._handed_on = []
        events: list[JsonObject] = []
        heard, keys = dict(self._heard), []
        # Listed and not asked for by name: over NFS a name that was missing stays so for a minute.
        for info in self._storage.walk(f"{self._folder}/events"):
            found = _EVENTS_KEY.fullmatch(info.key.rpartition("/")[2])
            if found is None or int(found[2]) <= heard.get(int(found[1]), 0):
                continue
            events += _events_in(self._storage.read(info.key), info.key)
            heard[int(found[1])] = int(found[2])
            keys.append(info.key)
        self._heard, self._handed_on = heard, keys
        return events

    def clear(self) -> None:
        """Delete all that is left of the launch, as far as that is possible.

        Call it when the launch's processes have ended.
        """
        try:
            self._delete([info.key for info in self._storage.walk(self._folder)])
        except StorageError as error:
            logger.warning("a launch that has ended is left in %s: %s", self._folder, error)

    def _delete(self, keys: list[str]) -> None:
        try:
            self._storage.delete_many(keys)
        except StorageError as error:
            if not self._has_warned:
                logger.warning("what was heard stays in %s: %s", self._folder, error)
            self._has_warned = True


def discard_old_launches(storage: Storage, run: RunKey, *, now: datetime) -> list[str]:
    """Delete what launches of a run left whose launchers died; return their names.

    Names that are not ours are left alone.
    """
    discarded = []
    for name in storage.folders(launches_folder(run)):
        try:
            began = LaunchId.parse(name).began
        except InputError:
            continue
        if (now - began).total_seconds() > ABANDONED_S:
            folder = f"{launches_folder(run)}/{name}"
            storage.delete_many([info.key for info in storage.walk(folder)])
            discarded.append(name)
    return discarded


def _events_in(data: bytes, key: str) -> list[JsonObject]:
    try:
        # Not splitlines: text may hold other ends of a line.
        events = [json.loads(line) for line in data.decode().split("\n") if line]
    except ValueError as error:
        raise FormatError(f"{key}: expected one JSON object a line, got {error}") from error
    return events
