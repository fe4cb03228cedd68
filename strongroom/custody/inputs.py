"""Bring a run's inputs into the store: base model, dataset, tokenizer, and the run's own record.

Everything a training process reads comes from the store by digest; nothing else decides what it
does. Each function is idempotent: the same input has the same digest and is stored once.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import platform
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import strongroom
from strongroom.canonical import JsonObject
from strongroom.checkpoint.manifest import Inputs
from strongroom.checkpoint.run_record import Probe, RunRecord, create_run
from strongroom.clock import now_utc
from strongroom.custody.context import Custody
from strongroom.data.config import DataConfig
from strongroom.data.curate import CurationReport, curate
from strongroom.data.quality import QualityReport, judge
from strongroom.data.rows import read_curated
from strongroom.errors import DataError
from strongroom.ledger.events import EventKind
from strongroom.model.sources import resolve_model
from strongroom.names import Digest, RunKey
from strongroom.storage.trees import fetch_tree, put_tree
from strongroom.tokenizer.adapt import TokenizerReport, choose_tokenizer
from strongroom.training.config import RunConfig
from strongroom.training.exactness import run_inexactness
from strongroom.training.placement import PLACEMENT_FIELDS

logger = logging.getLogger(__name__)

TRAIN_FILE = "train.jsonl"
HELD_OUT_FILE = "held_out.jsonl"
MAX_PROBE_TOKENS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A curated dataset in the store, and what was seen on the way."""

    digest: Digest
    curation: CurationReport
    quality: QualityReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """A tokenizer in the store, and what it costs on the dataset's languages."""

    digest: Digest
    report: TokenizerReport


def prepare_model(custody: Custody, source: str) -> Digest:
    """Store the base model and return its digest.

    Raises:
        ModelSourceError: there is no usable model at `source`.
    """
    folder = resolve_model(source, cache=custody.cache)
    digest = put_tree(custody.storage, "models", folder)
    logger.info("base model stored: source=%s digest=%s", source, digest)
    return digest


def prepare_dataset(
    custody: Custody, config: DataConfig, *, base_model: Digest, base_dir: Path
) -> Dataset:
    """Read, clean, split, judge and store the rows; relative sources start at `base_dir`.

    Raises:
        DataError: nothing usable is left; the message lists rows and reasons.
    """
    from strongroom.data.packing import control_tokens, token_counter
    from strongroom.model.build import tokenizer_from

    tokenizer = tokenizer_from(fetch_tree(custody.storage, "models", base_model, custody.cache))
    with tempfile.TemporaryDirectory(prefix="strongroom-dataset-") as work:
        out = Path(work) / "curated"
        curation = curate(
            config,
            base_dir=base_dir,
            cache=custody.cache,
            count_tokens=token_counter(tokenizer),
            control_tokens=control_tokens(tokenizer),
            out=out,
        )
        quality = judge(out / TRAIN_FILE, out / HELD_OUT_FILE)
        digest = put_tree(custody.storage, "datasets", out)
    logger.info("dataset stored: digest=%s passed=%s", digest, quality.passed)
    return Dataset(digest=digest, curation=curation, quality=quality)


def prepare_tokenizer(custody: Custody, *, base_model: Digest, dataset: Digest) -> Tokenizer:
    """Measure the base model's tokenizer on the dataset and store the one to train with."""
    base = fetch_tree(custody.storage, "models", base_model, custody.cache)
    curated = fetch_tree(custody.storage, "datasets", dataset, custody.cache)
    with tempfile.TemporaryDirectory(prefix="strongroom-tokenizer-") as work:
        out = Path(work) / "tokenizer"
        report = choose_tokenizer(base, curated, out)
        digest = put_tree(custody.storage, "tokenizers", out)
    logger.info("tokenizer stored: digest=%s", digest)
    return Tokenizer(digest=digest, report=report)


def prepare_run(  # noqa: PLR0913 -- the identity of a run is what it was made from
    custody: Custody,
    run: RunKey,
    config: RunConfig,
    *,
    base_model: Digest,
    dataset: Digest,
    tokenizer: Digest,
    author: str,
) -> RunRecord:
    """Create the run's record, or return the one that stands if it says the same.

    Raises:
        ConflictError: the run exists with other inputs or another configuration.
        DataError: no held-out row fits the probe.
    """
    inputs = Inputs(
        base_model=base_model, dataset=dataset, tokenizer=tokenizer, config=config.digest
    )
    wanted = RunRecord(
        run=run,
        author=author,
        created=now_utc(),
        config=config.to_json(),
        inputs=inputs,
        code=code_revision(),
        environment=environment(),
        probe=_probe(
            custody, dataset=dataset, tokenizer=tokenizer, max_tokens=config.data.max_tokens
        ),
        inexact=run_inexactness(config),
    )
    free = [f"config.train.{name}" for name in PLACEMENT_FIELDS]
    record = create_run(custody.storage, wanted, free_fields=free)
    if run not in custody.history().runs:  # also where a crash came between record and event
        custody.record(
            EventKind.RUN_CREATED,
            run=str(run),
            author=record.author,
            config=str(inputs.config),
            base_model=str(base_model),
            dataset=str(dataset),
            tokenizer=str(tokenizer),
        )
        logger.info("run created: run=%s config=%s author=%s", run, inputs.config, record.author)
    return record


def prepare(
    custody: Custody, run: RunKey, config: RunConfig, *, base_dir: Path, author: str
) -> RunRecord:
    """Bring everything a run needs into the store, in order, and create its record.

    Raises:
        DataError: the dataset does not pass its quality checks; each failed one is named.
    """
    base_model = prepare_model(custody, config.model.source)
    dataset = prepare_dataset(custody, config.data, base_model=base_model, base_dir=base_dir)
    if not dataset.quality.passed:
        failed = [check for check in dataset.quality.checks if not check.passed]
        raise DataError(
            "curated dataset", [f"check {check.name} failed: {check.observed}" for check in failed]
        )
    tokenizer = prepare_tokenizer(custody, base_model=base_model, dataset=dataset.digest)
    return prepare_run(
        custody,
        run,
        config,
        base_model=base_model,
        dataset=dataset.digest,
        tokenizer=tokenizer.digest,
        author=author,
    )


def _probe(custody: Custody, *, dataset: Digest, tokenizer: Digest, max_tokens: int) -> Probe:
    from strongroom.data.packing import encode_row
    from strongroom.model.build import tokenizer_from

    held_out = fetch_tree(custody.storage, "datasets", dataset, custody.cache) / HELD_OUT_FILE
    loaded = tokenizer_from(fetch_tree(custody.storage, "tokenizers", tokenizer, custody.cache))
    encoded = (encode_row(loaded, row, max_tokens) for row in read_curated(held_out))
    for row in encoded:
        if len(row.token_ids) <= MAX_PROBE_TOKENS:
            return Probe(token_ids=tuple(row.token_ids), trained=tuple(row.trained))
    raise DataError(
        str(held_out),
        [f"no held-out row has at most {MAX_PROBE_TOKENS} tokens, so there is no probe batch"],
    )


def code_revision() -> JsonObject:
    """Return the engine's version, the digest of its source files and the git revision, if any."""
    root = Path(strongroom.__file__).parent
    hasher = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        hasher.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return {
        "strongroom": strongroom.__version__,
        "source": str(Digest(hasher.hexdigest())),
        "git": _git_revision(root),
    }


def environment() -> JsonObject:
    """Return the versions a result may depend on."""
    packages = ("torch", "transformers", "peft", "numpy", "safetensors")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def _git_revision(folder: Path) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 -- a fixed command
            ["git", "-C", str(folder), "rev-parse", "HEAD"],  # noqa: S607 -- git of the PATH
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except FileNotFoundError:  # an installed wheel needs no git
        return None
    return done.stdout.strip() if done.returncode == 0 else None
