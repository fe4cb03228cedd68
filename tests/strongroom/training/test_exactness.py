"""What keeps a run from coming out the same bit for bit is said beforehand, and stays said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strongroom.checkpoint.attempts import AttemptRecord
from strongroom.names import RunKey
from strongroom.training.config import RunConfig, parse_config
from strongroom.training.exactness import reseeded_ranks, resume_inexactness, run_inexactness
from strongroom.training.placement import Placement

TWO = Placement(strategy="fsdp2", world_size=2)
HERE = {"device": "AMD EPYC, AVX2", "torch": "2.13.0"}
ROUNDING = "sums are rounded in another order, in float32 by about 1e-6 of the loss"


def config(**sections: Any) -> RunConfig:  # noqa: ANN401 -- as in YAML
    train = {"steps": 5, "batch_rows": 4, "learning_rate": 0.1, **sections.pop("train", {})}
    return parse_config(
        {
            "model": {"source": "tiny", "dtype": "float32"},
            "data": {"sources": [{"uri": "rows.jsonl"}]},
            "adapter": {"method": "full"},
            **sections,
            "train": train,
        },
        source="test",
    )


def attempt(
    placement: Placement = TWO, *inexact: str, environment: dict[str, str] | None = None
) -> AttemptRecord:
    return AttemptRecord(
        run=RunKey("r"),
        attempt=1,
        placement=placement.to_json(),
        environment=HERE | (environment or {}),
        inexact=inexact,
    )


def test_a_run_that_goes_on_as_it_was_is_exact() -> None:
    assert resume_inexactness(config(), attempt(), attempt()) == ()
    assert run_inexactness(config()) == ()


@pytest.mark.parametrize(
    ("now", "change"),
    [
        (replace(TWO, world_size=1), "world_size 2 -> 1"),
        (replace(TWO, strategy="zero3"), "strategy 'fsdp2' -> 'zero3'"),
        (replace(TWO, replicas=2), "replicas 1 -> 2"),
        (replace(TWO, micro_batch_rows=1), "micro_batch_rows None -> 1"),
        (replace(TWO, threads_per_rank=4), "threads_per_rank 1 -> 4"),
    ],
)
def test_each_change_of_placement_is_named(now: Placement, change: str) -> None:
    assert resume_inexactness(config(), attempt(), attempt(now)) == (f"{change}: {ROUNDING}",)


@pytest.mark.parametrize(
    ("now", "change"),
    [
        ({"torch": "2.14.0"}, "torch '2.13.0' -> '2.14.0'"),
        ({"device": "NVIDIA H200"}, "device 'AMD EPYC, AVX2' -> 'NVIDIA H200'"),
        (
            {"device": "AMD EPYC, AVX512", "torch": "2.13.1"},
            "device 'AMD EPYC, AVX2' -> 'AMD EPYC, AVX512', torch '2.13.0' -> '2.13.1'",
        ),
    ],
)
def test_each_change_of_what_computes_is_named(now: dict[str, str], change: str) -> None:
    (reason,) = resume_inexactness(config(), attempt(), attempt(environment=now))
    assert reason.startswith(f"{change}: ")


def test_the_package_of_another_strategy_is_told_by_the_strategy() -> None:
    now = attempt(replace(TWO, strategy="zero3"), environment={"deepspeed": "0.19.8"})
    (reason,) = resume_inexactness(config(), attempt(), now)
    assert "deepspeed" not in reason
    (reason,) = resume_inexactness(config(), now, attempt())
    assert "deepspeed" not in reason


def test_several_changes_are_one_reason() -> None:
    now = replace(TWO, world_size=4, replicas=2)
    (reason,) = resume_inexactness(config(), attempt(), attempt(now))
    assert reason.startswith("world_size 2 -> 4, replicas 1 -> 2: ")


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"model": {"source": "tiny", "dtype": "bfloat16"}}, "bfloat16"),
        ({"train": {"compute_dtype": "bfloat16"}}, "bfloat16"),
        ({"adapter": {"method": "lora", "dropout": 0.1}}, "adapter.dropout draws other masks"),
    ],
)
def test_what_makes_it_worse_is_named_too(sections: dict[str, Any], said: str) -> None:
    one = replace(TWO, world_size=1)
    reasons = resume_inexactness(config(**sections), attempt(), attempt(one))
    assert len(reasons) == 2
    assert said in reasons[1]
    assert resume_inexactness(config(**sections), attempt(), attempt()) == ()


def test_what_was_not_exact_before_stays_so_and_is_said_once() -> None:
    one = replace(TWO, world_size=1)
    shrunk = resume_inexactness(config(), attempt(), attempt(one))
    again = resume_inexactness(config(), attempt(one, *shrunk), attempt(one))
    assert again == shrunk
    back = resume_inexactness(config(), attempt(one, *shrunk), attempt())
    assert back == (*shrunk, f"world_size 1 -> 2: {ROUNDING}")
    assert resume_inexactness(config(), attempt(TWO, *back), attempt(one)) == back


@pytest.mark.parametrize("lost", [{"placement": {}}, {"environment": {}}], ids=str)
def test_what_is_not_known_of_the_attempt_before_is_a_reason(lost: dict[str, Any]) -> None:
    (reason,) = resume_inexactness(config(), replace(attempt(), **lost), attempt())
    assert "was not recorded" in reason


@pytest.mark.parametrize(
    ("fsdp2", "said"), [({"compile_layers": True}, "compile_layers"), ({"float8": "on"}, "float8")]
)
def test_a_run_that_no_two_launches_repeat_says_why(fsdp2: dict[str, Any], said: str) -> None:
    (reason,) = run_inexactness(config(train={"fsdp2": fsdp2}))
    assert said in reason


def test_ranks_that_did_not_exist_are_those_that_are_seeded() -> None:
    assert reseeded_ranks(2, 4) == (2, 3)
    assert reseeded_ranks(2, 2) == reseeded_ranks(4, 2) == ()
