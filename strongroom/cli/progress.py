"""What a person sees while work goes on: on a terminal only, on standard error, gone at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strongroom.canonical import JsonObject
from strongroom.training.reporting import ReportKind
from strongroom.training.wording import in_words

Show = Callable[[JsonObject], None]
"""Takes one event of a training."""


def is_on_terminal() -> bool:
    """Return whether a person watches standard error."""
    return sys.stderr.isatty()


@contextmanager
def activity(what: str) -> Iterator[None]:
    """Show that `what` is being done."""
    if not is_on_terminal():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


@contextmanager
def training_progress(num_steps: int) -> Iterator[Show]:
    """Show how far a training of `num_steps` has come, from the events it reports."""
    if not is_on_terminal():
        yield lambda _event: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[news]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=num_steps, news="")

        def show(event: JsonObject) -> None:
            if event["kind"] == ReportKind.STEP:
                news = step_in_words(event)
                progress.update(task, completed=event["step"], description="training", news=news)
                return
            progress.console.print(in_words(event, num_steps), markup=False, highlight=False)

        yield show


def step_in_words(event: JsonObject) -> str:
    """Return the numbers of a step."""
    return f"loss {event['loss']:.4f}  {event['tokens_per_s']:.0f} tokens/s"
