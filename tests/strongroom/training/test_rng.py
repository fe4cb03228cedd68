from __future__ import annotations

import random

import numpy as np
import torch

from strongroom.training.rng import random_state, rng_keys, seed_rank, set_random_state


def draw() -> list[float]:
    """Draw from all generators, Gaussians too: they keep one of each pair for later."""
    return [
        random.random(),  # noqa: S311 -- the generator under test
        random.gauss(0.0, 1.0),
        float(np.random.random()),  # noqa: NPY002 -- as above
        float(np.random.normal()),  # noqa: NPY002 -- as above
        float(torch.rand(())),
        float(torch.randn(3)[2]),
    ]


def test_restored_generators_draw_what_they_would_have_drawn() -> None:
    seed_rank(3, 0)
    draw()  # leaves half a pair of Gaussians in two of them
    state = {kind: tensor.clone() for kind, tensor in random_state().items()}
    expected = [draw(), draw()]
    seed_rank(4, 1)
    set_random_state(state)
    assert [draw(), draw()] == expected


def test_state_is_plain_numbers() -> None:
    seed_rank(3, 0)
    state = random_state()
    assert {kind: str(tensor.dtype) for kind, tensor in state.items()} == {
        "torch": "torch.uint8",
        "python": "torch.int64",
        "numpy": "torch.int64",
    }
    assert state["python"].shape == (628,)
    assert state["numpy"].shape == (627,)


def test_asking_for_the_state_changes_nothing() -> None:
    seed_rank(3, 0)
    expected = draw()
    seed_rank(3, 0)
    random_state()
    assert draw() == expected


def test_seeds_and_ranks_draw_different_streams_and_each_the_same_again() -> None:
    drawn = {}
    for seed, rank in [(0, 0), (0, 1), (1, 0)]:
        seed_rank(seed, rank)
        drawn[seed, rank] = draw()
    for place in range(6):
        assert len({values[place] for values in drawn.values()}) == 3
    seed_rank(0, 1)
    assert draw() == drawn[0, 1]


def test_names_of_ranks_are_no_prefixes_of_each_other() -> None:
    assert rng_keys(1)["torch"] == "rng.1.torch"
    assert not rng_keys(10)["torch"].startswith("rng.1.")
