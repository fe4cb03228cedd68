"""Encode conversations as training does, without torch: to judge a template, and to count tokens.

The work is done by `strongroom.data.packing`, on a tokenizer that is made here from the same files;
transformers' own would bring torch with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

from tokenizers import Tokenizer

from strongroom.data.packing import token_counter
from strongroom.data.rows import Message, Row
from strongroom.errors import DataError, ModelSourceError
from strongroom.training.preflight.facts import TokenizerFacts

CountTokens = Callable[[Row], int]

_TRIALS = (
    ("user", "assistant"),
    ("user", "assistant", "user", "assistant"),
)
"""Turns of the conversations that a template must render; the longer one has two answers."""
_WORDS = ("First question?", "First answer.", "Second question?", "Second answer.")


def read_tokenizer(folder: Path) -> tuple[TokenizerFacts, CountTokens]:
    """Return what is known of the tokenizer in `folder`, and how it counts a row's tokens.

    The function raises DataError for a row that it cannot render.
    """
    tokenizer = _Tokenizer(folder)
    count = token_counter(tokenizer)
    template = tokenizer.chat_template
    facts = TokenizerFacts(
        padding=tokenizer.special("pad_token"),
        end=tokenizer.special("eos_token"),
        has_template=bool(template),
        has_marks=template is not None and "generation" in _statements(template),
        template_fault=_template_fault(count),
    )
    return facts, count


def _template_fault(count: CountTokens) -> str | None:
    """Say why none of the trials can be encoded; a template may refuse one of them by intent."""
    faults = []
    for roles in _TRIALS:
        messages = tuple(
            Message(role=cast("Any", role), content=text)
            for role, text in zip(roles, _WORDS, strict=False)
        )
        try:
            count(Row.of(messages, None))
        except DataError as error:
            faults += error.faults
        except ModelSourceError as error:
            faults.append(str(error))
    return faults[0] if len(faults) == len(_TRIALS) else None


def _statements(template: str) -> set[str]:
    """Return the first word of every statement of a template."""
    words = (part.partition("%}")[0].strip("-+ \n") for part in template.split("{%")[1:])
    return {word.split()[0] for word in words if word.split()}


class _Tokenizer:
    """A `ChatTokenizer`."""

    def __init__(self, folder: Path) -> None:
        self.name_or_path = str(folder)
        self._config = json.loads((folder / "tokenizer_config.json").read_bytes())
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.chat_template = _template(folder, self._config)

    @property
    def bos_token_id(self) -> int | None:
        token = self.special("bos_token")
        return None if token is None else self._tokenizer.token_to_id(token)

    @cached_property
    def added_tokens_decoder(self) -> dict[int, Any]:
        decoder: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        return decoder

    def special(self, name: str) -> str | None:
        """Return a special token's text."""
        token = self._config.get(name)
        return token.get("content") if isinstance(token, dict) else token

    def convert_tokens_to_ids(self, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise ModelSourceError(
                f"tokenizer {self.name_or_path}: expected the token {token!r} in tokenizer.json, "
                "which its configuration names, got none; take both files from the same model"
            )
        return found

    def encode(
        self, text: str, *, add_special_tokens: bool = True, split_special_tokens: bool = False
    ) -> list[int]:
        self._tokenizer.encode_special_tokens = split_special_tokens
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, str]],
        *,
        tokenize: Literal[False],  # noqa: ARG002 -- there is no other way here
        add_generation_prompt: bool,
    ) -> str:
        # Half a second, and no torch.
        from transformers.utils.chat_template_utils import render_jinja_template

        tokens = {name: value for name in _NAMED if (value := self.special(name)) is not None}
        rendered, _ = render_jinja_template(
            conversations=[list(messages)],
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
            **tokens,
        )
        return str(rendered[0])


_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
"""Special tokens that a template may use by name."""


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    """Return the chat template: a file of its own, else what the configuration holds."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    given = config.get("chat_template")
    if isinstance(given, list):
        named = {item["name"]: item["template"] for item in given}
        return named.get("default")
    return given
