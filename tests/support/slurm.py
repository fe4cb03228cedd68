"""A real Slurm of two nodes on this machine, for tests: up in a few seconds, gone with them.

munged, slurmctld and two slurmd, as whichever user runs the tests: no root, no systemd, no
accounting, nothing outside the folder given, everything on 127.0.0.1. The nodes pretend to have two
CPUs each, whatever is there.
"""

from __future__ import annotations

import itertools
import logging
import os
import pwd
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strongroom.training.launching.slurm_settings import SlurmSettings
from tests.support.processes import free_port, start, tail

logger = logging.getLogger(__name__)

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "squeue", "srun")
NODES = ("first", "second")
START_TIMEOUT_S = 60.0
START_TRIES = 3
END_TIMEOUT_S = 60.0
KILL_WAIT_S = 60
"""What `scancel` gives a job; a test that needs less time than this is not in a hurry."""

CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
KillWait={kill_wait_s}
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmCluster:
    """A cluster that answers to Slurm's commands where SLURM_CONF is `config`.

    Attributes:
        processes: its daemons, by name.
    """

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)

    @property
    def config(self) -> Path:
        """Its slurm.conf."""
        return self.folder / "slurm.conf"

    def run(self, *command: str, check: bool = True) -> str:
        """Run one of Slurm's commands and return what it prints."""
        done = subprocess.run(
            command,
            env={**os.environ, "SLURM_CONF": str(self.config)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the ids of the jobs that have not ended."""
        return self.run("squeue", "--noheader", "--format=%A").split()

    def kill_jobs(self) -> list[str]:
        """Kill what jobs there are, wait until they are gone, and return which they were."""
        left = self.jobs()
        for job_id in left:
            self.run("scancel", "--ctld", "--signal=KILL", f"{job_id}.0", check=False)
            self.run("scancel", job_id, check=False)  # it may have ended by that
        wait_until(lambda: not self.jobs(), END_TIMEOUT_S, "jobs do not end")
        return left

    def _start(self, name: str, *command: str) -> None:
        self.processes[name] = start(command, log=self.folder / f"{name}.log", cwd=self.folder)

    def _start_all(self) -> None:
        config = str(self.config)
        self._start(
            "munged",
            *("munged", "--foreground", "--force"),
            f"--key-file={self.folder / 'munge.key'}",
            f"--socket={self.folder / 'munge.sock'}",
            f"--pid-file={self.folder / 'munged.pid'}",
            f"--seed-file={self.folder / 'munged.seed'}",
            f"--log-file={self.folder / 'munged.out'}",
        )
        wait_until((self.folder / "munge.sock").exists, START_TIMEOUT_S, "munged does not start")
        self._start("slurmctld", "slurmctld", "-D", "-f", config)
        for node in NODES:
            self._start(f"slurmd-{node}", "slurmd", "-D", "-N", node, "-f", config)
        deadline = time.monotonic() + START_TIMEOUT_S
        while (said := self._states()) != ["idle"] * len(NODES):
            dead = [name for name, it in self.processes.items() if it.poll() is not None]
            if dead or time.monotonic() > deadline:
                logs = "\n".join(tail(self.folder / f"{name}.log") for name in self.processes)
                raise RuntimeError(f"nodes are {said}; dead: {dead}\n{logs}")
            time.sleep(0.1)

    def _states(self) -> list[str]:
        try:
            return self.run("sinfo", "--noheader", "--Node", "--format=%T").split()
        except RuntimeError as error:  # the controller is not there yet
            return [str(error)]

    def _stop_all(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
            process.wait()


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Run a cluster while the block lasts, with everything of it in `folder`."""
    cluster = _started(folder)
    try:
        yield cluster
    finally:
        try:
            cluster.kill_jobs()  # what srun started would outlive the daemons
        finally:
            cluster._stop_all()


def wait_until(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until something holds.

    Raises:
        RuntimeError: it did not in time; says `what`.
    """
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} ({timeout_s:g} s)")
        time.sleep(0.05)


def _started(folder: Path) -> SlurmCluster:
    """Start everything; where it fails, again elsewhere: a free port may be taken meanwhile."""
    for number in itertools.count(1):
        cluster = SlurmCluster(folder=folder / str(number))
        _write_config(cluster.folder)
        try:
            cluster._start_all()
        except RuntimeError:
            cluster._stop_all()
            if number == START_TRIES:
                raise
            logger.warning("Slurm did not start, tried again: try=%d", number, exc_info=True)
        except BaseException:
            cluster._stop_all()
            raise
        else:
            return cluster
    raise AssertionError


def _write_config(folder: Path) -> None:
    (folder / "state").mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    nodes = []
    for node in NODES:
        (folder / f"spool-{node}").mkdir()
        nodes.append(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2 "
            "RealMemory=1000"
        )
    (folder / "slurm.conf").write_text(
        CONFIG.format(
            host=host,
            user=pwd.getpwuid(os.getuid()).pw_name,
            folder=folder,
            controller_port=free_port(),
            kill_wait_s=KILL_WAIT_S,
            nodes="\n".join(nodes),
        )
    )
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))


@pytest.fixture(scope="session")
def slurm_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(Path(tmp_path_factory.mktemp("slurm"))) as cluster:
        yield cluster


@pytest.fixture
def slurm(
    slurm_of_session: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """A cluster that Slurm's commands find; a test leaves no job behind."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_of_session.config))
    yield slurm_of_session
    assert not slurm_of_session.kill_jobs()


@pytest.fixture
def cluster(tmp_path: Path) -> SlurmSettings:
    """Settings for it: one rank on each node; in a hurry."""
    return SlurmSettings(
        shared_folder=tmp_path / "shared",
        tasks_per_node=1,
        # A machine's own name may lead anywhere, or nowhere.
        environment={"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"},
        pass_environment=("PATH", "HOME"),
        python=sys.executable,
        poll_s=0.1,
        job_poll_s=0.2,
    )
