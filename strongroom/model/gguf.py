"""GGUF to safetensors: a quantised model becomes an ordinary one, once.

The weights are dequantised and rounded to bfloat16; the tokenizer is rebuilt, and what rebuilding
loses is put back: GGUF names its pre-tokenizer and does not describe it. A name that is not known
here is refused, because a tokenizer that splits numbers otherwise is another tokenizer.
Source: the GGUF specification; pre-tokenizers as llama.cpp defines them by name.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from strongroom.errors import ModelSourceError

logger = logging.getLogger(__name__)

DIGIT_SPLITTERS = frozenset({"smollm", "starcoder", "refact", "codeshell"})
"""Pre-tokenizers that split numbers into single digits, then words as GPT-2 does."""

_MAGIC = b"GGUF"


def convert_gguf(gguf: Path, out: Path) -> None:
    """Write the model of a GGUF file into the folder `out`, in the layout of transformers.

    Raises:
        ModelSourceError: not a GGUF file, or one whose model or tokenizer is not known here.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    started = time.perf_counter()
    context_length = _context_length(gguf)
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(**where)
        model = AutoModelForCausalLM.from_pretrained(
            **where,
            dtype=torch.bfloat16,
            # Without it the model loads all the same, and then cannot be saved.
            quantization_config=GgufConfig(dequantize=True),
        )
    except (ValueError, KeyError, OSError, RuntimeError) as error:
        raise ModelSourceError(
            f"{gguf}: expected a model that transformers converts from GGUF, got: {error}; "
            "take the model as safetensors instead"
        ) from error
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    _restore(tokenizer, context_length).save_pretrained(out)
    for file in sorted(out.iterdir()):
        with file.open("rb") as written:
            os.fsync(written.fileno())
    logger.info(
        "model converted source=%s out=%s bytes=%d seconds=%.1f",
        gguf.name,
        out,
        sum(file.stat().st_size for file in out.iterdir()),
        time.perf_counter() - started,
    )


def _context_length(gguf: Path) -> int:
    """Return the context length in tokens, once the pre-tokenizer is known to be restorable."""
    from gguf import GGUFReader

    with gguf.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ModelSourceError(f"{gguf}: expected a GGUF file, got other bytes; copy it anew")
    try:
        fields = GGUFReader(str(gguf)).fields
        architecture = fields["general.architecture"].contents()
        context_length = int(fields[f"{architecture}.context_length"].contents())
        pre_tokenizer = str(fields["tokenizer.ggml.pre"].contents())
    except (KeyError, ValueError, IndexError) as error:
        raise ModelSourceError(
            f"{gguf}: the GGUF header is broken or lacks a field ({error}); copy it anew"
        ) from error
    if pre_tokenizer not in DIGIT_SPLITTERS:
        known = ", ".join(sorted(DIGIT_SPLITTERS))
        raise ModelSourceError(
            f"{gguf}: expected a pre-tokenizer of {known}, got {pre_tokenizer!r}; "
            "take the model as safetensors instead"
        )
    return context_length


def _restore(tokenizer: Any, context_length: int) -> Any:  # noqa: ANN401 -- no types published
    from tokenizers import pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        unk_token=tokenizer.unk_token,
        pad_token=tokenizer.pad_token,
        chat_template=tokenizer.chat_template,
        model_max_length=context_length,
    )
