"""Checks of how text becomes tokens, and of what of the model is trained."""

from __future__ import annotations

from collections.abc import Iterator

from strongroom.training.preflight.findings import Case, Finding, finding


def padding(case: Case) -> Iterator[Finding]:
    """Find tokenizers that have nothing to fill rows up with.

    Padding that is the end token is no finding: rows know their length, and padding is told apart
    by its place.
    """
    tokenizer = case.facts.tokenizer
    if tokenizer is None or tokenizer.padding is not None or tokenizer.end is not None:
        return
    yield finding(
        "padding",
        "stop",
        saw="the tokenizer has neither a padding nor an end token",
        mend="set pad_token or eos_token in its tokenizer_config.json",
    )


def chat_template(case: Case) -> Iterator[Finding]:
    """Find chat templates in which answers cannot be told apart from prompts.

    A template without marks for answers is no finding while prompts can be rendered by themselves.
    """
    tokenizer = case.facts.tokenizer
    if tokenizer is None or tokenizer.template_fault is None:
        return
    marks = "has" if tokenizer.has_marks else "has no"
    what = (
        f"the chat template {marks} marks for answers, and {tokenizer.template_fault}"
        if tokenizer.has_template
        else "the tokenizer has no chat template"
    )
    yield finding(
        "chat-template",
        "stop",
        saw=what,
        mend="use an instruct model, or put a chat_template.jinja beside its tokenizer that "
        "renders each text once, unchanged, and ends each answer by a control token",
    )


def max_length(case: Case) -> Iterator[Finding]:
    """Find rows that may be longer than the model's positions."""
    model, most = case.facts.model, case.config.data.max_tokens
    if model is None or model.positions is None or most <= model.positions:
        return
    yield finding(
        "max-length",
        "stop",
        saw=f"data.max_tokens is {most}, and the model was made for {model.positions} positions "
        "(max_position_embeddings)",
        mend=f"set data.max_tokens to {model.positions} or less",
    )


def adapter_targets(case: Case) -> Iterator[Finding]:
    """Find adapter targets that name no linear layer."""
    model, adapter = case.facts.model, case.config.adapter
    if model is None or adapter.method != "lora" or not model.linear_names:
        return
    unknown = [target for target in adapter.targets if target not in model.linear_names]
    if not unknown:
        return
    yield finding(
        "adapter-targets",
        "stop",
        saw=f"adapter.targets names {', '.join(unknown)}, and the model has no such linear layer",
        mend=f"choose from: {', '.join(model.linear_names)}",
    )
