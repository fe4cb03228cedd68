"""Adapt: choose the tokenizer of a run. Here that is the base model's own, unchanged.

Its files are copied byte for byte: every id, flag and merge stays what the base model was trained
with; beside them stands what the tokenizer was measured to cost on the curated rows.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from strongroom import canonical
from strongroom.errors import DataError, ModelSourceError, os_error
from strongroom.parsing import STRICT, parse, to_json
from strongroom.tokenizer.measure import Fertility, lost_characters, measure

logger = logging.getLogger(__name__)

FORMAT = "strongroom.tokenizer/1"
REPORT_FILE = "fertility.json"

REQUIRED_FILES = ("tokenizer.json", "tokenizer_config.json")
OPTIONAL_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
)

_UNKNOWN_LANGUAGE = "und"
"""ISO 639-2: undetermined."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerReport:
    """The tokenizer of a run, and what it costs on the rows that are trained on.

    Attributes:
        lost: characters of the rows that do not survive encoding and decoding, as U+XXXX.
    """

    __pydantic_config__ = STRICT

    format: str
    adapted: bool
    vocab_size: int
    files: tuple[str, ...]
    fertility: dict[str, Fertility]
    lost: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: what `fertility.json` holds."""
        return canonical.dumps(to_json(self))

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> TokenizerReport:
        """Read `fertility.json`; `where` names it in errors."""
        return parse(cls, canonical.loads(data, what=where), source=where)


def choose_tokenizer(base_dir: Path, curated: Path, out: Path) -> TokenizerReport:
    """Copy the base model's tokenizer into `out`, measured on the curated rows.

    Args:
        base_dir: the base model's folder.
        curated: the folder that holds `train.jsonl`.
        out: the folder to write into; made where it does not exist.

    Raises:
        ModelSourceError: the base has no complete tokenizer.
        DataError: the curated rows cannot be read.
        StorageError: the files cannot be written.
    """
    missing = [name for name in REQUIRED_FILES if not (base_dir / name).is_file()]
    if missing:
        raise ModelSourceError(
            f"{base_dir}: the tokenizer lacks {', '.join(missing)}; download the whole model"
        )
    texts = _texts_by_language(curated / "train.jsonl")
    names = [n for n in (*REQUIRED_FILES, *OPTIONAL_FILES) if (base_dir / n).is_file()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(base_dir / name, out / name)
    except OSError as error:
        raise os_error(error, f"cannot copy the tokenizer to {out}") from error

    from transformers import AutoTokenizer

    # The copy is measured: it must load by itself, without the model beside it.
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(out), local_files_only=True)
    except Exception as error:  # the library in Rust raises nothing more special
        raise ModelSourceError(
            f"{base_dir}: the tokenizer cannot be loaded: {error}; download the whole model"
        ) from error
    report = TokenizerReport(
        format=FORMAT,
        adapted=False,
        vocab_size=len(tokenizer),
        files=tuple(sorted(names)),
        fertility=measure(tokenizer, texts),
        lost=tuple(
            f"U+{ord(character):04X}"
            for character in lost_characters(tokenizer, (t for ts in texts.values() for t in ts))
        ),
    )
    (out / REPORT_FILE).write_bytes(report.to_bytes())
    logger.info(
        "tokenizer chosen vocab=%d lost_characters=%d %s",
        report.vocab_size,
        len(report.lost),
        " ".join(f"{k}={v.tokens_per_word:.2f}" for k, v in report.fertility.items()),
    )
    return report


def _texts_by_language(train: Path) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = defaultdict(list)
    try:
        with train.open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                contents = [message["content"] for message in row["messages"]]
                texts[row["language"] or _UNKNOWN_LANGUAGE] += contents
    except OSError as error:
        raise DataError(str(train), [f"cannot be read: {error.strerror}"]) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            str(train), [f"expected curated rows, got {type(error).__name__}; curate anew"]
        ) from error
    return dict(texts)
