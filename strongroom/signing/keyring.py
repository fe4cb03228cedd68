"""Who holds which key: a public keyring, and the folder that keeps it beside the private keys.

Invariant: everything the keyring names can be given to anyone; the private keys never leave their
files. Holders are added, never changed or removed, so what was signed once can be verified for
ever. A person is a pseudonym: which human stands behind it is not recorded here.

A keys folder:

    keyring.json            the keyring (canonical JSON, `strongroom.keyring/1`), public
    service.pem             the private key of this installation's service
    people/<name>.pem       the private key of one person
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from strongroom import canonical
from strongroom.errors import (
    ConflictError,
    FormatError,
    InputError,
    ObjectMissingError,
    SignatureError,
    UnknownNameError,
)
from strongroom.signing.encoding import decode_base64, encode_base64
from strongroom.signing.keys import (
    PUBLIC_KEY_BYTES,
    Signer,
    create_file,
    file_error,
    key_id_of,
    sync_folder,
    verify_signature,
)

logger = logging.getLogger(__name__)

FORMAT: Final = "strongroom.keyring/1"
SERVICE_NAME: Final = "service"

_PSEUDONYM = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class Role(StrEnum):
    """What a key may speak for: services attest, persons approve."""

    SERVICE = "service"
    PERSON = "person"


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who holds one key.

    Attributes:
        name: a person's pseudonym, or `service`.
        public_key: raw Ed25519 public key, 32 bytes.
    """

    name: str
    role: Role
    key_id: str
    public_key: bytes

    def __post_init__(self) -> None:
        check_pseudonym(self.name)
        if len(self.public_key) != PUBLIC_KEY_BYTES:
            raise InputError(
                f"public key of {self.name}: expected {PUBLIC_KEY_BYTES} bytes, "
                f"got {len(self.public_key)}"
            )
        if self.key_id != key_id_of(self.public_key):
            raise InputError(
                f"key id of {self.name}: expected {key_id_of(self.public_key)} "
                f"for this public key, got {self.key_id}"
            )

    @classmethod
    def of(cls, name: str, role: Role, signer: Signer) -> Holder:
        """Return who holds the key of `signer`."""
        return cls(name=name, role=role, key_id=signer.key_id, public_key=signer.public_bytes)

    @property
    def actor(self) -> str:
        """How events name this holder: `person:<name>` or `service:<key id>`."""
        return f"person:{self.name}" if self.role is Role.PERSON else f"service:{self.key_id}"


class Keyring:
    """An immutable set of holders, found by key id."""

    __slots__ = ("_holders",)

    def __init__(self, holders: Iterable[Holder] = ()) -> None:
        by_id: dict[str, Holder] = {}
        for holder in holders:
            if by_id.setdefault(holder.key_id, holder) != holder:
                raise InputError(
                    f"keyring: key {holder.key_id} is claimed by {by_id[holder.key_id].actor} "
                    f"and by {holder.actor}; one key has one holder"
                )
        self._holders: Final[Mapping[str, Holder]] = dict(sorted(by_id.items()))

    def __iter__(self) -> Iterator[Holder]:
        return iter(self._holders.values())

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._holders

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyring) and self._holders == other._holders

    def __hash__(self) -> int:
        return hash(tuple(self._holders.values()))

    def __repr__(self) -> str:
        return f"Keyring({', '.join(holder.actor for holder in self)})"

    def holder(self, key_id: str) -> Holder:
        """Return who holds the key.

        Raises:
            SignatureError: no holder of that key is trusted here.
        """
        try:
            return self._holders[key_id]
        except KeyError:
            raise SignatureError(
                f"key {key_id} is in no keyring entry; if its holder is to be trusted, add the "
                "public key to keyring.json"
            ) from None

    def verify(self, key_id: str, data: bytes, signature: bytes) -> Holder:
        """Return who signed `data`.

        Raises:
            SignatureError: the key is unknown, or this is not its signature of this data.
        """
        holder = self.holder(key_id)
        verify_signature(holder.public_key, data, signature)
        return holder

    def person(self, name: str) -> Holder | None:
        """Return the person of that pseudonym, or None."""
        return next((h for h in self if h.role is Role.PERSON and h.name == name), None)

    def services(self) -> Keyring:
        """Return a keyring of the services alone: those who may attest and sign tree heads."""
        return Keyring(holder for holder in self if holder.role is Role.SERVICE)

    def with_holder(self, holder: Holder) -> Keyring:
        """Return a keyring that trusts `holder` too."""
        return Keyring([*self, holder])

    def to_bytes(self) -> bytes:
        """Return the canonical JSON that `keyring.json` holds."""
        return canonical.dumps(
            {
                "format": FORMAT,
                "holders": [
                    {
                        "name": holder.name,
                        "role": str(holder.role),
                        "key_id": holder.key_id,
                        "public_key": encode_base64(holder.public_key),
                    }
                    for holder in self
                ],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "keyring.json") -> Keyring:
        """Read a keyring; `where` names it in errors.

        Raises:
            FormatError: not a keyring, of an unknown version, or a holder is malformed.
        """
        document = canonical.loads(data, what=where)
        canonical.version_of(document, (FORMAT,), what=where)
        try:
            keyring = cls(
                Holder(
                    name=entry["name"],
                    role=Role(entry["role"]),
                    key_id=entry["key_id"],
                    public_key=decode_base64(entry["public_key"]),
                )
                for entry in document["holders"]
            )
        except (KeyError, TypeError, ValueError, InputError) as error:
            raise FormatError(f"{where}: a holder is malformed: {error}") from error
        if keyring.to_bytes() != data:
            raise FormatError(f"{where}: holds fields or an order that {FORMAT} does not have")
        return keyring


@dataclass(frozen=True, slots=True)
class KeyFolder:
    """A folder of private keys and their keyring; several processes may use it at once."""

    path: Path

    @property
    def _keyring_file(self) -> Path:
        return self.path / "keyring.json"

    @property
    def _service_file(self) -> Path:
        return self.path / "service.pem"

    def _person_file(self, name: str) -> Path:
        return self.path / "people" / f"{name}.pem"

    def keyring(self) -> Keyring:
        """Return who is trusted; nobody, where no key was made yet.

        Raises:
            FormatError: `keyring.json` was changed by other hands.
        """
        try:
            data = self._keyring_file.read_bytes()
        except FileNotFoundError:
            return Keyring()
        except OSError as error:
            raise file_error(error, self._keyring_file) from error
        return Keyring.from_bytes(data, where=str(self._keyring_file))

    def service_signer(self) -> Signer:
        """Return the service's key; it is made and registered on first use."""
        if self._service_file.exists():
            # Nothing is written where nothing is missing: the folder may be mounted read-only.
            signer = Signer.load(self._service_file)
            if signer.key_id in self.keyring():
                return signer
        with self._locked():
            if self._service_file.exists():
                signer = Signer.load(self._service_file)
            else:
                signer = Signer.generate()
                signer.save(self._service_file)
                logger.info("service key made: key_id=%s file=%s", signer.key_id, self.path)
            # Also after a crash between the two files: what is registered is what exists.
            self._register(Holder.of(SERVICE_NAME, Role.SERVICE, signer))
        return signer

    def add_person(self, name: str) -> Signer:
        """Make and register the key of a new person, named by a pseudonym.

        Raises:
            InputError: the name is not a pseudonym as this house writes them.
            ConflictError: the person has a key already.
        """
        check_pseudonym(name)
        with self._locked():
            if self.keyring().person(name) is not None:
                raise ConflictError(f"person {name!r}: has a key already in {self.path}")
            file = self._person_file(name)
            if file.exists():
                # A crash came between the two files; the key was never trusted, so finish it.
                signer = Signer.load(file)
            else:
                signer = Signer.generate()
                signer.save(file)
            self._register(Holder.of(name, Role.PERSON, signer))
        logger.info("person added: name=%s key_id=%s", name, signer.key_id)
        return signer

    def person_signer(self, name: str) -> Signer:
        """Return the key of a person.

        Raises:
            UnknownNameError: this folder holds no private key of that person.
        """
        check_pseudonym(name)
        try:
            return Signer.load(self._person_file(name))
        except ObjectMissingError as error:
            raise UnknownNameError(
                f"person {name!r}: there is no key in {self.path}; "
                f"make one with: strongroom keys add {name}"
            ) from error

    def trust(self, holder: Holder) -> None:
        """Register the public key of a holder whose private key lies elsewhere.

        Raises:
            ConflictError: another person of that name is registered.
        """
        with self._locked():
            known = self.keyring().person(holder.name)
            if holder.role is Role.PERSON and known not in {None, holder}:
                raise ConflictError(f"person {holder.name!r}: is registered with another key")
            self._register(holder)

    def _register(self, holder: Holder) -> None:
        """Add `holder` to the keyring; the caller has the lock."""
        keyring = self.keyring()
        if holder.key_id in keyring and keyring.holder(holder.key_id) == holder:
            return
        data = keyring.with_holder(holder).to_bytes()
        temporary = self.path / f".keyring.{os.getpid()}.new"
        try:
            temporary.unlink(missing_ok=True)
            create_file(temporary, data, mode=0o644)
            temporary.replace(self._keyring_file)
            sync_folder(self.path)
        except OSError as error:
            raise file_error(error, self._keyring_file) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold this folder's lock; the system lets go of it when the process ends."""
        try:
            (self.path / "people").mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise file_error(error, self.path) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def check_pseudonym(name: str) -> str:
    """Return `name` if it may name a person in records.

    Raises:
        InputError: it is not 1 to 63 of a-z, 0-9, '.', '_', '-'.
    """
    if not _PSEUDONYM.fullmatch(name):
        raise InputError(
            f"person {name!r}: expected a pseudonym of 1 to 63 of a-z, 0-9, '.', '_', '-', "
            "starting with a letter or digit; names of people never enter the records"
        )
    return name
