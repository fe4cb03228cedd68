from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from strongroom.checkpoint.manifest import Manifest
from strongroom.storage.memory import MemoryStorage
from strongroom.verification.structure import structure_faults
from tests.support.checkpoints import save_checkpoint, training_state


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return save_checkpoint(MemoryStorage(), 12).manifest


def test_a_whole_manifest_has_no_faults(manifest: Manifest) -> None:
    assert structure_faults(manifest) == []


def test_a_rank_may_have_several_shards_and_files_may_be_borrowed(manifest: Manifest) -> None:
    own = with_files("__0_1.distcp", "__0_2.distcp")(manifest)
    assert structure_faults(own) == []
    borrowed = replace(
        manifest.files[-1],
        name="attempt-0001/step-00000002/__5_0.distcp",
        lender=manifest.checkpoint_id,
    )
    assert structure_faults(replace(manifest, files=(*manifest.files, borrowed))) == []


def test_the_order_of_more_rows_than_a_run_could_have_is_not_made(manifest: Manifest) -> None:
    huge = {**CURSOR, "num_rows": 2**50, "order_digest": "sha256:" + "0" * 64}
    assert structure_faults(state(cursor=huge)(manifest)) == []


def drop(*names: str) -> Callable[[Manifest], Manifest]:
    return lambda manifest: replace(
        manifest,
        tensors=tuple(entry for entry in manifest.tensors if not entry.name.startswith(names)),
    )


def state(**changes: Any) -> Callable[[Manifest], Manifest]:  # noqa: ANN401 -- JSON
    """Put other sections into the state; None takes one away."""
    return lambda manifest: replace(
        manifest,
        state={
            name: section
            for name, section in {**manifest.state, **changes}.items()
            if section is not None
        },
    )


def with_files(*names: str) -> Callable[[Manifest], Manifest]:
    return lambda manifest: replace(
        manifest, files=(*manifest.files, *(replace(manifest.files[-1], name=n) for n in names))
    )


CURSOR = {"order": "sha256-sort/1", "seed": 3, "num_rows": 10, "epoch": 0, "position": 10}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (drop("model.", "optim."), "expected parameters under 'model.', got none"),
        (drop("optim."), "optim.state.layer.bias: expected optimizer state, got none"),
        (
            drop("optim.state.layer.bias"),
            "optim.state.layer.bias: expected exp_avg, exp_avg_sq, step, got none",
        ),
        (
            drop("optim.state.layer.weight.exp_avg_sq"),
            "optim.state.layer.weight: expected exp_avg, exp_avg_sq, step, got exp_avg, step",
        ),
        (
            drop("model.layer.bias"),
            "optim.state.layer.bias.step: is state of a parameter that the checkpoint does not",
        ),
        (drop("rng.0.numpy"), "missing ['rng.0.numpy'], too many []"),
        (drop("rng."), "missing ['rng.0.numpy', 'rng.0.python', 'rng.0.torch']"),
        (
            lambda m: replace(m, world_size=2),
            "files: expected shards of each of 2 ranks, numbered without a gap, and .metadata, "
            "missing ['__1_0.distcp'], too many []",
        ),
        (
            with_files("__0_2.distcp"),
            "numbered without a gap, and .metadata, missing [], too many ['__0_2.distcp']",
        ),
        (with_files("__00_1.distcp", "notes"), "too many ['__00_1.distcp', 'notes']"),
        (lambda m: replace(m, world_size=2**50), f"a shard of each of {2**50} ranks, got 2"),
        (lambda m: replace(m, world_size=2**50), f"some of each of {2**50} ranks"),
        (
            lambda m: replace(m, world_size=2),
            "missing ['rng.1.numpy', 'rng.1.python', 'rng.1.torch']",
        ),
        (lambda m: replace(m, files=m.files[1:]), "missing ['.metadata']"),
        (
            lambda m: replace(m, tensors=(replace(m.tensors[0], shape=(9,)), *m.tensors[1:])),
            "lie in no chunk",
        ),
        (state(cursor=None), "state.cursor: expected the order"),
        (state(cursor=CURSOR), "state.stored cursor: expected a position below 10 rows"),
        (state(cursor={**CURSOR, "num_rows": 2**50, "position": 2**50}), "a position below"),
        (state(scheduler=None), "state.scheduler: expected the schedule's state, got none"),
        (state(counters=None), "state.counters.tokens: expected an integer, got None"),
        (
            state(counters={"step": 11, "tokens": 1, "samples": 1}),
            "state.counters.step: expected 12, got 11",
        ),
        (
            state(counters={"step": 12, "tokens": "1", "samples": 1}),
            "state.counters.tokens: expected an integer, got '1'",
        ),
        (state(optimizer={"param_groups": []}), "state.optimizer.param_groups: expected at least"),
        (state(optimizer=7), "state.optimizer.param_groups: expected at least"),
        (state(optimizer={"param_groups": 3}), "param_groups: expected a list of objects, got 3"),
        (state(optimizer={"param_groups": [7]}), "expected a list of objects, got [7]"),
        (state(optimizer={"param_groups": [{"params": 1}]}), "expected a list of objects"),
        (state(passed_over=3), "state.passed_over: expected a list of steps, got 3"),
        (state(passed_over=["4"]), "state.passed_over: expected a list of steps, got ['4']"),
        (state(model={"base_model": "sha256:" + "0" * 64}), "state.model.base_model: expected"),
        (lambda m: replace(m, metrics={"train_loss": 1.0}), "metrics.probe_loss: expected"),
    ],
)
def test_each_thing_that_is_missing_is_named(
    manifest: Manifest, change: Callable[[Manifest], Manifest], fault: str
) -> None:
    faults = structure_faults(change(manifest))
    assert any(fault in found for found in faults), faults


def test_optimizer_state_has_the_shape_of_its_parameter() -> None:
    tensors = training_state()
    tensors["optim.state.layer.weight.exp_avg"] = tensors["model.layer.bias"]
    manifest = save_checkpoint(MemoryStorage(), tensors=tensors).manifest
    (fault,) = structure_faults(manifest)
    assert fault == (
        "optim.state.layer.weight.exp_avg: expected a scalar or the shape of its parameter, "
        "[6, 4], got [5]"
    )


def test_all_faults_are_listed_at_once(manifest: Manifest) -> None:
    assert len(structure_faults(drop("rng.", "optim.")(state(cursor=None)(manifest)))) >= 4
