"""Children end with their parent: no process of a training outlives the one that started it.

The kernel kills the child when its parent ends, by whatever end; a parent that ended before the
child could ask for that is noticed by its number. Only Linux has this (PR_SET_PDEATHSIG, prctl(2)).
The parent is, for the kernel, the thread that started the child: start it from one that stays.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "STRONGROOM_PARENT_PID"
"""Set by a parent for its children, and by nobody else."""

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent ends; exit if that has happened.

    `parent` is the parent's process id; None: the one that was announced, if any was.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    announced = os.environ.get(PARENT_VARIABLE)
    if parent is None and announced is not None:
        parent = int(announced)
    if parent is not None and os.getppid() != parent:
        sys.exit(f"the parent, process {parent}, has ended; so does this one")


def announce_parent() -> None:
    """Tell children started from now on that this process is their parent."""
    os.environ[PARENT_VARIABLE] = str(os.getpid())
