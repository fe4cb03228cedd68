"""torchrun, as a process that dies with its parent and ends with its first failed worker's code.

`python -m strongroom.training.agent ARGUMENTS-OF-TORCHRUN`. Plain torchrun ends with 1 whatever a
worker ended with, and survives whoever started it.
"""

from __future__ import annotations

import signal
import sys

from strongroom.parent import announce_parent, die_with_parent


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
        return int(first.exitcode) if first.exitcode > 0 else 128 - int(first.exitcode)
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
