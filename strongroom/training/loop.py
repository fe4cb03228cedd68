"""The loop: agree, save if it is due, take a step.

Invariants: every rank takes the same decisions, because each is made from numbers that all ranks
agreed on; the loss is the mean over all trained tokens of the global batch, so the number of ranks
does not change the mathematics; a state that is not finite is never saved.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import nn

from strongroom.checkpoint.manifest import Inputs
from strongroom.checkpoint.run_record import Probe
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveFacts
from strongroom.data.cursor import take
from strongroom.errors import PeerError, StrongroomError, TrainingError
from strongroom.model.loss import completion_loss_sum
from strongroom.names import Attempt, CheckpointId, CheckpointName, RunKey, Step
from strongroom.training.batches import TrainingRows, rank_part
from strongroom.training.config import RunConfig
from strongroom.training.policy import (
    Moment,
    SaveReason,
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
from strongroom.training.world import World

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """What this launch is: the same on every rank, and for as long as it lasts.

    Attributes:
        parent: the checkpoint it resumed from, None for a fresh start.
    """

    run: RunKey
    attempt: Attempt
    parent: CheckpointId | None
    inputs: Inputs
    config: RunConfig
    probe: Probe


@dataclass(kw_only=True, slots=True)
class Loop:
    """One rank's part of training, from where `progress` stands to the end or to a stop."""

    launched: Launched
    world: World
    strategy: Strategy
    model: nn.Module
    optimizer: torch.optim.Optimizer
    rows: TrainingRows
    saver: AsyncSaver
    report: Report
    stop: StopRequest
    progress: Progress
    _train_loss: float = field(default=math.nan, init=False)

    def run(self) -> bool:
        """Train; return whether the run is complete, rather than stopped. All saves have ended.

        Raises:
            SaveError: a save failed.
            FencedError: a newer attempt owns the run.
            TrainingError: loss or gradient is not finite.
        """
        config = self.launched.config
        self.model.train()
        saved_step, saved_at = self.progress.step, time.monotonic()
        while True:
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
                self.saver.wait()
                return moment.step >= moment.last_step
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
        train = self.launched.config.train
        started = time.monotonic()
        step = self.progress.step + 1
        indices, cursor = take(self.progress.cursor, train.batch_rows)
        batch = self.rows.batch(
            rank_part(indices, rank=self.world.rank, world_size=self.world.size)
        )
        logits_BTV = self.model(input_ids=batch.tokens_BT, attention_mask=batch.attention_BT).logits
        nats, count = completion_loss_sum(logits_BTV, batch.labels_BT)
        total_nats, total_count, tokens = self.world.total(
            nats.item(), count.item(), batch.attention_BT.sum().item()
        )
        # The strategy takes the mean of the ranks' gradients; this makes it the mean over tokens.
        (nats * (self.world.size / total_count)).backward()  # type: ignore[no-untyped-call]
        grad_norm = self.strategy.clip_gradients(self.model, train.max_grad_norm)
        self._train_loss = total_nats / total_count
        self._check_finite(step, loss=self._train_loss, grad_norm=grad_norm)
        rate = learning_rate(train, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.saver.wait_staged()  # from here on the state changes
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress = self.progress.after_step(
            tokens=int(tokens), samples=len(indices), cursor=cursor
        )
        if self.world.is_first:
            self._tell_step(rate, grad_norm, tokens / (time.monotonic() - started))

    def _check_finite(self, step: int, *, loss: float, grad_norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return
        self.saver.wait()  # what was good is kept
        raise TrainingError(
            f"run {self.launched.run}, step {step}: expected a finite loss and gradient, got loss "
            f"{loss} and gradient norm {grad_norm}; nothing of this step was saved. Choose another "
            "run key and a lower train.learning_rate, or a longer train.warmup_steps"
        )

    def _tell_step(self, rate: float, grad_norm: float, tokens_per_s: float) -> None:
        step = self.progress.step
        self.report(
            {
                "kind": ReportKind.STEP,
                "step": step,
                "loss": self._train_loss,
                "learning_rate": rate,
                "grad_norm": grad_norm,
                "tokens_per_s": tokens_per_s,
            }
        )
        logger.info(
            "step %d of %d: loss=%.4f learning_rate=%.3g grad_norm=%.3f tokens_per_s=%.0f",
            step,
            self.launched.config.train.steps,
            self._train_loss,
            rate,
            grad_norm,
            tokens_per_s,
        )

    def _tell_skipped(self, reason: SaveReason) -> None:
        step = self.progress.step
        why = f"{reason}, but one save is being written and another waits"
        logger.warning("save skipped: step=%d reason=%s", step, why)
        if self.world.is_first:
            self.report({"kind": ReportKind.SAVE_SKIPPED, "step": step, "reason": why})

    def _save(self) -> None:
        launched = self.launched
        loss = undisturbed_probe_loss(self.model, launched.probe)
        names = rng_keys(self.world.rank)
        state = {
            **self.strategy.state_tensors(self.model, self.optimizer),
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
                param_groups=self.strategy.param_groups(self.model, self.optimizer),
            ),
            metrics={"train_loss": self._train_loss, "probe_loss": loss},
        )
        self.saver.save(state, facts)
        if not launched.config.save.asynchronous:
            self.saver.wait()
