from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from strongroom.errors import ModelSourceError
from strongroom.model.build import build_base, pad_id_of, tokenizer_from
from tests.support.tiny_model import make_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_model_has_the_weights_of_its_file_in_the_wanted_dtype(
    folder: Path, dtype: str
) -> None:
    model = build_base(folder, dtype)
    stored = load_file(folder / "model.safetensors")
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, stored[name].to(parameter.dtype)), name
    assert not model.training
    assert model.config.use_cache is False


def mapped_ranges(file: Path) -> list[range]:
    """Return the addresses at which this process sees the file."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    bounds = [line.split()[0].split("-") for line in lines if line.endswith(str(file))]
    return [range(int(first, 16), int(end, 16)) for first, end in bounds]


def test_in_the_dtype_it_is_stored_in_a_model_takes_no_memory_beside_its_file(folder: Path) -> None:
    """The preflight counts on it: a whole model on every rank of a host is one, in its cache."""
    model = build_base(folder, "float32")
    seen = mapped_ranges(folder / "model.safetensors")
    assert all(any(p.data_ptr() in part for part in seen) for p in model.parameters())
    copied = build_base(folder, "bfloat16")
    seen = mapped_ranges(folder / "model.safetensors")
    assert not any(p.data_ptr() in part for part in seen for p in copied.parameters())


def test_a_missing_weight_is_refused_and_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelSourceError, match=r"model\.norm\.weight"):
        build_base(folder, "float32")


def test_an_unknown_weight_is_refused_and_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.7.extra.weight"] = torch.zeros(2)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelSourceError, match=r"layers\.7\.extra"):
        build_base(folder, "float32")


def test_a_weight_of_another_shape_is_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelSourceError, match=r"model\.norm\.weight"):
        build_base(folder, "float32")


@pytest.mark.parametrize("names", [["model.norm.weight"], []], ids=["one", "all"])
def test_weights_without_elements_are_refused_and_named(folder: Path, names: list[str]) -> None:
    """As saved of ZeRO-3 without gathering, a few KB in all (deepspeedai/DeepSpeed#6836)."""
    weights = load_file(folder / "model.safetensors")
    names = names or list(weights)
    weights |= {name: torch.empty(0) for name in names}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelSourceError) as caught:
        build_base(folder, "float32")
    assert all(name in str(caught.value) for name in names)


def test_pickled_weights_are_not_looked_at(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(ModelSourceError, match="safetensors"):
        build_base(folder, "float32")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=r"config\.json"):
        build_base(tmp_path, "float32")
    with pytest.raises(ModelSourceError, match="tokenizer"):
        tokenizer_from(tmp_path)


def test_the_tokenizer_needs_no_model_beside_it(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "model.safetensors").unlink()
    tokenizer = tokenizer_from(folder)
    text = "Çay içer misin? 42"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_tokenizer_without_a_chat_template_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelSourceError, match="chat template"):
        tokenizer_from(folder)


def test_padding_falls_back_to_the_end_token(folder: Path) -> None:
    tokenizer = tokenizer_from(folder)
    assert pad_id_of(tokenizer) == 2
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    del config["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert pad_id_of(tokenizer_from(folder)) == 2
    del config["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelSourceError, match="neither"):
        pad_id_of(tokenizer_from(folder))
