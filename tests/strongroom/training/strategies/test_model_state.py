"""What of a model is saved, and how: tied, frozen, empty and unused parameters, buffers.

The model is made of what goes wrong elsewhere: its tied pair does not come first, and the tensors
that are tied are not told by where they lie in memory (deepspeedai/DeepSpeed#1896, #6836).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from strongroom.checkpoint.catalogue import Committed, read_checkpoint
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.saving.saver import AsyncSaver
from strongroom.errors import InputError
from strongroom.model.adapters import with_adapter
from strongroom.model.build import build_base
from strongroom.model.config import AdapterConfig
from strongroom.storage.base import Storage
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import MemoryStorage
from strongroom.training.config import TrainConfig
from strongroom.training.placement import Placement, StrategyName
from strongroom.training.strategies.base import Strategy
from strongroom.training.strategies.build import spread
from strongroom.training.strategies.config import Zero3Config
from tests.support.checkpoints import checkpoint_name, ignore_commit, save_facts
from tests.support.in_process import as_the_only_rank
from tests.support.ranks import run_ranks
from tests.support.tiny_model import make_tiny_model

STRATEGIES: tuple[StrategyName, ...] = ("fsdp2", "zero3")
TOKENS, WIDTH = 16, 8
CONFIG = TrainConfig(
    steps=9,
    batch_rows=4,
    learning_rate=0.01,
    weight_decay=0.1,
    zero3=Zero3Config(persist_below_elements=50),  # biases stay gathered
)
CPU = torch.device("cpu")

both = pytest.mark.parametrize("strategy", STRATEGIES)
Order = Literal["table first", "head first"]


@pytest.fixture(autouse=True, scope="module")
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with as_the_only_rank(tmp_path_factory.mktemp("gloo")):
        yield


class Model(nn.Module):
    """A table of tokens that makes the logits too, layers between, and what is easily forgotten."""

    def __init__(self, order: Order = "table first") -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        if order == "head first":
            self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.table = nn.Embedding(TOKENS, WIDTH)
        if order == "table first":
            self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.table.weight
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        nn.init.eye_(self.frozen.weight)
        nn.init.zeros_(self.frozen.bias)
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("scales", torch.linspace(0.5, 1.5, WIDTH), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.inner(self.table(tokens)) * self.scales
        for layer in self.layers:
            hidden = torch.tanh(self.frozen(layer(hidden)))
        logits: Tensor = self.head(hidden)
        return logits


SHAPES = {
    "inner.weight": [WIDTH, WIDTH],
    "inner.bias": [WIDTH],
    "table.weight": [TOKENS, WIDTH],
    "layers.0.weight": [WIDTH, WIDTH],
    "layers.0.bias": [WIDTH],
    "layers.1.weight": [WIDTH, WIDTH],
    "layers.1.bias": [WIDTH],
    "empty": [0, 3],
    "unused": [3],
}

USED = [name for name in SHAPES if name not in {"empty", "unused"}]


def make(strategy: StrategyName, order: Order = "table first", *, seed: int = 0) -> Strategy:
    torch.manual_seed(seed)
    placement = Placement(strategy=strategy, world_size=dist.get_world_size())
    return spread(Model(order), CONFIG, placement, CPU)


def loss_of(model: nn.Module) -> Tensor:
    tokens = torch.arange(3 * TOKENS).remainder(TOKENS).reshape(-1, TOKENS // 2)
    logits = model(tokens)
    return nn.functional.cross_entropy(logits.reshape(-1, TOKENS), tokens.reshape(-1) // 2)


def take_step(strategy: Strategy) -> None:
    strategy.backward(loss_of(strategy.model), is_last=True)
    strategy.gradient_norm()
    strategy.step(0.01)


def save(strategy: Strategy, storage: Storage, *, step: int) -> Committed:
    """Save as training does; collective."""
    name = checkpoint_name(step)
    with AsyncSaver(storage, fence=lambda: None, on_commit=ignore_commit) as saver:
        saver.save(strategy.state_tensors(), save_facts(name))
    dist.barrier()
    return read_checkpoint(storage, name)


def load(strategy: Strategy, storage: Storage, committed: Committed) -> None:
    CheckpointReader(storage, committed).load_into(strategy.state_tensors())
    strategy.loaded()


def read(storage: Storage, committed: Committed) -> dict[str, Tensor]:
    reader = CheckpointReader(storage, committed)
    return {name: reader.read(name) for name in reader.tensor_names}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# --- on one rank ----------------------------------------------------------------------


@both
def test_every_tensor_saved_has_its_whole_shape_and_the_frozen_are_left_out(
    strategy: StrategyName,
) -> None:
    begun, storage = make(strategy), MemoryStorage()
    take_step(begun)
    committed = save(begun, storage, step=1)
    shapes = {tensor.name: list(tensor.shape) for tensor in committed.manifest.tensors}
    expected = {f"model.{name}": shape for name, shape in SHAPES.items()}
    for name, shape in SHAPES.items():
        expected[f"optim.state.{name}.step"] = []
        expected |= {f"optim.state.{name}.{kind}": shape for kind in ("exp_avg", "exp_avg_sq")}
    assert shapes == expected
    begun.close()


@both
@pytest.mark.parametrize("order", ["table first", "head first"])
def test_a_tied_pair_is_saved_once_and_restored_as_one(
    strategy: StrategyName, order: Order
) -> None:
    begun, storage = make(strategy, order), MemoryStorage()
    take_step(begun)
    committed = save(begun, storage, step=1)
    name = "table.weight" if order == "table first" else "head.weight"
    tied = {"model.table.weight", "model.head.weight"} & set(read(storage, committed))
    assert tied == {f"model.{name}"}
    again = make(strategy, order, seed=1)
    load(again, storage, committed)
    module = getattr(again.model, "module", again.model)
    assert isinstance(module, Model)
    assert module.head.weight is module.table.weight
    assert loss_of(again.model).detach() == loss_of(begun.model).detach()
    for each in (begun, again):
        take_step(each)
    ends = [save(each, storage, step=2 + n) for n, each in enumerate((begun, again))]
    assert same(read(storage, ends[0]), read(storage, ends[1]))
    begun.close()
    again.close()


@both
def test_asking_for_the_state_before_the_first_step_alters_nothing(strategy: StrategyName) -> None:
    """Neither weights under decay nor the count of updates (pytorch/pytorch#164929)."""
    asked, left_alone, storage = make(strategy), make(strategy), MemoryStorage()
    before = read(storage, save(asked, storage, step=1))
    assert not any(t.any() for name, t in before.items() if name.startswith("optim."))
    for each in (asked, left_alone):
        take_step(each)
    ends = [read(storage, save(e, storage, step=2 + n)) for n, e in enumerate((asked, left_alone))]
    assert same(*ends)
    assert all(float(ends[0][f"optim.state.{name}.step"]) == 1.0 for name in USED)
    asked.close()
    left_alone.close()


@both
def test_an_optimizer_saved_with_gradients_in_place_is_whole_elsewhere(
    strategy: StrategyName,
) -> None:
    """An empty one was saved once (pytorch/pytorch#140898)."""
    begun, storage = make(strategy), MemoryStorage()
    for _ in range(2):
        take_step(begun)
    begun.backward(loss_of(begun.model), is_last=True)
    begun.gradient_norm()
    saved = save(begun, storage, step=2)
    held = read(storage, saved)
    assert all(held[f"optim.state.{name}.exp_avg"].any() for name in USED)
    assert all(float(held[f"optim.state.{name}.step"]) == 2.0 for name in USED)
    other = make(strategy, seed=1)
    load(other, storage, saved)
    assert same(read(storage, save(other, storage, step=3)), held)
    other.close()
    begun.close()


@both
def test_counts_of_updates_are_those_of_each_parameter_or_refused(strategy: StrategyName) -> None:
    """One that got no gradient was not updated; ZeRO keeps one count, and can hold no other."""
    begun, storage = make("fsdp2"), MemoryStorage()
    take_step(begun)
    saved = save(begun, storage, step=1)
    assert float(read(storage, saved)["optim.state.unused.step"]) == 0.0
    other = make(strategy, seed=1)
    if strategy == "fsdp2":
        load(other, storage, saved)
        assert same(read(storage, save(other, storage, step=2)), read(storage, saved))
    else:
        with pytest.raises(InputError, match=r"expected one count of updates.*\[0\.0, 1\.0\]"):
            load(other, storage, saved)
    begun.close()
    other.close()


@both
@pytest.mark.parametrize("method", ["full", "lora"])
def test_buffers_are_those_of_a_fresh_model_before_and_after_a_restore(
    tmp_path: Path, strategy: StrategyName, method: Literal["full", "lora"]
) -> None:
    """As rotary frequencies, which are in no checkpoint (huggingface/transformers#45902)."""
    folder = make_tiny_model(tmp_path / "model")

    def build() -> nn.Module:
        config = AdapterConfig(method=method, targets=("q_proj",))
        return with_adapter(build_base(folder, "float32"), config)

    wanted = dict(build().named_buffers())
    assert any("inv_freq" in name for name in wanted)
    placement = Placement(strategy=strategy, world_size=1)
    storage = LocalStorage(tmp_path / "store")
    begun, again = (spread(build(), CONFIG, placement, CPU) for _ in range(2))
    committed = save(begun, storage, step=1)
    load(again, storage, committed)
    for each in (begun, again):
        got = dict(getattr(each.model, "module", each.model).named_buffers())
        assert got.keys() == wanted.keys()
        assert all(torch.equal(got[name], buffer) for name, buffer in wanted.items())
        each.close()


# --- on three, whose parts are uneven and some of them empty --------------------------


def work(rank: int, folder: Path, *, strategy: StrategyName) -> None:
    begun, storage = make(strategy, "head first"), LocalStorage(folder / "store")
    take_step(begun)
    saved = save(begun, storage, step=1)
    again = make(strategy, "head first", seed=1)
    load(again, storage, saved)
    for each in (begun, again):
        take_step(each)
    ends = [read(storage, save(each, storage, step=2 + n)) for n, each in enumerate((begun, again))]
    found = {
        "is_same": same(*ends),
        "shapes": {t.name: list(t.shape) for t in saved.manifest.tensors if "model." in t.name},
        "num_chunks": len(saved.manifest.tensor("model.head.weight").chunks),
    }
    (folder / f"found-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


@both
def test_ranks_together_save_what_is_whole(tmp_path: Path, strategy: StrategyName) -> None:
    run_ranks(3, partial(work, strategy=strategy), tmp_path)
    shapes = {f"model.{name}": shape for name, shape in SHAPES.items()}
    shapes["model.head.weight"] = shapes.pop("model.table.weight")
    for rank in range(3):
        found = json.loads((tmp_path / f"found-{rank}.json").read_text(encoding="utf-8"))
        assert found["is_same"]
        assert found["shapes"] == shapes
        assert found["num_chunks"] >= 3
