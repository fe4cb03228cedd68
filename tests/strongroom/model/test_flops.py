from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from strongroom.model.adapters import with_adapter
from strongroom.model.config import AdapterConfig
from strongroom.model.flops import ModelFlops

GPT3 = {
    "num_hidden_layers": 96,
    "num_attention_heads": 96,
    "hidden_size": 12288,
    "vocab_size": 50257,
    "tie_word_embeddings": True,
}


def counted(config: LlamaConfig, adapter: AdapterConfig, *, rows: int, tokens: int) -> list[float]:
    """Return the FLOPs of a step: what torch counts, and what is said of it."""
    model = LlamaForCausalLM._from_config(config, attn_implementation="eager", dtype=torch.float32)
    adapted = with_adapter(model, adapter)
    adapted.train()
    ids_BT = torch.randint(0, config.vocab_size, (rows, tokens))
    with FlopCounterMode(display=False) as counter:
        adapted(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss.backward()
    sizes = [(p.numel(), p.requires_grad) for p in adapted.parameters()]
    flops = ModelFlops.of(
        config.to_dict(),
        trainable=sum(size for size, trained in sizes if trained),
        total=sum(size for size, _ in sizes),
    )
    assert flops is not None
    said = flops.of_step(tokens=rows * tokens, pairs=rows * tokens**2)
    return [float(counter.get_total_flops()), float(said)]


def llama(*, tied: bool, layers: int = 4) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # not hidden_size / heads
        tie_word_embeddings=tied,
    )


@pytest.mark.parametrize("tied", [False, True])
def test_full_training_costs_what_torch_counts(*, tied: bool) -> None:
    there, said = counted(llama(tied=tied), AdapterConfig(method="full"), rows=2, tokens=48)
    # Weights of norms are counted as matrices: some 0.3 % of this model.
    assert said == pytest.approx(there, rel=0.005)


@pytest.mark.parametrize("tied", [False, True])
def test_an_adapter_costs_what_torch_counts(*, tied: bool) -> None:
    lora = AdapterConfig(method="lora", rank=4)
    there, said = counted(llama(tied=tied, layers=8), lora, rows=2, tokens=48)
    # What makes queries, keys and values of the first layer needs no gradient, and is counted.
    not_needed = 2 * 96 * 64 * (128 + 64 + 64 + 3 * 4)
    assert there < said < there * 1.02
    assert said - not_needed == pytest.approx(there, rel=0.005)


def test_an_adapter_of_the_same_model_costs_two_thirds_and_its_own() -> None:
    full = ModelFlops.of(GPT3, trainable=175_000_000_000, total=175_000_000_000)
    lora = ModelFlops.of(GPT3, trainable=5_000_000, total=175_005_000_000)
    assert full is not None
    assert lora is not None
    assert full.per_token == 6 * 175_000_000_000
    assert lora.per_token == 4 * 175_000_000_000 + 6 * 5_000_000
    assert full.per_pair == lora.per_pair == 12 * 96 * 12288


def test_the_published_utilization_of_palm_comes_out() -> None:
    # PaLM 540B, Table 3 and section 4.1: 238.3 K tokens/s of 2048 on 6144 chips of 275 TFLOP/s.
    palm = {
        "num_hidden_layers": 118,
        "num_attention_heads": 48,
        "hidden_size": 18432,
        "head_dim": 256,
        "vocab_size": 256_000,
        "tie_word_embeddings": True,
    }
    flops = ModelFlops.of(palm, trainable=540_350_000_000, total=540_350_000_000)
    assert flops is not None
    per_s = flops.of_step(tokens=238_300, pairs=238_300 * 2048)
    assert per_s / (6144 * 275e12) == pytest.approx(0.462, abs=0.0005)


def test_a_table_that_only_looks_tokens_up_costs_nothing() -> None:
    table = GPT3["vocab_size"] * GPT3["hidden_size"]
    untied = {**GPT3, "tie_word_embeddings": False}
    full = ModelFlops.of(untied, trainable=10**12, total=10**12)
    lora = ModelFlops.of(untied, trainable=10**6, total=10**12 + 10**6)
    assert full is not None
    assert lora is not None
    assert full.per_token == 6 * (10**12 - table)
    assert lora.per_token == 4 * (10**12 - table) + 6 * 10**6


def test_architectures_that_name_their_sizes_otherwise_are_known() -> None:
    gpt2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257}
    flops = ModelFlops.of(gpt2, trainable=10**8, total=10**8)
    assert flops == ModelFlops(per_token=6 * 10**8, per_pair=12 * 12 * 768)


@pytest.mark.parametrize(
    "config",
    [
        {**GPT3, "num_local_experts": 8, "num_experts_per_tok": 2},
        {"text_config": GPT3},
        {key: value for key, value in GPT3.items() if key != "vocab_size"},
        {},
    ],
    ids=["experts", "nested", "no vocabulary", "nothing"],
)
def test_what_a_config_does_not_tell_is_not_guessed(config: dict[str, object]) -> None:
    assert ModelFlops.of(config, trainable=1000, total=1000) is None


def test_rows_of_different_lengths_attend_only_to_themselves() -> None:
    flops = ModelFlops(per_token=10, per_pair=3)
    assert flops.of_step(tokens=3 + 5, pairs=3**2 + 5**2) == 10 * 8 + 3 * 34
