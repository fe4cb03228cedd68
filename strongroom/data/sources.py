"""Where rows come from: a file, an installed package, or a dataset hub.

Whatever the place, it becomes one file that `read_rows` reads: there is one judge of rows, and a
row number always names a line of a file that can be opened.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from strongroom.data.config import SourceConfig
from strongroom.data.outputs import write_whole
from strongroom.data.rows import ReadResult, read_rows
from strongroom.errors import DataError

logger = logging.getLogger(__name__)

_CHATTERBOT = "chatterbot-corpus"
_PACKAGE_URI = re.compile(rf"pypi:{_CHATTERBOT}/([a-z]+)")
_HUB_URI = re.compile(r"hub:([\w.-]+/[\w.-]+)(?:/([\w.-]+))?:([\w.+\[\]%:-]+)")


def load_source(source: SourceConfig, *, base_dir: Path, cache: Path) -> ReadResult:
    """Read every row of a source.

    Args:
        source: its URI, and the fields of a pair.
        base_dir: the folder that relative paths are relative to.
        cache: a folder for what is fetched or converted.

    Raises:
        DataError: the source is unknown, missing or unreadable as a whole.
    """
    uri = source.uri
    if uri.startswith("pypi:"):
        match = _PACKAGE_URI.fullmatch(uri)
        if not match:
            raise DataError(uri, [f"expected pypi:{_CHATTERBOT}/<language>"])
        path, left_out = _convert_chatterbot(match[1], uri, cache)
        result = read_rows(path, source)
        return replace(result, notes=(*result.notes, f"later statements left out: {left_out}"))
    if uri.startswith("hub:"):
        match = _HUB_URI.fullmatch(uri)
        if not match:
            raise DataError(uri, ["expected hub:<owner>/<dataset>[/<config>]:<split>"])
        return read_rows(_fetch_from_hub(match[1], match[2], match[3], uri, cache), source)
    if "://" in uri:
        raise DataError(uri, ["expected a path, pypi:… or hub:…; copy the file to a local path"])
    return read_rows(base_dir / uri, source)


def _convert_chatterbot(language: str, uri: str, cache: Path) -> tuple[Path, int]:
    """Write the package's conversations of one language as JSON Lines.

    A conversation is a list of statements, and only of its first two it is certain what they are:
    a statement and a reply. Those that follow are a dialogue in some files and other replies to
    the first statement in others. So a row is the first two.

    Returns:
        The file, and how many statements were left out.
    """
    try:
        package = importlib.metadata.distribution(_CHATTERBOT)
    except importlib.metadata.PackageNotFoundError as error:
        raise DataError(
            uri, [f"the package is not installed; run: pip install {_CHATTERBOT}"]
        ) from error
    data = Path(str(package.locate_file("chatterbot_corpus/data")))
    files = sorted((data / language).glob("*.yml"))
    if not files:
        known = ", ".join(sorted(folder.name for folder in data.iterdir() if folder.is_dir()))
        raise DataError(uri, [f"the package has no language {language!r}; it has {known}"])
    target = cache / f"{_CHATTERBOT}-{package.version}-{language}.jsonl"

    conversations = [statements for file in files for statements in _conversations(file)]

    def write(path: Path) -> None:
        # What UTF-8 cannot hold is written all the same, and judged where rows are.
        with path.open("w", encoding="utf-8", errors="surrogatepass") as lines:
            for statements in conversations:
                lines.write(json.dumps(_as_messages(statements), ensure_ascii=False) + "\n")

    write_whole(target, write)
    logger.info("source converted source=%s file=%s rows=%d", uri, target, len(conversations))
    return target, sum(max(0, len(statements) - 2) for statements in conversations)


def _conversations(file: Path) -> Iterator[list[object]]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 -- safe
        yield from document["conversations"]
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise DataError(
            str(file), [f"expected YAML with a list 'conversations', got {type(error).__name__}"]
        ) from error


def _as_messages(statements: list[object]) -> dict[str, object]:
    contents = [text.strip() if isinstance(text, str) else text for text in statements[:2]]
    roles = ("user", "assistant")
    return {
        "messages": [
            {"role": role, "content": content}
            for role, content in zip(roles, contents, strict=False)
        ]
    }


def _fetch_from_hub(name: str, config: str | None, split: str, uri: str, cache: Path) -> Path:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            uri, ["the package 'datasets' is not installed; run: pip install 'strongroom[hub]'"]
        ) from error
    try:
        dataset = datasets.load_dataset(name, config, split=split, cache_dir=str(cache / "hub"))
    except Exception as error:  # the library raises errors of many libraries
        raise DataError(
            uri,
            [
                f"cannot be fetched ({type(error).__name__}: {_first_line(error)}); check the name "
                "and the network, or download the files and give their path"
            ],
        ) from error
    target = cache / (re.sub(r"[^\w.-]+", "-", uri) + ".parquet")
    write_whole(target, lambda path: dataset.to_parquet(str(path)))
    logger.info("source fetched source=%s file=%s", uri, target)
    return target


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no message"])[0][:200]
