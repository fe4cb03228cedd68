from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from strongroom.cli.blocks import Line
from strongroom.cli.output import Reply, answer, failure_document, jsonable
from strongroom.errors import ConfigError, IntegrityError, PolicyError, VerificationError
from strongroom.names import Digest, RunKey


def test_an_error_tells_its_class_message_code_and_every_fact() -> None:
    error = IntegrityError(
        "digest differs", file="a.distcp", tensor="w", offset=7, expected="x", got="y"
    )
    assert failure_document(error) == {
        "error": "IntegrityError",
        "message": str(error),
        "exit_code": 20,
        "file": "a.distcp",
        "tensor": "w",
        "offset": 7,
        "expected": "x",
        "got": "y",
    }


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (ConfigError("c.yaml", ["a", "b"]), {"source": "c.yaml", "faults": ["a", "b"]}),
        (PolicyError("promote", ["no"]), {"what": "promote", "reasons": ["no"]}),
    ],
)
def test_lists_of_faults_and_reasons_stay_lists(
    error: ConfigError | PolicyError, facts: dict[str, object]
) -> None:
    assert failure_document(error).items() >= facts.items()


def test_what_json_has_no_word_for_becomes_text() -> None:
    value = {"id": Digest("0" * 64), "run": RunKey("chat"), "file": Path("a/b"), "t": (1, 2.5)}
    assert jsonable(value) == {
        "id": "sha256:" + "0" * 64,
        "run": "chat",
        "file": "a/b",
        "t": [1, 2.5],
    }


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_never_a_json_number(number: float) -> None:
    assert json.loads(json.dumps(jsonable({"loss": number}), allow_nan=False)) == {
        "loss": repr(number)
    }


def test_a_finding_that_is_a_failure_is_one_document_in_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reply = Reply(
        document={"checkpoints": []}, blocks=(Line.of("x"),), failure=VerificationError("failed")
    )
    answer(reply, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "error": "VerificationError",
        "message": "failed",
        "exit_code": 21,
        "checkpoints": [],
    }


def test_a_finding_that_is_a_failure_is_shown_and_then_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reply = Reply(document={}, blocks=(Line.of("found"),), failure=VerificationError("failed"))
    answer(reply, as_json=False)
    assert capsys.readouterr() == ("found\n", "error: failed\n")
