"""How much memory a rank needs, and how large a checkpoint is: arithmetic, no measurement.

The state of training follows Rajbhandari et al. 2019 (ZeRO, https://arxiv.org/abs/1910.02054,
section 3): so many bytes for each parameter, divided by the ranks that share it. Activations are
counted operator by operator, as Korthikanti et al. 2022 do for GPT
(https://arxiv.org/abs/2205.05198, section 4.1), here for the layer of Llama as transformers writes
it: RMSNorm in float32, rotary positions, attention that keeps no T x T matrix, a gated MLP.
What an allocator loses by fragmentation is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strongroom.planning.model_shape import ModelShape

Strategy = Literal["fsdp2", "zero3"]

FLOAT32_BYTES = 4
CHUNK_BYTES = 1850
"""What a chunk takes besides its data: its container, and its entry in the stock index.
Measured: 1,576 and 259 bytes in the mean over an adapter's checkpoint of 1,686 chunks."""
RANDOM_STATE_BYTES = 15_000
"""What the random state of one rank takes: some 5,000 bytes each of torch, Python and NumPy."""
ZERO3_LIVE_ELEMENTS = 10**9
"""Parameters that DeepSpeed lets stay gathered for their next use (`stage3_max_live_parameters`,
left at its default). Source: https://www.deepspeed.ai/docs/config-json/"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """How a model is spread over ranks, and what of it is kept where.

    Attributes:
        replicas: groups of ranks that each hold the whole model, sharded.
        parameter_bytes: of one element as it is held, 2 or 4.
        compute_bytes: of one element as it is computed with, 2 or 4.
        keeps_gathered: whether layers stay whole between forward and backward pass.
        layers_ahead: layers gathered before they are used.
        reduce_elements: gradients that ZeRO-3 reduces at a time.
        offloads: whether parameters and optimizer live in the memory of the host.
        recomputes: whether a layer's activations are computed again for its backward pass.
        shards_inputs: whether the inputs that are kept for that are divided over the ranks.
        maps_weights: whether the base model is read in the dtype it is stored in: its weights then
            are the pages of the file, which all ranks of a machine share and none holds.
    """

    strategy: Strategy
    ranks: int
    replicas: int = 1
    parameter_bytes: int
    compute_bytes: int
    keeps_gathered: bool = False
    layers_ahead: int = 1
    reduce_elements: int = 0
    offloads: bool = False
    recomputes: bool = False
    shards_inputs: bool = False
    maps_weights: bool = False

    @property
    def shards(self) -> int:
        """Over how many ranks one copy of the model is divided."""
        return self.ranks // self.replicas


@dataclass(frozen=True, kw_only=True, slots=True)
class BytesPerParameter:
    """Bytes that one parameter takes while it is trained, over all ranks of one copy.

    Attributes:
        parameter: of every parameter, trained or frozen.
        gradient, optimizer: of a trained one; ZeRO-3's float32 master copy is the optimizer's.
        saved: of a trained one in a checkpoint: its value and two moments.
    """

    parameter: int
    gradient: int
    optimizer: int
    saved: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Bytes that one rank needs where it computes.

    Attributes:
        parameters, gradients, optimizer: this rank's part of them; 0 where they are offloaded.
        gathered: whole layers, and gradients on their way to their ranks.
        activations: what forward passes keep for backward passes.
        logits: the scores over the vocabulary, and their gradient.
        building: the whole model, as each rank holds it on the host before it is sharded.
        placing: the same on its accelerator; FSDP2 moves it there layer by layer.
        offloaded: what lives in the memory of the host instead.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    logits: int
    building: int
    placing: int
    offloaded: int

    @property
    def training(self) -> int:
        """What a step needs at its height."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.gathered
            + self.activations
            + self.logits
        )

    @property
    def device_peak(self) -> int:
        """The most that is needed at once on an accelerator."""
        return max(self.training, self.placing)

    @property
    def host_peak(self) -> int:
        """The most that is needed at once on a host that computes by itself."""
        return max(self.training, self.building)


def bytes_per_parameter(spread: Spread) -> BytesPerParameter:
    """Return what a parameter costs under a strategy with AdamW.

    FSDP2 holds value, gradient and two moments in the dtype of the parameter. ZeRO-3 holds the
    value as it is computed with, and gradient, master copy and two moments in float32.
    """
    held = spread.parameter_bytes
    if spread.strategy == "fsdp2":
        return BytesPerParameter(parameter=held, gradient=held, optimizer=2 * held, saved=3 * held)
    return BytesPerParameter(
        parameter=spread.compute_bytes,
        gradient=FLOAT32_BYTES,
        optimizer=3 * FLOAT32_BYTES,
        saved=3 * FLOAT32_BYTES,
    )


def rank_memory(shape: ModelShape, spread: Spread, *, rows: int, row_tokens: int) -> RankMemory:
    """Return what one rank needs.

    Args:
        shape: the model.
        spread: how it is spread.
        rows: sequences of one forward and backward pass on one rank.
        row_tokens: tokens of the longest of them.
    """
    each = bytes_per_parameter(spread)
    parameters = _part(shape.held, spread) * each.parameter
    optimizer = _part(shape.trainable, spread) * each.optimizer
    tokens = rows * row_tokens
    whole = shape.held * spread.parameter_bytes
    return RankMemory(
        parameters=0 if spread.offloads else parameters,
        gradients=_part(shape.trainable, spread) * each.gradient,
        optimizer=0 if spread.offloads else optimizer,
        gathered=_gathered_bytes(shape, spread),
        activations=_activation_bytes(shape, spread, tokens),
        logits=logit_bytes(shape, spread.compute_bytes, tokens),
        building=0 if spread.maps_weights else whole,
        placing=whole if spread.strategy == "zero3" else 0,
        offloaded=parameters + optimizer if spread.offloads else 0,
    )


def state_bytes(shape: ModelShape, spread: Spread) -> int:
    """Return the bytes of a full checkpoint: what is trained, its optimizer state, random state.

    Value and moments of each tensor stand in as many chunks as there are shards, its step in one.
    """
    num_chunks = shape.trained_tensors * (3 * spread.shards + 1)
    trained = shape.trainable * bytes_per_parameter(spread).saved
    return trained + num_chunks * CHUNK_BYTES + spread.ranks * RANDOM_STATE_BYTES


def layer_activation_bytes(shape: ModelShape, element_bytes: int, tokens: int) -> int:
    """Return what one decoder layer keeps of `tokens` tokens until its backward pass.

    Two norms keep their input in float32, and before and after the scale; attention keeps queries,
    keys, values, its output, and that once more for the projection after it; the MLP keeps both
    halves, the activated one and their product.
    """
    norms = shape.hidden * (2 * FLOAT32_BYTES + 4 * element_bytes)
    attention = element_bytes * (3 * shape.query_width + 2 * shape.key_width)
    mlp = element_bytes * 4 * shape.intermediate
    return tokens * (norms + attention + mlp)


def logit_bytes(shape: ModelShape, element_bytes: int, tokens: int) -> int:
    """Return what the loss needs: scores and their gradient, as computed and in float32."""
    return tokens * shape.vocabulary * 2 * (element_bytes + FLOAT32_BYTES)


def _part(elements: int, spread: Spread) -> int:
    return -(-elements // spread.shards)


def _gathered_bytes(shape: ModelShape, spread: Spread) -> int:
    """Layers being used and those ahead, what is outside the layers, gradients being reduced."""
    if spread.strategy == "zero3":
        live = min(shape.held, ZERO3_LIVE_ELEMENTS)
        reducing = min(spread.reduce_elements, shape.trainable)
        return live * spread.compute_bytes + reducing * FLOAT32_BYTES
    layers = shape.layers if spread.keeps_gathered else min(1 + spread.layers_ahead, shape.layers)
    whole = layers * shape.layer_parameters + shape.outer_parameters
    # What is outside the layers is reduced last; its gradient stands whole until then.
    outer = shape.outer_parameters if shape.is_full else 0
    layer = min(shape.layer_parameters, shape.trainable)
    return (whole + outer + layer) * spread.compute_bytes + layer * FLOAT32_BYTES


def _activation_bytes(shape: ModelShape, spread: Spread, tokens: int) -> int:
    layer = layer_activation_bytes(shape, spread.compute_bytes, tokens)
    if not spread.recomputes:
        return shape.layers * layer
    inputs = shape.layers * tokens * shape.hidden * spread.compute_bytes
    return layer + (inputs // spread.ranks if spread.shards_inputs else inputs)
