"""Laws of names and canonical documents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strongroom import canonical
from strongroom.errors import FormatError, InputError
from strongroom.names import Attempt, CheckpointName, Digest, RunKey, Step

run_keys = st.from_regex(RunKey.PATTERN, fullmatch=True).map(RunKey)
attempts = st.integers(1, 9999).map(Attempt)
steps = st.integers(0, 99_999_999).map(Step)
names = st.builds(CheckpointName, run_keys, attempts, steps)
digests = st.binary(max_size=64).map(Digest.of)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
documents = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text("ab"), inner, max_size=4)
        ),
        max_leaves=12,
    ),
    max_size=6,
)


@given(names)
def test_a_name_survives_its_text(name: CheckpointName) -> None:
    assert CheckpointName.parse(str(name)) == name


@given(digests)
def test_a_digest_survives_its_text(digest: Digest) -> None:
    assert Digest.parse(str(digest)) == digest


@given(steps, steps)
def test_steps_sort_as_their_folder_names_do(one: Step, other: Step) -> None:
    assert (one < other) == (str(one) < str(other))


@given(st.text() | st.text("0123456789abcdef").map("sha256:".__add__))
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="digest"):
        Digest.parse(text)


@pytest.mark.parametrize("text", ["", "../x", "a/b", "A", "-a", "a" * 64, "run@1", "a b", "é"])
def test_what_is_no_run_key_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="run key"):
        RunKey(text)


@pytest.mark.parametrize("text", ["step-10", "step-0000001", "step-000000010", "Step-00000010"])
def test_steps_are_parsed_exactly(text: str) -> None:
    with pytest.raises(InputError, match="step"):
        Step.parse(text)


@given(documents)
def test_a_document_survives_its_canonical_form(document: canonical.JsonObject) -> None:
    data = canonical.dumps(document)
    assert canonical.loads(data, what="law") == document
    assert canonical.dumps(canonical.loads(data, what="law")) == data


@given(documents.filter(bool))
def test_any_other_spelling_is_refused(document: canonical.JsonObject) -> None:
    spelled = json.dumps(document, indent=1).encode()
    with pytest.raises(FormatError, match="canonical"):
        canonical.loads(spelled, what="law")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**60])
def test_what_has_no_canonical_form_is_refused(value: float) -> None:
    with pytest.raises(FormatError, match="no canonical JSON form"):
        canonical.dumps({"value": value})
