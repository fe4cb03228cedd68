"""What every strategy owes training: that spreading a model changes nothing of what is learnt.

First on one rank, in this process, then on several.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from strongroom.checkpoint.flat_range import FlatRange
from strongroom.errors import TrainingError
from strongroom.model.adapters import trainable_names, with_adapter
from strongroom.model.build import build_base
from strongroom.model.config import AdapterConfig
from strongroom.model.loss import completion_loss_sum
from strongroom.training.config import TrainConfig
from strongroom.training.placement import Placement, StrategyName
from strongroom.training.strategies.base import Strategy
from strongroom.training.strategies.build import spread
from strongroom.training.strategies.config import Fsdp2Config, Zero3Config
from strongroom.training.world import leave_world
from tests.support.ranks import run_ranks
from tests.support.tiny_model import make_tiny_model

Method = Literal["full", "lora"]
STRATEGIES: tuple[StrategyName, ...] = ("fsdp2", "zero3")
CONFIG = TrainConfig(
    steps=9,
    batch_rows=4,
    learning_rate=0.01,
    weight_decay=0.1,
    zero3=Zero3Config(persist_below_elements=100),  # some of the tiny model's stay gathered
)
CPU = torch.device("cpu")
ROWS = 36

both = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.fixture(scope="module")
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    meeting = tmp_path_factory.mktemp("gloo") / "meeting-point"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", "0")
        yield
    leave_world()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def build(folder: Path, method: Method = "full") -> nn.Module:
    config = AdapterConfig(method=method, targets=("q_proj", "down_proj"))
    return with_adapter(build_base(folder, "float32"), config).train()


def begin(
    folder: Path,
    strategy: StrategyName,
    method: Method = "full",
    *,
    replicas: int = 1,
    config: TrainConfig = CONFIG,
) -> Strategy:
    placement = Placement(strategy=strategy, world_size=dist.get_world_size(), replicas=replicas)
    return spread(build(folder, method), config, placement, CPU)


def loss_of(model: nn.Module, number: int, rows: slice = slice(None)) -> Tensor:
    """Return the mean loss over the rows of a batch, of which some are here."""
    tokens = torch.randint(0, 384, (ROWS, 24), generator=torch.Generator().manual_seed(number))
    nats, _ = completion_loss_sum(model(input_ids=tokens[rows]).logits, tokens[rows])
    return nats / (ROWS * 23)


def take_step(strategy: Strategy, number: int, rate: float = CONFIG.learning_rate) -> float:
    strategy.backward(loss_of(strategy.model, number), is_last=True)
    norm = strategy.gradient_norm()
    strategy.step(rate)
    return norm


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor of a state, wherever it lies; collective."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor().detach().clone()
    if isinstance(tensor, FlatRange):
        parts: list[Tensor] = [torch.empty(0)] * dist.get_world_size()
        dist.all_gather_object(parts, tensor.elements.clone())
        return torch.cat(parts).view(tensor.shape)
    return tensor.detach().clone()


def state(strategy: Strategy) -> dict[str, Tensor]:
    return {name: whole(tensor) for name, tensor in strategy.state_tensors().items()}


def write(strategy: Strategy, kept: dict[str, Tensor]) -> None:
    """Put a whole state into the parts that are here, as a reader of checkpoints does."""
    for name, tensor in strategy.state_tensors().items():
        if isinstance(tensor, FlatRange):
            stop = tensor.start + tensor.elements.numel()
            tensor.elements.copy_(kept[name].flatten()[tensor.start : stop])
        elif isinstance(tensor, DTensor):
            spread_again = torch.distributed.tensor.distribute_tensor(
                kept[name], tensor.device_mesh, tensor.placements, src_data_rank=None
            )
            tensor.to_local().copy_(spread_again.to_local())
        else:
            tensor.copy_(kept[name])
    strategy.loaded()


class Plain:
    """The same training without any strategy: what is trained, and the gradients it came from."""

    def __init__(self, folder: Path, method: Method, steps: int) -> None:
        self.model = build(folder, method)
        parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        optimizer = torch.optim.AdamW(
            parameters.values(), lr=0.01, weight_decay=CONFIG.weight_decay, fused=True
        )
        for number in range(steps):
            loss_of(self.model, number).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters.values(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        self.loss = float(loss_of(self.model, 9).detach())
        self.state: dict[str, Tensor] = {}
        for name, parameter in parameters.items():
            self.state[f"model.{name}"] = parameter.detach()
            for kind, value in optimizer.state[parameter].items():
                self.state[f"optim.state.{name}.{kind}"] = value


def check_gradients(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare what is linear in the gradients; Adam makes much of rounding where they are none."""
    for name, tensor in expected.items():
        if name.endswith(".exp_avg"):
            scale = float(tensor.abs().max())
            torch.testing.assert_close(
                got[name], tensor, rtol=1e-4, atol=2e-6 * scale + 1e-9, msg=name
            )


@pytest.mark.usefixtures("_alone")
@both
@pytest.mark.parametrize("method", ["full", "lora"])
def test_three_steps_are_those_of_a_model_that_is_not_sharded(
    folder: Path, strategy: StrategyName, method: Method
) -> None:
    begun = begin(folder, strategy, method)
    for number in range(3):
        take_step(begun, number)
    plain = Plain(folder, method, 3)
    assert float(loss_of(begun.model, 9).detach()) == pytest.approx(plain.loss, rel=1e-6)
    if strategy == "fsdp2":  # bit for bit, as nothing is computed otherwise
        got = state(begun)
        assert all(torch.equal(got[name], tensor) for name, tensor in plain.state.items())
    begun.close()


@pytest.mark.usefixtures("_alone")
@both
@pytest.mark.parametrize("method", ["full", "lora"])
def test_looking_at_the_state_changes_nothing(
    folder: Path, strategy: StrategyName, method: Method
) -> None:
    states = []
    for look in (True, False):
        begun = begin(folder, strategy, method)
        for number in range(3):
            if look:
                begun.state_tensors()
            begun.backward(loss_of(begun.model, number), is_last=True)
            if look:
                begun.state_tensors()
            begun.gradient_norm()
            begun.step(0.01)
        states.append(state(begun))
        begun.close()
    looked, left_alone = states
    assert looked.keys() == left_alone.keys()
    assert all(torch.equal(looked[name], left_alone[name]) for name in looked)
    assert all(float(left_alone[n]) == 3.0 for n in left_alone if n.endswith(".step"))


@pytest.mark.usefixtures("_alone")
@both
def test_the_state_is_whole_before_the_first_step_and_with_gradients_present(
    folder: Path, strategy: StrategyName
) -> None:
    begun = begin(folder, strategy, "lora")
    names = trainable_names(build(folder, "lora"))
    expected = {f"model.{name}" for name in names} | {
        f"optim.state.{name}.{kind}" for name in names for kind in ("step", "exp_avg", "exp_avg_sq")
    }
    before = state(begun)
    assert before.keys() == expected
    assert not any(t.any() for name, t in before.items() if name.startswith("optim."))
    start = dict(build(folder, "lora").named_parameters())
    assert all(torch.equal(before[f"model.{name}"], start[name]) for name in names)
    begun.backward(loss_of(begun.model, 0), is_last=True)
    begun.gradient_norm()
    begun.step(0.01)
    begun.backward(loss_of(begun.model, 1), is_last=True)  # gradients stay in place
    after = state(begun)
    assert after.keys() == expected
    assert all(float(after[f"optim.state.{name}.step"]) == 1.0 for name in names)
    assert any(after[f"optim.state.{name}.exp_avg"].any() for name in names)
    begun.close()


@pytest.mark.usefixtures("_alone")
@both
@pytest.mark.parametrize("method", ["full", "lora"])
def test_writing_into_the_state_of_a_fresh_one_restores_it(
    folder: Path, strategy: StrategyName, method: Method
) -> None:
    begun = begin(folder, strategy, method)
    take_step(begun, 0)
    kept = state(begun)
    take_step(begun, 1)
    expected = state(begun)
    begun.close()
    again = begin(folder, strategy, method)
    write(again, kept)
    take_step(again, 1)
    got = state(again)
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())
    again.close()


@pytest.mark.usefixtures("_alone")
@both
def test_gradients_are_clipped_to_the_norm_and_the_norm_before_is_told(
    folder: Path, strategy: StrategyName
) -> None:
    plain = build(folder)
    loss_of(plain, 0).backward()  # type: ignore[no-untyped-call]
    expected = float(
        nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])
    )
    tight = replace(CONFIG, max_grad_norm=expected / 1000, weight_decay=0.0)
    begun = begin(folder, strategy, config=tight)
    start = state(begun)
    assert take_step(begun, 0) == pytest.approx(expected, rel=1e-5)
    moments = [t for name, t in state(begun).items() if name.endswith(".exp_avg")]
    clipped = nn.utils.get_total_norm(moments) / 0.1  # after one step, of gradients as they came
    assert float(clipped) == pytest.approx(expected / 1000, rel=1e-3)
    assert any(not torch.equal(t, start[name]) for name, t in state(begun).items())
    begun.close()


@pytest.mark.usefixtures("_alone")
@both
def test_dropped_gradients_leave_no_trace(folder: Path, strategy: StrategyName) -> None:
    begun = begin(folder, strategy)
    take_step(begun, 0)
    before = state(begun)
    for poison in (float("nan"), 3.0):
        begun.backward(loss_of(begun.model, 7) * poison, is_last=True)
        begun.gradient_norm()
        begun.drop_gradients()
        after = state(begun)
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    take_step(begun, 1)
    other = begin(folder, strategy)
    take_step(other, 0)
    take_step(other, 1)
    expected = state(other)
    assert all(torch.equal(expected[name], tensor) for name, tensor in state(begun).items())
    begun.close()
    other.close()


@pytest.mark.usefixtures("_alone")
@both
def test_micro_batches_add_up_to_the_batch(folder: Path, strategy: StrategyName) -> None:
    begun, whole_batch = begin(folder, strategy), begin(folder, strategy)
    for number in range(2):
        for rows in (slice(0, 1), slice(1, 7), slice(7, ROWS)):
            loss = loss_of(begun.model, number, rows)
            begun.backward(loss, is_last=rows.stop == ROWS)
        norm = begun.gradient_norm()
        begun.step(0.01)
        assert norm == pytest.approx(take_step(whole_batch, number), rel=1e-5)
        if number == 0:
            check_gradients(state(begun), state(whole_batch))
    losses = [float(loss_of(each.model, 9).detach()) for each in (begun, whole_batch)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    begun.close()
    whole_batch.close()


@pytest.mark.usefixtures("_alone")
@both
def test_settings_are_told_with_the_names_they_apply_to(
    folder: Path, strategy: StrategyName
) -> None:
    begun = begin(folder, strategy, "lora")
    take_step(begun, 0, rate=0.02)
    (group,) = begun.param_groups()
    assert group == {
        "lr": 0.02,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.1,
        "params": trainable_names(build(folder, "lora")),
    }
    begun.close()


@pytest.mark.usefixtures("_alone")
@both
def test_masters_stay_float32_where_bfloat16_is_computed_in(
    folder: Path, strategy: StrategyName
) -> None:
    mixed = replace(CONFIG, compute_dtype="bfloat16")
    begun = begin(folder, strategy, config=mixed)
    start = state(begun)
    plain = dict(build(folder).named_parameters())
    assert all(torch.equal(t, plain[n[6:]]) for n, t in start.items() if n.startswith("model."))
    assert begun.model(input_ids=torch.arange(4)[None]).logits.dtype == torch.bfloat16
    for number in range(3):
        take_step(begun, number, rate=1e-5)  # too small for bfloat16 to hold
    moved = state(begun)
    for name, expected in plain.items():
        assert moved[f"model.{name}"].dtype == torch.float32
        assert not torch.equal(moved[f"model.{name}"], expected)
    begun.close()


@pytest.mark.usefixtures("_alone")
@both
@pytest.mark.parametrize("method", ["full", "lora"])
def test_activations_that_are_computed_again_give_the_same(
    folder: Path, strategy: StrategyName, method: Method
) -> None:
    again = replace(CONFIG, activation_checkpointing=True)
    begun, kept = begin(folder, strategy, method, config=again), begin(folder, strategy, method)
    for number in range(2):
        take_step(begun, number)
        take_step(kept, number)
    expected = state(kept)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state(begun).items())
    begun.close()
    kept.close()


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("method", ["full", "lora"])
def test_activations_that_deepspeed_keeps_give_the_same(folder: Path, method: Method) -> None:
    in_parts = replace(
        CONFIG, activation_checkpointing=True, zero3=Zero3Config(partition_activations=True)
    )
    begun, usual = begin(folder, "zero3", method, config=in_parts), begin(folder, "zero3", method)
    for number in range(2):
        assert take_step(begun, number) == take_step(usual, number)
    expected = state(usual)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state(begun).items())
    begun.close()
    usual.close()


@pytest.mark.usefixtures("_alone")
def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(TrainingError, match="decoder layers"):
        spread(nn.Linear(2, 2), CONFIG, Placement(strategy="fsdp2", world_size=1), CPU)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("strategy", "config"),
    [
        ("fsdp2", replace(CONFIG, fsdp2=Fsdp2Config(cpu_offload=True))),
        ("fsdp2", replace(CONFIG, fsdp2=Fsdp2Config(float8="on"))),
        ("zero3", replace(CONFIG, zero3=Zero3Config(offload="cpu"))),
    ],
    ids=["offload", "float8", "zero3 offload"],
)
def test_what_needs_an_accelerator_is_refused_without_one(
    folder: Path, strategy: StrategyName, config: TrainConfig
) -> None:
    with pytest.raises(TrainingError, match=r"expected (an accelerator|hardware with float8)"):
        begin(folder, strategy, config=config)


@pytest.mark.usefixtures("_alone")
def test_gathering_ahead_changes_nothing(folder: Path) -> None:
    ahead = replace(CONFIG, fsdp2=Fsdp2Config(prefetch_layers=1, reshard_after_forward=False))
    begun, usual = begin(folder, "fsdp2", config=ahead), begin(folder, "fsdp2")
    for number in range(2):
        take_step(begun, number)
        take_step(usual, number)
    expected = state(usual)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state(begun).items())


@pytest.mark.compiler
@pytest.mark.usefixtures("_alone")
def test_compiled_layers_learn_the_same_and_keep_their_names(folder: Path) -> None:
    compiled = replace(CONFIG, fsdp2=Fsdp2Config(compile_layers=True))
    begun, usual = begin(folder, "fsdp2", config=compiled), begin(folder, "fsdp2")
    for number in range(2):
        norm = take_step(begun, number)
        assert norm == pytest.approx(take_step(usual, number), rel=1e-5)
    assert begun.state_tensors().keys() == usual.state_tensors().keys()


@pytest.mark.usefixtures("_alone")
def test_float8_learns_about_the_same_and_names_nothing_anew(folder: Path) -> None:
    eight = replace(CONFIG, fsdp2=Fsdp2Config(float8="emulated"))
    begun, usual = begin(folder, "fsdp2", config=eight), begin(folder, "fsdp2")
    losses = [float(loss_of(each.model, 0).detach()) for each in (begun, usual)]
    assert losses[0] != losses[1]  # it does multiply in another precision
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    for number in range(3):
        take_step(begun, number)
        take_step(usual, number)
    got, expected = state(begun), state(usual)
    assert got.keys() == expected.keys()
    assert all(got[name].dtype == tensor.dtype for name, tensor in expected.items())
    ends = [float(loss_of(each.model, 0).detach()) for each in (begun, usual)]
    assert ends[0] == pytest.approx(ends[1], rel=0.1)


# --- on several ranks -----------------------------------------------------------------


def _on_ranks(  # noqa: PLR0913 -- the matrix
    rank: int, work: Path, *, folder: Path, strategy: StrategyName, method: Method, replicas: int
) -> None:
    """Each rank takes its rows of a batch, in three micro-batches; the state is kept."""
    begun = begin(folder, strategy, method, replicas=replicas)
    size = dist.get_world_size()
    each = ROWS // size // 3
    losses = torch.zeros(3, dtype=torch.float64)
    for number in range(3):
        for part in range(3):
            first = (rank * 3 + part) * each
            loss = loss_of(begun.model, number, slice(first, first + each))
            losses[number] += float(loss.detach())
            begun.backward(loss * size, is_last=part == 2)
        begun.gradient_norm()
        begun.step(0.01)
        if number == 0 and (kept := state(begun)) and rank == 0:
            torch.save(kept, work / "first.pt")
    dist.all_reduce(losses)
    got = state(begun)
    if rank == 0:
        torch.save(losses, work / "losses.pt")
        torch.save(got, work / "state.pt")
    dist.barrier()
    # A fresh one, restored from that: it goes on as the first would.
    again = begin(folder, strategy, method, replicas=replicas)
    write(again, torch.load(work / "state.pt", weights_only=True))
    restored = state(again)
    assert all(torch.equal(restored[name], tensor) for name, tensor in got.items())
    ends = []
    for one in (begun, again):
        take_step(one, 9)
        ends.append(state(one))
    assert all(torch.equal(ends[0][name], tensor) for name, tensor in ends[1].items())


@pytest.mark.parametrize(
    ("strategy", "ranks", "replicas", "method"),
    [
        ("fsdp2", 2, 1, "lora"),
        ("fsdp2", 4, 2, "full"),
        ("zero3", 2, 1, "lora"),
        ("zero3", 3, 1, "full"),
    ],
    ids=["fsdp2", "hsdp", "zero3", "zero3 with uneven ranges"],
)
def test_ranks_together_learn_what_one_would(  # noqa: PLR0913, PLR0917 -- the matrix
    folder: Path, tmp_path: Path, strategy: StrategyName, ranks: int, replicas: int, method: Method
) -> None:
    work = partial(_on_ranks, folder=folder, strategy=strategy, method=method, replicas=replicas)
    run_ranks(ranks, work, tmp_path)
    plain = Plain(folder, method, 1)
    check_gradients(torch.load(tmp_path / "first.pt", weights_only=True), plain.state)
    losses = torch.load(tmp_path / "losses.pt", weights_only=True)
    expected = [float(loss_of(Plain(folder, method, n).model, n).detach()) for n in range(3)]
    assert losses.tolist() == pytest.approx(expected, rel=1e-6)
