from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from strongroom.data.config import DataConfig, SourceConfig
from strongroom.errors import TrainingError
from strongroom.model.adapters import with_adapter
from strongroom.model.build import build_base, tokenizer_from
from strongroom.model.config import AdapterConfig
from strongroom.training.batches import TrainingRows
from strongroom.training.isolation import check_isolation
from tests.support.ranks import run_ranks
from tests.support.tiny_model import make_chat_rows, make_tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("isolation")
    make_tiny_model(folder / "model")
    make_chat_rows(folder / "train.jsonl", 12)
    return folder


def rows_of(folder: Path) -> TrainingRows:
    config = DataConfig(sources=(SourceConfig(uri="rows"),), max_tokens=128, packing="blocks")
    return TrainingRows.open(folder, tokenizer=tokenizer_from(folder / "model"), config=config)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_model_that_keeps_rows_apart_is_let_through_as_it_was(
    folder: Path, dtype: str, method: str
) -> None:
    config = AdapterConfig(method="full") if method == "full" else AdapterConfig()
    model = with_adapter(build_base(folder / "model", dtype), config, seed=0).train()
    random.seed(1)
    before = torch.get_rng_state(), random.getstate()
    check_isolation(model, rows_of(folder), CPU)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_whose_cache_is_on_is_refused(folder: Path) -> None:
    model = build_base(folder / "model", "float32")
    model.config.use_cache = True
    with pytest.raises(TrainingError, match=r"does not keep the rows .* data\.packing to rows"):
        check_isolation(model, rows_of(folder), CPU)


def test_a_model_that_reads_from_the_left_by_other_means_is_refused(folder: Path) -> None:
    model = build_base(folder / "model", "float32")
    layer = model.model.layers[0]
    forward = layer.forward

    def recurrent(hidden_BTD: torch.Tensor, **kwargs: Any) -> Any:  # noqa: ANN401 -- transformers publishes no types
        return forward(hidden_BTD + 0.01 * hidden_BTD.cumsum(1), **kwargs)

    layer.forward = recurrent
    with pytest.raises(TrainingError, match="does not keep the rows"):
        check_isolation(model, rows_of(folder), CPU)


def test_a_model_of_which_it_cannot_be_told_is_refused(folder: Path) -> None:
    model = build_base(folder / "model", "float32")
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(TrainingError, match="got nan"):
        check_isolation(model, rows_of(folder), CPU)


# --- sharded --------------------------------------------------------------------------


def work(rank: int, meeting: Path, *, folder: Path) -> None:
    rows = rows_of(folder)
    sequences, _ = rows.take(rows.first_cursor(3), 4)
    batch = rows.batch(sequences[2 * rank : 2 * rank + 2])
    for dtype in (None, torch.bfloat16):
        whole = build_base(folder / "model", "float32")
        model = build_base(folder / "model", "float32")
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mp_policy=precision)
        fully_shard(model, mp_policy=precision, reshard_after_forward=True)
        with torch.no_grad():
            expected_BTV = whole(**batch.inputs()).logits
        got_BTV = model(**batch.inputs()).logits
        tolerance = 1e-5 if dtype is None else 0.05
        torch.testing.assert_close(got_BTV.float(), expected_BTV, rtol=0, atol=tolerance)
        got_BTV.float().sum().backward()
        check_isolation(model, rows, CPU)
        model.config.use_cache = True
        with pytest.raises(TrainingError, match="does not keep the rows"):
            check_isolation(model, rows, CPU)
    (meeting / f"done-{rank}").touch()


def test_a_sharded_model_takes_blocks_as_a_whole_one_does(folder: Path, tmp_path: Path) -> None:
    run_ranks(2, partial(work, folder=folder), tmp_path)
    assert {path.name for path in tmp_path.glob("done-*")} == {"done-0", "done-1"}
