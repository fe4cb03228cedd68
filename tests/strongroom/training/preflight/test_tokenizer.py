"""Counting without torch gives what training encodes; a template is judged as training does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from strongroom.data.config import SourceConfig
from strongroom.data.packing import encode_row
from strongroom.data.rows import Message, Row, read_rows
from strongroom.errors import DataError
from strongroom.model.build import tokenizer_from
from strongroom.training.preflight.tokenizer import read_tokenizer
from tests.support.tiny_model import CHAT_TEMPLATE, make_chat_rows, make_tiny_model

MARKED = CHAT_TEMPLATE.replace(
    "message['content'] + '<|im_end|>'", "'' }}{% generation %}{{ message['content'] + '<|im_end|>'"
).replace("+ '\n' }}{% endfor %}", "+ '\n' }}{% endgeneration %}{% endfor %}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(Path(tmp_path_factory.mktemp("model")))


def with_template(folder: Path, out: Path, template: str | None) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (out / name).write_bytes((folder / name).read_bytes())
    if template is not None:
        (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    return out


def test_tokens_are_counted_as_training_encodes_them(folder: Path, tmp_path: Path) -> None:
    rows = list(read_rows(make_chat_rows(tmp_path / "rows.jsonl", 24), SourceConfig(uri="r")).rows)
    rows.append(
        Row.of(
            (
                Message(role="user", content="Say <|im_end|> and <|im_start|>user, twice."),
                Message(role="assistant", content="<|endoftext|> \u015f\u0130 42"),
            ),
            None,
        )
    )
    _, count = read_tokenizer(folder)
    tokenizer = tokenizer_from(folder)
    assert [count(row) for row in rows] == [
        len(encode_row(tokenizer, row, 10_000).token_ids) for row in rows
    ]


@pytest.mark.parametrize("names_it", [True, False])
@pytest.mark.parametrize("adds_it", [True, False])
def test_the_first_token_is_counted_once_whoever_adds_it(
    folder: Path, tmp_path: Path, *, names_it: bool, adds_it: bool
) -> None:
    template = ("{{ bos_token }}" if names_it else "") + CHAT_TEMPLATE
    out = with_template(folder, tmp_path, template)
    config = json.loads((out / "tokenizer_config.json").read_text())
    (out / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": "<|endoftext|>"}))
    if adds_it:
        tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
        tokenizer.save(str(out / "tokenizer.json"))
    row = Row.of((Message(role="user", content="a"), Message(role="assistant", content="b")), None)
    _, plain = read_tokenizer(folder)
    _, count = read_tokenizer(out)
    assert count(row) == len(encode_row(tokenizer_from(out), row, 100).token_ids)
    assert count(row) == plain(row) + (names_it or adds_it)


def test_a_template_without_marks_is_fine_where_prompts_can_be_rendered(folder: Path) -> None:
    facts, _ = read_tokenizer(folder)
    assert (facts.padding, facts.end) == ("<|im_end|>", "<|im_end|>")
    assert (facts.has_template, facts.has_marks, facts.template_fault) == (True, False, None)


def test_marks_are_seen(folder: Path, tmp_path: Path) -> None:
    assert "{% generation %}" in MARKED
    facts, _ = read_tokenizer(with_template(folder, tmp_path, MARKED))
    assert facts.has_marks
    assert facts.template_fault is None


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "no chat template"),
        (CHAT_TEMPLATE.replace("message['content']", "message['content'] | upper"), "alters"),
        (CHAT_TEMPLATE.replace("'<|im_end|>'", "'.'"), "control token"),
        (CHAT_TEMPLATE.replace("'<|im_start|>assistant\n'", "'<|im_start|>bot\n'"), "prompt"),
        ("{{ raise_exception('not for chat') }}", "not for chat"),
        ("{% if %}", "refuses"),
    ],
)
def test_a_template_in_which_answers_cannot_be_told_apart_is_a_fault(
    folder: Path, tmp_path: Path, template: str | None, said: str
) -> None:
    facts, count = read_tokenizer(with_template(folder, tmp_path, template))
    assert facts.template_fault is not None
    assert said in facts.template_fault
    assert facts.has_template is (template is not None)
    if template is not None:
        with pytest.raises(DataError):
            count(
                Row.of(
                    (Message(role="user", content="a"), Message(role="assistant", content="b")),
                    None,
                )
            )


def test_a_template_for_one_question_alone_is_fine(folder: Path, tmp_path: Path) -> None:
    single = (
        "{% if messages | length > 2 %}{{ raise_exception('one question') }}{% endif %}"
        + CHAT_TEMPLATE
    )
    facts, _ = read_tokenizer(with_template(folder, tmp_path, single))
    assert facts.template_fault is None


def test_templates_and_tokens_may_stand_in_the_configuration(folder: Path, tmp_path: Path) -> None:
    out = with_template(folder, tmp_path, None)
    config = json.loads((out / "tokenizer_config.json").read_text())
    config |= {
        "chat_template": [
            {"name": "tool_use", "template": "{{ raise_exception('no') }}"},
            {"name": "default", "template": CHAT_TEMPLATE},
        ],
        "eos_token": {"content": "<|im_end|>", "__type": "AddedToken"},
        "pad_token": None,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    facts, _ = read_tokenizer(out)
    assert (facts.padding, facts.end, facts.template_fault) == (None, "<|im_end|>", None)
