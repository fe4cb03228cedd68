"""A block means what its rows mean alone: to models of several kinds, and to their gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from strongroom.data.packing import IGNORED_LABEL, Encoded, collate, collate_blocks, encode_row
from strongroom.data.rows import read_curated
from strongroom.model.build import tokenizer_from
from strongroom.model.loss import IGNORED, completion_loss_sum
from tests.support.tiny_model import VOCAB_SIZE, make_chat_rows, make_tiny_model

PAD = 2
KINDS = ["llama", "mistral"]
"""The second with windows of 6 tokens, which a mask of our own would take the place of."""
IMPLEMENTATIONS = ["sdpa", "eager"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Encoded]:
    folder: Path = tmp_path_factory.mktemp("blocks")
    tokenizer = tokenizer_from(make_tiny_model(folder / "model"))
    curated = read_curated(make_chat_rows(folder / "rows.jsonl", 8))
    return [encode_row(tokenizer, row, 256) for row in curated]


def model_of(kind: str, implementation: str, dtype: torch.dtype = torch.float32) -> Any:  # noqa: ANN401 -- transformers publishes no types
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "use_cache": False,
        "attn_implementation": implementation,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "llama":
            return LlamaForCausalLM(LlamaConfig(**sizes)).to(dtype)
        return MistralForCausalLM(MistralConfig(**sizes, sliding_window=6)).to(dtype)


def blocks_of(rows: list[Encoded]) -> list[list[Encoded]]:
    return [rows[:3], rows[3:4], rows[4:]]  # of unlike lengths, and one row by itself


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_logits_in_a_block_that_it_has_alone(
    rows: list[Encoded], kind: str, implementation: str
) -> None:
    model = model_of(kind, implementation)
    blocks = blocks_of(rows)
    with torch.no_grad():
        logits_BTV = model(**collate_blocks(blocks, PAD).inputs()).logits
        for block, packed_TV in zip(blocks, logits_BTV, strict=True):
            start = 0
            for row in block:
                alone_TV = model(**collate([row], PAD).inputs()).logits[0]
                end = start + len(row.token_ids)
                torch.testing.assert_close(packed_TV[start:end], alone_TV, rtol=0, atol=1e-5)
                start = end


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_see_what_stands_around_it_by_a_single_bit(
    rows: list[Encoded], kind: str, implementation: str, dtype: torch.dtype
) -> None:
    def turned(row: Encoded) -> Encoded:
        return Encoded(token_ids=row.token_ids[::-1], trained=row.trained)

    model = model_of(kind, implementation, dtype)
    first, middle, last = rows[:3]
    batch = collate_blocks([[first, middle, last], [turned(first), middle, turned(last)]], PAD)
    with torch.no_grad():
        one_TV, other_TV = model(**batch.inputs()).logits
    begin = len(first.token_ids)
    end = begin + len(middle.token_ids)
    assert torch.equal(one_TV[begin:end], other_TV[begin:end])
    assert not torch.equal(one_TV[:begin], other_TV[:begin])
    assert not torch.equal(one_TV[end:], other_TV[end:])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_blocks_have_the_loss_and_the_gradients_of_their_rows(
    rows: list[Encoded], implementation: str
) -> None:
    assert IGNORED == IGNORED_LABEL
    model = model_of("llama", implementation)

    def learnt(batches: list[Any]) -> tuple[float, int, list[torch.Tensor]]:
        model.zero_grad()
        total, count = 0.0, 0
        for batch in batches:
            nats, number = completion_loss_sum(model(**batch.inputs()).logits, batch.labels_BT)
            assert batch.num_trained == int(number)
            nats.backward()  # type: ignore[no-untyped-call]
            total, count = total + nats.item(), count + int(number)
        return total, count, [parameter.grad.clone() for parameter in model.parameters()]

    loss, count, gradients = learnt([collate([row], PAD) for row in rows])
    padded = learnt([collate(rows, PAD)])
    packed = learnt([collate_blocks(blocks_of(rows), PAD)])
    for found in (padded, packed):
        assert found[0] == pytest.approx(loss, rel=1e-6)
        assert found[1] == count == sum(sum(row.trained) for row in rows)
        for got, expected in zip(found[2], gradients, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
