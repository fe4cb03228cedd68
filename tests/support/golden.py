"""What the sealed checkpoints of version 2 in `tests/golden` hold, and how they were made.

    python -m tests.support.golden FOLDER

makes a store of the same content with the writer of today. That is for the next version of the
format: what stands in `tests/golden` is never made anew.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from strongroom import canonical
from strongroom.checkpoint import boxes
from strongroom.checkpoint.attempts import AttemptRecord, claim_attempt
from strongroom.checkpoint.catalogue import read_checkpoint
from strongroom.checkpoint.manifest import Inputs, Manifest
from strongroom.checkpoint.run_record import Probe, RunRecord, create_run
from strongroom.checkpoint.writing import shard_plan
from strongroom.checkpoint.writing.writer import CheckpointWriter, SaveFacts
from strongroom.data.cursor import Cursor
from strongroom.names import CheckpointName, Digest, RunKey
from strongroom.storage.local import LocalStorage
from tests.support.ranks import run_ranks

WORLD_SIZE = 2
RUN = RunKey("golden-2")
FULL = CheckpointName.parse("golden-2/attempt-0001/step-00000002")
DELTA = CheckpointName.parse("golden-2/attempt-0001/step-00000004")
NEXT_DELTA = CheckpointName.parse("golden-2/attempt-0002/step-00000006")
CONFIG = {"model": {"source": "none", "dtype": "bfloat16"}, "adapter": {"method": "full"}}
INPUTS = Inputs(
    base_model=Digest.of(b"base model"),
    dataset=Digest.of(b"dataset"),
    tokenizer=Digest.of(b"tokenizer"),
    config=canonical.digest(CONFIG),
)

PARAMETERS: dict[str, tuple[tuple[int, ...], torch.dtype, Placement]] = {
    "embedding": ((33, 16), torch.float16, Shard(0)),
    "layer.weight": ((64, 40), torch.bfloat16, Shard(0)),
    "layer.quantized": ((9, 7), torch.float8_e4m3fn, Shard(0)),
    "head.weight": ((20, 51), torch.float32, Shard(1)),
    "head.bias": ((51,), torch.float64, Replicate()),
    "scale": ((), torch.float32, Replicate()),
    "one_row": ((1, 4), torch.float32, Shard(0)),  # the second rank's part is empty
    "unused": ((0, 4), torch.float32, Shard(0)),
}
FROZEN_AFTER = {"embedding": 2, "layer.quantized": 2, "head.bias": 2, "unused": 2, "head.weight": 4}
"""Parameters that no step after this one changes, nor their optimizer state."""


def expected(step: int) -> dict[str, Tensor]:
    """Return every tensor of the checkpoint of a step, whole."""
    state: dict[str, Tensor] = {}
    for parameter, (shape, dtype, _) in PARAMETERS.items():
        for index, name in enumerate(tensors_of(parameter)):
            values = torch.arange(math.prod(shape), dtype=torch.float64).remainder(101)
            state[name] = (values.sub(50).add(index).div(8)).to(dtype).reshape(shape)
            if shape and state[name].numel():
                state[name][-1] = last_change(parameter, step)  # the rest is as it was
            elif not shape:
                state[name] = torch.tensor(last_change(parameter, step) + index, dtype=dtype)
        state[f"optim.state.{parameter}.step"] = torch.tensor(float(last_change(parameter, step)))
    for rank in range(WORLD_SIZE):
        state |= own_state(rank, step)
    return state


def last_change(parameter: str, step: int) -> int:
    """Return the last of the steps to `step` that changed a parameter."""
    return min(step, FROZEN_AFTER.get(parameter, step))


def tensors_of(parameter: str) -> list[str]:
    """Return the names of a parameter and of its optimizer state that is of its shape."""
    kinds = ("exp_avg", "exp_avg_sq")
    return [f"model.{parameter}", *(f"optim.state.{parameter}.{kind}" for kind in kinds)]


def own_state(rank: int, step: int) -> dict[str, Tensor]:
    """Return the tensors that one rank alone holds."""
    return {
        f"rng.{rank}.torch": (torch.arange(600) * step + rank).to(torch.uint8),
        f"rng.{rank}.python": torch.arange(4) * step + rank,
        f"rng.{rank}.numpy": torch.arange(4) * step - rank,
    }


def make(folder: Path) -> None:
    """Make the store; it has one run of two attempts and three checkpoints."""
    storage = LocalStorage(folder)
    create_run(
        storage,
        RunRecord(
            run=RUN,
            author="deniz",
            created="2026-12-01T09:00:00.000Z",
            config=CONFIG,
            inputs=INPUTS,
            code={"revision": "0" * 40},
            environment={"torch": torch.__version__},
            probe=Probe(token_ids=(1, 2, 3), trained=(False, True, True)),
        ),
    )
    for _ in range(2):
        claim_attempt(storage, AttemptRecord(run=RUN))
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "store").symlink_to(folder.resolve())
        run_ranks(WORLD_SIZE, _save, Path(place))


def _save(rank: int, folder: Path) -> None:
    # Small limits, so that few bytes show every kind of cut, and a rank with several shards.
    boxes.CHUNK_BYTES = 2048
    shard_plan.PART_BYTES = 4096
    shard_plan.SHARD_BYTES = 40 * 1024
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    storage = LocalStorage(folder / "store")
    last: Manifest | None = None
    for name in (FULL, DELTA, NEXT_DELTA):
        step = name.step.number
        state = expected(step)
        for other in set(range(WORLD_SIZE)) - {rank}:
            for key in own_state(other, step):
                del state[key]
        for parameter, (_, _, placement) in PARAMETERS.items():
            for key in tensors_of(parameter):
                # Without a source rank each takes its part of what all have.
                state[key] = distribute_tensor(state[key], mesh, [placement], src_data_rank=None)
        writer = CheckpointWriter(
            storage,
            _facts(name, last),
            fence=lambda: None,
            committed=lambda _manifest: None,
            base=last,
        )
        save_distributed(state, storage_writer=writer)
        last = read_checkpoint(storage, name).manifest


def _facts(name: CheckpointName, last: Manifest | None) -> SaveFacts:
    step = name.step.number
    has_resumed = last is not None and last.name.attempt != name.attempt
    return SaveFacts(
        name=name,
        parent=last.checkpoint_id if last is not None and has_resumed else None,
        inputs=INPUTS,
        state={
            "cursor": Cursor(seed=3, num_rows=10, position=step).to_json(),
            "scheduler": {"kind": "constant", "step": step},
            "counters": {"step": step, "tokens": 512 * step, "samples": 8 * step},
            "optimizer": {"name": "adamw", "param_groups": [{"lr": 0.001}]},
            "model": {
                "base_model": str(INPUTS.base_model),
                "trainable_only": False,
                "adapter": {"method": "full"},
            },
        },
        metrics={"train_loss": 1.25, "probe_loss": 1.5, "pause_s": 0.001},
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]))
