"""`strongroom train`: one run, from its configuration to its last checkpoint, without Dagster."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from strongroom.cli.output import Reply
from strongroom.cli.progress import activity, is_on_terminal, training_progress
from strongroom.cli.settings import Settings
from strongroom.clock import now_utc
from strongroom.names import RunKey


def train(
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
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="KEY",
            help="The run's key; the configuration's file name if not given.",
        ),
    ] = None,
    fresh_start: Annotated[
        bool,
        typer.Option(
            "--fresh-start", help="Begin anew although none of the run's checkpoints can be used."
        ),
    ] = False,
) -> Reply:
    """Train a run, or go on with one that was stopped.

    The store is made where there is none. The same command again goes on from the newest
    checkpoint that verifies at that moment, whatever it was that stopped the run.
    """
    from strongroom.cli.views.train import train_blocks, train_document
    from strongroom.custody.inputs import prepare
    from strongroom.custody.listing import list_store
    from strongroom.custody.train import follow_training
    from strongroom.signing.keyring import check_pseudonym
    from strongroom.training.config import load_config
    from strongroom.training.launch import Launch, launch

    wanted = load_config(config)
    key = RunKey.parse(run) if run is not None else key_from(config)
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
            fresh_start=fresh_start,
        ),
        # The log would run through the progress bar, and says the same.
        quiet=is_on_terminal() and not settings.verbose,
    )
    told = []
    try:
        with training_progress(wanted.train.steps) as show, closing(launch(spec)) as events:
            for event in follow_training(custody, record, events):
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


def key_from(config: Path) -> RunKey:
    """Return the run key a configuration's file name stands for: the same file, the same run.

    Raises:
        InputError: the name has nothing a key could be made of.
    """
    return RunKey.parse(re.sub(r"[^a-z0-9._-]+", "-", config.stem.lower()).strip("-._")[:63])
