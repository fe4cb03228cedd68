"""The loop: agree, save if it is due, take a step.

A step is made of micro-batches, whose gradients add up; what of a step's rows is computed where is
the placement's business.

Invariants: every rank takes the same decisions, because each is made from numbers that all ranks
agreed on; the loss is the mean over all trained tokens of the global batch, so the number of ranks
does not change the mathematics; a state that is not finite is never saved.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NoReturn

from strongroom.canonical import JsonObject
from strongroom.checkpoint.manifest import Inputs
from strongroom.checkpoint.run_record import Probe
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveFacts
from strongroom.data.cursor import Cursor
from strongroom.data.packing import Batch
from strongroom.errors import PeerError, StrongroomError, TrainingError
from strongroom.model.loss import completion_loss_sum
from strongroom.names import Attempt, CheckpointId, CheckpointName, RunKey, Step
from strongroom.training.batches import TrainingRows, micro_parts, rank_part
from strongroom.training.config import RunConfig
from strongroom.training.meters import StepMeter
from strongroom.training.placement import Placement
from strongroom.training.policy import (
    Moment,
    SaveReason,
    answer_to_nonfinite,
    is_skipped,
    is_time_up,
    reason_to_save,
)
from strongroom.training.probe import undisturbed_probe_loss
from strongroom.training.progress import Progress, manifest_state
from strongroom.training.reporting import Report, ReportKind
from strongroom.training.rng import random_state, rng_keys
from strongroom.training.schedule import learning_rate
from strongroom.training.stop import StopRequest
from strongroom.training.strategies.base import Strategy
from strongroom.training.watchdog import Watchdog
from strongroom.training.world import World

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """What this launch is: the same on every rank, and for as long as it lasts.

    Attributes:
        parent: the checkpoint it resumed from, None for a fresh start.
        placement: how the work is spread.
        is_exact: whether the run, repeated as it is, comes out the same bit for bit.
    """

    run: RunKey
    attempt: Attempt
    parent: CheckpointId | None
    inputs: Inputs
    config: RunConfig
    placement: Placement
    probe: Probe
    is_exact: bool = True


class End(Enum):
    """How a loop ended."""

    COMPLETE = auto()
    STOPPED = auto()
    ROLL_BACK = auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    """What all ranks agree on of a step that was computed and not yet taken."""

    step: int
    trained: int
    tokens: int
    pairs: int
    rows: int
    loss: float = math.nan
    grad_norm: float = math.nan

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass(kw_only=True, slots=True)
class Loop:
    """One rank's part of training, from where `progress` stands to the end or to a stop."""

    launched: Launched
    world: World
    strategy: Strategy
    rows: TrainingRows
    saver: AsyncSaver
    report: Report
    stop: StopRequest
    watchdog: Watchdog
    meter: StepMeter
    progress: Progress
    train_loss: float = math.nan
    """Of the newest step that was learnt from; not a number before the first."""
    _end: End | None = field(default=None, init=False)
    trouble: JsonObject = field(default_factory=dict, init=False)
    """What the attempt that follows says of why it goes back; empty where none follows."""

    def run(self) -> End:
        """Train; return how it ended. All saves have ended.

        Raises:
            SaveError: a save failed.
            FencedError: a newer attempt owns the run.
            TrainingError: loss or gradient is not finite, and that is to stop the run.
        """
        config = self.launched.config
        self.strategy.model.train()
        saved_step, saved_at = self.progress.step, time.monotonic()
        while True:
            if self.progress.num_learnt == 0:
                saved_step = self.progress.step  # nothing was learnt that could be saved
            moment = self._agree(saved_step, time.monotonic() - saved_at)
            reason = reason_to_save(config.save, moment)
            if reason is not None:
                if is_skipped(config.save, moment, reason):
                    self._tell_skipped(reason)
                else:
                    logger.info("saving: step=%d reason=%s", moment.step, reason)
                    self._save()
                    saved_step = moment.step
                saved_at = time.monotonic()
            if moment.stopping or moment.step >= moment.last_step:
                self._end = End.COMPLETE if moment.step >= moment.last_step else End.STOPPED
            if self._end is not None:
                self._wait_for_saves()
                return self._end
            self.watchdog.beat(f"rank {self.world.rank}, step {moment.step + 1}")
            self._step()

    def _agree(self, saved_step: int, seconds_since_save: float) -> Moment:
        """Return where training stands, by what all ranks know, once none knows of a failed save.

        The first rank's clock counts; a signal to any rank, and a busy saver of any, count for all.
        """
        failure: StrongroomError | None = None
        try:
            self.saver.check()
        except StrongroomError as error:
            failure = error
        config = self.launched.config
        time_is_up = self.world.is_first and is_time_up(config.save, seconds_since_save)
        stopping, due, busy, failed = self.world.total(
            self.stop.is_asked, time_is_up, self.saver.is_busy(), failure is not None
        )
        if failed:
            self._fail(failure)
        return Moment(
            step=self.progress.step,
            last_step=config.train.steps,
            saved_step=saved_step,
            time_is_up=bool(due),
            stopping=bool(stopping),
            is_busy=bool(busy),
        )

    def _fail(self, failure: StrongroomError | None) -> NoReturn:
        """Raise the failure of a save that some rank knows of; what can be saved still is.

        Args:
            failure: None where this rank has not heard of it yet.
        """
        try:
            self.saver.wait()
        except StrongroomError as error:
            failure = failure or error
        raise failure or PeerError(
            f"rank {self.world.rank}: another rank can save nothing any more"
        )

    def _step(self) -> None:
        """Take a step, or pass over its rows."""
        self.meter.begin()
        sequences, cursor = self.rows.take(
            self.progress.cursor, self.launched.config.train.batch_rows
        )
        batches = self._batches(sequences)
        if self.progress.step + 1 in self.progress.passed_over:  # known from before a roll-back
            self._pass_over(cursor, self._measured(batches))
            return
        measured = self._compute(batches)
        if not measured.is_finite:
            self._not_finite(cursor, measured)
            return
        rate = learning_rate(self.launched.config.train, measured.step)
        self.saver.wait_staged()  # from here on the state changes
        self.strategy.step(rate)
        self.train_loss = measured.loss
        self._move_on(cursor, measured)
        self._tell_step(rate, measured)

    def _batches(self, sequences: list[tuple[int, ...]]) -> list[Batch]:
        part = rank_part(sequences, rank=self.world.rank, world_size=self.world.size)
        size = self.launched.placement.micro_batch_rows
        return [self.rows.batch(micro).to(self.world.device) for micro in micro_parts(part, size)]

    def _compute(self, batches: list[Batch]) -> _Measured:
        """Make the gradients of a step, and return what is known of it on all ranks."""
        measured = self._measured(batches)
        nats = 0.0
        for number, batch in enumerate(batches, start=1):
            logits_BTV = self.strategy.model(**batch.inputs()).logits
            summed, _ = completion_loss_sum(logits_BTV, batch.labels_BT)
            nats += float(summed.detach())
            # The strategy takes the mean of the ranks' gradients; this makes it that over tokens.
            self.strategy.backward(
                summed * (self.world.size / measured.trained), is_last=number == len(batches)
            )
        (nats,) = self.world.total(nats)
        return replace(
            measured, loss=nats / measured.trained, grad_norm=self.strategy.gradient_norm()
        )

    def _measured(self, batches: list[Batch]) -> _Measured:
        """Return what the rows of a step are, on all ranks; nothing of it is computed yet."""
        sizes = [
            (batch.num_trained, batch.num_tokens, batch.num_pairs, batch.num_rows)
            for batch in batches
        ]
        trained, tokens, pairs, rows = map(
            int, self.world.total(*(sum(column) for column in zip(*sizes, strict=True)))
        )
        return _Measured(
            step=self.progress.step + 1, trained=trained, tokens=tokens, pairs=pairs, rows=rows
        )

    def _not_finite(self, cursor: Cursor, measured: _Measured) -> None:
        """Do as configured, and say so; the gradients are of no use."""
        train = self.launched.config.train
        answer = answer_to_nonfinite(train, len(self.progress.passed_over))
        if answer == "stop":
            self._wait_for_saves()  # what was good is kept
            raise TrainingError(
                f"run {self.launched.run}, step {measured.step}: expected a finite loss and "
                f"gradient, got loss {measured.loss} and gradient norm {measured.grad_norm}, "
                f"after {len(self.progress.passed_over)} steps that were passed over; nothing of "
                "this step was saved. Choose another run key and a lower train.learning_rate, a "
                "longer train.warmup_steps, or train.on_nonfinite: skip or rollback"
            )
        self.strategy.drop_gradients()
        self.progress = self.progress.passing_over([measured.step])
        if answer == "skip":
            self._pass_over(cursor, measured)
            return
        self._end = End.ROLL_BACK
        self.trouble = self._trouble(measured)

    def _pass_over(self, cursor: Cursor, measured: _Measured) -> None:
        self._move_on(cursor, measured)
        if self.world.is_first:
            told = self._trouble(measured)
            logger.warning("step passed over: step=%d %s", measured.step, told)
            self.report({"kind": ReportKind.PASSED_OVER, "step": measured.step, **told})
        if self.progress.step == self.launched.config.train.steps and not self.progress.num_learnt:
            raise TrainingError(
                f"run {self.launched.run}: expected a step to learn from, got {measured.step} "
                "whose loss or gradient was not finite; nothing was saved. Choose another run key, "
                "and look at the data and train.learning_rate"
            )

    def _move_on(self, cursor: Cursor, measured: _Measured) -> None:
        self.progress = self.progress.after_step(
            tokens=measured.tokens, samples=measured.rows, cursor=cursor
        )

    def _wait_for_saves(self) -> None:
        with self.watchdog.paused(f"rank {self.world.rank}, after the last save"):
            self.saver.wait()

    def _tell_step(self, rate: float, measured: _Measured) -> None:
        if not self.world.is_first:
            return
        told = {
            "step": measured.step,
            "loss": measured.loss,
            "learning_rate": rate,
            "grad_norm": measured.grad_norm,
            **self.meter.measured(tokens=measured.tokens, pairs=measured.pairs),
        }
        self.report({"kind": ReportKind.STEP, **told})
        logger.info(
            "step %d of %d: loss=%.4f learning_rate=%.3g grad_norm=%.3f tokens_per_s=%.0f",
            measured.step,
            self.launched.config.train.steps,
            measured.loss,
            rate,
            measured.grad_norm,
            told["tokens_per_s"],
        )

    def _trouble(self, measured: _Measured) -> JsonObject:
        return {
            "reason": f"train.on_nonfinite is {self.launched.config.train.on_nonfinite}",
            "loss": str(measured.loss),
            "grad_norm": str(measured.grad_norm),
        }

    def _tell_skipped(self, reason: SaveReason) -> None:
        step = self.progress.step
        why = f"{reason}, but one save is being written and another waits"
        logger.warning("save skipped: step=%d reason=%s", step, why)
        if self.world.is_first:
            self.report({"kind": ReportKind.SAVE_SKIPPED, "step": step, "reason": why})

    def _save(self) -> None:
        launched = self.launched
        loss = undisturbed_probe_loss(self.strategy.model, launched.probe)
        if not math.isfinite(loss):
            self._wait_for_saves()  # what was good is kept
            raise TrainingError(
                f"run {launched.run}, step {self.progress.step}: expected a finite loss of the "
                f"probe before a save, got {loss}; this state is not saved. The same command goes "
                "on from the newest checkpoint that verifies"
            )
        names = rng_keys(self.world.rank)
        state = {
            **self.strategy.state_tensors(),
            **{names[kind]: tensor for kind, tensor in random_state().items()},
        }
        facts = SaveFacts(
            name=CheckpointName(launched.run, launched.attempt, Step(self.progress.step)),
            parent=launched.parent,
            inputs=launched.inputs,
            state=manifest_state(
                self.progress,
                launched.config,
                base_model=launched.inputs.base_model,
                param_groups=self.strategy.param_groups(),
            ),
            metrics={"train_loss": self.train_loss, "probe_loss": loss},
            exact_resume=launched.is_exact,
        )
        with self.watchdog.paused(f"rank {self.world.rank}, after a save"):
            self.saver.save(state, facts)  # which waits where two are under way
        if not launched.config.save.asynchronous:
            self._wait_for_saves()
