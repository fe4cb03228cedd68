from __future__ import annotations

import json

import pytest

from strongroom.errors import FormatError
from strongroom.names import Digest
from strongroom.signing.statement import EVALUATION, STATEMENT_TYPE, Statement

STATEMENT = Statement(
    subject_name="nightly-7/40",
    subject=Digest.of(b"manifest"),
    predicate_type=EVALUATION,
    predicate={"loss": 1.25, "notes": ["ölçüldü"]},
)


def test_a_statement_survives_its_bytes() -> None:
    assert Statement.from_bytes(STATEMENT.to_bytes()) == STATEMENT


def test_a_statement_is_what_in_toto_prescribes() -> None:
    document = json.loads(STATEMENT.to_bytes())
    assert document == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "nightly-7/40", "digest": {"sha256": STATEMENT.subject.hex}}],
        "predicateType": "urn:strongroom:evaluation:1",
        "predicate": {"loss": 1.25, "notes": ["ölçüldü"]},
    }


def test_a_predicate_without_a_canonical_form_is_refused() -> None:
    statement = Statement(
        subject_name="x",
        subject=STATEMENT.subject,
        predicate_type=EVALUATION,
        predicate={"loss": float("nan")},
    )
    with pytest.raises(FormatError, match="canonical"):
        statement.to_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"_type": "https://in-toto.io/Statement/v0.1"},
        {"subject": []},
        {"subject": None},
        {"subject": [{"name": "x", "digest": {"sha1": "00"}}]},
        {"subject": [{"name": "x", "digest": {"sha256": "00"}}]},
        {"subject": [{"name": "x", "digest": {"sha256": "0" * 64, "md5": "00"}}]},
        {"subject": [{"name": "x", "digest": {"sha256": "0" * 64}}] * 2},
        {"predicate": None},
        {"predicate": [1]},
        {"extra": 1},
    ],
)
def test_anything_else_is_refused(change: dict[str, object]) -> None:
    document = {**json.loads(STATEMENT.to_bytes()), **change}
    data = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    with pytest.raises(FormatError, match="in-toto statement"):
        Statement.from_bytes(data)


def test_the_type_is_version_1() -> None:
    assert STATEMENT_TYPE.endswith("/v1")
