from __future__ import annotations

import importlib
import pickle
import pkgutil

import pytest

import strongroom
from strongroom import errors
from strongroom.errors import ConfigError, FencedError, IntegrityError, StrongroomError


def all_errors() -> list[type[StrongroomError]]:
    for module in pkgutil.walk_packages(strongroom.__path__, "strongroom."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = [StrongroomError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return found


def test_every_error_owns_an_exit_code() -> None:
    codes = [kind.exit_code for kind in all_errors()]
    assert len(codes) == len(set(codes)), "two errors share an exit code"
    for kind in all_errors():
        assert "exit_code" in vars(kind), f"{kind.__name__} inherits its exit code"


def test_exit_codes_leave_room_for_the_shell() -> None:
    # 0 is success, 2 is a usage error, 126 and up belong to the shell.
    assert all(code == 1 or 10 <= code < 126 for code in (k.exit_code for k in all_errors()))


def test_every_error_is_documented() -> None:
    assert all(kind.__doc__ for kind in all_errors())
    assert all(kind.__module__ == errors.__name__ for kind in all_errors())


def test_an_integrity_error_names_the_place_and_both_values() -> None:
    error = IntegrityError(
        "chunk digest differs", file="f.distcp", tensor="w", offset=704, expected="a", got="b"
    )
    assert str(error) == (
        "chunk digest differs in f.distcp, tensor w, byte offset 704: expected a, got b; "
        "quarantine this checkpoint and resume from an earlier one"
    )


@pytest.mark.parametrize(
    "error",
    [
        IntegrityError("differs", file="f", tensor="w", offset=7, expected="a", got="b"),
        ConfigError("run.yaml", ["steps: too few", "seed: missing"]),
        FencedError("run nightly: a newer attempt owns it"),
    ],
)
def test_errors_survive_pickling_between_ranks(error: StrongroomError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 -- made in this line
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
