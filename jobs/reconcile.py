"""Reconcile: tell Dagster of what stands in the store and it never heard of.

A checkpoint is missed when the process that launched its training died before it could report. The
production stage is missed when people approve or promote with the command line. The store is the
record; it is read here, and Dagster's view of it mended.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg

from assets.promotion import production_is_due
from assets.registration import missed, register
from jobs.govern import production
from resources.store import StoreResource
from strongroom.checkpoint.catalogue import checkpoint_names, read_checkpoint, runs
from strongroom.custody.context import Custody
from strongroom.errors import FormatError, IntegrityError, StoreMissingError
from strongroom.names import CheckpointName

GRACE = timedelta(seconds=30)
"""A checkpoint younger than this may still be reported by the training that committed it."""

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


def overlooked(instance: dg.DagsterInstance, custody: Custody) -> list[CheckpointName]:
    """Return the committed checkpoints that Dagster should have heard of by now, and has not."""
    storage = custody.storage
    names = [name for run in runs(storage) for name in checkpoint_names(storage, run)]
    return [name for name in missed(instance, names) if _age(custody, name) > GRACE]


@dg.op(description="Report every committed checkpoint that Dagster missed.")
def register_overlooked(context: dg.OpExecutionContext, store: StoreResource) -> None:
    """Register them one by one; the store's folders are the list."""
    custody = store.custody()
    for name in overlooked(context.instance, custody):
        event = register(context.instance, custody.storage, name)
        context.instance.report_runless_asset_event(event)
        context.log.info("registered %s", name)


@dg.job(description="Register what is committed in the store and missing in Dagster.")
def reconcile() -> None:
    """Register what was overlooked."""
    register_overlooked()


@dg.sensor(
    jobs=[reconcile, production],
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description="Compares the store with what Dagster knows of it.",
)
def reconcile_sensor(
    context: dg.SensorEvaluationContext, store: StoreResource
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Ask for the job that mends what differs, unless it is on its way."""
    try:
        custody = store.custody()
    except StoreMissingError:
        yield dg.SkipReason(f"there is no store yet at {store.location}")
        return
    instance = context.instance
    if overlooked(instance, custody) and _idle(instance, reconcile.name):
        yield dg.RunRequest(job_name=reconcile.name)
    if production_is_due(instance, custody) and _idle(instance, production.name):
        yield dg.RunRequest(job_name=production.name)


def _age(custody: Custody, name: CheckpointName) -> timedelta:
    try:
        manifest = read_checkpoint(custody.storage, name).manifest
    except (IntegrityError, FormatError):
        return timedelta.max  # damaged: whatever its age, verification must meet it
    return datetime.now(UTC) - datetime.fromisoformat(manifest.created)


def _idle(instance: dg.DagsterInstance, job: str) -> bool:
    wanted = dg.RunsFilter(job_name=job, statuses=UNFINISHED)
    return instance.get_runs_count(wanted) == 0
