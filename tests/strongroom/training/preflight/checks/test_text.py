"""Checks of how text becomes tokens, each found by its name, alone."""

from __future__ import annotations

from dataclasses import replace

from tests.support.preflight import (
    SMALL_FACTS,
    found,
    only,
    small,
)


def test_padding_that_is_the_end_token_is_told_apart_and_none_at_all_is_not() -> None:
    assert SMALL_FACTS.tokenizer is not None
    assert SMALL_FACTS.tokenizer.padding == SMALL_FACTS.tokenizer.end
    for padding, end, is_found in ((None, None, True), (None, "</s>", False), ("<p>", None, False)):
        tokenizer = replace(SMALL_FACTS.tokenizer, padding=padding, end=end)
        names = found(small(), replace(SMALL_FACTS, tokenizer=tokenizer))
        assert names == ([("padding", "stop")] if is_found else [])


def test_chat_template() -> None:
    assert SMALL_FACTS.tokenizer is not None
    for changes, said in (
        ({"template_fault": "the chat template alters a text"}, "no marks for answers, and the"),
        ({"template_fault": "none", "has_template": False}, "no chat template"),
    ):
        tokenizer = replace(SMALL_FACTS.tokenizer, **changes)
        finding = only(small(), replace(SMALL_FACTS, tokenizer=tokenizer))
        assert (finding.check, finding.severity) == ("chat-template", "stop")
        assert said in finding.saw


def test_max_length() -> None:
    assert SMALL_FACTS.model is not None
    short = replace(SMALL_FACTS, model=replace(SMALL_FACTS.model, positions=255))
    finding = only(small(), short)
    assert (finding.check, finding.severity) == ("max-length", "stop")
    assert "256" in finding.saw
    for positions in (256, None):
        model = replace(SMALL_FACTS.model, positions=positions)
        assert found(small(), replace(SMALL_FACTS, model=model)) == []


def test_adapter_targets() -> None:
    wrong = small(adapter={"targets": ["q_proj", "query"]})
    finding = only(wrong, SMALL_FACTS)
    assert (finding.check, finding.severity) == ("adapter-targets", "stop")
    assert "names query," in finding.saw
    assert found(small(adapter={"targets": ["query"], "method": "full"}), SMALL_FACTS) == []
