"""A process beside each rank that writes its saves: writing and training share no interpreter.

It is started once, as a module, whatever the program that trains is; it reads the staged copy where
it lies, in memory both processes see, opens the storage by its URL, and forms a process group with
those of the other ranks. The fence and the announcement stay with the process that trains: the
writer asks for them. It ends when its parent does: the kernel kills it, and a parent that is gone
can answer nothing, so nothing is committed. What it ends with, before its time, is a `SaveError`.

Only Linux has memory without a name that both can be given (memfd_create), and the kernel's help.
"""

from __future__ import annotations

import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.planner import WriteItem

from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.saving.series import RESUME, SaveCalls, SaveOptions
from strongroom.checkpoint.saving.staging import BUFFER_SETS, Allocate
from strongroom.checkpoint.writing.writer import SaveFacts
from strongroom.errors import InputError, SaveError, StrongroomError
from strongroom.storage.base import Storage
from strongroom.storage.store import open_storage

logger = logging.getLogger(__name__)

END_S = 30.0
"""Seconds a writer that has nothing to do gets for ending, before it is killed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Where the writers of all ranks find each other: a store of torch's on rank 0's machine."""

    host: str
    port: int
    rank: int
    world_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The first message to the writer: what stays the same as long as it lives."""

    storage_url: str
    options: SaveOptions
    last: Manifest | None
    meeting: Meeting | None
    timeout_s: float
    log_level: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """Write one checkpoint.

    Attributes:
        buffers: number of the set of buffers that holds the copy.
        items: what it holds; None: the same as the last time.
        failure: why there is no copy; the other ranks must hear of it too.
    """

    facts: SaveFacts
    buffers: int = 0
    items: tuple[WriteItem, ...] | None = None
    failure: StrongroomError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What the writer asks of its parent: one of `SaveCalls` by name, and what to call it with."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the call returned or raised."""

    value: Any = None
    error: StrongroomError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """The save has ended; `error` says why if it failed."""

    error: StrongroomError | None


class SharedMemory:
    """Memory of one set of buffers, seen by two processes; it is gone when both are.

    It grows and never shrinks, so what a process has mapped stays valid.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._tensor = torch.empty(0, dtype=torch.uint8)

    @classmethod
    def new(cls) -> SharedMemory:
        """Make one that holds nothing yet; it does not count against /dev/shm."""
        return cls(os.memfd_create("strongroom-staging"))

    def allocate(self, num_bytes: int, from_accelerator: bool) -> Tensor:  # noqa: ARG002 -- not pinned
        """Return it as a uint8 tensor of at least `num_bytes`, after making it as large as that."""
        os.ftruncate(self.descriptor, max(num_bytes, 1))
        return self.tensor(num_bytes)

    def tensor(self, num_bytes: int) -> Tensor:
        """Return it as a uint8 tensor of at least `num_bytes`; mapped once."""
        if self._tensor.nbytes < max(num_bytes, 1):
            mapped = mmap.mmap(self.descriptor, max(num_bytes, 1))
            self._tensor = torch.frombuffer(mapped, dtype=torch.uint8)
        return self._tensor


class SaveProcess:
    """The parent's side; a `Saving`.

    Args:
        storage: reopened by its URL in the other process.
        group: of the ranks; they agree over it where their writers meet.
        options: the same on every rank.
        last: what the first delta is compared with.
        timeout_s: how long a writer may say nothing.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        group: dist.ProcessGroup | None,
        options: SaveOptions,
        last: Manifest | None,
        timeout_s: float,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise InputError(f"writer 'process' on {sys.platform}: it needs Linux; use 'thread'")
        open_storage(storage.url)  # raises here what it would raise in the other process
        self._timeout_s = timeout_s
        self._store, meeting = _meeting(group, timeout_s)
        self._start: Start | None = Start(
            storage_url=storage.url,
            options=options,
            last=last,
            meeting=meeting,
            timeout_s=timeout_s,
            log_level=logging.getLogger().getEffectiveLevel(),
        )
        self._memories = [SharedMemory.new() for _ in range(BUFFER_SETS)]
        self._told: dict[int, tuple[WriteItem, ...]] = {}
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = _started([theirs.fileno(), *(m.descriptor for m in self._memories)])
        self._connection = Connection(ours.detach())
        logger.debug("writing process started: pid=%d", self._process.pid)

    @property
    def pid(self) -> int:
        """The writer's process id."""
        return self._process.pid

    def allocate(self, buffers: int) -> Allocate:
        """Return where the memory of a set of buffers comes from."""
        return self._memories[buffers].allocate

    def write(self, facts: SaveFacts, calls: SaveCalls) -> None:
        """Have one checkpoint written and committed; see `Saving.write`."""
        message = self._message(facts, calls)
        try:
            if self._start is not None:
                self._connection.send(self._start)
                self._start = None
            self._connection.send(message)
            error = self._answer_until_it_ends(calls)
        except (EOFError, OSError) as lost:
            raise SaveError(f"save of {facts.name}: {self._end()}; {RESUME}") from lost
        if error is not None:
            raise error

    def check(self) -> None:
        """Raise SaveError if the writer is gone while there is nothing to write."""
        if self._process.poll() is not None:
            raise SaveError(f"{self._end()}; {RESUME}")

    def close(self) -> None:
        """End the writer, which has nothing to do."""
        self._connection.close()
        self._end()
        for memory in self._memories:
            os.close(memory.descriptor)
        self._store = None

    def _message(self, facts: SaveFacts, calls: SaveCalls) -> Write:
        try:
            staged = calls.staged()
        except StrongroomError as failure:
            return Write(facts=facts, failure=failure)
        is_known = self._told.get(staged.buffers) is staged.items
        self._told[staged.buffers] = staged.items
        return Write(facts=facts, buffers=staged.buffers, items=None if is_known else staged.items)

    def _answer_until_it_ends(self, calls: SaveCalls) -> StrongroomError | None:
        while True:
            if not self._connection.poll(self._timeout_s):
                self._process.kill()
                raise TimeoutError(f"nothing was heard of it for {self._timeout_s:g} s")
            said = self._connection.recv()
            if isinstance(said, Ended):
                return said.error
            self._connection.send(_answer(said, calls))

    def _end(self) -> str:
        """Say how the process ended, once it has; kill it if it does not."""
        who = "the process that writes for this rank"
        try:
            code = self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"{who} did not end within {END_S:g} s and was killed"
        return f"{who} " + (f"ended with {code}" if code >= 0 else f"was killed by signal {-code}")


def _started(handed: list[int]) -> subprocess.Popen[bytes]:
    """Start the writer, which inherits the descriptors in `handed`."""
    # Whoever stops a training may signal all its processes, but the last save is still to be
    # written: what is blocked here stays blocked there, from the first moment.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        return subprocess.Popen(  # noqa: S603 -- our own command
            [
                *(sys.executable, "-m", "strongroom.checkpoint.saving.worker"),
                *map(str, (os.getpid(), *handed)),
            ],
            pass_fds=handed,
            stdin=subprocess.DEVNULL,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(question: Question, calls: SaveCalls) -> Answer:
    call: Callable[..., Any] = getattr(calls, question.name)
    try:
        return Answer(value=call(*question.arguments))
    except StrongroomError as error:
        return Answer(error=error)
    except Exception as error:  # noqa: BLE001 -- others may be of classes only this process has
        return Answer(error=SaveError(f"{type(error).__name__}: {error}"))


def _meeting(group: dist.ProcessGroup | None, timeout_s: float) -> tuple[object, Meeting | None]:
    """Return what keeps the writers' meeting point open, on rank 0, and where it is, on all."""
    if group is None:
        return None, None
    rank = dist.get_rank(group)
    store: object = None
    said: list[Any] = [None]
    if rank == 0:
        # torchrun says by which name the other machines reach this one.
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        timeout = timedelta(seconds=timeout_s)
        listening = dist.TCPStore(  # type: ignore[attr-defined]
            host, 0, is_master=True, wait_for_workers=False, timeout=timeout
        )
        store, said = listening, [(host, listening.port)]
    dist.broadcast_object_list(said, group=group, group_src=0)
    host, port = said[0]
    return store, Meeting(host=host, port=port, rank=rank, world_size=dist.get_world_size(group))
