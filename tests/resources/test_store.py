"""Settings come from the field, else the environment, else a local default: when a run asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from resources.store import ROOT, StoreResource
from strongroom.errors import StoreMissingError

VARIABLES = ("STRONGROOM_STORE", "STRONGROOM_KEYS", "STRONGROOM_CACHE", "STRONGROOM_PERSON")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_without_settings_everything_is_local() -> None:
    store = StoreResource()

    assert store.location == str(ROOT / ".strongroom" / "store")
    assert store.author == "operator"


def test_the_environment_is_read_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StoreResource()
    for variable, value in zip(VARIABLES, ("store", "keys", "cache", "ada"), strict=True):
        path = str(tmp_path / value) if variable != "STRONGROOM_PERSON" else value
        monkeypatch.setenv(variable, path)

    custody = store.custody(create=True)

    assert store.author == "ada"
    assert custody.store.url == (tmp_path / "store").as_uri()
    assert custody.keys.path == tmp_path / "keys"
    assert custody.cache == tmp_path / "cache"


def test_a_field_that_is_given_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRONGROOM_STORE", "s3://elsewhere/store")

    assert StoreResource(store_url=str(tmp_path)).location == str(tmp_path)


def test_a_store_is_made_only_when_asked_for(tmp_path: Path) -> None:
    store = StoreResource(
        store_url=str(tmp_path / "store"), keys_folder=str(tmp_path), cache_folder=str(tmp_path)
    )

    with pytest.raises(StoreMissingError):
        store.custody()
    assert store.custody(create=True).store.store_id == store.custody().store.store_id
