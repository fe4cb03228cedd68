"""Look a run over before it starts: gather what is known of machine, inputs, store and run.

`examine` needs nothing but a configuration; `preflight_run` is for a run whose inputs are stored,
before every launch. Both only read: no store is made, and nothing is fetched that a launch would
not fetch. The judging is done by `strongroom.training.preflight`.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from strongroom.checkpoint.catalogue import checkpoint_names, read_checkpoint
from strongroom.checkpoint.run_record import RunRecord, read_run
from strongroom.custody.context import Custody
from strongroom.data.config import SourceConfig
from strongroom.data.curate import REPORT_FILE, TRAIN_FILE, CurationReport
from strongroom.errors import (
    FormatError,
    IntegrityError,
    StoreMissingError,
    UnknownNameError,
)
from strongroom.ledger.history import History
from strongroom.model.sources import resolve_model
from strongroom.names import CheckpointName, Digest, RunKey
from strongroom.storage.base import Storage
from strongroom.storage.local import LocalStorage
from strongroom.storage.s3_settings import S3Settings
from strongroom.storage.store import open_storage
from strongroom.storage.trees import fetch_tree, read_tree, tree_folder
from strongroom.training.config import RunConfig
from strongroom.training.preflight.base_model import read_model
from strongroom.training.preflight.facts import (
    DataFacts,
    Facts,
    RunFacts,
    SavedCheckpoint,
    StoreFacts,
)
from strongroom.training.preflight.machine import read_machine
from strongroom.training.preflight.numbers import values
from strongroom.training.preflight.report import PreflightReport, preflight
from strongroom.training.preflight.sample import measure_rows, sample_lines, sample_sources
from strongroom.training.preflight.saved import saved_checkpoint
from strongroom.training.preflight.tokenizer import CountTokens, read_tokenizer

MIN_CHECKPOINTS = 5
"""So many of the newest checkpoints of a run are looked at, or more where a number asks for it."""
MAX_RESUMES = 20
"""So many of the newest resumes of a store are looked at for a change of the number of ranks."""

logger = logging.getLogger(__name__)


def examine(  # noqa: PLR0913 -- everything is given, nothing is ambient
    config: RunConfig,
    *,
    run: RunKey,
    base_dir: Path,
    cache: Path,
    store_url: str | None,
    keys: Path,
    allreduce_ms: float | None = None,
) -> PreflightReport:
    """Look over a configuration, before anything of it is in a store, or at any time after.

    Args:
        config: what is to be run.
        run: the key it would run under.
        base_dir: the folder that relative sources start at.
        cache: a folder for converted models and sources.
        store_url: where checkpoints would go; None where that is not said.
        keys: the folder of keys.
        allreduce_ms: what a probe of the ranks measured.

    Raises:
        ModelSourceError: there is no usable model at `model.source`.
        DataError: a source is missing, or broken as a whole.
        StorageError: there is a store, and it does not answer.
    """
    custody, record = None, None
    if store_url is not None:
        with suppress(StoreMissingError):
            custody = Custody.open(store_url, keys=keys, cache=cache)
    if custody is not None:
        with suppress(UnknownNameError):
            record = read_run(custody.storage, run)
    if custody is not None and record is not None:
        return preflight_run(custody, record, config, allreduce_ms=allreduce_ms)
    folder = resolve_model(config.model.source, cache=cache)
    tokenizer, count_tokens = read_tokenizer(folder)
    facts = Facts(
        machine=read_machine(),
        model=read_model(folder, config.adapter),
        tokenizer=tokenizer,
        data=sample_sources(config.data, base_dir=base_dir, cache=cache, count_tokens=count_tokens),
        store=None if store_url is None else store_facts(store_url, exists=custody is not None),
        run=RunFacts(key=str(run)) if custody is None else run_facts(custody, run, config),
        allreduce_ms=allreduce_ms,
    )
    return preflight(config, facts)


def preflight_run(  # noqa: PLR0913 -- what is launched, where, and how
    custody: Custody,
    record: RunRecord,
    config: RunConfig,
    *,
    fresh_start: bool = False,
    ranks_are_here: bool = True,
    allreduce_ms: float | None = None,
) -> PreflightReport:
    """Look over a run whose inputs are stored, before a launch.

    Args:
        custody: the store.
        record: the run.
        config: its configuration, with the sections that the record does not keep.
        fresh_start: whether the launch is to begin anew where no checkpoint can be used.
        ranks_are_here: whether they start on this machine; if not, nothing is said of machines.
        allreduce_ms: what a probe of the ranks measured.
    """
    started = time.perf_counter()
    storage, cache, inputs = custody.storage, custody.cache, record.inputs
    model = fetch_tree(storage, "models", inputs.base_model, cache)
    tokenizer, count_tokens = read_tokenizer(
        fetch_tree(storage, "tokenizers", inputs.tokenizer, cache)
    )
    facts = Facts(
        machine=read_machine() if ranks_are_here else None,
        model=read_model(model, config.adapter),
        tokenizer=tokenizer,
        data=_stored_rows(storage, inputs.dataset, config, count_tokens),
        store=store_facts(custody.store.url, exists=True),
        run=run_facts(custody, record.run, config, fresh_start=fresh_start),
        allreduce_ms=allreduce_ms,
    )
    report = preflight(config, facts)
    logger.info(
        "preflight: run=%s findings=%s stopping=%d seconds=%.2f",
        record.run,
        [found.check for found in report.findings],
        len(report.stopping),
        time.perf_counter() - started,
    )
    return report


def store_facts(url: str, *, exists: bool) -> StoreFacts:
    """Return what its URL and the disk say of a store."""
    if url.startswith("s3://"):
        settings = S3Settings.from_url(url)
        return StoreFacts(
            url=url, exists=exists, is_remote=True, storage_class=settings.storage_class
        )
    storage = open_storage(url)
    free_bytes = None
    if isinstance(storage, LocalStorage):
        there = next(path for path in (storage.root, *storage.root.parents) if path.exists())
        free_bytes = shutil.disk_usage(there).free
    return StoreFacts(url=storage.url, exists=exists, is_remote=False, free_bytes=free_bytes)


def run_facts(
    custody: Custody, run: RunKey, config: RunConfig, *, fresh_start: bool = False
) -> RunFacts:
    """Return what store and ledger know of a run, and of resumes at other sizes."""
    history = custody.history()
    numbers = values(config.preflight.numbers)
    names = checkpoint_names(custody.storage, run)[::-1]
    most = max(MIN_CHECKPOINTS, int(numbers["unverified_checkpoints"]))
    found = RunFacts(
        key=str(run),
        num_checkpoints=len(names),
        checkpoints=tuple(_saved(custody.storage, history, names, most)),
        fresh_start=fresh_start,
    )
    if config.train.world_size <= numbers["reshard_tested_ranks"]:
        return found  # nobody will ask
    return replace(found, resharded=tuple(sorted(set(_resharded(custody.storage, history)))))


def _saved(
    storage: Storage, history: History, names: list[CheckpointName], most: int
) -> Iterator[SavedCheckpoint]:
    """Yield what the newest `most` committed checkpoints hold; damaged ones are for `verify`."""
    num_found = 0
    for name in names:
        if num_found == most:
            return
        try:
            manifest = read_checkpoint(storage, name).manifest
        except (UnknownNameError, IntegrityError, FormatError):
            continue
        num_found += 1
        record = history.by_name(name)
        yield saved_checkpoint(
            manifest,
            is_verified=record is not None and record.verified is not None,
            is_quarantined=record is not None and record.quarantined is not None,
        )


def _resharded(storage: Storage, history: History) -> Iterator[tuple[int, int]]:
    """Yield, for the newest resumes that led to a checkpoint, the ranks before and after."""
    firsts: dict[tuple[RunKey, int], CheckpointName] = {}
    for record in history.records.values():
        if record.committed is not None:
            firsts.setdefault((record.name.run, record.name.attempt.number), record.name)
    attempts = [attempt for run in history.runs.values() for attempt in run.attempts]
    resumes = []
    for attempt in sorted(attempts, key=lambda attempt: attempt.index):
        after = firsts.get((attempt.run, attempt.number))
        if attempt.resumed_from is None or after is None:
            continue
        if (before := history.records.get(attempt.resumed_from)) is not None:
            resumes.append((before.name, after))
    for saved, resumed in resumes[-MAX_RESUMES:]:
        with suppress(UnknownNameError, IntegrityError, FormatError):  # what is gone proves nothing
            yield (
                read_checkpoint(storage, saved).manifest.world_size,
                read_checkpoint(storage, resumed).manifest.world_size,
            )


def _stored_rows(
    storage: Storage, dataset: Digest, config: RunConfig, count_tokens: CountTokens
) -> DataFacts | None:
    folder = tree_folder("datasets", dataset)
    sizes = {file.name: file.num_bytes for file in read_tree(storage, "datasets", dataset)}
    if TRAIN_FILE not in sizes:
        return None
    num_rows = None
    if REPORT_FILE in sizes:
        key = f"{folder}/{REPORT_FILE}"
        num_rows = CurationReport.from_bytes(storage.read(key), where=key).num_train
    rows = sample_lines(
        sizes[TRAIN_FILE],
        lambda offset, num_bytes: storage.read(
            f"{folder}/{TRAIN_FILE}", offset=offset, num_bytes=num_bytes
        ),
        SourceConfig(uri=TRAIN_FILE),
    )
    return measure_rows(rows, count_tokens, config.data.max_tokens, num_rows=num_rows)
