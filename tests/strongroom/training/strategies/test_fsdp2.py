"""FSDP2 on one rank: sharding must not change what training computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from strongroom.errors import TrainingError
from strongroom.model.adapters import trainable_names, with_adapter
from strongroom.model.build import build_base
from strongroom.model.config import AdapterConfig
from strongroom.model.loss import completion_loss_sum
from strongroom.training.config import TrainConfig
from strongroom.training.strategies.fsdp2 import Fsdp2
from tests.support.tiny_model import make_tiny_model

Method = Literal["full", "lora"]
CONFIG = TrainConfig(steps=9, batch_rows=4, learning_rate=0.01, weight_decay=0.1)
STRATEGY = Fsdp2(world_size=1)


@pytest.fixture(autouse=True, scope="module")
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    meeting = tmp_path_factory.mktemp("gloo") / "meeting-point"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def build(folder: Path, method: Method = "full") -> nn.Module:
    config = AdapterConfig(method=method, targets=("q_proj", "down_proj"))
    return with_adapter(build_base(folder, "float32"), config).train()


def backward(model: nn.Module, number: int) -> None:
    tokens = torch.randint(0, 384, (4, 24), generator=torch.Generator().manual_seed(number))
    nats, count = completion_loss_sum(model(input_ids=tokens).logits, tokens)
    (nats / count).backward()  # type: ignore[no-untyped-call]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().clone()


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: whole(p) for name, p in model.named_parameters() if p.requires_grad}


def train(folder: Path, method: Method, *, look: bool = False) -> dict[str, torch.Tensor]:
    """Take three steps; with `look`, ask for the state at every moment there is."""
    model = STRATEGY.prepare(build(folder, method))
    optimizer = STRATEGY.optimizer(model, CONFIG)
    for number in range(3):
        if look:
            STRATEGY.state_tensors(model, optimizer)
        backward(model, number)
        if look:
            STRATEGY.state_tensors(model, optimizer)
        STRATEGY.clip_gradients(model, 1.0)
        optimizer.step()
        if look:
            STRATEGY.state_tensors(model, optimizer)
        optimizer.zero_grad()
    return trained(model)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_three_steps_are_those_of_a_model_that_is_not_sharded(folder: Path, method: Method) -> None:
    plain = build(folder, method)
    parameters = [p for p in plain.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=CONFIG.learning_rate, weight_decay=CONFIG.weight_decay, fused=True
    )
    for number in range(3):
        backward(plain, number)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    expected = trained(plain)
    got = train(folder, method)
    assert got.keys() == expected.keys()
    for name, tensor in got.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0.0, atol=0.0, msg=name)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_looking_at_the_state_changes_nothing(folder: Path, method: Method) -> None:
    looked, left_alone = train(folder, method, look=True), train(folder, method)
    assert all(torch.equal(looked[name], left_alone[name]) for name in left_alone)


def test_the_state_is_whole_before_the_first_step_and_with_gradients_present(folder: Path) -> None:
    model = STRATEGY.prepare(build(folder, "lora"))
    optimizer = STRATEGY.optimizer(model, CONFIG)
    names = trainable_names(model)
    expected = {f"model.{name}" for name in names} | {
        f"optim.state.{name}.{kind}" for name in names for kind in ("step", "exp_avg", "exp_avg_sq")
    }
    before = STRATEGY.state_tensors(model, optimizer)
    assert before.keys() == expected
    backward(model, 0)
    optimizer.step()
    after = STRATEGY.state_tensors(model, optimizer)
    assert after.keys() == expected
    assert all(float(after[f"optim.state.{name}.step"]) == 1.0 for name in names)
    assert any(whole(after[f"optim.state.{name}.exp_avg"]).any() for name in names)


def test_writing_into_the_state_restores_it(folder: Path) -> None:
    model = STRATEGY.prepare(build(folder))
    optimizer = STRATEGY.optimizer(model, CONFIG)
    backward(model, 0)
    optimizer.step()
    optimizer.zero_grad()
    kept = {name: whole(t) for name, t in STRATEGY.state_tensors(model, optimizer).items()}
    backward(model, 1)
    optimizer.step()
    optimizer.zero_grad()
    expected = trained(model)
    for name, tensor in STRATEGY.state_tensors(model, optimizer).items():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        local.copy_(kept[name])
    backward(model, 1)
    optimizer.step()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in trained(model).items())


def test_gradients_are_clipped_to_the_norm_and_the_norm_before_is_told(folder: Path) -> None:
    plain, sharded = build(folder), STRATEGY.prepare(build(folder))
    for model in (plain, sharded):
        backward(model, 0)
    expected = float(nn.utils.clip_grad_norm_(plain.parameters(), 0.25))
    assert expected > 0.25
    assert STRATEGY.clip_gradients(sharded, 0.25) == pytest.approx(expected, rel=1e-6)
    assert STRATEGY.clip_gradients(sharded, 9.0) == pytest.approx(0.25, rel=1e-3)


def test_settings_are_told_with_the_names_they_apply_to(folder: Path) -> None:
    model = STRATEGY.prepare(build(folder, "lora"))
    (group,) = STRATEGY.param_groups(model, STRATEGY.optimizer(model, CONFIG))
    assert group["params"] == trainable_names(model)
    assert group["weight_decay"] == 0.1
    assert group["betas"] == [0.9, 0.999]


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(TrainingError, match="decoder layers"):
        STRATEGY.prepare(nn.Linear(2, 2))
