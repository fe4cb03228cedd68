"""The documents say what is true: links lead somewhere, examples run, configurations parse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from strongroom.training.config import load_config, parse_config

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_relative_link_leads_to_a_file(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=ids)
def test_every_configuration_that_people_copy_is_right(config: Path) -> None:
    assert load_config(config).train.steps > 0


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\nmake finetune " in text
    assert "\nmake test " in text
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_make_target_named_in_a_document_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        commands = set(re.findall(r"`make ([a-z-]+)", document.read_text(encoding="utf-8")))
        assert commands <= targets, f"{ids(document)}: {sorted(commands - targets)}"


def test_the_yaml_examples_of_the_data_page_are_right() -> None:
    page = (ROOT / "docs" / "how-to" / "use-your-own-data.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    document = yaml.safe_load(example) | {
        "model": {"source": "somewhere"},
        "train": {"steps": 1, "batch_rows": 2, "learning_rate": 0.001},
    }
    assert len(parse_config(document, source="page").data.sources) == 3
