"""An error, carried from a worker to whoever launched it: same class, message, facts, exit code.

Law: for every error of strongroom, `error_from(failure_event(error))` is of the same class, reads
the same and has the same attributes (paths, digests and the like as text). Never imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from strongroom.canonical import JsonObject
from strongroom.errors import PeerError, SaveError, StrongroomError, TrainingError
from strongroom.training.reporting import ReportKind


def failure_event(error: Exception, *, rank: int) -> JsonObject:
    """Return the event that reports `error`."""
    return {
        "kind": ReportKind.FAILED,
        "rank": rank,
        "error": type(error).__name__,
        "exit_code": exit_code_of(error),
        "message": str(error),
        "facts": json.loads(json.dumps(vars(error), default=str)),
    }


def error_from(event: JsonObject) -> StrongroomError:
    """Return the error that the event reports; one that is not ours becomes a TrainingError."""
    kind = _classes().get(event["error"])
    if kind is None:
        return TrainingError(
            f"rank {event['rank']} failed: {event['error']}: {event['message']}; its traceback is "
            "on standard error; the same command goes on from the newest checkpoint that verifies"
        )
    error = kind.__new__(kind)
    error.args = (event["message"],)
    vars(error).update(event["facts"])
    return error


def exit_code_of(error: BaseException) -> int:
    """Return the code a process ends with because of `error`."""
    return error.exit_code if isinstance(error, StrongroomError) else TrainingError.exit_code


def is_ours(failure: JsonObject) -> bool:
    """Return whether a failure is an error of strongroom, and so says what happened."""
    return failure["error"] in _classes()


def is_own_cause(failure: JsonObject) -> bool:
    """Return whether it is ours, and no rank needs to be lost for it to come about."""
    kind = _classes().get(failure["error"])
    return kind is not None and not issubclass(kind, (PeerError, SaveError))


def first_cause(failures: list[JsonObject]) -> JsonObject:
    """Return the failure that others followed from: ours before a broken connection to a peer."""
    return min(failures, key=lambda each: (not is_own_cause(each), not is_ours(each)))


def _classes() -> dict[str, type[StrongroomError]]:
    return {kind.__name__: kind for kind in _subclasses(StrongroomError)}


def _subclasses(kind: type[StrongroomError]) -> Iterator[type[StrongroomError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _subclasses(child)
