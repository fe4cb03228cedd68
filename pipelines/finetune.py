"""`python -m pipelines.finetune CONFIG [--run KEY]`: the main path to its end, without a daemon.

The same definitions as everywhere, run in this process against the Dagster instance at
DAGSTER_HOME: one Dagster run for inputs and training, one for each checkpoint's verification,
evaluation and promotion, one for production. The store and Dagster are asked first, so the same
command goes on where it stopped, does only what is not done, and reports.
"""

import argparse
import logging
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._core.errors import DagsterAssetCheckFailedError

from assets.partitions import RUNS, checkpoint_key
from assets.registration import missed, register
from pipelines.definitions import defs
from pipelines.home import prepare_home
from pipelines.own_runs import end_dead_runs, own_tags
from pipelines.summary import show
from pipelines.terminal import Terminal
from resources.recipe import DEFAULT_CONFIG, Recipe
from resources.store import ROOT, StoreResource
from strongroom.checkpoint.catalogue import checkpoint_names
from strongroom.checkpoint.run_record import read_run
from strongroom.custody.context import Custody
from strongroom.custody.listing import list_store
from strongroom.errors import ConflictError, DataError, StrongroomError, UnknownNameError
from strongroom.names import CheckpointName, RunKey
from strongroom.training.config import RunConfig

INTERRUPTED = 130
UNEXPECTED = 1
LOG_FILE = "finetune.log"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class MainPath:
    """One run's way from rows to a promoted checkpoint."""

    run: RunKey
    recipe: Recipe
    instance: dg.DagsterInstance
    terminal: Terminal

    def execute(self) -> Custody:
        """Go the whole way; return the store it was gone in.

        Raises:
            StrongroomError: what stopped it.
        """
        config = self.recipe.load()  # before anything is made: a wrong configuration costs nothing
        store = StoreResource()
        custody = store.custody(create=True)
        self.terminal.say(f"run {self.run} of {self.recipe.config_path}; store {store.location}")
        for run_id in end_dead_runs(self.instance):
            self.terminal.say(f"Dagster run {run_id} had died; it is marked as failed")
        if self._is_trained(custody, config):
            self.terminal.say(f"run {self.run} is trained already; nothing is trained again")
        else:
            self._train()
        self._govern(custody)
        self._execute("production")
        return custody

    def _is_trained(self, custody: Custody, config: RunConfig) -> bool:
        """Return whether the last step is committed, and Dagster knows of the run.

        Raises:
            ConflictError: the run exists with another configuration.
        """
        try:
            record = read_run(custody.storage, self.run)
        except UnknownNameError:
            return False
        if record.inputs.config != config.digest:
            raise ConflictError(
                f"run {self.run}: exists already with another configuration than "
                f"{self.recipe.config_path}; choose another run key (--run KEY), or give the "
                "configuration it was created with to go on with it"
            )
        known = self.instance.get_materialized_partitions(dg.AssetKey("finetune_run"))
        return str(self.run) in known and any(
            line.name.step.number == config.train.steps and line.quarantined is None
            for line in list_store(custody, self.run).lines
        )

    def _train(self) -> None:
        self.instance.add_dynamic_partitions(str(RUNS.name), [str(self.run)])
        if not self._execute("finetune", partition=str(self.run)):
            raise DataError("curated_dataset", self.terminal.failed_checks)

    def _govern(self, custody: Custody) -> None:
        """Govern the checkpoints that are not evaluated yet, oldest first."""
        names = checkpoint_names(custody.storage, self.run)
        for name in missed(self.instance, names):
            event = register(self.instance, custody.storage, name)
            self.instance.report_runless_asset_event(event)
        evaluated = self.instance.get_materialized_partitions(dg.AssetKey("evaluated_checkpoint"))
        promoted = self.instance.get_materialized_partitions(dg.AssetKey("promoted_checkpoint"))
        # Of a step that several attempts saved, the newest attempt's line stands.
        lines = {checkpoint_key(line.name): line for line in list_store(custody, self.run).lines}
        for key in dict.fromkeys(checkpoint_key(name) for name in sorted(names, key=_by_step)):
            verdict = lines[key].evaluated if key in lines else None
            if key not in evaluated or verdict is None:
                self._execute("govern", partition=key)
            elif verdict and key not in promoted:
                self._execute("govern", partition=key, only="promoted_checkpoint")

    def _execute(self, job: str, *, partition: str | None = None, only: str | None = None) -> bool:
        """Run a job to its end; return whether its blocking checks passed."""
        run_id = str(uuid.uuid4())
        self.instance.add_event_listener(run_id, self.terminal.hear)
        resources = {"recipe": Recipe(config_path=self.recipe.config_path)}
        definition = defs.resolve_job_def(job)
        try:
            definition.execute_in_process(
                run_config=dg.RunConfig(resources=resources if job == "finetune" else {}),
                instance=self.instance,
                partition_key=partition,
                asset_selection=None if only is None else [dg.AssetKey(only)],
                run_id=run_id,
                tags=own_tags(),
            )
        except DagsterAssetCheckFailedError:
            return False
        return True


def main(arguments: list[str]) -> int:
    """Run the main path and return the exit code."""
    given = _parser().parse_args(arguments)
    home = prepare_home()
    terminal = Terminal(log=None if given.debug else home / LOG_FILE)
    try:
        with dg.DagsterInstance.get() as instance:
            path = MainPath(
                run=RunKey.parse(given.run or Path(given.config).stem.lower()),
                recipe=Recipe(config_path=str(Path(given.config).resolve())),
                instance=instance,
                terminal=terminal,
            )
            custody = path.execute()
            return show(terminal.out, custody, instance, path.run, reports=given.reports)
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
        terminal.err.print("interrupted; the same command goes on from the newest checkpoint")
        return INTERRUPTED
    except Exception as error:
        if given.debug:
            raise
        logger.exception("the main path failed")
        return _explain(terminal, error)


def _explain(terminal: Terminal, error: Exception) -> int:
    """Say what went wrong in one message; the log holds the rest."""
    ours = next((item for item in _causes(error) if isinstance(item, StrongroomError)), None)
    terminal.err.print(f"\nERROR {type(ours or error).__name__}", style="bold red")
    terminal.err.print(str(ours or error), markup=False, soft_wrap=True)
    terminal.err.print(f"The log is {terminal.log}; --debug shows everything here.", style="dim")
    return UNEXPECTED if ours is None else ours.exit_code


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those it wraps: Dagster wraps what an asset raises."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _by_step(name: CheckpointName) -> tuple[int, int]:
    return (name.step.number, name.attempt.number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.finetune",
        description="Prepare, train, verify, evaluate and promote, to an audited checkpoint.",
    )
    parser.add_argument(
        "config", nargs="?", default=str(ROOT / DEFAULT_CONFIG), help="the run's YAML file"
    )
    parser.add_argument("--run", help="the run's key; by default the name of the YAML file")
    parser.add_argument(
        "--reports",
        type=Path,
        default=ROOT / ".strongroom" / "reports",
        help="folder for the audit report",
    )
    parser.add_argument("--debug", action="store_true", help="show logs and tracebacks")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
