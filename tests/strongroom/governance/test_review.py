from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strongroom.errors import FormatError, InputError
from strongroom.governance.review import (
    MAX_COMMENT_CHARACTERS,
    Review,
    expiry,
    instant,
    person_of,
)
from strongroom.names import Attempt, CheckpointId, CheckpointName, RunKey, Step
from strongroom.signing.statement import APPROVAL, EVALUATION, REJECTION
from tests.support.governed import digest_of

NAME = CheckpointName(RunKey("nightly"), Attempt(1), Step(10))
APPROVING = Review(
    approves=True,
    checkpoint_id=CheckpointId(digest_of("checkpoint")),
    stage="production",
    policy=digest_of("policy"),
    evidence=(digest_of("verification"), digest_of("evaluation")),
    expires="2026-02-14T08:00:00.000Z",
    comment="Baktım, uygundur.",
)
REJECTING = replace(APPROVING, approves=False, expires=None, comment="")


@pytest.mark.parametrize("review", [APPROVING, REJECTING], ids=["approval", "rejection"])
def test_a_review_survives_its_statement(review: Review) -> None:
    assert Review.from_statement(review.to_statement(NAME)) == review


def test_a_statement_binds_everything_that_was_approved() -> None:
    statement = APPROVING.to_statement(NAME)
    assert statement.predicate_type == APPROVAL
    assert statement.subject == APPROVING.checkpoint_id
    assert statement.predicate == {
        "checkpoint_id": str(APPROVING.checkpoint_id),
        "stage": "production",
        "policy": str(digest_of("policy")),
        "evidence": [str(digest_of("verification")), str(digest_of("evaluation"))],
        "expires": "2026-02-14T08:00:00.000Z",
        "comment": "Baktım, uygundur.",
    }
    assert "comment" not in REJECTING.to_statement(NAME).predicate
    assert REJECTING.to_statement(NAME).predicate_type == REJECTION


def test_an_approval_must_expire_and_a_rejection_must_not() -> None:
    with pytest.raises(InputError, match="an approval must have an expiry"):
        replace(APPROVING, expires=None)
    with pytest.raises(InputError, match="a rejection must have none"):
        replace(REJECTING, expires="2026-02-14T08:00:00.000Z")


def test_a_comment_has_an_end() -> None:
    with pytest.raises(InputError, match="at most 2000 characters, got 2001"):
        replace(APPROVING, comment="x" * (MAX_COMMENT_CHARACTERS + 1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checkpoint_id", "sha256:zz"),
        ("checkpoint_id", str(digest_of("another checkpoint"))),
        ("policy", None),
        ("evidence", "sha256:" + "0" * 64),
        ("evidence", [1]),
        ("expires", "tomorrow"),
        ("expires", "2026-02-14T08:00:00"),
        ("expires", None),
        ("stage", 3),
        ("comment", 3),
    ],
)
def test_a_malformed_statement_is_refused(name: str, value: Any) -> None:  # noqa: ANN401 -- JSON
    statement = APPROVING.to_statement(NAME)
    broken = replace(statement, predicate={**statement.predicate, name: value})
    with pytest.raises(FormatError, match="review"):
        Review.from_statement(broken)


def test_a_statement_of_another_type_is_refused() -> None:
    statement = replace(APPROVING.to_statement(NAME), predicate_type=EVALUATION)
    with pytest.raises(FormatError, match="expected a statement of type"):
        Review.from_statement(statement)


def test_persons_are_told_from_services() -> None:
    assert person_of("person:selin") == "selin"
    assert person_of("selin") == "selin"
    assert person_of("service:ed25519-0123456789abcdef") is None


def test_times() -> None:
    assert expiry("2026-02-20T08:00:00.123Z", 14) == "2026-03-06T08:00:00.123Z"
    assert instant("2026-02-20T10:00:00+02:00") == instant("2026-02-20T08:00:00Z")
    with pytest.raises(InputError, match="expected RFC 3339 in UTC, got 'soon'"):
        instant("soon")
