"""A run that is ready to be trained: a store with its inputs and its record, and a tiny model."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import list_checkpoints
from strongroom.checkpoint.manifest import Inputs
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.checkpoint.run_record import Probe, RunRecord, create_run
from strongroom.clock import now_utc
from strongroom.names import RunKey, StateDigest
from strongroom.storage.base import Storage
from strongroom.storage.store import open_or_create_store
from strongroom.storage.trees import put_tree
from strongroom.training.config import parse_config
from strongroom.training.launching.spec import Launch
from tests.support.tiny_model import make_chat_rows, make_tiny_model

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """One run in one store."""

    store_url: str
    storage: Storage
    record: RunRecord
    keys: Path
    cache: Path

    def launch(self, **options: Any) -> Launch:  # noqa: ANN401 -- passed on as they are
        """Return the launch of this run on this machine."""
        return Launch.of(
            self.record, store_url=self.store_url, keys=self.keys, cache=self.cache, **options
        )

    def state_digests(self) -> dict[int, StateDigest]:
        """Return the state digest of the newest checkpoint of every step."""
        return {
            committed.name.step.number: state_digest(CheckpointReader(self.storage, committed))
            for committed in list_checkpoints(self.storage, self.record.run)
        }


def make_training_run(
    root: Path,
    *,
    key: str = "tiny",
    method: str = "lora",
    num_rows: int = 60,
    **train: Any,  # noqa: ANN401 -- fields of TrainConfig, and `save`
) -> TrainingRun:
    """Make a store in `root/store` (or use the one there) with a run of a tiny model.

    The same arguments give the same run, but for the times in its record.
    """
    from strongroom.data.packing import encode_row
    from strongroom.data.rows import read_curated
    from strongroom.model.build import tokenizer_from

    save = train.pop("save", {"every_steps": 3})
    config = parse_config(
        {
            "model": {"source": "tiny", "dtype": train.pop("dtype", "float32")},
            "data": {"sources": [{"uri": "rows.jsonl"}], "max_tokens": 128},
            "adapter": {"method": method, "rank": 4, "dropout": train.pop("dropout", 0.1)},
            "train": {
                "steps": 8,
                "batch_rows": 8,
                "learning_rate": 0.02 if method == "lora" else 0.003,
                "warmup_steps": 2,
                "schedule": "cosine",
                "weight_decay": 0.01,
                **train,
            },
            "save": save,
        },
        source="test",
    )
    store = open_or_create_store(str(root / "store"))
    model = make_tiny_model(root / "model")
    tokenizer = root / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copy(model / name, tokenizer / name)
    dataset = root / "dataset"
    make_chat_rows(dataset / "train.jsonl", num_rows)
    make_chat_rows(dataset / "held_out.jsonl", 4, seed=1)
    loaded = tokenizer_from(tokenizer)
    probe = encode_row(loaded, read_curated(dataset / "held_out.jsonl")[0], 128)
    environment: JsonObject = {}
    record = create_run(
        store.storage,
        RunRecord(
            run=RunKey(key),
            author="ada",
            created=now_utc(),
            config=config.to_json(),
            inputs=Inputs(
                base_model=put_tree(store.storage, "models", model),
                dataset=put_tree(store.storage, "datasets", dataset),
                tokenizer=put_tree(store.storage, "tokenizers", tokenizer),
                config=config.digest,
            ),
            code={},
            environment=environment,
            probe=Probe(token_ids=tuple(probe.token_ids), trained=tuple(probe.trained)),
        ),
    )
    return TrainingRun(
        store_url=store.url,
        storage=store.storage,
        record=record,
        keys=root / "keys",
        cache=root / "cache",
    )
