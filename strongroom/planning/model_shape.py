"""The sizes of a decoder-only model that its memory and its computation follow from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """How large a model is; its attention and its MLP are those of Llama.

    Attributes:
        layers: decoder layers.
        hidden: width of the residual stream.
        heads: attention heads of the queries.
        kv_heads: attention heads of keys and values, fewer where they are grouped.
        head_dim: width of one head.
        intermediate: width inside the MLP.
        vocabulary: rows of the embedding.
        parameters: all of them, tied ones counted once, without an adapter.
        layer_parameters: those of the largest decoder layer.
        trainable: those that are trained: all, or the adapter's.
        trained_tensors: in how many tensors they stand.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    parameters: int
    layer_parameters: int
    trainable: int
    trained_tensors: int

    @property
    def is_full(self) -> bool:
        """Whether the model itself is trained, and no adapter beside it."""
        return self.trainable == self.parameters

    @property
    def held(self) -> int:
        """Parameters in memory: the model's, and an adapter's beside them."""
        return self.parameters if self.is_full else self.parameters + self.trainable

    @property
    def outer_parameters(self) -> int:
        """Parameters outside the decoder layers: embedding, head, last norm."""
        return max(self.parameters - self.layers * self.layer_parameters, 0)

    @property
    def query_width(self) -> int:
        """Width of the queries of all heads together."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of the keys, and of the values, of all their heads together."""
        return self.kv_heads * self.head_dim
