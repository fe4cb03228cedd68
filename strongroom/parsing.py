"""Read a document into a frozen dataclass, reporting every fault at once.

pydantic does the checking (ADR 0004); what comes out is the plain dataclass. A dataclass takes part
by `__pydantic_config__ = STRICT`, so that an unknown field is a fault and not silence.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from strongroom.canonical import JsonObject
from strongroom.errors import ConfigError

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", str_strip_whitespace=True)


def parse(kind: type[T], document: object, *, source: str) -> T:
    """Return `document` as a `kind`; `source` names it in errors.

    Raises:
        ConfigError: with every fault: its field, what is allowed and what was given.
    """
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        faults = [_fault(kind, dict(item)) for item in error.errors(include_url=False)]
        raise ConfigError(source, faults) from error


def to_json(value: object) -> JsonObject:
    """Return a dataclass as a JSON object; tuples become lists."""
    document: JsonObject = plain(value)
    return document


def _fault(kind: type[Any], item: dict[str, Any]) -> str:
    field = ".".join(str(part) for part in item["loc"]) or "(top level)"
    if item["type"] == "unexpected_keyword_argument":
        allowed = ", ".join(_fields_at(kind, item["loc"][:-1]))
        return f"{field}: there is no such field; allowed here: {allowed}"
    return f"{field}: {item['msg']}; got {item.get('input')!r}"


def _fields_at(kind: type[Any], path: tuple[Any, ...]) -> list[str]:
    """Return the names of the fields of the dataclass at `path` inside `kind`."""
    schema = TypeAdapter(kind).json_schema()
    node = schema
    for part in path:
        node = node["items"] if isinstance(part, int) else node["properties"][part]
        # A section that may be left empty is one of two options, of which null is the other.
        node = next((option for option in node.get("anyOf", ()) if "$ref" in option), node)
        if reference := node.get("$ref"):
            node = schema["$defs"][reference.rsplit("/", 1)[-1]]
    return list(node["properties"])


def plain(value: Any) -> Any:  # noqa: ANN401 -- JSON is whatever it is
    """Return a value as JSON: a dataclass as an object, a tuple as a list."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
