from __future__ import annotations

import pytest

from strongroom.custody.context import Custody
from strongroom.custody.resolve import resolve
from strongroom.custody.verify import verify_checkpoint
from strongroom.errors import AmbiguousNameError, InputError, UnknownNameError
from strongroom.ledger.events import EventKind
from strongroom.names import Attempt, CheckpointId, CheckpointName, Digest, Step
from strongroom.verification.ladder import Rung
from tests.support.trained_store import RUN


def test_a_step_the_latest_and_an_id_prefix_name_checkpoints(custody: Custody) -> None:
    second = resolve(custody, f"{RUN}/2")
    assert second.name.step.number == 2
    assert resolve(custody, f"{RUN}@latest").name.step.number == 4
    assert resolve(custody, second.checkpoint_id.hex[:10]) == second
    assert resolve(custody, str(second.checkpoint_id)) == second


def test_verified_means_what_the_ledger_says(custody: Custody) -> None:
    with pytest.raises(UnknownNameError, match=f"strongroom verify {RUN}@latest"):
        resolve(custody, f"{RUN}@verified")
    first = resolve(custody, f"{RUN}/2")
    assert verify_checkpoint(custody, first.name, up_to=Rung.STRUCTURE).passed
    assert resolve(custody, f"{RUN}@verified") == first


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (f"{RUN}/3", "it has: 2, 4"),
        ("small-tolk/2", f"near: {RUN}"),
        ("small-tolk@latest", f"near: {RUN}"),
        ("@production", "strongroom promote CKPT --stage production"),
        ("ffffffffffff", "no checkpoint id starts with"),
        ("abc", "at least 4 hex digits"),
        ("what is this", "expected RUN/step"),
        ("", "expected RUN/step"),
    ],
)
def test_what_names_nothing_is_answered_with_what_is_near(
    custody: Custody, text: str, hint: str
) -> None:
    with pytest.raises(UnknownNameError, match=hint):
        resolve(custody, text)


def test_a_run_key_that_cannot_be_one_is_said_to_be_none(custody: Custody) -> None:
    with pytest.raises(InputError, match="run key 'No Key'"):
        resolve(custody, "No Key@latest")


def test_a_prefix_that_fits_several_lists_them(custody: Custody) -> None:
    first = resolve(custody, f"{RUN}/2")
    prefix = first.checkpoint_id.hex[:6]
    custody.record(
        EventKind.CHECKPOINT_QUARANTINED,
        checkpoint_id=CheckpointId(Digest(prefix + "0" * 58)),
        checkpoint=CheckpointName(RUN, Attempt(1), Step(3)),
        reason="made up, to have a like id",
    )
    with pytest.raises(AmbiguousNameError, match=rf"(?s){RUN}/2.*{RUN}/3"):
        resolve(custody, prefix)
    assert resolve(custody, first.checkpoint_id.hex[:12]) == first
