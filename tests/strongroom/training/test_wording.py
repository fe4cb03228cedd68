"""Every event of a training has words, and they say what matters of it."""

from __future__ import annotations

import pytest

from strongroom.canonical import JsonObject
from strongroom.training.reporting import ReportKind
from strongroom.training.wording import WORDS, in_words

STARTED: JsonObject = {
    "kind": "training.started",
    "attempt": 1,
    "strategy": "fsdp2",
    "world_size": 4,
    "replicas": 1,
    "resumed_from": None,
    "exact": True,
    "inexact": [],
}


def test_every_kind_has_words() -> None:
    assert set(WORDS) == set(ReportKind)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (STARTED, "training starts from the base model, attempt 1, fsdp2 on 4 rank(s); exact"),
        (
            STARTED
            | {
                "replicas": 2,
                "resumed_from": "nightly-7/attempt-0001/x",
                "exact": False,
                "inexact": ["dropout", "rounding"],
            },
            "training starts again from nightly-7/attempt-0001/x, attempt 1, fsdp2 on 4 rank(s) "
            "in 2 replicas; not exact: dropout; rounding",
        ),
        (
            {"kind": "training.step", "step": 9, "loss": 2.5, "tokens_per_s": 119.6},
            "step 9 of 40: loss 2.5000, 120 tokens/s",
        ),
        (
            {
                "kind": "checkpoint.committed",
                "step": 3,
                "checkpoint_id": "sha256:" + "ab" * 32,
                "num_bytes": 12345,
            },
            "checkpoint committed at step 3: abababababab, 12,345 bytes",
        ),
        (
            {
                "kind": "training.rolled_back",
                "from_step": 9,
                "to_step": 6,
                "loss": "nan",
                "grad_norm": "inf",
                "reason": "train.on_nonfinite is rollback",
            },
            "back from step 9 to step 6: loss nan, gradient norm inf; train.on_nonfinite is "
            "rollback",
        ),
        (
            {
                "kind": "training.restarting",
                "restart": 1,
                "max_restarts": 2,
                "delay_s": 5.0,
                "world_size": 2,
                "reason": "a rank was lost",
            },
            "restart 1 of 2, in 5 s, on 2 rank(s), after a rank was lost",
        ),
        ({"kind": "training.finished", "step": 40}, "training finished at step 40"),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_an_event_in_words(event: JsonObject, words: str) -> None:
    assert in_words(event, 40) == words
