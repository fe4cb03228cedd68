"""Laws of curation: the same sources give the same bytes, and the two sides share nothing."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from strongroom.data.config import DataConfig, SourceConfig
from strongroom.data.curate import curate
from strongroom.data.rows import Row, read_curated
from strongroom.errors import DataError

# Each list holds ways to say one thing; short answers may stand on both sides.
PROMPTS = [
    ["Işık yandı mı?", "ışık YANDI mı", "IŞIK YANDI MI!"],
    ["What now?", "what  now"],
    ["Neden?"],
    ["Kim geldi?"],
    ["Ne var?", "NE VAR"],
]
LONG_RESPONSES = [
    ["The train left twenty minutes ago.", "the train left, twenty minutes ago!"],
    ["Bilmiyorum ama yarın sorarım sana.", "BİLMİYORUM AMA YARIN SORARIM SANA"],
    ["No idea at all, ask the neighbour."],
]
SHORT_RESPONSES = ["Yes.", "Hayır.", "Paris"]
MEANING = {
    text: f"{kind} {number}"
    for kind, groups in (("prompt", PROMPTS), ("response", LONG_RESPONSES))
    for number, texts in enumerate(groups)
    for text in texts
}
RESPONSES = [*SHORT_RESPONSES, *(text for texts in LONG_RESPONSES for text in texts)]
PAIRS = st.lists(
    st.tuples(
        st.sampled_from([text for texts in PROMPTS for text in texts]), st.sampled_from(RESPONSES)
    ),
    min_size=2,
    max_size=25,
)


def meanings(rows: Iterable[Row]) -> set[str]:
    texts = {message.content for row in rows for message in row.messages}
    return {MEANING[text] for text in texts if text in MEANING}


@settings(max_examples=60)
@given(pairs=PAIRS, seed=st.integers(0, 5), fraction=st.floats(0.05, 0.9))
def test_curation_is_deterministic_and_never_leaks(
    pairs: list[tuple[str, str]], seed: int, fraction: float
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        lines = (json.dumps({"q": q, "a": a}) for q, a in pairs)
        (base / "rows.jsonl").write_text("\n".join(lines))
        source = SourceConfig(uri="rows.jsonl", prompt_field="q", response_field="a")
        config = DataConfig(sources=(source,), held_out_fraction=fraction, split_seed=seed)
        written = []
        for out in (base / "one", base / "two"):
            try:
                curate(config, base_dir=base, cache=base, count_tokens=None, out=out)
            except DataError:
                assume(False)  # noqa: FBT003 -- all rows alike: nothing can be held out
            written.append({path.name: path.read_bytes() for path in out.iterdir()})
        assert written[0] == written[1]
        train = read_curated(base / "one/train.jsonl")
        held_out = read_curated(base / "one/held_out.jsonl")
    assert train
    assert held_out
    assert len(train) + len(held_out) == len(set(pairs))
    assert not meanings(train) & meanings(held_out)
