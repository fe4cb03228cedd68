from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strongroom.errors import ConfigError
from strongroom.training.config import RunConfig, load_config, parse_config

GOOD: dict[str, Any] = {
    "model": {"source": "somewhere"},
    "data": {"sources": [{"uri": "rows.jsonl"}]},
    "train": {"steps": 4, "batch_rows": 2, "learning_rate": 1e-3},
}


def faults_of(document: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(document, source="run.yaml")
    return caught.value.faults


def test_defaults_fill_what_is_not_said() -> None:
    config = parse_config(GOOD, source="run.yaml")
    assert config.save.every_steps == 1000
    assert config.adapter.method == "lora"


def test_every_fault_is_reported_with_field_value_and_what_is_allowed() -> None:
    faults = faults_of(
        {
            "model": {"source": "", "dtype": "fp8"},
            "data": {"sources": []},
            "train": {"steps": 0, "batch_rows": "x", "learning_rate": 5, "epochs": 3},
        }
    )
    text = "\n".join(faults)
    assert len(faults) == 7
    assert "model.dtype: Input should be 'bfloat16' or 'float32'; got 'fp8'" in text
    assert "train.steps: Input should be greater than or equal to 1; got 0" in text
    assert "train.epochs: there is no such field; allowed here: steps, batch_rows" in text


def test_an_unknown_field_deep_in_a_list_names_what_is_allowed_there() -> None:
    document = GOOD | {"data": {"sources": [{"url": "rows.jsonl", "uri": "a"}]}}
    assert any("allowed here: uri, prompt_field" in fault for fault in faults_of(document))


def test_an_unknown_section_names_the_sections() -> None:
    assert "allowed here: model, data, train" in faults_of(GOOD | {"optimizer": {}})[0]


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_not_a_mapping_is_refused(document: object) -> None:
    assert faults_of(document)


def test_rules_across_fields() -> None:
    train = {"steps": 4, "batch_rows": 3, "learning_rate": 1e-3, "warmup_steps": 9}
    faults = faults_of(
        GOOD | {"train": train, "data": {"sources": [{"uri": "a", "prompt_field": "q"}]}}
    )
    assert [fault.split(":")[0] for fault in faults] == [
        "train.batch_rows",
        "train.warmup_steps",
        "data.sources.0",
    ]


def test_the_digest_ignores_spelling_and_sees_meaning() -> None:
    plain = parse_config(GOOD, source="a")
    spelled = parse_config(dict(reversed(GOOD.items())) | {"adapter": {"rank": 8}}, source="b")
    assert plain.digest == spelled.digest
    other = parse_config(GOOD | {"adapter": {"rank": 4}}, source="c")
    assert plain.digest != other.digest


def test_a_configuration_survives_its_json() -> None:
    config = parse_config(GOOD, source="a")
    assert parse_config(config.to_json(), source="json") == config
    assert isinstance(config, RunConfig)


def test_files_that_cannot_be_read_or_are_not_yaml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "missing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("model: [unclosed")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_config(broken)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_config(binary)
