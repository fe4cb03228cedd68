from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from strongroom.checkpoint.manifest import Manifest
from strongroom.storage.memory import MemoryStorage
from strongroom.training.preflight.facts import SavedCheckpoint
from strongroom.training.preflight.saved import saved_checkpoint
from tests.support.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    """A whole one: two parameters, their optimizer state, all that a resume needs."""
    return write_checkpoint(MemoryStorage()).manifest


def read(manifest: Manifest) -> SavedCheckpoint:
    return saved_checkpoint(manifest, is_verified=False, is_quarantined=False)


def without(prefix: str) -> Callable[[Manifest], Manifest]:
    return lambda whole: replace(
        whole, tensors=tuple(item for item in whole.tensors if not item.name.startswith(prefix))
    )


def test_a_whole_checkpoint_lacks_nothing(manifest: Manifest) -> None:
    found = read(manifest)
    assert (found.name, found.attempt, found.step) == ("nightly-7/10", 1, 10)
    assert (found.parameters, found.without_optimizer, found.lacks) == (2, 0, ())
    assert found.is_whole
    assert found.num_bytes == manifest.num_bytes
    assert found.created_s is not None
    assert found.created_s > 1e9


def test_state_without_parameters_of_its_own_is_no_optimizer(manifest: Manifest) -> None:
    assert read(without("model.")(manifest)).parameters == 0


@pytest.mark.parametrize(
    ("change", "num_lacking"),
    [(without("optim.state.layer.bias"), 1), (without("optim."), 2)],
)
def test_parameters_without_optimizer_state_are_counted(
    manifest: Manifest, change: Callable[[Manifest], Manifest], num_lacking: int
) -> None:
    found = read(change(manifest))
    assert found.without_optimizer == num_lacking
    assert found.is_weights_only is (num_lacking == 2)
    assert not found.has_whole_optimizer


@pytest.mark.parametrize("section", [{}, {"name": "adamw"}, {"param_groups": []}, None, "adamw"])
def test_settings_of_the_optimizer_that_are_lost_are_noticed(
    manifest: Manifest, section: object
) -> None:
    found = read(replace(manifest, state=manifest.state | {"optimizer": section}))
    assert not found.has_optimizer_settings
    assert not found.is_whole


@pytest.mark.parametrize(
    ("section", "said"), [("cursor", "data cursor"), ("scheduler", "sched"), ("counters", "counts")]
)
def test_state_that_is_left_out_is_named(manifest: Manifest, section: str, said: str) -> None:
    (lacks,) = read(replace(manifest, state=manifest.state | {section: {}})).lacks
    assert said in lacks


def test_random_state_of_every_rank_is_asked_for(manifest: Manifest) -> None:
    (lacks,) = read(replace(manifest, world_size=3)).lacks
    assert lacks == "the random state of 2 of 3 ranks"
    (lacks,) = read(without("rng.")(manifest)).lacks
    assert lacks == "the random state of 1 of 1 ranks"


def test_a_time_that_is_none_is_not_known(manifest: Manifest) -> None:
    assert read(replace(manifest, created="yesterday")).created_s is None
