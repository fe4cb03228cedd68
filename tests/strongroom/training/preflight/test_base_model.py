from __future__ import annotations

import json
from pathlib import Path

import pytest

from strongroom.model.adapters import trainable_names, with_adapter
from strongroom.model.build import build_base
from strongroom.model.config import AdapterConfig
from strongroom.training.preflight.base_model import read_model
from tests.support.tiny_model import make_tiny_model

FULL = AdapterConfig(method="full")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(Path(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(
    "adapter", [FULL, AdapterConfig(), AdapterConfig(rank=3, targets=("gate_proj", "down_proj"))]
)
def test_sizes_read_from_headers_are_those_of_the_model_that_is_built(
    folder: Path, adapter: AdapterConfig
) -> None:
    shape = read_model(folder, adapter).shape
    assert shape is not None
    model = with_adapter(build_base(folder, "float32"), adapter)
    trained = set(trainable_names(model))
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert shape.held == sum(sizes.values())
    assert shape.trainable == sum(sizes[name] for name in trained)
    assert shape.trained_tensors == len(trained)
    assert shape.is_full is (adapter.method == "full")
    layer = sum(size for name, size in sizes.items() if ".layers.0." in name and "lora" not in name)
    assert shape.layer_parameters == layer
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads) == (2, 64, 4, 2)
    assert (shape.head_dim, shape.intermediate, shape.vocabulary) == (16, 128, 384)


def test_what_else_is_known_of_a_model(folder: Path) -> None:
    facts = read_model(folder, AdapterConfig())
    assert (facts.architecture, facts.positions) == ("LlamaForCausalLM", 256)
    assert {"q_proj", "down_proj", "lm_head"} <= set(facts.linear_names)
    assert "embed_tokens" not in facts.linear_names
    assert facts.left_behind == ()
    assert facts.dtypes == ("float32",)
    assert facts.flops is not None
    assert facts.shape is not None
    assert facts.flops.per_token == 4 * facts.shape.held + 2 * facts.shape.trainable


def rewritten(folder: Path, out: Path, **changes: object) -> Path:
    """Return a copy of the model with another configuration; None leaves a field out."""
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    config = json.loads((out / "config.json").read_text())
    config |= {name: value for name, value in changes.items() if value is not None}
    for name in [name for name, value in changes.items() if value is None]:
        del config[name]
    (out / "config.json").write_text(json.dumps(config))
    return out


def test_a_configuration_of_other_words_is_not_known(folder: Path, tmp_path: Path) -> None:
    facts = read_model(rewritten(folder, tmp_path, intermediate_size=None), FULL)
    assert (facts.shape, facts.flops) == (None, None)
    assert facts.positions == 256


@pytest.mark.parametrize(("head_dim", "expected"), [(32, 32), (0, 16), (None, 16)])
def test_heads_are_as_wide_as_said_or_share_the_hidden_width(
    folder: Path, tmp_path: Path, head_dim: int | None, expected: int
) -> None:
    shape = read_model(rewritten(folder, tmp_path, head_dim=head_dim), FULL).shape
    assert shape is not None
    assert shape.head_dim == expected


def test_the_decoder_of_a_model_of_several_inputs_is_read(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    nested = {name: None for name in config if name not in {"architectures", "model_type"}}
    out = rewritten(folder, tmp_path, **nested, text_config=config)
    assert read_model(out, FULL).shape == read_model(folder, FULL).shape


@pytest.mark.parametrize(
    "name",
    ["optimizer.pt", "trainer_state.json", "rng_state_0.pth", "global_step40", "__0_0.distcp"],
)
def test_state_of_another_training_is_noticed(folder: Path, tmp_path: Path, name: str) -> None:
    out = rewritten(folder, tmp_path)
    (out / name).write_bytes(b"")
    assert read_model(out, FULL).left_behind == (name,)
