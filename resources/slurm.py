"""A launcher for a cluster that Slurm runs: a launch is a job, its events come through the store.

A deployment puts it in the place of the other one, in pipelines/definitions.py; see
docs/how-to/run-on-slurm.md.
"""

from functools import partial
from pathlib import Path
from typing import ClassVar

import dagster as dg
from pydantic import Field

from resources.launcher import Events
from strongroom.checkpoint.run_record import RunRecord
from strongroom.custody.context import Custody
from strongroom.parsing import parse
from strongroom.training.launching.slurm import launch_on_slurm
from strongroom.training.launching.slurm_settings import SOURCE, SlurmSettings
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.launching.supervise import supervise


class SlurmLauncher(dg.ConfigurableResource):
    """Launches on a cluster, through sbatch and srun. The environment is read when a run starts."""

    ranks_are_here: ClassVar[bool] = False

    shared_folder: str = Field(
        description="Folder for scripts and logs that every node and this machine see alike.",
    )
    tasks_per_node: int = Field(
        description="Most ranks of one node; the run's world_size says how many nodes it takes.",
    )
    partition: str = Field(default="", description="Empty: the cluster's default.")
    account: str = Field(default="", description="Empty: the user's default.")
    cpus_per_task: int | None = Field(
        default=None, description="None: as many as a rank has threads."
    )
    gpus_per_task: int = Field(default=0, description="Devices of each rank.")
    time_limit_minutes: int | None = Field(default=None, description="None: the partition's.")
    extra_options: list[str] = Field(
        default=[], description="More options of sbatch, in their long form: --constraint=a100."
    )
    setup: list[str] = Field(
        default=[], description="Lines of shell before the ranks start, such as module load."
    )
    environment: dict[str, str] = Field(
        default={}, description="Variables of the ranks. Written into a file: no secrets."
    )
    pass_environment: list[str] = Field(
        default=[],
        description="Names of variables whose values go from this process to the job, secrets too.",
    )
    python: str = Field(
        default="",
        description="Interpreter on the nodes with strongroom installed. Empty: this one's path.",
    )
    keys_folder: str = Field(
        default="",
        description="Where the nodes see the signing keys. Empty: where this machine does.",
    )
    cache_folder: str = Field(
        default="",
        description="Where the nodes keep copies of inputs. Empty: where this machine does.",
    )
    grace_s: float = Field(
        default=120.0,
        gt=0.0,
        description="Seconds a training that was asked to stop has to commit a last checkpoint.",
    )
    poll_s: float = Field(default=2.0, description="Seconds between looks for events.")
    job_poll_s: float = Field(default=15.0, description="Seconds between questions about the job.")
    unreachable_s: float = Field(
        default=3600.0,
        description="Seconds that Slurm or the store may be silent before a launch is given up.",
    )

    def settings(self) -> SlurmSettings:
        """Return the settings of the jobs.

        Raises:
            ConfigError: they are wrong; the message lists every fault.
        """
        own = {"keys_folder", "cache_folder", "grace_s"}
        given = {name: value for name, value in self.model_dump(exclude=own).items() if value != ""}
        return parse(SlurmSettings, given, source=SOURCE)

    def stream(
        self,
        context: dg.AssetExecutionContext,
        custody: Custody,
        record: RunRecord,
        settings: LaunchSettings,
    ) -> Events:
        """Launch the training as a job, again where it failed by accident; yield its events."""
        spec = Launch.of(
            record,
            store_url=custody.store.url,
            keys=Path(self.keys_folder or custody.keys.path),
            cache=Path(self.cache_folder or custody.cache),
            settings=settings,
            grace_s=self.grace_s,
        )
        start = partial(launch_on_slurm, cluster=self.settings(), tell=context.log.info)
        yield from supervise(spec, record, start)
