"""`strongroom train`: one run, from its configuration to its last checkpoint, without Dagster."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from strongroom.canonical import JsonObject
from strongroom.cli.arguments import RunOption, run_key
from strongroom.cli.output import Reply
from strongroom.cli.progress import activity, is_on_terminal, training_progress
from strongroom.cli.settings import Settings
from strongroom.clock import now_utc
from strongroom.errors import ConfigError
from strongroom.training.config import RunConfig
from strongroom.training.launching.spec import LaunchSettings
from strongroom.training.placement import placement_faults


class Strategy(StrEnum):
    """What may spread the model; see `placement.StrategyName`."""

    FSDP2 = "fsdp2"
    ZERO3 = "zero3"


def train(  # noqa: PLR0913 -- the options of a command
    settings: Settings,
    *,
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The run's configuration, a YAML file.")
    ],
    author: Annotated[
        str,
        typer.Option(
            "--as",
            envvar="STRONGROOM_PERSON",
            metavar="NAME",
            help="The pseudonym of who asks for the run; it may not approve its checkpoints.",
        ),
    ],
    run: RunOption = None,
    fresh_start: Annotated[
        bool,
        typer.Option(
            "--fresh-start", help="Begin anew although none of the run's checkpoints can be used."
        ),
    ] = False,
    world_size: Annotated[
        int | None,
        typer.Option(
            "--world-size",
            min=1,
            metavar="N",
            help="Ranks of this launch, where they are not those of the configuration.",
        ),
    ] = None,
    strategy: Annotated[
        Strategy | None,
        typer.Option(
            "--strategy", help="Strategy of this launch, where it is not the configuration's."
        ),
    ] = None,
) -> Reply:
    """Train a run, or go on with one that was stopped.

    The store is made where there is none. The same command again goes on from the newest
    checkpoint that verifies at that moment, whatever it was that stopped the run; on other ranks
    or under another strategy too, where the rows of a step can be shared out among them.
    """
    from strongroom.cli.views.train import train_blocks, train_document
    from strongroom.custody.doctor import preflight_run
    from strongroom.custody.inputs import prepare
    from strongroom.custody.listing import list_store
    from strongroom.custody.train import follow_training
    from strongroom.signing.keyring import check_pseudonym
    from strongroom.training.config import load_config
    from strongroom.training.launching.spec import Launch
    from strongroom.training.launching.supervise import supervise
    from strongroom.training.launching.torchrun import launch

    wanted = spread_as(load_config(config), world_size=world_size, strategy=strategy)
    key = run_key(run, config)
    check_pseudonym(author)
    custody = settings.custody(create=True)
    with activity("preparing base model, dataset and tokenizer"):
        record = prepare(custody, key, wanted, base_dir=config.parent, author=author)
    spec = replace(
        Launch.of(
            record,
            store_url=custody.store.url,
            keys=custody.keys.path,
            cache=custody.cache,
            settings=LaunchSettings.of(wanted),
            fresh_start=fresh_start,
        ),
        # The log would run through the progress bar, and says the same.
        quiet=is_on_terminal() and not settings.verbose,
    )
    told: list[JsonObject] = []
    examined = preflight_run(custody, record, wanted, fresh_start=fresh_start)
    examined.raise_if_stopped()
    try:
        with (
            training_progress(wanted.train.steps) as show,
            closing(supervise(spec, record, launch)) as events,
        ):
            for event in chain(examined.events(), follow_training(custody, record, events)):
                show(event)
                told.append(event)
    except KeyboardInterrupt:
        typer.echo(f"run {key}: the same command goes on from its newest checkpoint", err=True)
        raise
    listing = list_store(custody, key)
    return Reply(
        document=train_document(key, custody.store.url, listing, told),
        blocks=train_blocks(key, listing, told, now=now_utc()),
    )


def spread_as(config: RunConfig, *, world_size: int | None, strategy: Strategy | None) -> RunConfig:
    """Return a configuration as it is launched: as it says, but for what is given here.

    Raises:
        ConfigError: the rows of a step cannot be shared out so.
    """
    placement = config.train.placement
    if strategy is not None:
        placement = replace(placement, strategy=strategy.value, replicas=1)
    if world_size is not None:
        placement = placement.with_world_size(world_size)
    if faults := placement_faults(placement, config.train.batch_rows):
        raise ConfigError("--world-size and --strategy", faults)
    return replace(config, train=config.train.placed(placement))
