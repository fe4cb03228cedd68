"""Build the base model and its tokenizer from a folder, and from nothing else.

Invariant: weights come from safetensors alone, no code of the folder is run, no network is asked,
and the weights fit the architecture exactly: a missing or unknown weight is an error, not a random
initialisation.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from strongroom.errors import ModelSourceError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def build_base(folder: Path, dtype: str) -> PreTrainedModel:
    """Return the causal language model of `folder`, in evaluation mode, on the CPU.

    Args:
        folder: `config.json` and `*.safetensors` in the layout of transformers.
        dtype: what parameters are held in, `bfloat16` or `float32`.

    Raises:
        ModelSourceError: a file is missing or broken, or the weights do not fit the architecture.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, where they can be named
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelSourceError(
            f"base model {folder}: expected config.json and *.safetensors that transformers can "
            f"load, got: {error}"
        ) from error
    misfits = {kind: sorted(map(str, names)) for kind, names in found.items() if names}
    if misfits:
        raise ModelSourceError(
            f"base model {folder}: expected weights that fit its config.json exactly, got "
            f"{misfits}; take weights and config.json from the same model"
        )
    model.config.use_cache = False  # training and scoring never generate
    model.eval()
    return model


def tokenizer_from(folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of `folder`.

    Raises:
        ModelSourceError: a file is missing or broken, or there is no chat template.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelSourceError(
            f"tokenizer {folder}: expected tokenizer.json and tokenizer_config.json, got: {error}"
        ) from error
    if not tokenizer.chat_template:
        raise ModelSourceError(
            f"tokenizer {folder}: expected a chat template, got none; "
            "use an instruct model or add chat_template.jinja"
        )
    return tokenizer


def pad_id_of(tokenizer: Any) -> int:  # noqa: ANN401 -- transformers publishes no types
    """Return the id that fills rows up: the padding token's, else the end token's.

    The id may also be that of a real token; padding is told apart by its place, never by its id.

    Raises:
        ModelSourceError: the tokenizer has neither.
    """
    for token_id in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token_id is not None:
            return int(token_id)
    raise ModelSourceError(
        "tokenizer: expected a padding or an end token, got neither; "
        "set pad_token or eos_token in tokenizer_config.json"
    )
