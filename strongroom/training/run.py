"""One launch of a run, from the store back to the store, as one rank lives it.

Order: rank 0 mends the ledger, chooses where to go on from and claims the attempt; all ranks fetch
the inputs, build the model, restore it and train; rank 0 enters each commit into the ledger. The
inputs come from the store alone, each checked against its digest.
"""

from __future__ import annotations

import gc
import logging
import math
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.checkpoint.attempts import check_fence
from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.run_record import RunRecord, read_run
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveOptions
from strongroom.errors import ConfigError, FormatError
from strongroom.model.adapters import trainable_names, with_adapter
from strongroom.model.build import build_base, tokenizer_from
from strongroom.names import Attempt, RunKey
from strongroom.signing.keyring import KeyFolder
from strongroom.storage.base import Storage
from strongroom.storage.store import open_store
from strongroom.storage.trees import fetch_tree
from strongroom.training.batches import TrainingRows
from strongroom.training.commits import Registrar
from strongroom.training.config import RunConfig, SaveConfig, parse_config
from strongroom.training.environment import environment
from strongroom.training.failure import failure_event
from strongroom.training.isolation import check_isolation
from strongroom.training.launching.spec import LaunchSettings
from strongroom.training.loop import End, Launched, Loop
from strongroom.training.meters import StepMeter, peak_flops_per_rank
from strongroom.training.opening import Opening, open_attempt
from strongroom.training.placement import Placement, placement_faults
from strongroom.training.preflight.fabric import measure_allreduce_ms
from strongroom.training.progress import Progress
from strongroom.training.reporting import Report, ReportKind, committed_event
from strongroom.training.resume import restore
from strongroom.training.rng import seed_rank
from strongroom.training.stop import StopRequest
from strongroom.training.strategies.base import Strategy
from strongroom.training.strategies.build import spread
from strongroom.training.telling import tell_rolled_back, tell_start, tracked
from strongroom.training.watchdog import Watchdog
from strongroom.training.world import World, joined_world

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """Which run to go on with.

    Attributes:
        keys: folder of the service's key; rank 0 alone uses it.
        cache: folder for verified copies of the inputs.
        fresh_start: begin anew where the run has checkpoints, none of which can be used.
    """

    store_url: str
    run: RunKey
    keys: Path
    cache: Path
    settings: LaunchSettings
    fresh_start: bool


def train(request: RunRequest, report: Report, stop: StopRequest) -> bool:
    """Go on with a run until it is complete or asked to stop; return whether it is complete.

    Raises:
        StrongroomError: what went wrong, on the rank where it did.
        PeerError: it went wrong on rank 0.
    """
    store = open_store(request.store_url)
    record = read_run(store.storage, request.run)
    config = _config_of(record)
    placement = request.settings.placement
    with joined_world(placement.threads_per_rank) as world:
        _check_placement(record, placement, world)
        registrar = Registrar.of(store, KeyFolder(request.keys)) if world.is_first else None
        rank = _Rank(
            request=request,
            storage=store.storage,
            record=record,
            config=config,
            placement=placement,
            world=world,
            registrar=registrar,
            report=report,
            stop=stop,
        )
        return rank.train()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ended:
    """What an attempt leaves to the one that goes back; its model is not among it.

    Attributes:
        trouble: why it is gone back.
    """

    end: End
    progress: Progress
    trouble: JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rank:
    """What one rank has to work with; the registrar is rank 0's."""

    request: RunRequest
    storage: Storage
    record: RunRecord
    config: RunConfig
    placement: Placement
    world: World
    registrar: Registrar | None
    report: Report
    stop: StopRequest

    def train(self) -> bool:
        """Train to the end, or to a stop; each return to an earlier checkpoint is an attempt."""
        before: _Ended | None = None
        while True:
            opening = self.world.from_first(self._open)
            if opening.attempt is None:
                self._tell_end(self.report, End.COMPLETE, self.config.train.steps)
                return True
            before = self._attempt(opening.attempt, opening, before)
            if before.end is not End.ROLL_BACK:
                return before.end is End.COMPLETE
            gc.collect()  # a sharded model is a ring of hooks, and there is no room for two

    def _open(self) -> Opening:
        return open_attempt(
            self.storage,
            self.record,
            self.config,
            self.placement,
            environment=environment(self.world.device, self.placement.strategy),
            registrar=self._registrar(),
            report=self.report,
            fresh_start=self.request.fresh_start,
        )

    def _attempt(self, attempt: Attempt, opening: Opening, before: _Ended | None) -> _Ended:
        """Build everything, restore it and train; `before` is what is gone back from."""
        with ExitStack() as stack:
            rows, model, model_config = self._inputs()
            meter = self._meter(model, model_config)
            strategy = spread(model, self.config.train, self.placement, self.world.device)
            stack.callback(strategy.close)
            if self.config.data.packing == "blocks":
                check_isolation(strategy.model, rows, self.world.device)
            progress = self._restored(strategy, rows, opening)
            report = stack.enter_context(self._tracked(opening, progress))
            self._tell_start(report, opening, before, progress)
            if before is not None:
                progress = progress.passing_over(before.progress.passed_over)
            saver = self._saver(attempt, opening, report)
            watchdog = stack.enter_context(self._watchdog())
            loop = Loop(
                launched=Launched(
                    run=self.record.run,
                    attempt=attempt,
                    parent=opening.parent,
                    inputs=self.record.inputs,
                    config=self.config,
                    placement=self.placement,
                    probe=self.record.probe,
                    is_exact=not self.record.inexact,
                ),
                world=self.world,
                strategy=strategy,
                rows=rows,
                saver=saver,
                report=report,
                stop=self.stop,
                watchdog=watchdog,
                meter=meter,
                progress=progress,
                train_loss=_train_loss(opening.resume_from),
            )
            end = loop.run()
            saver.close()
            self._tell_end(report, end, loop.progress.step)
            return _Ended(end=end, progress=loop.progress, trouble=loop.trouble)

    def _inputs(self) -> tuple[TrainingRows, nn.Module, JsonObject]:
        """Return the rows, the model as it is before training, and the configuration it is of."""
        train = self.config.train
        # First by rank 0, which reads every byte of what is cached; then by all, who find it there.
        self.world.from_first(lambda: self._fetch_inputs(in_full=True))
        model_folder, tokenizer_folder, dataset_folder = self._fetch_inputs(in_full=False)
        rows = TrainingRows.open(
            dataset_folder, tokenizer=tokenizer_from(tokenizer_folder), config=self.config.data
        )
        base = build_base(model_folder, self.config.model.dtype)
        model_config = base.config.to_dict()
        return rows, with_adapter(base, self.config.adapter, seed=train.seed), model_config

    def _restored(self, strategy: Strategy, rows: TrainingRows, opening: Opening) -> Progress:
        seed = self.config.train.seed
        start = rows.first_cursor(seed)
        seed_rank(seed, self.world.rank)
        progress = Progress.start(start)
        if opening.resume_from is not None:
            progress = restore(
                self.storage,
                opening.resume_from,
                self.record,
                world=self.world,
                strategy=strategy,
                start=start,
            )
        logger.info(
            "training: run=%s %s step=%d trained=%d rows=%d world_size=%d strategy=%s",
            self.record.run,
            opening.attempt,
            progress.step,
            len(trainable_names(strategy.model)),
            len(rows),
            self.world.size,
            self.placement.strategy,
        )
        return progress

    def _meter(self, model: nn.Module, model_config: JsonObject) -> StepMeter:
        train = self.config.train
        dtype = "float8" if train.fsdp2.float8 == "on" else None
        stated = self.request.settings.tracking.peak_tflops_per_rank
        return StepMeter.of(
            model_config,
            trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
            total=sum(p.numel() for p in model.parameters()),
            world_size=self.world.size,
            peak_flops_per_rank=peak_flops_per_rank(
                stated, dtype or train.compute_dtype or self.config.model.dtype
            ),
        )

    def _saver(self, attempt: Attempt, opening: Opening, report: Report) -> AsyncSaver:
        def entered(manifest: Manifest, durable_s: float) -> None:
            self._registrar().enter_commit(manifest)
            report(committed_event(manifest, durable_s=durable_s))

        return AsyncSaver(
            self.storage,
            fence=lambda: check_fence(self.storage, self.record.run, attempt),
            on_commit=entered,
            options=save_options(self.config.save),
            last=None if opening.resume_from is None else opening.resume_from.manifest,
        )

    def _tracked(self, opening: Opening, progress: Progress) -> AbstractContextManager[Report]:
        """Return what tells an event to the trackers too; rank 0 alone has any."""
        if not self.world.is_first:
            return nullcontext(self.report)
        return tracked(
            self.report,
            self.request.settings,
            self.record,
            opening,
            step=progress.step,
            folder=self.request.cache / "tracking",
        )

    def _watchdog(self) -> Watchdog:
        return Watchdog(
            self.request.settings.launch.hang_timeout_s,
            tell=lambda error: self.report(failure_event(error, rank=self.world.rank)),
        )

    def _tell_start(
        self, report: Report, opening: Opening, before: _Ended | None, progress: Progress
    ) -> None:
        allreduce_ms = measure_allreduce_ms()
        if not self.world.is_first:
            return
        settings = self.request.settings
        tell_start(report, settings, self.record, opening, allreduce_ms=allreduce_ms)
        if before is not None:
            tell_rolled_back(
                report,
                opening,
                from_step=before.progress.step + 1,
                to_step=progress.step,
                trouble=before.trouble,
            )

    def _fetch_inputs(self, *, in_full: bool) -> tuple[Path, Path, Path]:
        inputs, cache = self.record.inputs, self.request.cache
        return (
            fetch_tree(self.storage, "models", inputs.base_model, cache, verify=in_full),
            fetch_tree(self.storage, "tokenizers", inputs.tokenizer, cache, verify=in_full),
            fetch_tree(self.storage, "datasets", inputs.dataset, cache, verify=in_full),
        )

    def _tell_end(self, report: Report, end: End, step: int) -> None:
        if not self.world.is_first or end is End.ROLL_BACK:
            return
        kind = ReportKind.FINISHED if end is End.COMPLETE else ReportKind.STOPPED
        report({"kind": kind, "step": step})
        logger.info("%s: run=%s step=%d", kind, self.record.run, step)

    def _registrar(self) -> Registrar:
        if self.registrar is None:
            raise AssertionError("rank 0 alone writes to the ledger")
        return self.registrar


def _train_loss(resumed: Committed | None) -> float:
    """Return the loss of the newest step that was learnt from; none was before the first."""
    return math.nan if resumed is None else resumed.manifest.metrics["train_loss"]


def save_options(config: SaveConfig) -> SaveOptions:
    """Return what a configuration asks of the saver."""
    return SaveOptions(
        staging=config.staging,
        writer=config.writer,
        full_every=config.full_every,
        delta_min_share=config.delta_min_share,
    )


def _check_placement(record: RunRecord, placement: Placement, world: World) -> None:
    """Refuse a way to spread the work that the run's steps do not allow, or that is not there."""
    faults = placement_faults(placement, record.config["train"]["batch_rows"])
    if world.size != placement.world_size:
        faults.append(f"world_size: expected {placement.world_size} ranks, got {world.size}")
    if faults:
        raise ConfigError(f"run {record.run}, as it is launched", faults)


def _config_of(record: RunRecord) -> RunConfig:
    found = canonical.digest(record.config)
    if found != record.inputs.config:
        raise FormatError(
            f"run {record.run}: expected a configuration of digest {record.inputs.config} in its "
            f"record, got {found}; the record was changed after it was written"
        )
    return parse_config(record.config, source=f"run {record.run}")
