"""The fine-tuning run: launched, followed, and its checkpoints registered while it goes on."""

from contextlib import closing
from time import monotonic

import dagster as dg

from assets.metadata import numbers, texts
from assets.partitions import RUNS
from assets.registration import exactness, missed, register
from assets.versions import dataset_origin, model_origin, newest_version, tokenizer_origin
from resources.launcher import Events, Launcher
from resources.recipe import Recipe
from resources.store import StoreResource
from strongroom.checkpoint.catalogue import checkpoint_names, read_checkpoint
from strongroom.checkpoint.run_record import RunRecord, read_run
from strongroom.custody.context import Custody
from strongroom.custody.doctor import preflight_run
from strongroom.custody.inputs import prepare_run
from strongroom.custody.train import follow_training
from strongroom.errors import UnknownNameError
from strongroom.names import CheckpointName, RunKey
from strongroom.training.config import RunConfig, same_run
from strongroom.training.launching.spec import LaunchSettings
from strongroom.training.reporting import ReportKind
from strongroom.training.wording import in_words

POOL = "training"
STEP_LOG_S = 5.0
"""A line about a step at most this often: a fast training must not flood the event log."""


@dg.asset(
    group_name="strongroom",
    kinds={"pytorch"},
    partitions_def=RUNS,
    deps=["base_model", "curated_dataset", "adapted_tokenizer"],
    pool=POOL,
    description="One fine-tuning run; launched again under its key, it goes on where it stopped.",
)
def finetune_run(
    context: dg.AssetExecutionContext,
    store: StoreResource,
    recipe: Recipe,
    launcher: dg.ResourceParam[Launcher],
) -> dg.MaterializeResult:
    custody = store.custody()
    record = _record(context, custody, store, recipe)
    measured = train(context, custody, record, launcher, recipe.load())
    last = read_checkpoint(custody.storage, checkpoint_names(custody.storage, record.run)[-1])
    exact = exactness(custody.storage, last.name)
    told = texts(author=record.author, last_checkpoint=last.name, exact=exact)
    told |= numbers(last.manifest.metrics | measured)
    return dg.MaterializeResult(data_version=dg.DataVersion(str(last.checkpoint_id)), metadata=told)


def train(
    context: dg.AssetExecutionContext,
    custody: Custody,
    record: RunRecord,
    launcher: Launcher,
    config: RunConfig,
) -> dict[str, float]:
    """Train to the end and register checkpoints on the way; return the numbers of the last step.

    What the preflight finds is told first, and may stop it. However it ends, what was committed and
    not heard of is registered from the store.
    """
    examined = preflight_run(custody, record, config, ranks_are_here=launcher.ranks_are_here)
    for event in examined.events():
        context.log.warning(in_words(event, config.train.steps))
    examined.raise_if_stopped()
    try:
        settings = LaunchSettings.of(config)
        with closing(launcher.stream(context, custody, record, settings)) as events:
            return _follow(context, custody, record, events)
    finally:
        for name in missed(context.instance, checkpoint_names(custody.storage, record.run)):
            context.log_event(register(context.instance, custody.storage, name))


def _follow(
    context: dg.AssetExecutionContext, custody: Custody, record: RunRecord, events: Events
) -> dict[str, float]:
    step: dict[str, float] = {}
    told_at = -STEP_LOG_S
    for event in follow_training(custody, record, events):
        if event["kind"] == ReportKind.STEP:
            step = {name: value for name, value in event.items() if name != "kind"}
            if monotonic() - told_at < STEP_LOG_S:
                continue
            told_at = monotonic()
        context.log.info(in_words(event, record.config["train"]["steps"]))
        if event["kind"] == ReportKind.COMMITTED:
            name = CheckpointName.parse(event["checkpoint"])
            measured = {
                "durable_s": event["durable_s"],
                "tokens_per_s": step.get("tokens_per_s"),
            }
            context.log_event(register(context.instance, custody.storage, name, measured))
    return step


def _record(
    context: dg.AssetExecutionContext, custody: Custody, store: StoreResource, recipe: Recipe
) -> RunRecord:
    """Return the run's record; a new run is made from what the recipe's inputs are now."""
    run, config = RunKey.parse(context.partition_key), recipe.load()
    try:
        standing = read_run(custody.storage, run)
    except UnknownNameError:
        standing = None
    if standing is not None and same_run(standing.config, config.to_json()):
        return standing
    base = newest_version(context.instance, "base_model", model_origin(config))
    origin = dataset_origin(config, recipe.base_dir, base)
    dataset = newest_version(context.instance, "curated_dataset", origin)
    tokenizer = newest_version(
        context.instance, "adapted_tokenizer", tokenizer_origin(base, dataset)
    )
    return prepare_run(
        custody,
        run,
        config,
        base_model=base,
        dataset=dataset,
        tokenizer=tokenizer,
        author=store.author,
    )
