from __future__ import annotations

import math

import torch
from torch.nn import functional

from strongroom.model.loss import IGNORED, completion_loss_sum


def test_only_trained_tokens_count_each_predicted_from_the_one_before() -> None:
    logits = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[IGNORED, IGNORED, 3, 4, IGNORED], [IGNORED, 6, IGNORED, IGNORED, 0]])
    nats, count = completion_loss_sum(logits, labels)
    log_p = functional.log_softmax(logits, dim=-1)
    expected = -(log_p[0, 1, 3] + log_p[0, 2, 4] + log_p[1, 0, 6] + log_p[1, 3, 0])
    assert int(count) == 4
    torch.testing.assert_close(nats, expected)


def test_a_label_at_the_first_place_has_nothing_to_be_predicted_from() -> None:
    labels = torch.tensor([[2, IGNORED, IGNORED]])
    nats, count = completion_loss_sum(torch.zeros(1, 3, 4), labels)
    assert (float(nats), int(count)) == (0.0, 0)


def test_half_precision_is_summed_in_single() -> None:
    tokens = 3000
    logits = torch.zeros(1, tokens + 1, 4, dtype=torch.bfloat16)
    nats, count = completion_loss_sum(logits, torch.ones(1, tokens + 1, dtype=torch.int64))
    assert nats.dtype == torch.float32
    assert int(count) == tokens
    assert math.isclose(float(nats), tokens * math.log(4), rel_tol=1e-6)


def test_sums_of_parts_make_the_sum_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 6, 5, generator=generator)
    labels = torch.randint(0, 5, (4, 6), generator=generator)
    labels[0, :4] = IGNORED
    whole, count = completion_loss_sum(logits, labels)
    parts = [completion_loss_sum(logits[i : i + 2], labels[i : i + 2]) for i in (0, 2)]
    torch.testing.assert_close(sum(nats for nats, _ in parts), whole)
    assert sum(int(n) for _, n in parts) == int(count)
