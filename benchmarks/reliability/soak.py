"""The soak: one run, killed again and again, held against the same run left alone.

`python -m benchmarks.reliability.soak`. On two ranks, for each strategy: a launch is killed by
SIGKILL (the launcher, torchrun's agent or a rank) at a moment of `kills`, and the same command is
given again, until all kills are spent; then it goes on to its end. After each kill, once nothing is
left of the launch:

1. every folder that holds a manifest passes rungs 1 and 2 of the verification ladder;
2. the ledger verifies, entry by entry and byte by byte;
3. the newest checkpoint is at most one save interval older than the last save point passed, and
   the next launch goes on from it.

In the end the ledger knows every checkpoint, and all losses ever reported, those of steps that were
taken twice too, and the final state digest are those of the run left alone. One more run is killed
under the supervisor, which starts its ranks again by itself.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.reliability.command import Measured, Options, run_command
from benchmarks.reliability.kills import RANKS, Moment
from benchmarks.reliability.launcher import Launcher
from benchmarks.reliability.marks import Notes, furthest, read_notes
from benchmarks.reliability.plans import SLOW_S, STEP_S, long_plans, short_plans
from benchmarks.reliability.soaked import EVERY_STEPS, Kill, LeftAlone, Plan, Soaked, by_attempt
from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import list_checkpoints
from strongroom.custody.context import Custody
from strongroom.errors import StrongroomError
from strongroom.names import CheckpointName
from strongroom.training.config import LaunchConfig
from strongroom.training.launching.spec import LaunchSettings
from strongroom.training.launching.torchrun import launch
from strongroom.training.reporting import ReportKind
from strongroom.verification.ladder import Rung, verify
from tests.support.training_run import TrainingRun, make_training_run

SEED = 20
LEARNING_RATE = 1e-3
POLL_S = 0.01
LOG_CHARS = 3000

logger = logging.getLogger("benchmarks.reliability")  # by whatever name this module runs


class Soak:
    """Kills a run as planned.

    Args:
        plan: what is done.
        folder: for everything; its own.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._settings = LaunchSettings(
            placement=plan.spread.placement("lora, dropout"),
            launch=LaunchConfig(
                max_restarts=len(plan.moments) if plan.supervised else 0,
                restart_delay_s=0.1,
                hang_timeout_s=300.0,
            ),
        )
        self._run = _new_run(folder / "killed", plan)
        run = self._run
        self._custody = Custody.open(run.store_url, keys=run.keys, cache=run.cache)
        self._soaked = Soaked(plan=plan)
        self._newest: CheckpointName | None = None  # when nothing ran last

    def soak(self) -> Soaked:
        """Kill it as often as planned, let it end, and return what came of it."""
        began = time.monotonic()
        if self._plan.supervised:
            launcher = self._kill_the_ranks_of_one_launch()
        else:
            for moment in self._plan.moments:
                self._kill_a_launch(moment)
            launcher = self._launch(is_slow=False)
        self._let_end(launcher)
        digests = self._run.state_digests()
        self._soaked.check_end(self._left_alone(), digests.get(self._plan.steps))
        self._soaked.seconds = time.monotonic() - began
        return self._soaked

    def _kill_a_launch(self, moment: Moment) -> None:
        launcher = self._launch()
        notes = self._kill(moment, launcher, lambda: read_notes(launcher.folder))
        launcher.wait()
        if moment.target == "launcher":  # all end with it, one after another
            notes = read_notes(launcher.folder)
        self._check_ledger()
        self._take_in(moment, notes, launcher.events())
        shutil.rmtree(launcher.folder)

    def _kill_the_ranks_of_one_launch(self) -> Launcher:
        launcher = self._launch()
        ended: set[int] = set()

        def look() -> list[Notes]:
            return [note for note in read_notes(launcher.folder) if note.pid not in ended]

        for number, moment in enumerate(self._plan.moments):
            notes = self._kill(moment, launcher, look)
            ended |= {note.pid for note in notes}
            while any(map(_is_alive, ended)):
                time.sleep(POLL_S)
            self._take_in(moment, notes, by_attempt(launcher.events())[number])
        return launcher

    def _kill(
        self, moment: Moment, launcher: Launcher, look: Callable[[], Sequence[Notes]]
    ) -> list[Notes]:
        """Kill at the moment; return what was noted by then: ranks that are left go on a while."""
        try:
            notes = moment.wait(look, lambda: launcher.process.poll() is not None)
            os.kill(moment.process(launcher.process.pid, notes), signal.SIGKILL)
            notes = list(look())
        except BaseException as error:
            launcher.end()
            error.add_note(launcher.log()[-LOG_CHARS:])
            raise
        return notes

    def _take_in(
        self,
        moment: Moment,
        notes: Sequence[Notes],
        events: Iterable[JsonObject],
    ) -> None:
        """Take in what a kill met and left.

        Args:
            moment: of the kill.
            notes: what the ranks had noted.
            events: what the attempt reported that was killed.
        """
        soaked = self._soaked
        last_step = soaked.hear(events, goes_on_from=self._newest)
        if last_step is None:
            last_step = _step(self._newest)
        self._check_checkpoints()
        kill = Kill(
            moment=moment,
            phase=furthest(notes),
            last_step=last_step,
            resume_step=_step(self._newest),
        )
        soaked.add(kill)
        logger.info(
            "%s, kill %d of %d: %s at %s, met %s; from step %d back to %d%s",
            self._plan.name,
            len(soaked.kills),
            len(self._plan.moments),
            moment.target,
            moment.phase,
            kill.phase,
            kill.last_step,
            kill.resume_step,
            "".join(f"; {fault}" for fault in soaked.faults),
        )

    def _let_end(self, launcher: Launcher) -> None:
        code = launcher.wait()
        attempts = by_attempt(launcher.events())
        self._soaked.restarts = len(attempts) - 1
        self._soaked.hear(attempts[-1], goes_on_from=self._newest)
        self._soaked.verified.clear()  # once more, all of them
        self._check_checkpoints()
        self._check_ledger()
        known = {
            record.name
            for record in self._custody.history().records.values()
            if record.committed is not None
        }
        if known != self._soaked.verified:
            self._soaked.faults.append(
                "expected the ledger to know the checkpoints that stand, got other ones: "
                f"{sorted(map(str, known ^ self._soaked.verified))}"
            )
        if code != 0:
            self._soaked.faults.append(
                f"expected the run to end with 0, got {code}: {launcher.log()[-LOG_CHARS:]}"
            )

    def _check_ledger(self) -> None:
        """Nothing runs: every byte of the ledger must be as it was signed."""
        try:
            self._custody.ledger().verify()
        except StrongroomError as error:
            self._soaked.faults.append(f"ledger: {type(error).__name__}: {error}")

    def _check_checkpoints(self) -> None:
        """Nothing runs that commits: verify every checkpoint that was not yet seen whole."""
        storage, run = self._run.storage, self._run.record.run
        found = list_checkpoints(storage, run)
        self._soaked.faults += [str(ignored) for ignored in found.ignored if ignored.damaged]
        for committed in found:
            if committed.name in self._soaked.verified:
                continue
            report = verify(
                storage,
                committed.name,
                expected_id=committed.checkpoint_id,
                up_to=Rung.STRUCTURE,
            )
            self._soaked.faults += report.findings
            self._soaked.verified.add(committed.name)
        self._newest = max(self._soaked.verified, default=None)

    def _launch(self, *, is_slow: bool = True) -> Launcher:
        number = len(self._soaked.kills) + 1
        return Launcher(
            replace(self._run.launch(settings=self._settings), quiet=True),
            self._folder / f"launch-{number}",
            slow_s=SLOW_S if is_slow else 0.0,
            step_s=STEP_S if is_slow else 0.0,
        )

    def _left_alone(self) -> LeftAlone:
        run = _new_run(self._folder / "left-alone", self._plan)
        events = list(launch(replace(run.launch(settings=self._settings), quiet=True)))
        losses = {e["step"]: e["loss"] for e in events if e["kind"] == ReportKind.STEP}
        return LeftAlone(losses=losses, digest=run.state_digests()[self._plan.steps])


def _new_run(folder: Path, plan: Plan) -> TrainingRun:
    return make_training_run(
        folder,
        method="lora",
        dropout=0.1,
        steps=plan.steps,
        learning_rate=LEARNING_RATE,
        save={"every_steps": EVERY_STEPS},
    )


def _step(name: CheckpointName | None) -> int:
    return 0 if name is None else name.step.number


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def measure(options: Options) -> Measured:
    """Return what came of every soak, or, shortened, of those that the tests do."""
    chosen = short_plans(options.seed) if options.is_short else long_plans(options.seed)
    soaked = [
        Soak(plan, options.folder / f"soak-{number}").soak()
        for number, plan in enumerate(chosen)
        if options.wants(plan.name)
    ]
    return Measured(
        settings={
            "ranks": RANKS,
            "save interval, steps": EVERY_STEPS,
            "seconds of a step at least": STEP_S,
            "seconds that each write is held up": SLOW_S,
            "learning rate": LEARNING_RATE,
        },
        results=[each.to_json() for each in soaked],
    )


if __name__ == "__main__":
    run_command("soak", measure, parts=[plan.name for plan in long_plans(SEED)], seed=SEED)
