"""The page: self-contained, escaped whoever wrote the values, and never silent about what lacks."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from strongroom.checkpoint.attempts import AttemptRecord
from strongroom.governance.audit_record import AuditRecord
from strongroom.governance.report import flatten, printable, render
from strongroom.governance.wording import ABSENT
from strongroom.ledger.events import EventKind
from strongroom.names import RunKey
from tests.support.governed import World

STEP = 40
VOID = {"meta", "br", "use"}
SVG_EMPTY = {"rect", "circle", "path", "line", "polyline"}


class Page(HTMLParser):
    """What a browser would make of a page: its elements, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def promoted_world() -> World:
    world = World()
    world.good(10, 1.412)
    world.good(20, 1.208)
    world.commit(30)
    world.verify(30, finding="a flipped bit")
    world.launch(resumed_from=20)
    world.good(STEP, 1.0694)
    world.promote(STEP, "staging")
    world.promote(STEP, "production")
    world.review(STEP, "deniz")
    world.review(STEP, "selin", comment="Read and tried; Türkçe yanıtlar da iyi.")
    world.review(STEP, "kerem")
    world.promote(STEP, "production")
    return world


@pytest.fixture(scope="module")
def record() -> AuditRecord:
    return promoted_world().audit(STEP)


@pytest.fixture(scope="module")
def page(record: AuditRecord) -> Page:
    return Page(render(record))


def test_the_page_tells_what_was_gathered(page: Page, record: AuditRecord) -> None:
    said = page.text
    for words in (
        "In production",
        "What is this?",
        "Is it intact?",
        "Is it good?",
        "Who approved it?",
        "What is missing? Nothing that this release of strongroom asks for.",
        "selin and kerem",
        "Read and tried; Türkçe yanıtlar da iyi.",
        "deniz is the author of the run",
        "this checkpoint 1.069",
        "base model 1.702",
        "approved by 2 different persons, none of them the run's author: 0 of 2",
        "Promoted to production.",
        "pypi:chatterbot-corpus/turkish",
        str(record.checkpoint_id),
        str(record.head.root),
    ):
        assert words in said, words
    assert all(str(sealed.digest) in said for sealed in record.attestations)
    assert all(holder.public_key.hex() in said for holder in record.signers)
    assert all(
        sibling.hex in said
        for entry in record.entries
        if entry.proof
        for sibling in entry.proof.path
    )


def test_the_same_record_gives_the_same_page(record: AuditRecord) -> None:
    assert render(record) == render(promoted_world().audit(STEP))


def test_nothing_is_fetched_and_nothing_runs(record: AuditRecord, page: Page) -> None:
    html = render(record)
    assert page.named("script") == page.named("link") == page.named("img") == []
    assert page.named("iframe") == page.named("object") == page.named("form") == []
    policy = next(
        meta["content"]
        for meta in page.named("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), name
            if name in {"href", "xlink:href", "src"}:
                assert (value or "").startswith("#")
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_the_page_can_be_read_without_seeing_it(page: Page) -> None:
    assert page.named("html")[0]["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 or after == 3 for before, after in zip(levels, levels[1:]))  # noqa: B905, RUF007 -- pairs
    scopes = [attributes.get("scope") for attributes in page.named("th")]
    assert set(scopes) <= {"col", "row"}
    assert all(
        attributes.get("role") == "img" or attributes.get("aria-hidden") == "true"
        for attributes in page.named("svg")
    )
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        for reference in (attributes.get("aria-labelledby") or "").split():
            assert reference in ids
        if (attributes.get("href") or "").startswith("#"):
            assert (attributes["href"] or "")[1:] in ids


HOSTILE = (
    '"><script>alert(1)</script>',
    "</style><img src=x onerror=alert(1)>",
    "{{ 7*7 }}{% raw %}",
    "<!-- --><b>bold</b>",
    "&lt;already&gt;",
)


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_words_are_shown_and_do_nothing(words: str) -> None:
    world = World()
    world.config["model"]["source"] = words
    world.config[words] = words
    world.good(STEP)
    world.review(STEP, "selin", comment=words)
    world.review(STEP, "kerem", approves=False, comment=words)
    world.record(EventKind.CHECKPOINT_QUARANTINED, STEP, reason=words)
    run = world.run_record()
    run = replace(run, author=words, created=words, code={words: words}, environment={"a": words})
    page = Page(render(world.audit(STEP, run=run, faults=(words,))))
    assert page.named("script") == page.named("img") == page.named("b") == []
    # summary, alarms, settings, code, environment, reviews, rules, ledger ...
    assert page.text.count(" ".join(words.split())) > 10


def test_a_hostile_name_in_a_manifest_is_shown_and_does_nothing() -> None:
    world = World()
    world.good(STEP)
    manifest = world.manifests[STEP]
    file = replace(manifest.files[0], name="<script>alert(1)</script>.distcp")
    tensor = replace(manifest.tensors[0], name="<script>x</script>.w", dtype="float32")
    broken = replace(manifest, files=(file,), tensors=(tensor,))
    page = Page(render(world.audit(STEP, manifest=broken)))
    assert page.named("script") == []
    assert "<script>alert(1)</script>.distcp" in page.text
    assert "<script>x</script>" in page.text


def test_characters_that_would_change_what_a_page_says_are_made_visible() -> None:
    assert printable("a\u202eb\x00c\u200bd") == "a[U+202E]b[U+0000]c[U+200B]d"
    assert printable("\ud800") == "[U+D800]"
    assert printable("Türkçe, 日本語 🙂\n") == "Türkçe, 日本語 🙂\n"
    world = World()
    world.good(STEP)
    world.review(STEP, "selin", comment="safe\u202egnp.exe")
    html = render(world.audit(STEP, faults=("x\ud800y\x07",)))
    assert "safe[U+202E]gnp.exe" in html
    assert html.encode()


def test_absence_is_told_in_words() -> None:
    assert printable(None) == printable("") == ABSENT
    world = World()
    world.commit(STEP)
    page = Page(render(world.audit(STEP, proofs=[])))
    for words in (
        "This checkpoint was never verified.",
        "This checkpoint was never evaluated.",
        "Nobody has approved or rejected this checkpoint.",
        "This checkpoint was never promoted.",
        "There is no signed statement about this checkpoint.",
        "No inclusion proof was at hand when this page was made.",
        "None: this launch started fresh.",
        "not evaluated",
    ):
        assert words in page.text, words


def test_what_cannot_be_read_is_told_in_words() -> None:
    world = promoted_world()
    del world.events[1]
    page = Page(render(world.audit(STEP, run=None, manifest=None, statements={})))
    for words in (
        "Do not rely on this record",
        "The record of the run cannot be read: its settings, code and environment are not known.",
        "The checkpoint's manifest cannot be read, so what it consists of is not known.",
        "so its lineage is not known.",
        "The ledger names a verification, but its signed record is missing",
        "The ledger names an evaluation, but its signed report is missing",
        "the signed statement is missing or malformed",
    ):
        assert words in page.text, words


def test_no_cell_and_no_answer_is_blank(record: AuditRecord) -> None:
    world = World()
    world.commit(STEP)
    for html in (render(record), render(world.audit(STEP))):
        assert not re.findall(r"<(td|th|dd|dt|li|p|caption)\b[^>]*>\s*</\1>", html)
        assert ">None<" not in html


def test_no_token_of_the_probe_is_shown(record: AuditRecord) -> None:
    assert record.run is not None
    html = render(record)
    assert "token_ids" not in html
    assert "9906" not in re.sub(r"[0-9a-f]{12,}", "", html)


def test_the_whole_configuration_is_shown() -> None:
    assert list(flatten({"b": [], "a": {"y": None, "x": True}, "c": [{"d": 1}, 2], "e": {}})) == [
        ("a.x", "yes"),
        ("a.y", "none"),
        ("b", "none"),
        ("c.0.d", "1"),
        ("c.1", "2"),
        ("e", "none"),
    ]


def test_how_and_on_what_an_attempt_computed_is_shown_as_far_as_it_is_known(
    record: AuditRecord,
) -> None:
    attempt = AttemptRecord(
        run=record.name.run,
        attempt=1,
        placement={"strategy": "zero3", "world_size": 2},
        environment={"device": "NVIDIA <H200>", "torch": "2.13.0"},
        inexact=("torch '2.12.0' -> '2.13.0': other kernels may round otherwise",),
    )
    text = Page(render(replace(record, attempt=attempt))).text
    for fact in ("zero3", "NVIDIA <H200>", "torch '2.12.0' -> '2.13.0'"):
        assert fact in text
    older = replace(attempt, placement={}, environment={}, inexact=())
    for known in (older, None):
        assert "on what it computed" not in Page(render(replace(record, attempt=known))).text


def test_a_checkpoint_saved_twice_at_one_step_is_drawn_once() -> None:
    world = World(run=RunKey("nightly"))
    world.good(10, 1.5)
    first = world.manifests[10]
    world.launch()
    world.good(10, 1.3)
    html = render(world.audit(10))
    assert html.count('class="point subject"') == 1
    assert html.count('class="point"') == 0
    assert first.checkpoint_id.short in html
