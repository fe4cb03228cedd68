"""The arithmetic of memory: by hand, by law, and against what torch keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strongroom.planning.memory import (
    BytesPerParameter,
    Spread,
    Strategy,
    bytes_per_parameter,
    layer_activation_bytes,
    rank_memory,
    state_bytes,
)
from strongroom.planning.model_shape import ModelShape

LLAMA = ModelShape(
    layers=3,
    hidden=256,
    heads=8,
    kv_heads=4,
    head_dim=32,
    intermediate=768,
    vocabulary=1000,
    parameters=2_902_272,
    layer_parameters=786_944,
    trainable=2_902_272,
    trained_tensors=30,
)
ADAPTER = replace(LLAMA, trainable=24_576, trained_tensors=24)
FSDP2 = Spread(strategy="fsdp2", ranks=4, parameter_bytes=4, compute_bytes=2)
ZERO3 = Spread(strategy="zero3", ranks=4, parameter_bytes=4, compute_bytes=2)


def test_bytes_of_a_parameter_by_strategy() -> None:
    """ZeRO's 16 bytes: two of the value, four each of gradient, master copy and two moments.

    (The paper holds gradients in two bytes; they are summed up in four here.)
    """
    assert bytes_per_parameter(ZERO3) == BytesPerParameter(
        parameter=2, gradient=4, optimizer=12, saved=12
    )
    assert bytes_per_parameter(FSDP2) == BytesPerParameter(
        parameter=4, gradient=4, optimizer=8, saved=12
    )
    half = replace(FSDP2, parameter_bytes=2)
    assert bytes_per_parameter(half) == BytesPerParameter(
        parameter=2, gradient=2, optimizer=4, saved=6
    )


def test_state_is_divided_by_the_ranks_of_one_copy() -> None:
    memory = rank_memory(LLAMA, FSDP2, rows=1, row_tokens=8)
    assert memory.parameters == memory.gradients == 2_902_272
    assert memory.optimizer == 2 * 2_902_272
    assert memory.building == 4 * 2_902_272
    replicated = rank_memory(LLAMA, replace(FSDP2, replicas=2), rows=1, row_tokens=8)
    assert replicated.optimizer == 2 * memory.optimizer
    adapter = rank_memory(ADAPTER, FSDP2, rows=1, row_tokens=8)
    assert adapter.parameters == 2_902_272 + 24_576
    assert adapter.optimizer == 2 * 24_576


def test_a_step_at_its_height_needs_the_sum_of_its_parts() -> None:
    memory = rank_memory(LLAMA, FSDP2, rows=2, row_tokens=64)
    assert memory.logits == 2 * 64 * 1000 * (2 + 4 + 2 + 4)  # scores and gradient, in both dtypes
    assert memory.training == (
        memory.parameters
        + memory.gradients
        + memory.optimizer
        + memory.gathered
        + memory.activations
        + memory.logits
    )
    assert memory.host_peak == memory.training > memory.building


def test_before_it_is_sharded_a_model_is_whole_on_the_host_or_on_the_accelerator() -> None:
    whole = 4 * (2_902_272 + 24_576)
    many = rank_memory(ADAPTER, replace(FSDP2, ranks=64), rows=1, row_tokens=1)
    assert many.host_peak == many.building == whole > many.training
    assert (many.placing, many.device_peak) == (0, many.training)  # moved layer by layer
    zero3 = rank_memory(ADAPTER, replace(ZERO3, ranks=64), rows=1, row_tokens=1)
    assert zero3.placing == whole
    mapped = replace(FSDP2, ranks=64, maps_weights=True)
    assert rank_memory(ADAPTER, mapped, rows=1, row_tokens=1).building == 0


def test_zero3_keeps_what_it_may_use_again_and_a_bucket_of_gradients() -> None:
    spread = replace(ZERO3, reduce_elements=1000)
    assert rank_memory(LLAMA, spread, rows=1, row_tokens=8).gathered == 2 * 2_902_272 + 4 * 1000
    huge = replace(LLAMA, parameters=4 * 10**9, trainable=500)
    gathered = rank_memory(huge, spread, rows=1, row_tokens=8).gathered
    assert gathered == 2 * 10**9 + 4 * 500


def test_offloaded_state_is_on_the_host() -> None:
    here = rank_memory(LLAMA, FSDP2, rows=1, row_tokens=8)
    there = rank_memory(LLAMA, replace(FSDP2, offloads=True), rows=1, row_tokens=8)
    assert (there.parameters, there.optimizer) == (0, 0)
    assert there.offloaded == here.parameters + here.optimizer
    assert there.training == here.training - there.offloaded


def test_whole_layers_stay_where_they_are_not_given_back() -> None:
    outer = 2_902_272 - 3 * 786_944
    memory = rank_memory(LLAMA, FSDP2, rows=1, row_tokens=8)
    assert memory.gathered == 2 * (2 * 786_944 + outer) + 2 * outer + 6 * 786_944
    kept = rank_memory(LLAMA, replace(FSDP2, keeps_gathered=True), rows=1, row_tokens=8)
    assert kept.gathered - memory.gathered == 2 * 786_944
    frozen = rank_memory(ADAPTER, FSDP2, rows=1, row_tokens=8)
    assert frozen.gathered == 2 * (2 * 786_944 + outer) + 6 * 24_576


def test_recomputing_keeps_the_inputs_of_the_layers_and_one_layer() -> None:
    tokens = 2 * 64
    layer = layer_activation_bytes(LLAMA, 2, tokens)
    kept = rank_memory(LLAMA, FSDP2, rows=2, row_tokens=64)
    assert kept.activations == 3 * layer
    again = rank_memory(LLAMA, replace(FSDP2, recomputes=True), rows=2, row_tokens=64)
    assert again.activations == layer + 3 * tokens * 256 * 2
    spread = replace(ZERO3, recomputes=True, shards_inputs=True)
    divided = rank_memory(LLAMA, spread, rows=2, row_tokens=64)
    assert divided.activations == layer + 3 * tokens * 256 * 2 // 4


@given(
    ranks=st.sampled_from([1, 2, 4, 8, 16]),
    rows=st.integers(1, 8),
    strategy=st.sampled_from(["fsdp2", "zero3"]),
)
def test_more_ranks_need_no_more_each_and_more_rows_no_less(
    ranks: int, rows: int, strategy: Strategy
) -> None:
    spread = replace(FSDP2, strategy=strategy, ranks=ranks)
    one = rank_memory(LLAMA, spread, rows=rows, row_tokens=32)
    more_ranks = rank_memory(LLAMA, replace(spread, ranks=2 * ranks), rows=rows, row_tokens=32)
    more_rows = rank_memory(LLAMA, spread, rows=rows + 1, row_tokens=32)
    assert more_ranks.host_peak <= one.host_peak
    assert more_ranks.device_peak <= one.device_peak
    assert more_rows.training > one.training
    assert one.host_peak == max(one.training, one.building)
    assert one.device_peak == max(one.training, one.placing)


def test_a_checkpoint_is_the_trained_values_their_moments_and_what_surrounds_chunks() -> None:
    whole = 12 * 2_902_272 + 30 * (3 * 4 + 1) * 1850 + 4 * 15_000
    assert state_bytes(LLAMA, FSDP2) == whole
    assert state_bytes(ADAPTER, replace(FSDP2, parameter_bytes=2, ranks=1)) == (
        6 * 24_576 + 24 * 4 * 1850 + 15_000
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "row_tokens"), [(2, 64), (1, 200)])
def test_activations_are_what_torch_keeps_for_the_backward_pass(
    dtype: torch.dtype, rows: int, row_tokens: int
) -> None:
    """Every tensor that autograd saves is seen; tensors that share memory are counted once."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=LLAMA.vocabulary,
        hidden_size=LLAMA.hidden,
        intermediate_size=LLAMA.intermediate,
        num_hidden_layers=LLAMA.layers,
        num_attention_heads=LLAMA.heads,
        num_key_value_heads=LLAMA.kv_heads,
        use_cache=False,
    )
    model = LlamaModel(config).to(dtype)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: list[torch.Tensor] = []

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor)
        return tensor

    ids = torch.ones((rows, row_tokens), dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held
    }
    kept = sum(size for place, size in storages.items() if place not in parameters)
    expected = LLAMA.layers * layer_activation_bytes(LLAMA, dtype.itemsize, rows * row_tokens)
    assert expected == pytest.approx(kept, rel=0.02)
