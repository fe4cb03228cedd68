"""Attest where a checkpoint comes from: SLSA provenance v1, signed as soon as it is committed.

Source: https://slsa.dev/spec/v1.0/provenance. Resolved dependencies are the base model, dataset,
tokenizer, configuration and code; the builder is this release of strongroom.
"""

from __future__ import annotations

from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.run_record import RunRecord
from strongroom.custody.context import Custody
from strongroom.ledger.attestations import attestations_of
from strongroom.names import Digest
from strongroom.signing.statement import PROVENANCE, Statement

BUILD_TYPE = "urn:strongroom:finetune:1"


def attest_provenance(custody: Custody, committed: Committed, run: RunRecord) -> Digest:
    """Sign and store the provenance of one checkpoint, once; return the attestation's digest."""
    keyring = custody.keys.keyring()
    for sealed in attestations_of(custody.storage, committed.checkpoint_id, keyring):
        if sealed.statement.predicate_type == PROVENANCE:
            return sealed.digest
    return custody.attest(
        Statement(
            subject_name=str(committed.name),
            subject=committed.checkpoint_id,
            predicate_type=PROVENANCE,
            predicate=provenance(committed, run),
        )
    )


def provenance(committed: Committed, run: RunRecord) -> JsonObject:
    """Return the predicate."""
    inputs = run.inputs
    dependencies = {
        "base_model": inputs.base_model,
        "dataset": inputs.dataset,
        "tokenizer": inputs.tokenizer,
    }
    parent = committed.manifest.parent
    if parent is not None:
        dependencies["parent_checkpoint"] = parent
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"run": str(run.run), "config": run.config},
            "internalParameters": {"environment": run.environment},
            "resolvedDependencies": [
                {"name": name, "digest": {"sha256": digest.hex}}
                for name, digest in sorted(dependencies.items())
            ]
            + [{"name": "strongroom", "annotations": run.code}],
        },
        "runDetails": {
            "builder": {
                "id": "urn:strongroom:engine",
                "version": {"strongroom": code_version(run)},
            },
            "metadata": {
                "invocationId": f"{committed.name.run}/{committed.name.attempt}",
                "startedOn": run.created,
                "finishedOn": committed.manifest.created,
            },
        },
    }


def code_version(run: RunRecord) -> str:
    """Return the release that trained the run."""
    return str(run.code["strongroom"])
