from __future__ import annotations

from xml.etree.ElementTree import fromstring

from strongroom.governance.lineage import Lineage, NodeKind, trace
from strongroom.governance.lineage_drawing import (
    MOST_ATTEMPTS,
    MOST_PER_ATTEMPT,
    draw_lineage,
)
from tests.support.governed import World

SVG = "{http://www.w3.org/2000/svg}"


def lineage_of(world: World, step: int) -> Lineage:
    run = world.history.runs[world.run_key]
    return trace(
        world.id_of(step),
        run=run.key,
        inputs=world.inputs,
        attempts=run.attempts,
        checkpoints=list(world.history.records.values()),
    )


def resumed_world() -> World:
    world = World()
    world.good(10)
    world.good(20)
    world.commit(30)
    world.verify(30, finding="a flipped bit")
    world.launch(resumed_from=20)
    world.good(40)
    world.promote(40, "staging")
    return world


def texts(svg: str) -> list[str]:
    return [text for element in fromstring(svg).iter() if (text := element.text)]  # noqa: S314 -- our own


def test_a_checkpoint_is_traced_to_its_inputs_attempts_and_stages() -> None:
    world = resumed_world()
    lineage = lineage_of(world, 40)
    assert lineage.subject.title == "step 40"
    told = {
        f"{lineage.title_of(edge.source)} {edge.relation} {lineage.title_of(edge.target)}"
        for edge in lineage.edges
    }
    assert {
        "dataset is an input of support-chat-2026-01-31",
        "base model is an input of support-chat-2026-01-31",
        "tokenizer is an input of support-chat-2026-01-31",
        "configuration is an input of support-chat-2026-01-31",
        "support-chat-2026-01-31 was started as attempt 2",
        "step 20 was resumed by attempt 2",
        "attempt 2 saved step 40",
        "attempt 1 saved step 10",
        "step 40 is in stage staging",
    } <= told
    assert not any("candidate" in words for words in told)
    states = {node.title: node.state for node in lineage.of_kind(NodeKind.CHECKPOINT)}
    assert states["step 30"] == "quarantined"
    assert states["step 40"] == "verified"


def test_every_edge_joins_two_nodes() -> None:
    lineage = lineage_of(resumed_world(), 40)
    keys = {node.key for node in lineage.nodes}
    assert len(keys) == len(lineage.nodes)
    assert {edge.source for edge in lineage.edges} | {edge.target for edge in lineage.edges} <= keys


def test_a_launch_that_resumed_from_elsewhere_has_no_edge_into_nothing() -> None:
    world = resumed_world()
    run = world.history.runs[world.run_key]
    lineage = trace(
        world.id_of(40),
        run=run.key,
        inputs=world.inputs,
        attempts=run.attempts,
        checkpoints=[world.history.records[world.id_of(40)]],
    )
    assert not any(edge.relation == "was resumed by" for edge in lineage.edges)
    draw_lineage(lineage)


def test_a_checkpoint_of_an_attempt_the_ledger_does_not_know_still_has_an_attempt() -> None:
    world = World()
    world.launch()
    world.commit(10)
    run = world.history.runs[world.run_key]
    lineage = trace(
        world.id_of(10),
        run=run.key,
        inputs=world.inputs,
        attempts=(),
        checkpoints=list(world.history.records.values()),
    )
    assert [node.title for node in lineage.of_kind(NodeKind.ATTEMPT)] == ["attempt 1"]
    assert "attempt 1" in texts(draw_lineage(lineage))


def test_the_drawing_shows_what_matters_and_describes_it_in_words() -> None:
    drawn = draw_lineage(lineage_of(resumed_world(), 40))
    shown = texts(drawn)
    for words in ("base model", "attempt 2", "step 20", "step 40", "staging", "quarantined"):
        assert words in shown
    description = next(words for words in shown if words.startswith("base model base model"))
    assert "checkpoint step 20 was resumed by attempt attempt 2" in description
    root = fromstring(drawn)  # noqa: S314 -- our own
    assert root.get("role") == "img"
    labels = (root.get("aria-labelledby") or "").split()
    ids = {element.get("id") for element in root.iter()}
    assert len(labels) == 2
    assert set(labels) <= ids


def test_without_a_stage_the_drawing_says_so() -> None:
    world = World()
    world.good(10)
    assert "none yet" in texts(draw_lineage(lineage_of(world, 10)))


def test_of_many_checkpoints_the_drawing_keeps_the_subject_and_counts_the_rest() -> None:
    world = World()
    for step in range(1, 41):
        world.commit(step)
    shown = texts(draw_lineage(lineage_of(world, 20)))
    assert {"step 1", "step 19", "step 20", "step 21", "step 40"} <= set(shown)
    boxes = [words for words in shown if words in {f"step {step}" for step in range(1, 41)}]
    assert len(boxes) == MOST_PER_ATTEMPT
    assert "17 more checkpoints" in shown
    assert "18 more checkpoints" in shown


def test_of_many_attempts_the_drawing_keeps_the_subject_s() -> None:
    world = World()
    for number in range(12):
        world.launch(resumed_from=number or None)
        world.commit(number + 1)
    shown = texts(draw_lineage(lineage_of(world, 6)))
    assert "attempt 6" in shown
    boxes = [words for words in shown if words in {f"attempt {number}" for number in range(1, 13)}]
    assert len(boxes) == MOST_ATTEMPTS
    assert any(words.endswith("more attempts") for words in shown)


def test_an_attempt_that_saved_nothing_is_drawn_as_such() -> None:
    world = World()
    world.good(10)
    world.launch(resumed_from=10)
    shown = texts(draw_lineage(lineage_of(world, 10)))
    assert "attempt 2" in shown
    assert "no checkpoint" in shown


def test_a_long_run_key_is_shortened_and_kept_whole_for_readers() -> None:
    from strongroom.names import RunKey

    key = "a" * 40 + "-2026-01-31"
    world = World(run=RunKey(key))
    world.good(10)
    shown = texts(draw_lineage(lineage_of(world, 10)))
    assert key in shown
    assert any("…" in words and words.endswith("-31") for words in shown)
