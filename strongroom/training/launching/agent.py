"""torchrun, as a process that dies with its parent and ends with its first failed worker's code.

`python -m strongroom.training.launching.agent ARGUMENTS-OF-TORCHRUN`. Plain torchrun ends with 1
whatever a worker ended with, and survives whoever started it.
"""

from __future__ import annotations

import signal
import sys

from strongroom.parent import announce_parent, die_with_parent

TEARDOWN_S = 30
"""How long torchrun waits for the others once a worker has failed, and then kills them (torch 2.13,
elastic/multiprocessing/api.py)."""


def agent_command(ranks: int, *program: str) -> list[str]:
    """Return the command that starts `ranks` ranks on this machine alone, each by `program`."""
    return [
        sys.executable,
        *("-m", "strongroom.training.launching.agent"),
        *("--nproc-per-node", str(ranks)),
        *("--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", "127.0.0.1:0"),
        *("--local-addr", "127.0.0.1"),
        *program,
    ]


def main(arguments: list[str]) -> int:
    """Run torchrun to its end and return the exit code."""
    die_with_parent()
    announce_parent()
    # A shell that starts jobs in the background has them ignore SIGINT; that is inherited.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(arguments)
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        return exit_code(
            [(each.exitcode, each.timestamp) for each in (first, *failed.failures.values())]
        )
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0


def exit_code(ends: list[tuple[int, int]]) -> int:
    """Return what workers ended with, as a shell would say it.

    Args:
        ends: of the workers that failed, that which was seen first before the others: its code,
            negative for a signal, and when it was seen to have ended, in seconds. One that was
            killed is the cause, whichever was seen first: the others end because they cannot reach
            it. SIGTERM is torchrun's own, for those that are left, and so is what ends them later.
    """
    (first, began), *_ = ends
    killed = [
        code
        for code, ended in ends
        if code < 0 and code != -signal.SIGTERM and ended - began < TEARDOWN_S
    ]
    code = killed[0] if killed else first
    return code if code > 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
