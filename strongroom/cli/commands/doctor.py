"""`strongroom doctor`: look a configuration over before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongroom.cli.arguments import RunOption, run_key
from strongroom.cli.output import Reply
from strongroom.cli.progress import activity
from strongroom.cli.settings import Settings
from strongroom.errors import InputError

if TYPE_CHECKING:
    from strongroom.training.config import RunConfig


def doctor(
    settings: Settings,
    *,
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="The run's configuration, a YAML file."),
    ] = None,
    run: RunOption = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Start the ranks for a moment and measure how long they take to agree."
        ),
    ] = False,
    rules: Annotated[
        bool, typer.Option("--rules", help="Print every check and number, with its source.")
    ] = False,
) -> Reply:
    """Find what would go wrong with a run, before it starts.

    Looks at the configuration, this machine, the base model, the data at hand, and the store where
    one is named; makes no store and changes none. Ends with 64 where a finding stops a launch: the
    same checks are made before each.
    """
    from strongroom.cli.views.doctor import (
        report_blocks,
        report_document,
        rule_blocks,
        rule_document,
    )
    from strongroom.custody.doctor import examine
    from strongroom.errors import PreflightError
    from strongroom.training.config import load_config
    from strongroom.training.preflight.numbers import values

    wanted = None if config is None else load_config(config)
    if rules:
        numbers = values({} if wanted is None else wanted.preflight.numbers)
        return Reply(document=rule_document(numbers), blocks=tuple(rule_blocks(numbers)))
    if config is None or wanted is None:
        raise InputError("no configuration was named: strongroom doctor CONFIG, or --rules")
    key = run_key(run, config)
    allreduce_ms = _probe(wanted) if probe else None
    with activity("looking at machine, model, data and store"):
        report = examine(
            wanted,
            run=key,
            base_dir=config.parent,
            cache=settings.cache.expanduser(),
            store_url=settings.store,
            keys=settings.keys.expanduser(),
            allreduce_ms=allreduce_ms,
        )
    failure = None
    try:
        report.raise_if_stopped()
    except PreflightError as error:
        failure = error
    return Reply(
        document=report_document(key, report),
        blocks=tuple(report_blocks(str(config), report)),
        failure=failure,
    )


def _probe(wanted: RunConfig) -> float:
    """Measure over the ranks of the run, where all of them fit on this machine.

    Raises:
        InputError: they do not: what a part of them needs would say nothing of all.
    """
    from strongroom.training.preflight.machine import read_machine
    from strongroom.training.preflight.probe import probe_allreduce

    ranks, machine = wanted.train.world_size, read_machine()
    most = len(machine.accelerators) if machine.accelerators else machine.cores
    if ranks > most:
        what = "accelerators" if machine.accelerators else "cores"
        raise InputError(
            f"--probe: expected at most {most} ranks, one for each of this machine's {what}, got "
            f"train.world_size {ranks}; every training measures its own ranks as it starts"
        )
    with activity(f"measuring over {ranks} ranks"):
        return probe_allreduce(ranks)
