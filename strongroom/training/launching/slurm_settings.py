"""How a cluster is asked for a job: the settings, what they make of sbatch, and the job's script.

Pure: nothing is run and no environment is read. Secrets are named, never written: the script and
the command line hold no value of a variable that `pass_environment` names. Never imports torch.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from strongroom.errors import ConfigError
from strongroom.names import RunKey
from strongroom.parsing import STRICT
from strongroom.training.launching.spec import Launch
from strongroom.training.launching.store_events import LaunchId

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0.0)]

SOURCE = "Slurm settings"
LOG_FILE = "log.txt"
STRAGGLER_S = 120
"""Seconds that ranks have left once the first of them has ended. All end within moments, or one has
failed and the others may wait for it in vain. Not srun's `--kill-on-bad-exit`, which leaves rank 0
the cluster's KillWait to enter and tell of the last checkpoint once another has ended with 75."""
NOTICE_MARGIN_S = 60
"""Slurm may send the notice of the time limit this much early."""
NOTICE_MAX_S = 65_535

OWN_OPTIONS = {
    **dict.fromkeys(("partition", "account"), "there is a field of that name"),
    **dict.fromkeys(("time", "time-min"), "set time_limit_minutes"),
    **dict.fromkeys(("cpus-per-task", "gpus-per-task", "ntasks-per-node"), "there is a field"),
    **dict.fromkeys(("nodes", "ntasks"), "they follow from the run's world_size"),
    **dict.fromkeys(("export", "export-file", "get-user-env"), "set pass_environment"),
    **dict.fromkeys(("signal", "requeue", "no-requeue"), "how a job is stopped is fixed"),
    **dict.fromkeys(
        ("job-name", "output", "error", "chdir", "open-mode"), "it is how a job is found"
    ),
    **dict.fromkeys(
        ("array", "clusters", "wrap", "wait", "test-only", "parsable"), "not for one job"
    ),
}
"""Options of sbatch that are not to be given as extra ones, and why."""

_OPTION = re.compile(r"--([a-z][a-z-]*)(=[^\n\0]*)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmSettings:
    """How the jobs of a cluster are asked for; `checked` says what is wrong with them."""

    __pydantic_config__ = STRICT

    shared_folder: Path
    """A folder that every node and the launching machine see under this path: scripts and logs."""
    tasks_per_node: Positive
    """Most ranks of one node; how many nodes there are follows from the run's world_size."""
    partition: str | None = None
    account: str | None = None
    cpus_per_task: Positive | None = None
    """None: as many as a rank has threads."""
    gpus_per_task: Annotated[int, Field(ge=0)] = 0
    """A rank sees all of its node's; its own is that of its number on the node, LOCAL_RANK."""
    time_limit_minutes: Positive | None = None
    """None: the partition's."""
    extra_options: tuple[str, ...] = ()
    """More options of sbatch, each in its long form: `--constraint=a100`."""
    setup: tuple[str, ...] = ()
    """Lines of shell before the ranks start: `module load`, `source`."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of the ranks. They are written into the script: no secrets."""
    pass_environment: tuple[str, ...] = ()
    """Names of variables whose values are handed from the launching process to the job by Slurm."""
    python: str = ""
    """The interpreter on the nodes, absolute, with strongroom installed; empty: this one's path."""
    poll_s: Seconds = 2.0
    """Seconds between two looks for events in the store."""
    job_poll_s: Seconds = 15.0
    """Seconds between two questions about the job, which one controller answers for everybody."""
    unreachable_s: Seconds = 3600.0
    """For how long Slurm's controller or the store may be silent before the launch is given up."""


def checked(cluster: SlurmSettings, spec: Launch) -> SlurmSettings:
    """Return the settings if this launch can be made with them.

    Raises:
        ConfigError: with every fault.
    """
    faults = [
        *_placement_faults(cluster, spec),
        *_path_faults(cluster),
        *_option_faults(cluster),
        *_environment_faults(cluster),
    ]
    if faults:
        raise ConfigError(SOURCE, faults)
    return cluster


def job_name(run: RunKey, store_id: str) -> str:
    """Return the name under which all jobs of a run are found: it names the store, too."""
    return f"strongroom-{run}-{store_id[:12]}"


def sbatch_options(cluster: SlurmSettings, spec: Launch, *, name: str, folder: Path) -> list[str]:
    """Return the options of sbatch; `folder` is the launch's own in the shared one."""
    world_size = spec.placement.world_size
    num_nodes = -(-world_size // cluster.tasks_per_node)
    tasks_per_node = world_size // num_nodes
    options = {
        "job-name": name,
        "comment": folder.name,
        "output": folder / LOG_FILE,
        "chdir": folder,
        "nodes": num_nodes,
        "ntasks": world_size,
        "ntasks-per-node": tasks_per_node,
        "cpus-per-task": _cpus_per_task(cluster, spec),
        # To the ranks (no `B:`), so much before the time limit as they have to commit in.
        "signal": f"TERM@{math.ceil(spec.grace_s)}",
        "export": ",".join(cluster.pass_environment) or "NONE",
        "partition": cluster.partition,
        "account": cluster.account,
        "time": cluster.time_limit_minutes,
        # Not --gpus-per-task, which hides a node's other devices from a rank: its own would then
        # be number 0 and not LOCAL_RANK, and NCCL could not reach its neighbours' directly.
        "gpus-per-node": cluster.gpus_per_task * tasks_per_node or None,
    }
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    # Started again by Slurm it would be a launch that nobody listens to: we start it again.
    return [*given, "--no-requeue", *cluster.extra_options]


def batch_script(cluster: SlurmSettings, spec: Launch, launch: LaunchId) -> str:
    """Return the script: set up, then become srun, which starts the ranks."""
    variables = {**spec.environment(), **cluster.environment}
    ranks = [
        "srun",
        "--export=ALL",
        "--label",
        "--kill-on-bad-exit=0",
        f"--wait={STRAGGLER_S}",
        f"--cpus-per-task={_cpus_per_task(cluster, spec)}",
        *(["--gpu-bind=none"] if cluster.gpus_per_task else []),
        cluster.python or sys.executable,
        *("-m", "strongroom.training.launching.slurm_rank"),
        *spec.arguments(),
        *("--launch-id", str(launch)),
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            "set -e",
            *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
            *cluster.setup,
            f"exec {shlex.join(ranks)}",
            "",
        ]
    )


def _cpus_per_task(cluster: SlurmSettings, spec: Launch) -> int:
    return cluster.cpus_per_task or spec.placement.threads_per_rank


def _placement_faults(cluster: SlurmSettings, spec: Launch) -> list[str]:
    faults = []
    world_size, grace_s = spec.placement.world_size, math.ceil(spec.grace_s)
    if world_size > cluster.tasks_per_node and world_size % cluster.tasks_per_node:
        faults.append(
            f"tasks_per_node: must divide the run's world_size ({world_size}) where that needs "
            f"several nodes, got {cluster.tasks_per_node}"
        )
    if _cpus_per_task(cluster, spec) < spec.placement.threads_per_rank:
        faults.append(
            f"cpus_per_task: must be threads_per_rank ({spec.placement.threads_per_rank}) or more, "
            f"got {cluster.cpus_per_task}"
        )
    if grace_s > NOTICE_MAX_S:
        faults.append(f"grace_s: must be at most {NOTICE_MAX_S} on Slurm, got {grace_s}")
    limit = cluster.time_limit_minutes
    if limit is not None and limit * 60 <= grace_s + NOTICE_MARGIN_S:
        faults.append(
            f"time_limit_minutes: must leave time to train before the notice, which comes grace_s "
            f"({grace_s} s) and up to {NOTICE_MARGIN_S} s more before the end; got {limit}"
        )
    return faults


def _path_faults(cluster: SlurmSettings) -> list[str]:
    faults = []
    folder = str(cluster.shared_folder)
    if not cluster.shared_folder.is_absolute() or re.search(r"[%\\\n\0]", folder):
        faults.append(
            f"shared_folder: must be an absolute path without '%' and '\\', got {folder!r}"
        )
    if cluster.python and not Path(cluster.python).is_absolute():
        faults.append(
            "python: must be an absolute path, for a job finds no other: it starts without the "
            f"launching process's PATH; got {cluster.python!r}"
        )
    return faults


def _option_faults(cluster: SlurmSettings) -> list[str]:
    faults = []
    for option in cluster.extra_options:
        found = _OPTION.fullmatch(option)
        if found is None:
            faults.append(f"extra_options: expected '--name' or '--name=value', got {option!r}")
        elif reason := OWN_OPTIONS.get(found[1]):
            faults.append(f"extra_options: --{found[1]} cannot be given here: {reason}")
    return faults


def _environment_faults(cluster: SlurmSettings) -> list[str]:
    faults = [
        f"{where}: expected a name of letters, digits and '_', got {name!r}"
        for where, names in (
            ("environment", cluster.environment),
            ("pass_environment", cluster.pass_environment),
        )
        for name in names
        if not _VARIABLE.fullmatch(name)
    ]
    faults += [
        f"environment: {name} looks like a secret, and these are written into a file; name it in "
        "pass_environment and set it where the launcher runs"
        for name in cluster.environment
        if _SECRET.search(name)
    ]
    faults += [f"setup: expected lines, got {line!r}" for line in cluster.setup if "\0" in line]
    return faults
