"""Packing: from conversations to token ids, and which of them are trained on.

Invariant: only what the assistant says is trained on, its end token included, because a model that
never sees the end is never done. Control tokens come from the chat template alone: what a person
typed is encoded as ordinary text, whatever it spells. Nothing is ever cut.

A block is several rows in one sequence, and means what the rows mean alone: each row's positions
begin at 0, each attends to itself alone, and no row's first token is predicted from the row before.
That is told to transformers by the positions, without any mask: where a position does not follow
the one before, a row begins, and so says what every attention implementation is given. A mask of
our own would not: boolean masks are added up by `eager`, and masks of four dimensions take the
place of a model's sliding windows.

Shape suffixes: B sequences of a batch, T tokens of its longest.
Source: issues huggingface/tokenizers 1850 (control text), huggingface/trl 6357 (pad equals end),
OpenRLHF/OpenRLHF 393 (two BOS), marin-community/marin 7237 (mask all zero); transformers 5.24,
`masking_utils.find_packed_sequence_indices`, for positions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from jinja2 import TemplateError

from strongroom.data.rows import Message, Role, Row
from strongroom.errors import DataError, ModelSourceError

if TYPE_CHECKING:
    import torch

IGNORED_LABEL = -100
"""The label of a token that is not trained on (torch's `ignore_index`)."""


class ChatTokenizer(Protocol):
    """What packing asks of a tokenizer; one of transformers has it, and more."""

    name_or_path: str
    chat_template: str | None

    @property
    def bos_token_id(self) -> int | None:
        """The id of the token that begins a sequence, if there is one."""
        ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Tokens beside the vocabulary, by id: `content`, `special`, `lstrip`, `rstrip`."""
        ...

    def convert_tokens_to_ids(self, token: str) -> int:
        """Return the id of a token."""
        ...

    def encode(
        self, text: str, *, add_special_tokens: bool = True, split_special_tokens: bool = False
    ) -> list[int]:
        """Return the ids of a text."""
        ...

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, str]],
        *,
        tokenize: Literal[False],
        add_generation_prompt: bool,
    ) -> str:
        """Return a conversation as the template writes it."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """One row as tokens; `trained[i]` says whether the model is trained to say `token_ids[i]`."""

    token_ids: list[int]
    trained: list[bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Sequences side by side, padded at the right.

    Attributes:
        tokens_BT: int64.
        labels_BT: int64, `IGNORED_LABEL` where not trained on; not shifted.
        attention_BT: int64, 1 on the tokens of a row and 0 on padding.
        positions_BT: int64, for blocks: a token's place in its row; padding counts as a row. None
            where every sequence is one row.
        num_rows: how many rows the sequences hold.
    """

    tokens_BT: torch.Tensor  # noqa: N815 -- shape suffix
    labels_BT: torch.Tensor  # noqa: N815 -- shape suffix
    attention_BT: torch.Tensor  # noqa: N815 -- shape suffix
    positions_BT: torch.Tensor | None = None  # noqa: N815 -- shape suffix
    num_rows: int

    @property
    def num_tokens(self) -> int:
        """How many tokens it holds, padding not counted."""
        return int(self.attention_BT.sum())

    @property
    def num_trained(self) -> int:
        """How many tokens the loss sums over: labels that a token before them predicts."""
        return int((self.labels_BT[:, 1:] != IGNORED_LABEL).sum())

    @property
    def num_pairs(self) -> int:
        """How many pairs of tokens attend to each other: the sum over rows of their tokens squared.

        A row of n tokens has the places p = 0 to n - 1, and n^2 is the sum of 2 p + 1.
        """
        positions_BT = (
            self.attention_BT.cumsum(1) - 1 if self.positions_BT is None else self.positions_BT
        )
        return int(((2 * positions_BT + 1) * self.attention_BT).sum())

    def to(self, device: torch.device) -> Batch:
        """Return it in the memory of `device`."""
        positions_BT = self.positions_BT
        return replace(
            self,
            tokens_BT=self.tokens_BT.to(device),
            labels_BT=self.labels_BT.to(device),
            attention_BT=self.attention_BT.to(device),
            positions_BT=None if positions_BT is None else positions_BT.to(device),
        )

    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the keyword arguments of the model's forward pass, labels not among them.

        The model must not use a cache (`config.use_cache`): with one it takes no notice of where
        the rows of a block begin.
        """
        if self.positions_BT is None:
            return {"input_ids": self.tokens_BT, "attention_mask": self.attention_BT}
        return {"input_ids": self.tokens_BT, "position_ids": self.positions_BT}


def encode_row(tokenizer: ChatTokenizer, row: Row, max_tokens: int) -> Encoded:
    """Encode one conversation by the tokenizer's chat template.

    Raises:
        DataError: longer than `max_tokens`, or rendered by the template in a way in which what is
            trained on cannot be told for certain.
        ModelSourceError: the tokenizer has no chat template.
    """
    encoded = _encode(tokenizer, row)
    if len(encoded.token_ids) > max_tokens:
        raise _row_error(
            row,
            f"has {len(encoded.token_ids)} tokens, at most {max_tokens} are allowed; rows are "
            "never cut: raise data.max_tokens, or curate anew so that it is dropped",
        )
    return encoded


def token_counter(tokenizer: ChatTokenizer) -> Callable[[Row], int]:
    """Return the function that counts the tokens of a row once rendered."""
    return lambda row: len(_encode(tokenizer, row).token_ids)


def control_tokens(tokenizer: ChatTokenizer) -> tuple[str, ...]:
    """Return the texts of the tokenizer's control tokens, longest first."""
    texts = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return tuple(sorted(texts, key=lambda text: (-len(text), text)))


def collate(rows: Sequence[Encoded], pad_id: int) -> Batch:
    """Put rows side by side.

    What is padding is known by the length of a row and not by `pad_id`: where padding and end are
    one token, the end is still attended to and trained on.
    """
    import torch

    longest = max(len(row.token_ids) for row in rows)
    shape = (len(rows), longest)
    batch = Batch(
        tokens_BT=torch.full(shape, pad_id, dtype=torch.int64),
        labels_BT=torch.full(shape, IGNORED_LABEL, dtype=torch.int64),
        attention_BT=torch.zeros(shape, dtype=torch.int64),
        num_rows=len(rows),
    )
    for index, row in enumerate(rows):
        num_tokens = len(row.token_ids)
        tokens_T = torch.tensor(row.token_ids, dtype=torch.int64)
        batch.tokens_BT[index, :num_tokens] = tokens_T
        batch.labels_BT[index, :num_tokens] = torch.where(
            torch.tensor(row.trained), tokens_T, IGNORED_LABEL
        )
        batch.attention_BT[index, :num_tokens] = 1
    return batch


def collate_blocks(blocks: Sequence[Sequence[Encoded]], pad_id: int) -> Batch:
    """Put blocks side by side, each of one row or more, none of them empty."""
    import torch

    batch = collate([_joined(rows) for rows in blocks], pad_id)
    longest = batch.tokens_BT.shape[1]
    positions_BT = torch.stack([_positions(rows, longest) for rows in blocks])
    return replace(batch, positions_BT=positions_BT, num_rows=sum(map(len, blocks)))


def _joined(rows: Sequence[Encoded]) -> Encoded:
    """Return rows as one sequence; a first token has nothing of its own row to be told by."""
    return Encoded(
        token_ids=[token_id for row in rows for token_id in row.token_ids],
        trained=[flag and place > 0 for row in rows for place, flag in enumerate(row.trained)],
    )


def _positions(rows: Sequence[Encoded], length: int) -> torch.Tensor:
    import torch

    lengths = [len(row.token_ids) for row in rows]
    parts = [torch.arange(number) for number in (*lengths, length - sum(lengths))]
    return torch.cat(parts)


# --- from a row to pieces, from pieces to ids -----------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Piece:
    """A stretch of the rendered conversation that is encoded by itself."""

    text: str
    is_control: bool = False
    is_trained: bool = False


def _encode(tokenizer: ChatTokenizer, row: Row) -> Encoded:
    token_ids: list[int] = []
    trained: list[bool] = []
    for piece in _pieces(tokenizer, row):
        if piece.is_control:
            piece_ids = [tokenizer.convert_tokens_to_ids(piece.text)]
        else:
            piece_ids = tokenizer.encode(
                piece.text, add_special_tokens=False, split_special_tokens=True
            )
        token_ids += piece_ids
        trained += [piece.is_trained] * len(piece_ids)
    # Exactly one BOS: the template may have written it; if not, the tokenizer may add it.
    bos_id = tokenizer.bos_token_id
    if bos_id is not None:
        if token_ids[:1] != [bos_id] and tokenizer.encode("")[:1] == [bos_id]:
            token_ids.insert(0, bos_id)
            trained.insert(0, False)
        if token_ids[:2] == [bos_id, bos_id]:
            raise _row_error(row, "the chat template writes the BOS token twice")
    if not any(trained):
        raise _row_error(row, "holds nothing of the assistant to train on")
    return Encoded(token_ids=token_ids, trained=trained)


def _pieces(tokenizer: ChatTokenizer, row: Row) -> list[_Piece]:
    """Cut the rendered row at the template's control tokens and before each answer.

    The cut before an answer gives the ids that a model sees in use: a prompt encoded to its end,
    and an answer after it.
    """
    control = re.compile("|".join(map(re.escape, control_tokens(tokenizer))) or r"(?!)")
    flags = {token.content: token for token in tokenizer.added_tokens_decoder.values()}
    pieces: list[_Piece] = []
    text = ""
    is_trained = False
    for part, author in _parts(tokenizer, row):
        start = 0
        for match in control.finditer(part) if author is None else ():
            text += part[start : match.start()]
            text = text.rstrip() if flags[match[0]].lstrip else text
            pieces.append(_Piece(text=text, is_trained=is_trained))
            pieces.append(_Piece(text=match[0], is_control=True, is_trained=is_trained))
            text, is_trained, start = "", False, match.end()
            if flags[match[0]].rstrip:
                start += len(part[start:]) - len(part[start:].lstrip())
        if author is not None and is_trained:
            break
        if author == "assistant":
            pieces.append(_Piece(text=text))
            text, is_trained = "", True
        text += part[start:]
    if is_trained:
        raise _row_error(row, "the chat template does not end an answer by a control token")
    pieces.append(_Piece(text=text))
    return pieces


def _parts(tokenizer: ChatTokenizer, row: Row) -> list[tuple[str, Role | None]]:
    """Return the rendered row in parts, each with its author; None is the template itself.

    The row is rendered with marks in place of its texts, so that nothing a text spells can be taken
    for the template's own.
    """
    secret = hashlib.sha256(row.id.encode()).hexdigest()
    marks = [f"<{secret}:{index}>" for index in range(len(row.messages))]
    marked_row = [replace(m, content=mark) for m, mark in zip(row.messages, marks, strict=True)]
    marked = _render(tokenizer, row, marked_row)
    own = re.split("|".join(marks), marked)
    rendered = _render(tokenizer, row, row.messages)
    # Some templates trim the texts. One that does more to them is refused.
    for texts in ([m.content for m in row.messages], [m.content.strip() for m in row.messages]):
        if len(own) == len(texts) + 1 and rendered == own[0] + "".join(
            text + after for text, after in zip(texts, own[1:], strict=True)
        ):
            break
    else:
        raise _row_error(row, "the chat template alters, repeats or leaves out a text")
    for index, message in enumerate(row.messages):
        if message.role == "assistant":
            prompt = _render(tokenizer, row, marked_row[:index], add_generation_prompt=True)
            if not marked.startswith(prompt + marks[index]):
                raise _row_error(
                    row, "the chat template renders an answer after another prompt than in use"
                )
    parts: list[tuple[str, Role | None]] = [(own[0], None)]
    for message, text, after in zip(row.messages, texts, own[1:], strict=True):
        parts += [(text, message.role), (after, None)]
    return parts


def _render(
    tokenizer: ChatTokenizer,
    row: Row,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = False,
) -> str:
    if not tokenizer.chat_template:
        raise ModelSourceError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template; expected "
            "chat_template.jinja beside it, as a model tuned for conversation has"
        )
    try:
        rendered = tokenizer.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
    except TemplateError as error:
        raise _row_error(row, f"the chat template refuses it: {error}") from error
    return str(rendered)


def _row_error(row: Row, problem: str) -> DataError:
    return DataError(f"row {row.id}", [problem])
