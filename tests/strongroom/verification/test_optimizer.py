"""An optimizer's state that AdamW can go on with, and every way in which it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from strongroom.canonical import JsonObject
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.errors import InputError
from strongroom.storage.memory import MemoryStorage
from strongroom.verification.optimizer import optimizer_faults
from tests.support.checkpoints import checkpoint_name, save_checkpoint, save_facts

STEP = 7
SHAPES = {"layer.weight": (6, 4), "layer.bias": (5,), "empty": (0, 3)}
GROUP: JsonObject = {
    "lr": 0.1,
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "weight_decay": 0.01,
    "params": list(SHAPES),
}


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=source).to(dtype) for name, shape in SHAPES.items()}


def whole_state(*, step: int = STEP) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, parameter in parameters().items():
        state[f"model.{name}"] = parameter
        state[f"optim.state.{name}.step"] = torch.tensor(float(step))
        state[f"optim.state.{name}.exp_avg"] = parameter / 10
        state[f"optim.state.{name}.exp_avg_sq"] = parameter**2
    return state


def faults(
    tensors: dict[str, Tensor] | None = None,
    *,
    groups: list[JsonObject] | None = None,
    dtype: torch.dtype = torch.float32,
    **state: Any,  # noqa: ANN401 -- JSON
) -> list[str]:
    optimizer = {"name": "adamw", "param_groups": [GROUP] if groups is None else groups}
    facts = {**save_facts(checkpoint_name(STEP)).state, "optimizer": optimizer, **state}
    storage = MemoryStorage()
    committed = save_checkpoint(
        storage, STEP, tensors=whole_state() if tensors is None else tensors, state=facts
    )
    trained = parameters(dtype)
    found = optimizer_faults(CheckpointReader(storage, committed), trained)
    assert all(torch.equal(trained[name], own) for name, own in parameters(dtype).items())
    return found


def put(name: str, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    state = whole_state()
    state[f"optim.state.layer.{name}"] = change(state[f"optim.state.layer.{name}"])
    return state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_to_go_on_with_has_no_faults(dtype: torch.dtype) -> None:
    assert faults(dtype=dtype) == []


def test_groups_may_be_several() -> None:
    first, *others = SHAPES
    groups = [{**GROUP, "params": [first]}, {**GROUP, "lr": 0.2, "params": others}]
    assert faults(groups=groups) == []


def test_steps_that_were_passed_over_are_no_updates() -> None:
    # One of them is yet to come.
    assert faults(whole_state(step=STEP - 2), passed_over=[2, 5, STEP + 1]) == []
    assert len(faults(whole_state(step=STEP), passed_over=[2, 5])) == len(SHAPES)


def test_a_parameter_that_got_no_gradient_was_updated_less_often() -> None:
    assert faults(put("bias.step", torch.zeros_like)) == []


@pytest.mark.parametrize("step", [0, STEP - 1])
def test_updates_that_are_missing_everywhere_are_told(step: int) -> None:
    """As of an optimizer that was made anew beside weights that were not."""
    (fault,) = faults(whole_state(step=step))
    assert fault.endswith(
        f"expected {STEP} updates, as many steps as were learnt from, got at most {float(step)}"
    )


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("bias.step", lambda step: step + 1, "layer.bias.step: expected at most 7, as many steps"),
        ("bias.step", torch.neg, "layer.bias.step: expected at most 7"),
        ("bias.step", lambda _: torch.tensor([7.0, 7.0]), "got [7.0, 7.0]"),
        ("weight.exp_avg_sq", torch.neg, "expected a finite update, got 24 values that are not"),
        ("weight.exp_avg", lambda m: m * float("inf"), "expected a finite update, got 24"),
        ("weight.exp_avg", lambda _: torch.tensor(1.0), "layer.weight: expected AdamW to go on"),
    ],
)
def test_what_adamw_cannot_go_on_with_is_named(
    name: str, change: Callable[[Tensor], Tensor], fault: str
) -> None:
    assert any(fault in found for found in faults(put(name, change)))


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        ([{"lr": 0.1}], "expected betas, eps, weight_decay, params in each"),
        ([{**GROUP, "params": ["layer.bias"]}], "got none with ['empty', 'layer.weight']"),
        ([{**GROUP, "params": [*SHAPES, "head"]}], "too many with ['head']"),
        ([GROUP, {**GROUP, "params": ["empty"]}], "too many with ['empty']"),
        ([{**GROUP, "params": [7]}], "too many with ['7']"),
        ([{**GROUP, "betas": [0.9]}], "expected AdamW to go on with it, got ValueError"),
        ([{**GROUP, "lr": "fast"}], "expected AdamW to go on with it, got"),
    ],
)
def test_settings_that_are_none_are_named(groups: list[JsonObject], fault: str) -> None:
    assert any(fault in found for found in faults(groups=groups))


def test_a_kind_of_state_that_is_missing_everywhere_is_named() -> None:
    """Rung 2 sees that all parameters are alike, and not that all lack the same."""
    state = {name: t for name, t in whole_state().items() if not name.endswith(".exp_avg_sq")}
    with pytest.raises(InputError, match=r"optim\.state\.layer\.weight\.exp_avg_sq"):
        faults(state)
