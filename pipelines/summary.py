"""The end of the main path: a run's checkpoints as a table, what was gained, what comes next."""

import shlex
import sys
from pathlib import Path

import dagster as dg
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from assets.partitions import checkpoint_key
from assets.registration import CHECKPOINT
from strongroom.custody.audit import write_report
from strongroom.custody.context import Custody
from strongroom.custody.listing import Line, list_store
from strongroom.errors import VerificationError
from strongroom.ledger.history import CANDIDATE, PRODUCTION, STAGING
from strongroom.names import RunKey

UNKNOWN = "-"
PERSONS = ("reviewer-1", "reviewer-2")
"""Two pseudonyms, for the commands that are printed."""


def show(
    console: Console, custody: Custody, instance: dg.DagsterInstance, run: RunKey, *, reports: Path
) -> int:
    """Print the table, the losses, the report's path and the next commands; return 0.

    Where no checkpoint holds, the exit code is that of a failed verification.
    """
    lines = list_store(custody, run).lines
    console.print(_table(lines, instance, run))
    sound = [line for line in lines if line.verified and line.quarantined is None]
    if not sound:
        console.print("None of the checkpoints is verified.", style="red")
        return VerificationError.exit_code
    best = next((line for line in reversed(sound) if STAGING in line.stages), sound[-1])
    if best.report is not None:
        console.print(
            f"Held-out loss: {best.report.base_loss:.4f} before (base model), "
            f"{best.report.loss:.4f} after (step {best.name.step.number}); bits per byte: "
            f"{best.report.base_bits_per_byte:.4f} before, {best.report.bits_per_byte:.4f} after."
        )
    path = reports.resolve() / f"{run}-{best.name.step.number}.html"
    write_report(custody, best.checkpoint_id, path)
    console.print(f"Audit report: {path}", soft_wrap=True)
    _next_steps(console, custody, best)
    return 0


def _table(lines: tuple[Line, ...], instance: dg.DagsterInstance, run: RunKey) -> Table:
    table = Table(title=f"Checkpoints of run {run}")
    for column in ("step", "train loss", "held-out loss", "size", "pause", "durable"):
        table.add_column(column, justify="right")
    for column in ("verified", "evaluated", "stage"):
        table.add_column(column)
    several = len({line.name.attempt for line in lines}) > 1
    for line in sorted(lines, key=lambda line: (line.name.step, line.name.attempt)):
        attempt = f" (attempt {line.name.attempt.number})" if several else ""
        stages = [stage for stage in line.stages if stage != CANDIDATE] or [CANDIDATE]
        table.add_row(
            f"{line.name.step.number}{attempt}",
            _number(line.metrics.get("train_loss")),
            _number(None if line.report is None else line.report.loss),
            decimal(line.num_bytes),
            _seconds(line.metrics.get("pause_s")),
            _seconds(_durable_s(instance, line)),
            "quarantined" if line.quarantined else _word(line.verified, "yes", "failed"),
            _word(line.evaluated, "better", "not better"),
            ", ".join(stages),
        )
    return table


def _durable_s(instance: dg.DagsterInstance, line: Line) -> float | None:
    """Return what training reported; the manifest was written before it could be known."""
    wanted = dg.AssetRecordsFilter(CHECKPOINT, asset_partitions=[checkpoint_key(line.name)])
    for record in instance.fetch_materializations(wanted, limit=10).records:
        event = record.asset_materialization
        if event is None or event.metadata["checkpoint"].value != str(line.name):
            continue
        measured = event.metadata.get("durable_s")
        if measured is not None and isinstance(measured.value, float):
            return measured.value
    return None


def _next_steps(console: Console, custody: Custody, best: Line) -> None:
    if PRODUCTION in best.stages:
        console.print(f"{best.name.short} is in production.")
        return
    if STAGING not in best.stages:
        console.print("No checkpoint was promoted: none was better than the base model.")
        return
    where = {"STRONGROOM_STORE": custody.store.url, "STRONGROOM_KEYS": str(custody.keys.path)}
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in where.items())
    command, name = _command(), best.name.short
    commands = [
        f"export {settings}",
        *(f"{command} keys add {person}" for person in PERSONS),
        *(f"{command} approve {name} --stage {PRODUCTION} --as {p}" for p in PERSONS),
        f"{command} promote {name} --stage {PRODUCTION}",
    ]
    console.print("It is in staging. Production takes the approval of two different persons:")
    for command in commands:
        console.print(f"  {command}", markup=False, soft_wrap=True)


def _command() -> str:
    """Return the `strongroom` command of this environment, as short as it can be typed here."""
    command = Path(sys.executable).with_name("strongroom")
    here = Path.cwd()
    return str(command.relative_to(here)) if command.is_relative_to(here) else str(command)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}"


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f} s"


def _word(value: bool | None, yes: str, no: str) -> str:
    return UNKNOWN if value is None else (yes if value else no)
