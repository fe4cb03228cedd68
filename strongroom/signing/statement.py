"""in-toto statements: what is said (a predicate) about one digest (the subject).

Law: `Statement.from_bytes(s.to_bytes()) == s`.

Source: in-toto attestation framework, Statement v1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.errors import FormatError, InputError
from strongroom.names import Digest

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"

PROVENANCE: Final = "https://slsa.dev/provenance/v1"
VERIFICATION: Final = "urn:strongroom:verification:1"
EVALUATION: Final = "urn:strongroom:evaluation:1"
APPROVAL: Final = "urn:strongroom:approval:1"
REJECTION: Final = "urn:strongroom:rejection:1"
PROMOTION: Final = "urn:strongroom:promotion:1"
BASELINE: Final = "urn:strongroom:baseline:1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What is said about one thing.

    Attributes:
        subject_name: the name people know the subject by; it binds nothing.
        subject: the digest the statement is about; this binds.
        predicate_type: one of the constants of this module, or another type URI.
        predicate: what is said, in the shape its type prescribes.
    """

    subject_name: str
    subject: Digest
    predicate_type: str
    predicate: JsonObject

    def to_bytes(self) -> bytes:
        """Return the canonical JSON: the payload that is signed.

        Raises:
            FormatError: the predicate has no canonical form (NaN, infinity, a huge integer).
        """
        return canonical.dumps(
            {
                "_type": STATEMENT_TYPE,
                "subject": [{"name": self.subject_name, "digest": {"sha256": self.subject.hex}}],
                "predicateType": self.predicate_type,
                "predicate": self.predicate,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Statement:
        """Read a statement.

        Raises:
            FormatError: not canonical JSON, another statement type, or not exactly one subject
                with exactly a SHA-256 digest.
        """
        document = canonical.loads(data, what="in-toto statement")
        if document.get("_type") != STATEMENT_TYPE:
            raise FormatError(
                f"in-toto statement: expected _type {STATEMENT_TYPE!r}, "
                f"got {document.get('_type')!r}"
            )
        try:
            (subject,) = document["subject"]
            statement = cls(
                subject_name=subject["name"],
                subject=Digest(subject["digest"]["sha256"]),
                predicate_type=document["predicateType"],
                predicate=document["predicate"],
            )
            spelt_back = statement.to_bytes()
        except (KeyError, TypeError, ValueError, InputError) as error:
            raise FormatError(
                f"in-toto statement: a field is missing or malformed: {error!r}"
            ) from error
        if not isinstance(statement.predicate, dict) or spelt_back != data:
            raise FormatError(
                "in-toto statement: expected one subject {name, digest: {sha256}}, predicateType "
                "and an object as predicate, and nothing else"
            )
        return statement
