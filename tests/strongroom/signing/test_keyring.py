from __future__ import annotations

import json
import multiprocessing
import stat
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from strongroom.errors import (
    ConflictError,
    FormatError,
    InputError,
    SignatureError,
    UnknownNameError,
)
from strongroom.signing.keyring import Holder, KeyFolder, Keyring, Role
from strongroom.signing.keys import Signer


def holder(name: str = "leyla", role: Role = Role.PERSON) -> Holder:
    return Holder.of(name, role, Signer.generate())


def test_a_keyring_says_who_signed() -> None:
    signer = Signer.generate()
    person = Holder.of("leyla", Role.PERSON, signer)
    keyring = Keyring([person, holder("service", Role.SERVICE)])
    assert keyring.verify(signer.key_id, b"yes", signer.sign(b"yes")) == person
    with pytest.raises(SignatureError):
        keyring.verify(signer.key_id, b"no", signer.sign(b"yes"))


def test_an_unknown_key_is_not_trusted() -> None:
    signer = Signer.generate()
    with pytest.raises(SignatureError, match=f"{signer.key_id} is in no keyring"):
        Keyring().verify(signer.key_id, b"yes", signer.sign(b"yes"))


def test_actors_are_pseudonyms_and_key_ids() -> None:
    person, service = holder("leyla"), holder("service", Role.SERVICE)
    assert person.actor == "person:leyla"
    assert service.actor == f"service:{service.key_id}"


@pytest.mark.parametrize("name", ["", "Leyla", "leyla kaya", "l@example", "../x", "-x", "a" * 64])
def test_a_name_that_is_no_pseudonym_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="pseudonym"):
        holder(name)


def test_a_key_id_cannot_be_claimed_for_another_key() -> None:
    one, other = Signer.generate(), Signer.generate()
    with pytest.raises(InputError, match="key id"):
        Holder(name="eve", role=Role.PERSON, key_id=one.key_id, public_key=other.public_bytes)


def test_one_key_has_one_holder() -> None:
    signer = Signer.generate()
    with pytest.raises(InputError, match="one key has one holder"):
        Keyring([Holder.of("a", Role.PERSON, signer), Holder.of("b", Role.PERSON, signer)])


def test_a_keyring_survives_its_bytes() -> None:
    keyring = Keyring([holder("a"), holder("b"), holder("service", Role.SERVICE)])
    assert Keyring.from_bytes(keyring.to_bytes()) == keyring
    assert [h.role for h in keyring.services()] == [Role.SERVICE]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format="strongroom.keyring/2"),
        lambda d: d["holders"][0].update(role="owner"),
        lambda d: d["holders"][0].update(name="Leyla Kaya"),
        lambda d: d["holders"][0].update(public_key="AAAA"),
        lambda d: d["holders"][0].update(note="hello"),
        lambda d: d["holders"][0].pop("key_id"),
        lambda d: d.update(holders=None),
    ],
)
def test_a_changed_keyring_is_refused(change: object) -> None:
    document = json.loads(Keyring([holder()]).to_bytes())
    assert callable(change)
    change(document)
    spelled = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(FormatError, match=r"keyring\.json"):
        Keyring.from_bytes(spelled)


def test_nobody_is_trusted_before_a_key_was_made(tmp_path: Path) -> None:
    assert len(KeyFolder(tmp_path / "keys").keyring()) == 0
    assert not (tmp_path / "keys").exists(), "looking must not make anything"


def test_the_service_key_is_made_once_and_registered(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path / "keys")
    signer = folder.service_signer()
    assert folder.service_signer().key_id == signer.key_id
    assert [h.actor for h in folder.keyring()] == [f"service:{signer.key_id}"]
    assert stat.S_IMODE((tmp_path / "keys" / "service.pem").stat().st_mode) == 0o600


def test_a_key_made_before_a_crash_is_registered_later(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    signer = folder.service_signer()
    (tmp_path / "keyring.json").unlink()
    assert folder.service_signer().key_id == signer.key_id
    assert signer.key_id in folder.keyring()


def test_a_service_key_is_used_from_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    signer = folder.service_signer()
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").mkdir()  # whoever wants to write now fails, root included
    assert folder.service_signer().key_id == signer.key_id


def processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn"))


def _make_service_key(path: Path) -> str:
    return KeyFolder(path).service_signer().key_id


def _add_person(path: Path, name: str) -> str:
    return KeyFolder(path).add_person(name).key_id


def test_processes_that_race_get_one_service_key(tmp_path: Path) -> None:
    with processes() as pool:
        key_ids = list(pool.map(_make_service_key, [tmp_path] * 8))
    assert set(key_ids) == {h.key_id for h in KeyFolder(tmp_path).keyring()}
    assert len(set(key_ids)) == 1


def test_persons_added_at_once_are_all_registered(tmp_path: Path) -> None:
    names = [f"person-{number}" for number in range(8)]
    with processes() as pool:
        key_ids = list(pool.map(_add_person, [tmp_path] * len(names), names))
    assert {h.key_id for h in KeyFolder(tmp_path).keyring()} == set(key_ids)


def test_a_person_is_added_once(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    signer = folder.add_person("leyla")
    with pytest.raises(ConflictError, match="leyla"):
        folder.add_person("leyla")
    assert folder.person_signer("leyla").key_id == signer.key_id
    person = folder.keyring().person("leyla")
    assert person is not None
    assert person.key_id == signer.key_id


def test_a_person_half_added_before_a_crash_is_finished(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    folder.service_signer()
    before = (tmp_path / "keyring.json").read_bytes()
    signer = folder.add_person("leyla")
    (tmp_path / "keyring.json").write_bytes(before)
    assert folder.add_person("leyla").key_id == signer.key_id
    assert signer.key_id in folder.keyring()


def test_an_unknown_person_gets_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="strongroom keys add leyla"):
        KeyFolder(tmp_path).person_signer("leyla")


def test_a_holder_from_elsewhere_can_be_trusted(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    elsewhere = holder("leyla")
    folder.trust(elsewhere)
    folder.trust(elsewhere)
    assert folder.keyring() == Keyring([elsewhere])
    with pytest.raises(ConflictError, match="another key"):
        folder.trust(holder("leyla"))


def test_the_keyring_holds_no_private_key(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    folder.service_signer()
    folder.add_person("leyla")
    public = (tmp_path / "keyring.json").read_bytes()
    assert b"PRIVATE" not in public
    for file in tmp_path.rglob("*.pem"):
        assert file.read_bytes().splitlines()[1] not in public
