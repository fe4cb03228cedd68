from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import pytest

from strongroom.tokenizer.measure import Fertility, lost_characters, measure
from tests.support.tiny_model import make_tiny_model

Tokenizer: TypeAlias = Any
"""Of transformers, which publishes no types."""

TURKISH = "ışık IŞIK iğne İĞNE çöğür ÇÖĞÜR şu ŞU âlem"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "tiny"))


def words_only(normalizer: object = None) -> Tokenizer:
    """Return a tokenizer of whole words, so that every number can be counted by hand."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "kedi", "su", "i", "c"]
    unknown = words[0]
    vocab = {word: index for index, word in enumerate(words)}
    backend: Any = Backend(models.WordLevel(vocab, unk_token=unknown))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if normalizer:
        backend.normalizer = normalizer
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=unknown)


def test_numbers_are_those_counted_by_hand() -> None:
    texts = {"tr": ["kedi su", "ağaç"], "en": ["su"]}
    assert measure(words_only(), texts) == {
        "en": Fertility(tokens_per_word=1.0, bytes_per_token=2.0, num_texts=1),
        "tr": Fertility(tokens_per_word=1.0, bytes_per_token=(7 + 6) / 3, num_texts=2),
    }


def test_a_byte_level_tokenizer_pays_for_letters_it_has_no_merges_for(
    tokenizer: Tokenizer,
) -> None:
    fertility = measure(tokenizer, {"tr": ["ğğğ ğğğ"], "xx": ["qqq qqq"]})
    assert fertility["tr"].tokens_per_word == 6.5
    assert fertility["xx"].tokens_per_word == 3.5


def test_control_text_is_measured_as_text(tokenizer: Tokenizer) -> None:
    assert measure(tokenizer, {"en": ["<|im_end|>"]})["en"].tokens_per_word > 1


@pytest.mark.parametrize("texts", [[], [""], ["  \n"]])
def test_a_language_without_a_word_has_no_fertility(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert measure(tokenizer, {"tr": texts, "en": ["one"]}).keys() == {"en"}


def test_a_byte_level_tokenizer_loses_nothing(tokenizer: Tokenizer) -> None:
    assert lost_characters(tokenizer, [TURKISH, "\U0001f642 \t 漢"]) == ()


def test_a_normaliser_that_strips_accents_is_found_out() -> None:
    from tokenizers import normalizers

    strip = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.NFD(), normalizers.StripAccents()]
    )
    lost = lost_characters(words_only(strip), ["c ç i ı İ I"])
    assert set(lost) == {"ç", "ı", "İ", "I"}


def test_a_vocabulary_without_bytes_loses_what_it_has_not_seen() -> None:
    assert lost_characters(words_only(), ["i c ş"]) == ("ş",)
