"""One rank of a training: what torchrun starts, once for each rank.

Everything it needs to know stands in the run's record in the store. It ends with 0 when the run is
complete, with 75 when it was stopped and its state is committed, else with the code of its error.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from strongroom.errors import PeerError, PreemptedError, StrongroomError
from strongroom.names import RunKey
from strongroom.parent import die_with_parent
from strongroom.storage.store import open_storage
from strongroom.training.failure import exit_code_of, failure_event
from strongroom.training.launching.spec import LaunchSettings
from strongroom.training.launching.store_events import LaunchId, reporting_to_store
from strongroom.training.reporting import Report, reporting
from strongroom.training.stop import StopRequest

logger = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Train, and return the exit code."""
    die_with_parent()
    stop = StopRequest()
    stop.listen()
    given = _parser().parse_args(arguments)
    rank = int(os.environ["RANK"])
    logging.basicConfig(
        level=logging.INFO if rank == 0 and not given.quiet else logging.WARNING,
        format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )
    elsewhere = _through_store(given, rank)
    with reporting(given.events, elsewhere) as report:
        try:
            is_complete = _train(given, report, stop)
        except PeerError as error:
            logger.warning("%s", error)
            return exit_code_of(error)
        except StrongroomError as error:
            logger.error("%s: %s", type(error).__name__, error)  # noqa: TRY400 -- says it all
            report(failure_event(error, rank=rank))
            return exit_code_of(error)
        except Exception as error:
            logger.exception("training failed")
            report(failure_event(error, rank=rank))
            return exit_code_of(error)
    return 0 if is_complete else PreemptedError.exit_code


def _train(given: argparse.Namespace, report: Report, stop: StopRequest) -> bool:
    # Here, where it is reported if it fails: a package may be broken on one machine of many.
    from strongroom.training.run import RunRequest, train

    request = RunRequest(
        store_url=given.store,
        run=given.run_key,
        keys=given.keys,
        cache=given.cache,
        settings=given.settings,
        fresh_start=given.fresh_start,
    )
    return train(request, report, stop)


def _through_store(given: argparse.Namespace, rank: int) -> AbstractContextManager[Report] | None:
    if given.launch_id is None:
        return None
    storage = open_storage(given.store)
    return reporting_to_store(storage, given.run_key, given.launch_id, rank)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m strongroom.training")
    parser.add_argument("--store", required=True, help="URL of the store")
    parser.add_argument("--run-key", required=True, type=RunKey.parse, help="key of the run")
    parser.add_argument("--keys", required=True, type=Path, help="folder of the keys")
    parser.add_argument("--cache", required=True, type=Path, help="folder for copies of inputs")
    parser.add_argument(
        "--settings",
        required=True,
        type=LaunchSettings.from_text,
        help="how the work is spread, watched and tracked, as JSON",
    )
    parser.add_argument("--events", type=Path, help="file to append events to, as JSON lines")
    parser.add_argument(
        "--launch-id", type=LaunchId.parse, help="the launch to report events of, through the store"
    )
    parser.add_argument(
        "--fresh-start",
        action="store_true",
        help="begin anew though the run has checkpoints, none of which can be used",
    )
    parser.add_argument("--quiet", action="store_true", help="log warnings only")
    return parser


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Nothing is left to do, and threads of a failed save may wait for ranks that are gone.
    logging.shutdown()
    os._exit(code)
