"""Each act does one thing, signs it and records it; a damaged checkpoint goes no further."""

from __future__ import annotations

from pathlib import Path

import pytest

from strongroom.checkpoint.catalogue import Committed
from strongroom.custody.audit import audit_checkpoint, write_report
from strongroom.custody.context import Custody
from strongroom.custody.evaluate import evaluate_checkpoint
from strongroom.custody.inputs import prepare
from strongroom.custody.listing import list_store
from strongroom.custody.promote import (
    judge_promotion,
    promote_checkpoint,
    review_checkpoint,
)
from strongroom.custody.resolve import resolve
from strongroom.custody.verify import verify_checkpoint
from strongroom.errors import (
    ConflictError,
    InputError,
    PolicyError,
    QuarantinedError,
    UnknownNameError,
)
from strongroom.ledger.attestations import attestations_of
from strongroom.ledger.events import EventKind
from strongroom.names import CheckpointId, Digest
from strongroom.signing.statement import BASELINE, PROVENANCE
from strongroom.training.config import load_config
from tests.support.trained_store import AUTHOR, RUN


@pytest.fixture
def last(custody: Custody) -> Committed:
    return resolve(custody, f"{RUN}@latest")


@pytest.fixture
def governed(custody: Custody, last: Committed) -> Committed:
    assert verify_checkpoint(custody, last.name).passed
    assert evaluate_checkpoint(custody, last.name).verdict.passed
    return last


def shard_of(custody: Custody, committed: Committed) -> Path:
    folder = Path(custody.store.url.removeprefix("file://")) / committed.folder
    return next(folder.glob("*.distcp"))


def flip_a_byte(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def kinds(custody: Custody) -> list[EventKind]:
    return [event.kind for event in custody.ledger().events()]


def test_every_committed_checkpoint_has_signed_provenance(
    custody: Custody, last: Committed
) -> None:
    sealed = attestations_of(custody.storage, last.checkpoint_id, custody.keys.keyring())
    (provenance,) = [s for s in sealed if s.statement.predicate_type == PROVENANCE]
    definition = provenance.statement.predicate["buildDefinition"]
    named = {item["name"]: item for item in definition["resolvedDependencies"]}
    assert named["dataset"]["digest"]["sha256"] == last.manifest.inputs.dataset.hex
    assert {"base_model", "tokenizer", "strongroom"} <= named.keys()


def test_verifying_again_records_again_and_the_state_digest_is_the_same(
    custody: Custody, last: Committed
) -> None:
    first = verify_checkpoint(custody, last.name)
    second = verify_checkpoint(custody, last.name)
    assert first.state_digest == second.state_digest is not None
    assert kinds(custody).count(EventKind.CHECKPOINT_VERIFIED) == 2


def test_a_flipped_byte_is_found_recorded_and_quarantined_and_goes_no_further(
    custody: Custody, governed: Committed
) -> None:
    shard = shard_of(custody, governed)
    flip_a_byte(shard, shard.stat().st_size // 2)
    report = verify_checkpoint(custody, governed.name)
    assert not report.passed
    assert shard.name in report.findings[0]
    record = custody.history().records[governed.checkpoint_id]
    assert record.quarantined is not None
    with pytest.raises(QuarantinedError):
        evaluate_checkpoint(custody, governed.name)
    with pytest.raises(PolicyError, match="not in quarantine"):
        promote_checkpoint(custody, governed, "staging")
    # Found once, it stays: verifying again adds no second quarantine.
    verify_checkpoint(custody, governed.name)
    assert kinds(custody).count(EventKind.CHECKPOINT_QUARANTINED) == 1


def test_promotion_reads_the_bytes_again_whatever_was_verified_before(
    custody: Custody, governed: Committed
) -> None:
    assert judge_promotion(custody, governed, "staging").allowed
    flip_a_byte(shard_of(custody, governed), 1000)
    with pytest.raises(PolicyError, match="quarantine"):
        promote_checkpoint(custody, governed, "staging")
    assert custody.history().in_stage("staging") is None


def test_a_manifest_in_place_of_the_committed_one_is_found(
    custody: Custody, last: Committed
) -> None:
    folder = Path(custody.store.url.removeprefix("file://")) / last.folder
    flip_a_byte(folder / "manifest.json", 40)
    report = verify_checkpoint(custody, last.name)
    assert not report.passed
    assert custody.history().records[last.checkpoint_id].quarantined is not None


def test_staging_asks_for_evidence_and_the_refusal_is_on_record(
    custody: Custody, last: Committed
) -> None:
    with pytest.raises(PolicyError) as refused:
        promote_checkpoint(custody, last, "staging")
    assert any("never verified" in reason for reason in refused.value.reasons)
    assert any("never evaluated" in reason for reason in refused.value.reasons)
    assert kinds(custody)[-1] is EventKind.PROMOTION_REFUSED


def test_production_takes_two_persons_who_are_not_the_author(
    custody: Custody, governed: Committed
) -> None:
    assert promote_checkpoint(custody, governed, "staging").moved
    for person in (AUTHOR, "deniz", "selin"):
        custody.keys.add_person(person)
    for person in (AUTHOR, "deniz"):
        review_checkpoint(custody, governed, "production", person=person, approves=True)
        with pytest.raises(PolicyError, match="approved by 2 different persons"):
            promote_checkpoint(custody, governed, "production")
    review_checkpoint(custody, governed, "production", person="selin", approves=True)
    assert promote_checkpoint(custody, governed, "production").moved
    assert resolve(custody, "@production") == governed
    assert not promote_checkpoint(custody, governed, "production").moved


def test_a_rejection_blocks_until_it_is_taken_back(custody: Custody, governed: Committed) -> None:
    custody.keys.add_person("deniz")
    review_checkpoint(
        custody, governed, "staging", person="deniz", approves=False, comment="wait for the audit"
    )
    with pytest.raises(PolicyError, match="wait for the audit"):
        promote_checkpoint(custody, governed, "staging")
    review_checkpoint(custody, governed, "staging", person="deniz", approves=True)
    assert promote_checkpoint(custody, governed, "staging").moved


def test_nobody_approves_without_a_key_or_without_evidence(
    custody: Custody, last: Committed
) -> None:
    with pytest.raises(UnknownNameError, match="strongroom keys add nobody"):
        review_checkpoint(custody, last, "staging", person="nobody", approves=True)
    custody.keys.add_person("deniz")
    with pytest.raises(PolicyError, match="verify it first"):
        review_checkpoint(custody, last, "staging", person="deniz", approves=True)


def test_the_base_model_is_scored_once_for_all_checkpoints(custody: Custody) -> None:
    first, second = (resolve(custody, f"{RUN}/{step}") for step in (2, 4))
    reports = [evaluate_checkpoint(custody, item.name).report for item in (first, second)]
    assert reports[0].base_loss == reports[1].base_loss
    base = first.manifest.inputs.base_model
    sealed = attestations_of(custody.storage, base, custody.keys.keyring())
    assert [s.statement.predicate_type for s in sealed] == [BASELINE]


def test_the_listing_joins_store_and_ledger(custody: Custody, governed: Committed) -> None:
    lines = {line.name.step.number: line for line in list_store(custody).lines}
    assert lines[2].recorded
    assert lines[2].verified is None
    assert lines[4].verified
    assert lines[4].report is not None
    assert lines[4].checkpoint_id == governed.checkpoint_id


def test_the_same_run_again_is_the_same_and_another_recipe_is_refused(
    custody: Custody, trained_store: Path
) -> None:
    before = len(custody.ledger().events())
    recipe = trained_store / "tiny.yaml"
    prepare(custody, RUN, load_config(recipe), base_dir=trained_store, author="somebody-else")
    assert len(custody.ledger().events()) == before
    assert custody.history().runs[RUN].author == AUTHOR
    other = load_config(recipe).__class__(
        **{
            name: getattr(load_config(recipe), name)
            for name in ("model", "data", "train", "save", "evaluation")
        }
    )
    with pytest.raises(ConflictError, match=r"config\.adapter\.rank"):
        prepare(custody, RUN, other, base_dir=trained_store, author=AUTHOR)


def test_an_audit_proves_every_entry_and_writes_one_page(
    custody: Custody, governed: Committed, tmp_path: Path
) -> None:
    record = write_report(custody, governed.checkpoint_id, tmp_path / "audit" / "page.html")
    assert not record.faults
    assert record.entries
    assert all(entry.fault == "" for entry in record.entries)
    assert governed.checkpoint_id.hex in (tmp_path / "audit" / "page.html").read_text()


def test_a_damaged_attestation_is_a_fault_on_the_page_and_hides_no_other(
    custody: Custody, governed: Committed
) -> None:
    folder = Path(custody.store.url.removeprefix("file://")) / "attestations"
    files = sorted((folder / governed.checkpoint_id.hex).glob("*.json"))
    flip_a_byte(files[0], 30)
    record = audit_checkpoint(custody, governed.checkpoint_id)
    assert any(files[0].stem in fault for fault in record.faults)
    assert len(record.attestations) == len(files) - 1


def test_an_audit_of_what_the_ledger_never_heard_of_is_refused(custody: Custody) -> None:
    with pytest.raises(UnknownNameError, match="the ledger says nothing about it"):
        audit_checkpoint(custody, CheckpointId(Digest.of(b"nothing")))


def test_a_report_that_cannot_be_written_says_so(custody: Custody, governed: Committed) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_report(custody, governed.checkpoint_id, Path("/proc/nowhere/page.html"))
