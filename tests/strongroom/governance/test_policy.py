from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from strongroom.errors import FormatError, InputError, UnknownNameError
from strongroom.governance.policy import DEFAULT_POLICIES, StagePolicy, policy_of


@pytest.mark.parametrize("stage", DEFAULT_POLICIES)
def test_a_policy_survives_its_json(stage: str) -> None:
    policy = DEFAULT_POLICIES[stage]
    assert StagePolicy.from_json(policy.to_json()) == policy


def test_every_field_is_part_of_the_digest() -> None:
    policy = StagePolicy(stage="staging", required_rung=3, needs_evaluation=True)
    changes: dict[str, Any] = {
        "stage": "production",
        "required_rung": 2,
        "needs_evaluation": False,
        "needs_stage": "staging",
        "approvals": 1,
        "max_approval_days": 7,
    }
    assert set(changes) == {field.name for field in dataclasses.fields(policy)}
    for name, value in changes.items():
        changed = dataclasses.replace(policy, **{name: value})
        assert changed.digest != policy.digest, name


def test_production_takes_two_people_and_staging_none() -> None:
    assert policy_of("staging").approvals == 0
    production = policy_of("production")
    assert (production.approvals, production.needs_stage) == (2, "staging")
    assert production.required_rung == policy_of("staging").required_rung == 3


def test_an_unknown_stage_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="'release': expected one of staging, production"):
        policy_of("release")


@pytest.mark.parametrize(
    "changes",
    [{"required_rung": 0}, {"required_rung": 5}, {"approvals": -1}, {"max_approval_days": 0}],
)
def test_a_policy_that_could_not_be_met_or_kept_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="policy of stage 'staging'"):
        dataclasses.replace(policy_of("staging"), **changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", "strongroom.stage-policy/2"),
        ("format", None),
        ("approvals", "2"),
        ("approvals", True),
        ("required_rung", None),
        ("needs_evaluation", 1),
        ("stage", 3),
        ("needs_stage", 3),
        ("colour", "blue"),
    ],
)
def test_a_malformed_policy_document_is_refused(name: str, value: object) -> None:
    with pytest.raises(FormatError):
        StagePolicy.from_json({**policy_of("production").to_json(), name: value})


def test_a_policy_document_that_lacks_a_field_is_refused() -> None:
    document = policy_of("production").to_json()
    del document["required_rung"]
    with pytest.raises(FormatError, match="required_rung"):
        StagePolicy.from_json(document)
