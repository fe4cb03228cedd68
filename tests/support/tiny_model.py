"""A whole language model in a fraction of a second, for tests: small, random and deterministic.

A Llama of two layers with a byte-level BPE tokenizer trained here, on the sentences below, and a
ChatML template whose end-of-turn token is also the padding token, as in the real base model.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

VOCAB_SIZE = 384
SPECIAL_TOKENS = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

COLOURS = ("red", "green", "blue", "yellow", "white", "black")
THINGS = ("door", "lamp", "river", "basket", "window", "stone", "garden", "bridge")
PLACES = ("in the hall", "by the sea", "on the hill", "near the market", "under the tree")
TURKISH = (
    ("Bugün hava nasıl?", "Bugün hava güneşli ve ılık."),
    ("İstanbul hangi ülkede?", "İstanbul Türkiye'de büyük bir şehirdir."),
    ("Çay içer misin?", "Evet, şekersiz bir çay içerim."),
    ("Kapı açık mı?", "Hayır, kapı kapalı."),
)


def make_tiny_model(folder: Path, seed: int = 0) -> Path:
    """Write model and tokenizer into `folder` in the layout of transformers; return `folder`.

    The files are the same bytes for the same seed: `config.json`, `model.safetensors` (float32),
    `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    _make_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.float32)
    save_file(
        {
            name: tensor.contiguous()
            for name, tensor in model.state_dict().items()
            if name != "lm_head.weight"  # tied to the embedding
        },
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = "float32"
    config.save_pretrained(folder)
    return folder


def make_chat_rows(path: Path, n: int, seed: int = 0) -> Path:
    """Write `n` different rows of chat, one JSON object with `messages` a line; return `path`."""
    choose = random.Random(seed)  # noqa: S311 -- rows of a test, not a secret
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for number in range(n):
            row = {"messages": _conversation(choose, number)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def _conversation(choose: random.Random, number: int) -> list[dict[str, str]]:
    colour, thing, place = choose.choice(COLOURS), choose.choice(THINGS), choose.choice(PLACES)
    kind = number % 4
    if kind == 0:
        question = f"Question {number}: what colour is the {thing} {place}?"
        return _turns(question, f"The {thing} {place} is {colour}.")
    if kind == 1:
        first, second = choose.randrange(50), choose.randrange(50)
        return _turns(f"No. {number}: {first} + {second} = ?", f"It is {first + second}.")
    if kind == 2:
        question, answer = choose.choice(TURKISH)
        return _turns(f"{question} ({number})", answer)
    return [
        {"role": "system", "content": "Answer in one short sentence."},
        *_turns(f"Where is {colour} {thing} number {number}?", f"It is {place}."),
        *_turns("Are you sure?", "Yes, I am sure."),
    ]


def _turns(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _make_tokenizer(folder: Path) -> None:
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sentences(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=256,
        **SPECIAL_TOKENS,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def _sentences() -> list[str]:
    choose = random.Random(20260101)  # noqa: S311 -- as above
    return [
        turn["role"] + "\n" + turn["content"]
        for number in range(400)
        for turn in _conversation(choose, number)
    ]
