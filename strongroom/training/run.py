"""One launch of a run, from the store back to the store, as one rank lives it.

Order: rank 0 mends the ledger, chooses where to go on from and claims the attempt; all ranks fetch
the inputs, build the model, restore it and train; rank 0 enters each commit into the ledger. The
inputs come from the store alone, each checked against its digest.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from strongroom import canonical
from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.run_record import RunRecord, check_fence, claim_attempt, read_run
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveOptions
from strongroom.data.rows import read_curated
from strongroom.errors import FormatError, StorageError, TrainingError
from strongroom.model.adapters import trainable_names, with_adapter
from strongroom.model.build import build_base, tokenizer_from
from strongroom.names import Attempt, CheckpointId, RunKey
from strongroom.signing.keyring import KeyFolder
from strongroom.storage.base import Storage
from strongroom.storage.store import open_store
from strongroom.storage.trees import fetch_tree
from strongroom.training.batches import TrainingRows
from strongroom.training.commits import Registrar
from strongroom.training.config import RunConfig, SaveConfig, parse_config
from strongroom.training.loop import Launched, Loop
from strongroom.training.progress import Progress
from strongroom.training.reporting import Report, ReportKind, committed_event
from strongroom.training.resume import choose_resume_point, restore
from strongroom.training.rng import seed_rank
from strongroom.training.stop import StopRequest
from strongroom.training.strategies.fsdp2 import Fsdp2
from strongroom.training.world import World, joined_world

TRAIN_FILE = "train.jsonl"
ABANDONED_S = 86_400.0
"""An upload that was begun longer ago than this is taken for one whose writer is dead."""

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
    fresh_start: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opening:
    """What rank 0 found and decided, before anything is built.

    Attributes:
        attempt: None where the run is complete and there is nothing to do.
        resume_from: None for a start at the beginning.
    """

    attempt: Attempt | None
    resume_from: Committed | None

    @property
    def parent(self) -> CheckpointId | None:
        """The id of the checkpoint to go on from."""
        return None if self.resume_from is None else self.resume_from.checkpoint_id


def train(request: RunRequest, report: Report, stop: StopRequest) -> bool:
    """Go on with a run until it is complete or asked to stop; return whether it is complete.

    Raises:
        StrongroomError: what went wrong, on the rank where it did.
        PeerError: it went wrong on rank 0.
    """
    store = open_store(request.store_url)
    record = read_run(store.storage, request.run)
    config = _config_of(record)
    with joined_world(config.train.threads_per_rank) as world:
        if world.size != config.train.world_size:
            raise TrainingError(
                f"run {record.run}: expected {config.train.world_size} ranks, as its record says, "
                f"got {world.size}; launch it with --nproc-per-node {config.train.world_size}"
            )
        registrar = Registrar.of(store, KeyFolder(request.keys)) if world.is_first else None
        rank = _Rank(
            request=request,
            storage=store.storage,
            record=record,
            config=config,
            world=world,
            registrar=registrar,
            report=report,
            stop=stop,
        )
        return rank.train()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rank:
    """What one rank has to work with; the registrar is rank 0's."""

    request: RunRequest
    storage: Storage
    record: RunRecord
    config: RunConfig
    world: World
    registrar: Registrar | None
    report: Report
    stop: StopRequest

    def train(self) -> bool:
        opening = self.world.from_first(self._open)
        if opening.attempt is None:
            return self._tell_end(self.config.train.steps, is_complete=True)
        loop = self._loop(opening.attempt, opening)
        is_complete = loop.run()
        loop.saver.close()
        return self._tell_end(loop.progress.step, is_complete=is_complete)

    def _open(self) -> _Opening:
        """On rank 0: mend the ledger, choose where to go on from, claim the attempt."""
        run, registrar = self.record.run, self._registrar()
        for committed in registrar.enter_forgotten(self.storage, run):
            self.report(committed_event(committed.manifest, durable_s=None))
        resume_from = choose_resume_point(
            self.storage, run, registrar.history(), fresh_start=self.request.fresh_start
        )
        opening = _Opening(attempt=None, resume_from=resume_from)
        if resume_from is not None and resume_from.name.step.number >= self.config.train.steps:
            return opening
        attempt = claim_attempt(self.storage, run)
        _discard_abandoned(self.storage)
        registrar.enter_attempt(run, attempt, opening.parent)
        self.report(
            {
                "kind": ReportKind.STARTED,
                "run": str(run),
                "attempt": attempt.number,
                "world_size": self.world.size,
                "resumed_from": None if resume_from is None else str(resume_from.name),
            }
        )
        return replace(opening, attempt=attempt)

    def _loop(self, attempt: Attempt, opening: _Opening) -> Loop:
        train = self.config.train
        # First by rank 0, which reads every byte of what is cached; then by all, who find it there.
        self.world.from_first(lambda: self._fetch_inputs(in_full=True))
        model_folder, tokenizer_folder, dataset_folder = self._fetch_inputs(in_full=False)
        rows = TrainingRows(
            rows=read_curated(dataset_folder / TRAIN_FILE),
            tokenizer=tokenizer_from(tokenizer_folder),
            max_tokens=self.config.data.max_tokens,
        )
        base = build_base(model_folder, self.config.model.dtype)
        strategy = Fsdp2(world_size=self.world.size)
        model = strategy.prepare(with_adapter(base, self.config.adapter, seed=train.seed))
        optimizer = strategy.optimizer(model, train)
        seed_rank(train.seed, self.world.rank)
        progress = Progress.start(seed=train.seed, num_rows=len(rows))
        if opening.resume_from is not None:
            progress = restore(
                self.storage,
                opening.resume_from,
                self.record,
                world=self.world,
                strategy=strategy,
                model=model,
                optimizer=optimizer,
            )
        logger.info(
            "training: run=%s %s step=%d trained=%d rows=%d world_size=%d",
            self.record.run,
            attempt,
            progress.step,
            len(trainable_names(model)),
            len(rows),
            self.world.size,
        )
        return Loop(
            launched=Launched(
                run=self.record.run,
                attempt=attempt,
                parent=opening.parent,
                inputs=self.record.inputs,
                config=self.config,
                probe=self.record.probe,
            ),
            world=self.world,
            strategy=strategy,
            model=model,
            optimizer=optimizer,
            rows=rows,
            saver=AsyncSaver(
                self.storage,
                fence=lambda: check_fence(self.storage, self.record.run, attempt),
                on_commit=self._enter_commit,
                options=save_options(self.config.save),
                last=None if opening.resume_from is None else opening.resume_from.manifest,
            ),
            report=self.report,
            stop=self.stop,
            progress=progress,
        )

    def _fetch_inputs(self, *, in_full: bool) -> tuple[Path, Path, Path]:
        inputs, cache = self.record.inputs, self.request.cache
        return (
            fetch_tree(self.storage, "models", inputs.base_model, cache, verify=in_full),
            fetch_tree(self.storage, "tokenizers", inputs.tokenizer, cache, verify=in_full),
            fetch_tree(self.storage, "datasets", inputs.dataset, cache, verify=in_full),
        )

    def _enter_commit(self, manifest: Manifest, durable_s: float) -> None:
        self._registrar().enter_commit(manifest)
        self.report(committed_event(manifest, durable_s=durable_s))

    def _tell_end(self, step: int, *, is_complete: bool) -> bool:
        if self.world.is_first:
            kind = ReportKind.FINISHED if is_complete else ReportKind.STOPPED
            self.report({"kind": kind, "step": step})
            logger.info("%s: run=%s step=%d", kind, self.record.run, step)
        return is_complete

    def _registrar(self) -> Registrar:
        if self.registrar is None:
            raise AssertionError("rank 0 alone writes to the ledger")
        return self.registrar


def save_options(config: SaveConfig) -> SaveOptions:
    """Return what a configuration asks of the saver."""
    return SaveOptions(
        staging=config.staging,
        writer=config.writer,
        full_every=config.full_every,
        delta_min_share=config.delta_min_share,
    )


def _discard_abandoned(storage: Storage) -> None:
    """Clear away what writers that were killed left in the store; training can do without that."""
    try:
        discarded = storage.discard_unfinished(older_than_s=ABANDONED_S)
    except StorageError as error:
        logger.warning("unfinished uploads were not looked for: %s", error)
        return
    if discarded:
        logger.info("unfinished uploads discarded: count=%d %s", len(discarded), discarded)


def _config_of(record: RunRecord) -> RunConfig:
    found = canonical.digest(record.config)
    if found != record.inputs.config:
        raise FormatError(
            f"run {record.run}: expected a configuration of digest {record.inputs.config} in its "
            f"record, got {found}; the record was changed after it was written"
        )
    return parse_config(record.config, source=f"run {record.run}")
