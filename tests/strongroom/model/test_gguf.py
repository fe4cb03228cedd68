"""Conversion is tried on a GGUF file written here from a model whose weights are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from strongroom.errors import ModelSourceError
from strongroom.model.gguf import convert_gguf
from strongroom.model.sources import check_model_folder
from tests.support.tiny_model import make_tiny_model

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(path: Path, folder: Path, pre_tokenizer: str = "smollm") -> Path:
    """Write the model of `folder` as GGUF in float32, as its specification has it for Llama."""
    import gguf

    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {token["id"] for token in tokenizer["added_tokens"]}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if index in special else 1 for index in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(gguf_name(name), interleaved(tensor, heads.get(name.split(".")[-2])))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, *rest, _ = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(rest)]}.weight"


def interleaved(tensor: torch.Tensor, num_heads: int | None) -> Any:  # noqa: ANN401 -- numpy
    # Queries and keys: GGUF has the two halves of a rotary pair beside each other.
    if num_heads is not None:
        halves = tensor.reshape(num_heads, 2, -1, tensor.shape[1])
        tensor = halves.transpose(1, 2).reshape(tensor.shape)
    return tensor.numpy()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("original"))


@pytest.fixture(scope="module")
def source(original: Path) -> Path:
    return write_gguf(original.parent / "tiny.gguf", original)


@pytest.fixture(scope="module")
def converted(source: Path) -> Path:
    folder = source.parent / "converted"
    convert_gguf(source, folder)
    return folder


def test_the_weights_are_the_originals_in_bfloat16(original: Path, converted: Path) -> None:
    check_model_folder(converted)
    wanted = load_file(original / "model.safetensors")
    got = load_file(converted / "model.safetensors")
    assert got.keys() == wanted.keys()
    for name, tensor in got.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, wanted[name].to(torch.bfloat16)), name


def test_the_configuration_builds_the_same_model(original: Path, converted: Path) -> None:
    kept = (
        "architectures",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "rope_parameters",
        "tie_word_embeddings",
        "vocab_size",
    )
    wanted = json.loads((original / "config.json").read_text())
    got = json.loads((converted / "config.json").read_text())
    assert {name: got[name] for name in kept} == {name: wanted[name] for name in kept}
    assert "quantization_config" not in got


def test_the_tokenizer_is_the_original_one(original: Path, converted: Path) -> None:
    from transformers import AutoTokenizer

    wanted, got = (AutoTokenizer.from_pretrained(folder) for folder in (original, converted))
    texts = [
        "<|im_start|>user\nNo. 1205: 17 + 30 = ?<|im_end|>\n",
        "Çay 1453'te  mi?\n\n\tŞimdi İçelim.",
        " x1 22 333",
    ]
    for text in texts:
        assert got.encode(text) == wanted.encode(text)
        assert got.decode(got.encode(text)) == text
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
        assert getattr(got, name) == getattr(wanted, name)
    assert got.chat_template == wanted.chat_template
    assert got.model_max_length == 256


def test_numbers_are_split_into_digits_even_where_merges_would_join_them(converted: Path) -> None:
    from transformers import AutoTokenizer

    backend = AutoTokenizer.from_pretrained(converted).backend_tokenizer
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str("in 1453 now")]
    assert words == ["in", "Ġ", "1", "4", "5", "3", "Ġnow"]


def test_conversion_gives_the_same_bytes_again(
    source: Path, converted: Path, tmp_path: Path
) -> None:
    convert_gguf(source, tmp_path / "again")
    for file in sorted(converted.iterdir()):
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


def test_an_unknown_pre_tokenizer_is_refused(original: Path, tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "a.gguf", original, pre_tokenizer="llama-bpe")
    with pytest.raises(ModelSourceError, match="got 'llama-bpe'"):
        convert_gguf(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"GGUF", b"GGUF\3\0\0\0" + b"\xff" * 64])
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.gguf").write_bytes(data)
    with pytest.raises(ModelSourceError, match=r"a\.gguf: "):
        convert_gguf(tmp_path / "a.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_gguf_file_cut_short_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(source.read_bytes()[:-2000])
    with pytest.raises(ModelSourceError, match=r"a\.gguf: "):
        convert_gguf(tmp_path / "a.gguf", tmp_path / "out")
