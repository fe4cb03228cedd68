"""Small checkpoints for tests: a state that training could have, saved by one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from strongroom.checkpoint.catalogue import Committed, read_checkpoint
from strongroom.checkpoint.manifest import Inputs, Manifest
from strongroom.checkpoint.saving.saver import AsyncSaver, SaveFacts
from strongroom.checkpoint.writing.writer import CheckpointWriter
from strongroom.data.cursor import Cursor
from strongroom.names import Attempt, CheckpointId, CheckpointName, Digest, RunKey, Step
from strongroom.storage.base import Storage

RUN = RunKey("nightly-7")
INPUTS = Inputs(
    base_model=Digest.of(b"base model"),
    dataset=Digest.of(b"dataset"),
    tokenizer=Digest.of(b"tokenizer"),
    config=Digest.of(b"config"),
)


def checkpoint_name(step: int, attempt: int = 1, run: RunKey = RUN) -> CheckpointName:
    return CheckpointName(run, Attempt(attempt), Step(step))


def training_state(seed: int = 0, *, ranks: range = range(1)) -> dict[str, Tensor]:
    """Return a state that rung 2 finds whole: two parameters, their AdamW state, RNG per rank."""
    source = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}
    for name, shape in (("layer.weight", (6, 4)), ("layer.bias", (5,))):
        for key in (
            f"model.{name}",
            *(f"optim.state.{name}.{m}" for m in ("exp_avg", "exp_avg_sq")),
        ):
            state[key] = torch.randn(shape, generator=source)
        state[f"optim.state.{name}.step"] = torch.tensor(float(seed))
    for rank in ranks:
        state |= {
            f"rng.{rank}.torch": torch.arange(16, dtype=torch.uint8),
            f"rng.{rank}.python": torch.arange(5) + rank,
            f"rng.{rank}.numpy": torch.arange(5) + rank,
        }
    return state


def mixed_state(seed: int = 0) -> dict[str, Tensor]:
    """Return one tensor of every kind a state may hold: dtypes, 0-dim, empty, not contiguous."""
    source = torch.Generator().manual_seed(seed)
    whole = torch.randn(7, 3, generator=source)
    return {
        "float32": whole,
        "float64": whole.double(),
        "float16": whole.half(),
        "bfloat16": whole.bfloat16(),
        "float8": whole.to(torch.float8_e4m3fn),
        "bool": whole > 0,
        "uint8": torch.arange(9, dtype=torch.uint8),
        "int64": torch.arange(11) - 5 + seed,
        "scalar": torch.tensor(2.5),
        "scalar_int": torch.tensor(seed),
        "empty": torch.empty(0, 4),
        "transposed": torch.randn(4, 5, generator=source).t(),
        "view": torch.arange(100, dtype=torch.float32)[10:20:2],
    }


def save_facts(name: CheckpointName, **changes: object) -> SaveFacts:
    """Return facts that rung 2 finds whole."""
    facts: dict[str, Any] = {
        "name": name,
        "parent": None,
        "inputs": INPUTS,
        "state": {
            "cursor": Cursor(seed=3, num_rows=10, position=name.step.number % 10).to_json(),
            "scheduler": {"kind": "constant", "step": name.step.number},
            "counters": {"step": name.step.number, "tokens": 512, "samples": 8},
            "optimizer": {"name": "adamw", "param_groups": [{"lr": 0.001}]},
            "model": {
                "base_model": str(INPUTS.base_model),
                "trainable_only": False,
                "adapter": {"method": "full"},
            },
        },
        "metrics": {"train_loss": 1.25, "probe_loss": 1.5},
    }
    return SaveFacts(**{**facts, **changes})


def save_checkpoint(
    storage: Storage,
    step: int = 10,
    *,
    attempt: int = 1,
    tensors: Mapping[str, Tensor] | None = None,
    **changes: object,
) -> Committed:
    """Save in this process and return what was committed."""
    name = checkpoint_name(step, attempt)
    with saver_for(storage) as saver:
        saver.save(
            training_state(step) if tensors is None else tensors, save_facts(name, **changes)
        )
    return read_checkpoint(storage, name)


def write_checkpoint(  # noqa: PLR0913 -- what to save, and how
    storage: Storage,
    step: int = 10,
    *,
    attempt: int = 1,
    tensors: Mapping[str, Tensor] | None = None,
    base: Manifest | None = None,
    threads: int = 4,
    **changes: object,
) -> Committed:
    """Save in this process by the writer alone; nothing is copied before. `base`: as a delta."""
    name = checkpoint_name(step, attempt)
    writer = CheckpointWriter(
        storage,
        save_facts(name, **changes),
        fence=lambda: None,
        committed=lambda _manifest: None,
        base=base,
        threads=threads,
    )
    state = dict(training_state(step) if tensors is None else tensors)
    save_distributed(state, storage_writer=writer, no_dist=True)
    return read_checkpoint(storage, name)


def saver_for(storage: Storage) -> AsyncSaver:
    return AsyncSaver(storage, fence=lambda: None, on_commit=ignore_commit)


def ignore_commit(_manifest: Manifest, _durable_s: float) -> None:
    """Take note of nothing."""


def zeros_like(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in state.items()}


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Return whether names, dtypes, shapes and every bit are equal."""
    return set(first) == set(second) and all(
        first[name].dtype == second[name].dtype
        and first[name].shape == second[name].shape
        and torch.equal(bits(first[name]), bits(second[name]))
        for name in first
    )


def bits(tensor: Tensor) -> Tensor:
    """Return the bytes: equal for equal NaNs too, and for dtypes that cannot be compared."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def some_id(text: str) -> CheckpointId:
    return CheckpointId(Digest.of(text.encode()))
