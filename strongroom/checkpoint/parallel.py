"""Work spread over threads: hashing, reading and writing leave the interpreter to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

Result = TypeVar("Result")


def run_parallel(tasks: Iterable[Callable[[], Result]], *, threads: int) -> list[Result]:
    """Return what each task returns, in their order.

    The first error cancels what has not begun; it is raised once all that has begun has ended.
    """
    waiting = list(tasks)
    if threads == 1 or len(waiting) <= 1:
        return [task() for task in waiting]
    with ThreadPoolExecutor(min(threads, len(waiting)), thread_name_prefix="shard") as pool:
        futures = [pool.submit(task) for task in waiting]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(cancel_futures=True)
    # Tasks begin in order, so none before the first that failed was cancelled.
    return [future.result() for future in futures]
