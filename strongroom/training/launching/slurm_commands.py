"""Slurm's own commands: one function for each thing that is asked of a cluster.

They find their cluster as they do for a person: by /etc/slurm, SLURM_CONF or DNS. Other variables
of Slurm in this process's environment would act as options, and are kept from them.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from strongroom.errors import ConfigError, TrainingError

COMMANDS = ("sbatch", "scancel", "scontrol", "squeue")
SIGNALLED = 128
"""srun ends with the highest code of its ranks, and counts one that a signal ended as 128 more."""
TIMEOUT_S = 120.0
"""Slurm's commands try for some time by themselves before they give up on a silent controller."""

_OPTION_VARIABLE = re.compile(r"(SBATCH|SCANCEL|SCONTROL|SLURM|SQUEUE|SRUN)_.*")
_KEPT_VARIABLES = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"}
_STATE = re.compile(r"(?: |^)(JobState|Reason|ExitCode|NodeList)=(\S*)")

logger = logging.getLogger(__name__)


class CommandFailedError(Exception):
    """A command of Slurm failed; what it said. Whoever asked decides whether that matters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """What Slurm says of a job.

    Attributes:
        name: Slurm's word, such as RUNNING; see squeue(1), JOB STATE CODES.
        reason: why it waits, or ended; None where there is none.
        exit_code: of the batch script, as `code:signal`.
    """

    name: str
    reason: str | None = None
    exit_code: str | None = None
    nodes: str | None = None

    ENDED = frozenset(
        {
            *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
            *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT", "FORGOTTEN"),
        }
    )

    @property
    def has_ended(self) -> bool:
        """Whether no process of the job is left: COMPLETING is not the end."""
        return self.name in self.ENDED

    @property
    def was_cancelled(self) -> bool:
        """Whether somebody, or Slurm for another job, wanted its nodes back."""
        return self.name in {"CANCELLED", "PREEMPTED"}

    @property
    def lost_a_rank(self) -> bool:
        """Whether a rank or its node died in a way that leaves it no word to say."""
        if self.name != "FAILED":
            return self.name in {"BOOT_FAIL", "NODE_FAIL", "OUT_OF_MEMORY"}
        code, _, number = (self.exit_code or "").partition(":")
        return code.isdigit() and (int(code) > SIGNALLED or number not in {"", "0"})

    def __str__(self) -> str:
        facts = {"reason": self.reason, "exit code": self.exit_code, "nodes": self.nodes}
        told = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        return f"{self.name} ({told})" if told else self.name


FORGOTTEN = JobState(name="FORGOTTEN")
"""Slurm knows of no such job any more: it ended longer ago than slurm.conf's MinJobAge."""


class Slurm:
    """The commands of a cluster.

    Raises:
        ConfigError: they are not installed here.
    """

    def __init__(self) -> None:
        if missing := [name for name in COMMANDS if shutil.which(name) is None]:
            raise ConfigError(
                "Slurm",
                [
                    f"{', '.join(missing)}: no such command here; launch from a machine that can "
                    "submit jobs (Debian: package slurm-client)"
                ],
            )

    def submit(self, script: Path, options: list[str]) -> str:
        """Submit a job and return its id.

        Raises:
            TrainingError: Slurm refused it, or did not answer.
        """
        try:
            said = _run("sbatch", "--parsable", *options, str(script))
        except CommandFailedError as error:
            raise TrainingError(
                f"the job was not submitted: {error}; the script is {script}; change the settings, "
                "or ask who runs the cluster"
            ) from error
        return said.split(";")[0].strip()

    def state(self, job_id: str) -> JobState:
        """Return the state of a job.

        Raises:
            CommandFailedError: Slurm did not answer.
        """
        try:
            said = _run("scontrol", "--oneliner", "show", "job", job_id)
        except CommandFailedError as error:
            if "Invalid job id" in str(error):
                return FORGOTTEN
            raise
        facts: dict[str, str] = {}
        for name, value in _STATE.findall(said):
            facts.setdefault(name, value)
        if "JobState" not in facts:
            raise CommandFailedError(f"scontrol show job {job_id}: expected JobState, got {said!r}")
        return JobState(
            name=facts["JobState"],
            reason=_known(facts.get("Reason")),
            exit_code=_known(facts.get("ExitCode")),
            nodes=_known(facts.get("NodeList")),
        )

    def find(self, name: str) -> list[str]:
        """Return the ids of the jobs of a name that have not ended.

        Raises:
            CommandFailedError: Slurm did not answer.
        """
        return _run("squeue", "--noheader", f"--name={name}", "--format=%A").split()

    def ask_to_stop(self, job_id: str) -> None:
        """Send SIGTERM to the ranks; a job that waits for its turn is cancelled.

        Not to the job as a whole, which Slurm would kill after its own KillWait. A job that sets up
        has no rank yet: ask again.
        """
        _try("scancel", "--state=PENDING", job_id)
        _try("scancel", "--ctld", "--signal=TERM", job_id)

    def kill(self, job_id: str) -> None:
        """Kill a job, whatever it does; only `state` tells when it has ended.

        The step first: SIGKILL to a whole job is SIGTERM, then KillWait, and only then SIGKILL.
        """
        _try("scancel", "--ctld", "--signal=KILL", f"{job_id}.0")
        _try("scancel", job_id)


def _known(value: str | None) -> str | None:
    return None if value in {None, "", "None", "(null)", "0:0"} else value


def _try(*command: str) -> None:
    """Run what may fail where the job has ended meanwhile, or not begun: its state tells."""
    try:
        _run(*command)
    except CommandFailedError as error:
        logger.debug("%s", error)


def _run(*command: str) -> str:
    """Run a command and return what it prints."""
    try:
        done = subprocess.run(  # noqa: S603 -- our own command
            command,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            start_new_session=True,  # a terminal's Ctrl-C is for this process alone
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailedError(f"{command[0]} did not answer in {TIMEOUT_S:g} s") from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"it ended with {done.returncode}"
        raise CommandFailedError(f"{command[0]}: {said}")
    return done.stdout


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or not _OPTION_VARIABLE.fullmatch(name)
    }
