"""How many floating point operations training a model needs: arithmetic alone, no measurement.

These are *model* FLOPs: what the mathematics of one forward and one backward pass asks for. What an
implementation computes besides is not counted: activations computed again (checkpointing), padding,
the optimizer. So a faster implementation can only raise the utilization, never the work.

Per token of a step, for a matrix of `w` weights that it is multiplied with:

    forward                         2 w     a multiplication and an addition each
    backward, for the activations   2 w     always: what lies below is trained
    backward, for the weights       2 w     only where they are trained

so a trained weight costs 6 and a frozen one, as under a LoRA adapter, costs 4. Per layer, head of
size Q and pair of tokens of one row, attention multiplies queries with keys and weights with
values, 2 Q each, and twice that backward: 12 Q, trained or frozen, as both factors are activations.
A causal mask is not discounted. A row of T tokens has T * T pairs, hence the `12 L H Q T` per token
of the literature.

Source: Chowdhery et al. 2022, PaLM, https://arxiv.org/abs/2204.02311, appendix B; Kaplan et al.
2020, https://arxiv.org/abs/2001.08361, section 2.1. For adapters it counts a little too much: below
the lowest adapter nothing is trained, so what feeds the first layer needs no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from strongroom.canonical import JsonObject

FORWARD, BACKWARD_ACTIVATIONS, BACKWARD_WEIGHTS = 2, 2, 2
"""FLOPs per weight and token."""
ATTENTION = 12
"""FLOPs per layer, element of the query heads, and pair of tokens; forward and backward."""

SIZES = (
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("hidden_size", "n_embd"),
    ("vocab_size",),
)
"""Fields of a config that a cost depends on; architectures name them differently."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFlops:
    """What one forward and backward pass costs.

    Attributes:
        per_token: FLOPs of the matrices, for each token.
        per_pair: FLOPs of attention, for each pair of tokens of one row.
    """

    per_token: int
    per_pair: int

    @classmethod
    def of(cls, config: JsonObject, *, trainable: int, total: int) -> Self | None:
        """Return the cost of a decoder-only transformer, or None where its config does not tell.

        It does not for a mixture of experts, of whose weights a token meets only some, nor for a
        config that nests or lacks the numbers below. All weights are counted as matrices, but for
        the table that looks up the tokens, unless it also makes the logits (tied embeddings).

        Args:
            config: `config.json` of transformers.
            trainable: trained parameters, over all ranks.
            total: all parameters, the adapter's among them; tied ones once.
        """
        sizes = [_first(config, names) for names in SIZES]
        if 0 in sizes or _has_experts(config):
            return None
        layers, heads, hidden, vocabulary = sizes
        head = config.get("head_dim") or hidden // heads
        table = 0 if config.get("tie_word_embeddings", True) else vocabulary * hidden
        frozen = total - trainable
        trained = trainable
        if frozen >= table:
            frozen -= table
        else:
            trained -= table
        return cls(
            per_token=(
                (FORWARD + BACKWARD_ACTIVATIONS) * (frozen + trained) + BACKWARD_WEIGHTS * trained
            ),
            per_pair=ATTENTION * layers * heads * head,
        )

    def of_step(self, *, tokens: int, pairs: int) -> int:
        """Return the FLOPs of a step, over all ranks.

        Args:
            tokens: tokens of its rows, padding not counted.
            pairs: the sum over its rows of the square of their tokens.
        """
        return self.per_token * tokens + self.per_pair * pairs


def _first(config: JsonObject, names: tuple[str, ...]) -> int:
    """Return the first of the fields that the config has, 0 if it has none."""
    return next((int(config[name]) for name in names if config.get(name)), 0)


def _has_experts(config: JsonObject) -> bool:
    return any(
        "expert" in name and isinstance(value, int) and value > 1 for name, value in config.items()
    )
