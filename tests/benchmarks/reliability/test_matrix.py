"""What the matrix asks of a cell, asked of what is wrong; whole cells are in tests/e2e."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.reliability.cells import (
    METHODS,
    SIZES,
    SPREADS,
    STRATEGIES,
    Cell,
    Method,
    Spread,
    all_cells,
    covering,
)
from benchmarks.reliability.judging import loss_faults, num_trained, record_faults, state_faults
from benchmarks.reliability.trained import Trained, largest_difference, put_together, row_faults
from strongroom.checkpoint.attempts import AttemptRecord, claim_attempt
from strongroom.storage.memory import MemoryStorage
from strongroom.training.placement import placement_faults
from tests.support.checkpoints import (
    RUN,
    checkpoint_name,
    save_checkpoint,
    save_facts,
    training_state,
)

FSDP2, HSDP, ZERO3 = Spread("fsdp2", 2), Spread("hsdp", 4), Spread("zero3", 1)
SAME = Cell(method="lora", saved=HSDP, resumed=HSDP)
OTHER = Cell(method="full", saved=ZERO3, resumed=HSDP)


# --- which cells there are ------------------------------------------------------------


def test_every_placement_goes_on_from_every_other_by_both_methods() -> None:
    cells = all_cells()
    assert len(set(cells)) == len(cells) == 2 * 8 * 8 + 8
    methods: tuple[Method, ...] = ("full", "lora")
    for method, saved, resumed in product(methods, SPREADS, SPREADS):
        assert Cell(method=method, saved=saved, resumed=resumed) in cells
    assert {(s.strategy, s.ranks) for s in SPREADS} == {*product(STRATEGIES, SIZES)} - {("hsdp", 1)}


def test_cells_of_one_source_follow_one_another() -> None:
    sources = [(cell.method, cell.saved) for cell in all_cells()]
    runs = [source for number, source in enumerate(sources) if source != sources[number - 1]]
    assert len(runs) == len(set(sources)) == 24


@pytest.mark.parametrize("method", METHODS)
def test_every_placement_fits_the_rows_of_a_step(method: Method) -> None:
    placements = [spread.placement(method) for spread in SPREADS]
    assert all(placement_faults(placement, 8) == [] for placement in placements)
    assert len(set(placements)) == 8
    assert HSDP.placement(method).replicas == 2


def test_accumulation_is_among_what_is_tried() -> None:
    passes = {
        (method, ranks): Spread("zero3", ranks).placement(method).micro_batches(8)
        for method, ranks in product(METHODS, SIZES)
    }
    assert [passes["full", ranks] for ranks in SIZES] == [4, 2, 1]
    assert [passes["lora", ranks] for ranks in SIZES] == [8, 4, 2]
    assert [passes["lora, dropout", ranks] for ranks in SIZES] == [1, 1, 1]


def test_few_cells_cover_every_change_and_every_pair_of_ranks() -> None:
    cells = covering(all_cells())
    assert cells == covering(all_cells())
    assert len(cells) < 25
    changes = {(cell.method, cell.saved.strategy, cell.resumed.strategy) for cell in cells}
    assert changes >= set(product(("full", "lora"), STRATEGIES, STRATEGIES))
    sizes = {(cell.saved.ranks, cell.resumed.ranks) for cell in cells}
    assert sizes == set(product(SIZES, SIZES))
    for method in ("full", "lora, dropout"):
        same = {cell.saved.strategy for cell in cells if cell.is_same and cell.method == method}
        assert same == set(STRATEGIES)
    of_strategies = {(cell.saved.strategy, cell.saved.ranks) for cell in cells}
    assert of_strategies == {(spread.strategy, spread.ranks) for spread in SPREADS}


def test_a_cell_reads_as_what_it_is() -> None:
    assert str(OTHER) == "full: zero3@1 -> hsdp@4"
    assert (SAME.is_same, OTHER.is_same) == (True, False)


# --- what was seen of a launch --------------------------------------------------------


def step(number: int, loss: float) -> dict[str, Any]:
    return {"kind": "training.step", "step": number, "loss": loss}


def test_rows_are_put_in_the_global_order_step_by_step() -> None:
    started = {"kind": "training.started", "exact": True}
    first = [[0], [1], [4], [5]]  # two steps of two passes
    second = [[2], [3], [6], [7]]
    trained = put_together([started, step(1, 2.0), step(2, 1.5)], [first, second], passes=2)
    assert trained.rows == [0, 1, 2, 3, 4, 5, 6, 7]
    assert trained.losses == {1: 2.0, 2: 1.5}
    assert trained.started == started


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([2, 0, 1, 1, 2], []),
        ([2, 0, 1, 1], ["expected 5 rows"]),
        ([0, 2, 1, 1, 2], ["expected 5 rows"]),  # in another order
        ([2, 0, 0, 1, 2], ["epoch 0: rows [0] came again, [1] never", "expected"]),
        ([2, 0, 1, 1, 1], ["epoch 1: rows [1] came again, [] never", "expected"]),
    ],
)
def test_a_row_that_comes_twice_or_never_or_elsewhere_is_told(
    rows: list[int], words: list[str]
) -> None:
    faults = row_faults(rows, [2, 0, 1, 1, 2], 3)
    assert len(faults) == len(words)
    assert all(fault.startswith(word) for fault, word in zip(faults, words, strict=True))


def test_the_largest_difference_is_relative_to_what_was_expected() -> None:
    expected = {1: 2.0, 2: 4.0, 3: 8.0}
    assert largest_difference({2: 4.0, 3: 8.0}, expected) == 0.0
    assert largest_difference({1: 2.0, 2: 5.0, 3: 6.0}, expected) == 0.25
    assert math.isnan(largest_difference({1: 3.0, 2: math.nan, 3: 9.0}, expected))
    for got in ({}, {4: 1.0}):
        with pytest.raises(ValueError, match="expected losses of steps"):
            largest_difference(got, expected)


# --- what must hold of it -------------------------------------------------------------


def faults_after(
    change: Callable[[dict[str, Tensor]], None],
    *,
    ranks: int = 2,
    **facts: Any,  # noqa: ANN401 -- of a save
) -> list[str]:
    """Save for two ranks, then again with a change, and return what is told of it."""
    storage, witness = MemoryStorage(), MemoryStorage()
    saved = save_checkpoint(storage, tensors=training_state(10, ranks=range(2)))
    state = training_state(10, ranks=range(ranks))
    change(state)
    save_checkpoint(witness, tensors=state, **facts)
    assert num_trained(saved) == 8
    return state_faults(storage, saved, witness)


def flip(name: str) -> Callable[[dict[str, Tensor]], None]:
    def change(state: dict[str, Tensor]) -> None:
        state[name].view(-1)[-1] += 1

    return change


def leave(_state: dict[str, Tensor]) -> None:
    """Change nothing."""


def state_with(section: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 -- of a manifest
    state = save_facts(checkpoint_name(10)).state
    return {"state": {**state, section: {**state[section], **changes}}}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_was_restored_as_it_was_saved_has_no_faults_on_any_number_of_ranks(ranks: int) -> None:
    assert faults_after(leave, ranks=ranks) == []


@pytest.mark.parametrize(
    "name",
    [
        "model.layer.weight",
        "optim.state.layer.bias.exp_avg",
        "optim.state.layer.weight.step",
        "rng.0.torch",
        "rng.1.numpy",
    ],
)
def test_one_other_bit_is_told_by_the_tensor(name: str) -> None:
    assert faults_after(flip(name)) == [f"restored tensors differ: {name}"]


def test_a_tensor_too_few_or_too_many_is_told() -> None:
    def drop(state: dict[str, Tensor]) -> None:
        del state["optim.state.layer.bias.exp_avg"]

    def add(state: dict[str, Tensor]) -> None:
        state["model.other"] = torch.zeros(2)

    assert faults_after(drop) == ["restored tensors differ: optim.state.layer.bias.exp_avg"]
    assert faults_after(add) == ["restored tensors differ: model.other"]


def test_random_state_that_nobody_restored_is_told() -> None:
    def drop(state: dict[str, Tensor]) -> None:
        for name in [name for name in state if name.startswith("rng.0.")]:
            del state[name]

    assert faults_after(drop) == ["random state of rank 0: expected it in both, got none"]


@pytest.mark.parametrize(
    "facts",
    [
        state_with("cursor", position=3),
        state_with("counters", tokens=513),
        state_with("scheduler", step=11),
        state_with("optimizer", param_groups=[{"lr": 0.001, "betas": [0.9, 0.99]}]),
    ],
)
def test_other_state_is_told(facts: dict[str, Any]) -> None:
    (fault,) = faults_after(leave, **facts)
    assert fault.startswith("restored state: expected")


def test_the_learning_rate_that_was_used_last_is_no_state() -> None:
    assert faults_after(leave, **state_with("optimizer", param_groups=[{"lr": 0.5}])) == []


def trained(losses: dict[int, float]) -> Trained:
    return Trained(losses=losses, rows=[], started={})


@pytest.mark.parametrize(
    ("cell", "difference", "holds"),
    [
        (SAME, 0.0, True),
        (SAME, 1e-12, False),
        (OTHER, 0.0, True),
        (OTHER, 1e-6, True),
        (OTHER, 1.1e-6, False),
        (OTHER, math.nan, False),
    ],
)
def test_losses_are_equal_or_within_their_bound(
    cell: Cell, difference: float, *, holds: bool
) -> None:
    faults = loss_faults(cell, trained({7: 1.0, 8: 1.0}), range(7, 9), difference)
    assert (faults == []) is holds


def test_a_step_too_few_is_told() -> None:
    (fault,) = loss_faults(SAME, trained({7: 1.0}), range(7, 9), 0.0)
    assert fault == "expected the steps [7, 8], got [7]"


def record(cell: Cell, **changes: Any) -> MemoryStorage:  # noqa: ANN401 -- of the record
    storage = MemoryStorage()
    fields: dict[str, Any] = {
        "placement": cell.resumed.placement(cell.method).to_json(),
        "reseeded_ranks": tuple(range(cell.saved.ranks, cell.resumed.ranks)),
        "inexact": () if cell.is_same else ("rounded in another order",),
    }
    claim_attempt(storage, AttemptRecord(run=RUN, **{**fields, **changes}))
    return storage


@pytest.mark.parametrize("cell", [SAME, OTHER], ids=str)
def test_a_record_that_says_what_was_has_no_faults(cell: Cell) -> None:
    assert record_faults(cell, record(cell), RUN, {"exact": cell.is_same}) == []


@pytest.mark.parametrize(
    ("cell", "changes", "exact", "name"),
    [
        (OTHER, {"placement": ZERO3.placement("full").to_json()}, False, "placement"),
        (OTHER, {"reseeded_ranks": ()}, False, "reseeded_ranks"),
        (OTHER, {"inexact": ()}, False, "inexact is empty"),
        (SAME, {"inexact": ("why",)}, True, "inexact is empty"),
        (OTHER, {}, True, "training.started, exact"),
        (SAME, {}, False, "training.started, exact"),
    ],
)
def test_a_record_that_says_otherwise_is_told(
    cell: Cell, changes: dict[str, Any], exact: bool, name: str
) -> None:
    (fault,) = record_faults(cell, record(cell, **changes), RUN, {"exact": exact})
    assert name in fault


def test_a_run_without_an_attempt_is_told() -> None:
    (fault,) = record_faults(SAME, MemoryStorage(), RUN, {"exact": True})
    assert "expected an attempt" in fault
