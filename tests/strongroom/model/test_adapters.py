from __future__ import annotations

from pathlib import Path

import pytest
import torch

from strongroom.errors import ConfigError
from strongroom.model.adapters import trainable_names, with_adapter
from strongroom.model.build import build_base
from strongroom.model.config import AdapterConfig
from tests.support.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def test_lora_trains_its_own_matrices_alone_in_the_dtype_of_the_base(folder: Path) -> None:
    config = AdapterConfig(rank=4, targets=("q_proj", "v_proj"))
    model = with_adapter(build_base(folder, "bfloat16"), config)
    names = trainable_names(model)
    assert len(names) == 2 * 2 * 2  # layers, targets, matrices
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_full_trains_every_parameter_under_its_own_name(folder: Path) -> None:
    base = build_base(folder, "float32")
    names = [name for name, _ in base.named_parameters()]
    assert trainable_names(with_adapter(base, AdapterConfig(method="full"))) == names


def test_a_seed_decides_the_first_values_and_touches_no_other_randomness(folder: Path) -> None:
    def first(seed: int) -> dict[str, torch.Tensor]:
        model = with_adapter(build_base(folder, "float32"), AdapterConfig(), seed=seed)
        return {name: p for name, p in model.named_parameters() if p.requires_grad}

    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = first(1), first(1), first(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_a_new_adapter_changes_nothing_yet(folder: Path) -> None:
    tokens = torch.arange(3, 23).reshape(1, 20)
    with torch.no_grad():
        base = build_base(folder, "float32")(input_ids=tokens).logits
        adapted = with_adapter(build_base(folder, "float32"), AdapterConfig()).eval()
        assert torch.equal(adapted(input_ids=tokens).logits, base)


def test_every_target_that_names_no_layer_is_listed_with_those_that_do(folder: Path) -> None:
    config = AdapterConfig(targets=("q_proj", "query", "value"))
    with pytest.raises(ConfigError) as caught:
        with_adapter(build_base(folder, "float32"), config)
    assert len(caught.value.faults) == 2
    assert "'query'" in caught.value.faults[0]
    assert "q_proj" in caught.value.faults[0]
