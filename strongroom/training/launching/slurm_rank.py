"""One rank of a training on Slurm: what srun starts, once for each task.

`python -m strongroom.training.launching.slurm_rank ARGUMENTS-OF-STRONGROOM.TRAINING`. Slurm's
variables are turned into those that torch reads, and the ranks find one another through the store:
rank 0 opens the rendezvous at a port that its system chooses, so that none can be taken, and writes
down where that is.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep

from strongroom import canonical
from strongroom.errors import ConfigError, StrongroomError, TrainingError
from strongroom.names import RunKey
from strongroom.parent import die_with_parent
from strongroom.storage.base import Storage
from strongroom.storage.store import open_storage
from strongroom.training.__main__ import main as train
from strongroom.training.failure import exit_code_of, failure_event
from strongroom.training.launching.store_events import (
    LaunchId,
    launch_folder,
    reporting_to_store,
)

FORMAT = "strongroom.rendezvous/1"
ADDRESS_VARIABLE = "MASTER_ADDR"
"""Set in the job's environment where others reach a node by another name than Slurm's."""
MEETING_TIMEOUT_S = 600.0
"""How long ranks may take to start, from the first to rank 0."""
MEETING_POLL_S = 0.5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What Slurm says of this process.

    Attributes:
        rank: among all tasks of the step.
        local_rank: among those of its node.
        node: Slurm's name of the node.
    """

    rank: int
    world_size: int
    local_rank: int
    node: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Task:
        """Read it from the variables that srun sets.

        Raises:
            ConfigError: they are not there.
        """
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURMD_NODENAME")
        if missing := [name for name in names if not environment.get(name)]:
            raise ConfigError(
                "environment",
                [f"{name}: is not set; this program is started by srun" for name in missing],
            )
        rank, world_size, local_rank, node = (environment[name] for name in names)
        return cls(
            rank=int(rank), world_size=int(world_size), local_rank=int(local_rank), node=node
        )

    def variables(self) -> dict[str, str]:
        """Return what torch reads."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
        }


def main(arguments: list[str]) -> int:
    """Meet the other ranks, train, and return the exit code."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m strongroom.training.launching.slurm_rank")
    parser.add_argument("--store", required=True)
    parser.add_argument("--run-key", required=True, type=RunKey.parse)
    parser.add_argument("--launch-id", required=True, type=LaunchId.parse)
    given, _ = parser.parse_known_args(arguments)
    task = Task.of(os.environ)
    os.environ.update(task.variables())
    storage = open_storage(given.store)
    folder = launch_folder(given.run_key, given.launch_id)
    try:
        with rendezvous(storage, folder, task) as (host, port):
            os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))
            return train(arguments)
    except StrongroomError as error:  # of the meeting; training handles its own
        with reporting_to_store(storage, given.run_key, given.launch_id, task.rank) as report:
            report(failure_event(error, rank=task.rank))
        return exit_code_of(error)


@contextmanager
def rendezvous(storage: Storage, folder: str, task: Task) -> Iterator[tuple[str, int]]:
    """Yield host and port of rank 0's rendezvous, which is open as long as its context lasts.

    Raises:
        TrainingError: rank 0 has not opened it in time.
    """
    key = f"{folder}/rendezvous.json"
    if task.rank != 0:
        yield _wait_for_address(storage, folder, key)
        return
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # torch opens its own at the same port in this process, which is this one again.
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, multi_tenant=True)
    host = os.environ.get(ADDRESS_VARIABLE) or task.node
    document = {"format": FORMAT, "host": host, "port": server.port}
    storage.create(key, canonical.dumps(document))
    yield host, server.port


def _wait_for_address(storage: Storage, folder: str, key: str) -> tuple[str, int]:
    deadline = monotonic() + MEETING_TIMEOUT_S
    # Listed and not asked for by name: over NFS a name that was missing stays so for a minute.
    while not any(info.key == key for info in storage.walk(folder)):
        if monotonic() > deadline:
            raise TrainingError(
                f"{key}: rank 0 did not open the rendezvous within {MEETING_TIMEOUT_S:g} s; the "
                "job's log may tell what became of it"
            )
        sleep(MEETING_POLL_S)
    document = canonical.loads(storage.read(key), what=key)
    return document["host"], document["port"]


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # As in strongroom.training: nothing is left to do, and some threads may wait for ever.
    logging.shutdown()
    os._exit(code)
