"""Launchers: start the training of a run somewhere, and hand on what it reports as it happens.

A launcher is one method, so that Slurm, Kubernetes or Ray can take torchrun's place and no asset
changes. On this machine the launch's own file of events serves: every rank can write to it, the
last word of a failing one included, and `strongroom train` hears the same. One whose training runs
on other machines hears it through the store (`resources/slurm.py`).
"""

from collections.abc import Generator
from typing import ClassVar, Protocol

import dagster as dg
from pydantic import Field

from strongroom.canonical import JsonObject
from strongroom.checkpoint.run_record import RunRecord
from strongroom.custody.context import Custody
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.launching.supervise import supervise
from strongroom.training.launching.torchrun import launch

Events = Generator[JsonObject, None, None]


class Launcher(Protocol):
    """Starts a training and yields its events.

    Attributes:
        ranks_are_here: whether they run on the machine of the step, whose memory, disk and
            accelerators the preflight then looks at.
    """

    ranks_are_here: ClassVar[bool]

    def stream(
        self,
        context: dg.AssetExecutionContext,
        custody: Custody,
        record: RunRecord,
        settings: LaunchSettings,
    ) -> Events:
        """Yield the events of the training (`strongroom.training.reporting`) until it has ended.

        `settings` say how it is spread, watched and tracked; where it fails by accident it is
        started again, as they allow.

        An interruption raised in here, as when a Dagster run is terminated, asks the training to
        stop, yields what it still reports and is raised again; closing the generator stops it too.
        Either way no process is left.

        Raises:
            StrongroomError: what the training failed with.
        """
        ...


class TorchrunLauncher(dg.ConfigurableResource):
    """Launches on this machine, through torchrun."""

    ranks_are_here: ClassVar[bool] = True

    grace_s: float = Field(
        default=120.0,
        gt=0.0,
        description="Seconds a training that was asked to stop has to commit a last checkpoint.",
    )

    def stream(
        self,
        context: dg.AssetExecutionContext,  # noqa: ARG002 -- for launchers that tell of a queue
        custody: Custody,
        record: RunRecord,
        settings: LaunchSettings,
    ) -> Events:
        """Launch the training and yield its events."""
        spec = Launch.of(
            record,
            store_url=custody.store.url,
            keys=custody.keys.path,
            cache=custody.cache,
            settings=settings,
            grace_s=self.grace_s,
        )
        yield from supervise(spec, record, launch)
