"""Measure: how well a tokenizer fits a language, and what it does to its letters.

Per-token numbers mean little between tokenizers: fertility says how many tokens a word costs, bytes
per token how much text a context holds. Turkish tells a good tokenizer from a careless one, because
lower-casing and stripping of accents turn its letters into others.
Source: issue huggingface/transformers 6680.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strongroom.parsing import STRICT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True, slots=True)
class Fertility:
    """What text of one language costs; both ratios are over all texts, not a mean of means."""

    __pydantic_config__ = STRICT

    tokens_per_word: float
    bytes_per_token: float
    num_texts: int


def measure(
    tokenizer: PreTrainedTokenizerBase, texts_by_language: Mapping[str, Sequence[str]]
) -> dict[str, Fertility]:
    """Return the fertility of each language that has a text with a word in it.

    Words are what stands between white space; bytes are those of UTF-8; control tokens are not
    counted, and text that spells one is ordinary text.
    """
    fertility: dict[str, Fertility] = {}
    for language, texts in sorted(texts_by_language.items()):
        num_words = sum(len(text.split()) for text in texts)
        num_tokens = sum(len(_encode(tokenizer, text)) for text in texts)
        if num_words and num_tokens:
            fertility[language] = Fertility(
                tokens_per_word=num_tokens / num_words,
                bytes_per_token=sum(len(text.encode()) for text in texts) / num_tokens,
                num_texts=len(texts),
            )
    return fertility


def lost_characters(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> tuple[str, ...]:
    """Return the characters of the texts that do not come back from encoding and decoding.

    A normaliser that lower-cases or strips accents loses letters; a vocabulary without a fallback
    to bytes loses whatever it has not seen.
    """
    characters = sorted({character for text in texts for character in text if character.strip()})
    return tuple(c for c in characters if c not in tokenizer.decode(_encode(tokenizer, c)))


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    return ids
