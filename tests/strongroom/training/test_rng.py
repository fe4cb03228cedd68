from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.errors import FormatError, IntegrityError
from strongroom.storage.local import LocalStorage
from strongroom.training.rng import (
    random_state,
    rng_keys,
    saved_rng_keys,
    seed_rank,
    set_random_state,
)
from tests.support.checkpoints import save_checkpoint, training_state


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


def test_an_accelerator_is_left_as_seeded_where_the_checkpoint_was_saved_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = {f"rng.3.{kind}" for kind in ("torch", "python", "numpy")}
    assert set(saved_rng_keys(3, saved | {"rng.3.cuda"}).values()) == saved  # and back again
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert set(saved_rng_keys(3, saved).values()) == saved
    assert set(saved_rng_keys(3, saved | {"rng.3.cuda"}).values()) == {*saved, "rng.3.cuda"}
    # What every checkpoint has is asked for in any case, and missed by its name.
    assert "rng.3.torch" in saved_rng_keys(3, {"rng.3.cuda"}).values()


def test_a_rank_that_joins_later_draws_what_no_rank_drew_before_and_the_same_again() -> None:
    drawn = {}
    for rank, step in [(2, 0), (2, 5), (2, 6), (3, 5)]:
        seed_rank(0, rank, step=step)
        drawn[rank, step] = draw()
    for place in range(6):
        assert len({values[place] for values in drawn.values()}) == 4
    seed_rank(0, 2, step=5)
    assert draw() == drawn[2, 5]


def test_a_rank_is_seeded_as_it_ever_was() -> None:
    """A run that was begun with the first release goes on with the same numbers."""
    seed_rank(3, 1)
    assert random.random() == 0.5213944120589615  # noqa: S311 -- the generator under test
    assert int(np.random.randint(2**31)) == 825301974  # noqa: NPY002 -- as above
    assert int(torch.randint(2**31, ())) == 1096406624


# --- what cannot be restored is an error (huggingface/transformers#40500) --------------


def cut(tensor: Tensor) -> Tensor:
    return tensor[:-1]


def as_floats(tensor: Tensor) -> Tensor:
    return tensor.double()


def changed(place: int, value: int) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        other = tensor.clone()
        other[place] = value
        return other

    return change


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("torch", cut),
        ("torch", torch.zeros_like),
        ("torch", Tensor.long),
        ("python", cut),
        ("python", as_floats),
        ("python", changed(0, 4)),  # of another version of Python
        ("python", changed(1, 2**40)),
        ("python", changed(625, 900)),  # a position beyond its words
        ("numpy", cut),
        ("numpy", as_floats),
        ("numpy", changed(0, -1)),
        ("numpy", changed(624, 5000)),  # NumPy itself would read beyond its words
        ("numpy", changed(624, -3)),
        ("numpy", changed(625, 7)),
    ],
)
def test_a_state_that_is_none_is_refused_and_said(
    kind: str, damage: Callable[[Tensor], Tensor]
) -> None:
    state = {name: tensor.clone() for name, tensor in random_state().items()}
    set_random_state(state)
    state[kind] = damage(state[kind])
    with pytest.raises(FormatError, match=r"random state: expected uint8 of torch, int64 \[628\]"):
        set_random_state(state)


def test_a_state_that_lacks_a_generator_is_refused() -> None:
    state = random_state()
    del state["numpy"]
    with pytest.raises(FormatError, match="'numpy'"):
        set_random_state(state)


@pytest.mark.parametrize("kind", ["torch", "python", "numpy"])
def test_a_flipped_bit_of_a_stored_state_is_named(tmp_path: Path, kind: str) -> None:
    storage = LocalStorage(tmp_path)
    names = rng_keys(0)
    stored = {names[each]: tensor for each, tensor in random_state().items()}
    committed = save_checkpoint(storage, tensors={**training_state(1), **stored})
    (chunk,) = committed.manifest.tensor(names[kind]).chunks
    shard = tmp_path / committed.folder / chunk.file
    data = bytearray(shard.read_bytes())
    data[data.index(bytes(stored[names[kind]].view(torch.uint8))) + 40] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    reader = CheckpointReader(storage, committed)
    for other in set(names) - {kind}:
        assert torch.equal(reader.read(names[other]), stored[names[other]])
    with pytest.raises(IntegrityError) as caught:
        reader.read(names[kind])
    assert caught.value.tensor == names[kind]
