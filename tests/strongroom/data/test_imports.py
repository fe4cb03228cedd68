from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pandas", "pyarrow", "datasets", "great_expectations", "gguf")
MODULES = (
    "strongroom.data.cursor",
    "strongroom.data.curate",
    "strongroom.data.packing",
    "strongroom.data.quality",
    "strongroom.data.sources",
    "strongroom.model.gguf",
    "strongroom.model.sources",
    "strongroom.tokenizer.adapt",
)


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_module_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*sorted(set(sys.modules) & set({HEAVY!r})))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
