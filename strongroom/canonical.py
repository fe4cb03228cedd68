"""Canonical JSON (RFC 8785): the only form in which documents are hashed, signed and stored.

Law: `loads(dumps(x)) == x`; a stored document that is not in canonical form is refused, so that
one meaning has exactly one sequence of bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import rfc8785

from strongroom.errors import FormatError
from strongroom.names import Digest

JsonObject = dict[str, Any]
"""A JSON object as Python holds it; its values are None, bool, int, float, str, list and dict."""


def dumps(document: JsonObject) -> bytes:
    """Write `document` canonically.

    Raises:
        FormatError: a value has no canonical form (NaN, infinity, an integer beyond 2**53).
    """
    try:
        return rfc8785.dumps(document)
    except (rfc8785.CanonicalizationError, ValueError, RecursionError) as error:
        raise FormatError(f"document has no canonical JSON form (RFC 8785): {error}") from error


def loads(data: bytes, *, what: str) -> JsonObject:
    """Read a canonical document; `what` names it in errors.

    Raises:
        FormatError: not JSON, not an object, or not in canonical form.
    """
    try:
        document = json.loads(data, parse_int=_number)
    except (ValueError, OverflowError, RecursionError) as error:
        raise FormatError(
            f"{what}: expected a JSON object, got undecodable bytes: {error}"
        ) from error
    if not isinstance(document, dict):
        raise FormatError(f"{what}: expected a JSON object, got {type(document).__name__}")
    if dumps(document) != data:
        raise FormatError(
            f"{what}: expected canonical JSON (RFC 8785), got another spelling of it; "
            "the stored bytes were changed after they were written"
        )
    return cast("JsonObject", document)


def version_of(document: JsonObject, formats: Sequence[str], *, what: str) -> int:
    """Return which of `formats` a document is of, counted from 1; `what` names it in errors.

    Raises:
        FormatError: none of them.
    """
    found = document.get("format")
    if found not in formats:
        raise FormatError(
            f"{what}: expected a format of {', '.join(formats)}, got {found!r}; "
            "use a release of strongroom that knows it"
        )
    return formats.index(found) + 1


def digest(document: JsonObject) -> Digest:
    """Digest of the canonical form."""
    return Digest.of(dumps(document))


def _number(text: str) -> int | float:
    # RFC 8785 spells every number as a double: a whole one beyond 2**53 was a float when written.
    value = int(text)
    return value if abs(value) < 2**53 else float(value)
