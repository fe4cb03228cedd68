"""Small parts that the drawings of a report are made of: plain SVG, no scripts, no references.

Elements are built as a tree and written by the XML writer, so every text is escaped in one place.
Colours and strokes come from the page's stylesheet by class; nothing here is fetched.
"""

from __future__ import annotations

import math
import re
from xml.etree.ElementTree import Element, SubElement, tostring

__all__ = ["Element", "add", "add_text", "canvas", "number", "shorten", "ticks", "write"]

FLAT = 1e-9
"""A range narrower than this, relative to its values, is drawn as one value."""
CHARACTER_EM = 0.58
"""Width of an average character of a sans-serif face, in parts of the font size."""


def canvas(width: float, height: float, *, name: str, title: str, description: str) -> Element:
    """Return an empty drawing that a screen reader announces by `title` and `description`.

    Args:
        width: of the coordinate system; the page scales the drawing to fit.
        height: of the coordinate system.
        name: unique in the page; the ids of title and description start with it.
        title: what the drawing shows, in a phrase.
        description: what can be seen in it, in words.
    """
    svg = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {number(width)} {number(height)}",
            "role": "img",
            "class": f"drawing {name}",
            "aria-labelledby": f"{name}-title {name}-description",
        },
    )
    SubElement(svg, "title", {"id": f"{name}-title"}).text = title
    SubElement(svg, "desc", {"id": f"{name}-description"}).text = description
    return svg


def add(parent: Element, tag: str, kind: str = "", **attributes: float | str) -> Element:
    """Add an element of class `kind`; `_` in an attribute's name stands for `-`."""
    written = {
        key.replace("_", "-"): value if isinstance(value, str) else number(value)
        for key, value in attributes.items()
    }
    return SubElement(parent, tag, {"class": kind, **written} if kind else written)


def add_text(  # noqa: PLR0913 -- a text has a place, a class, an anchor and a width
    parent: Element,
    x: float,
    y: float,
    words: str,
    kind: str = "",
    *,
    anchor: str = "start",
    fit: tuple[float, float] | None = None,
) -> Element:
    """Add one line of text; `fit` = (width, font size) shortens it, the whole goes in a tooltip."""
    element = add(parent, "text", kind, x=x, y=y, text_anchor=anchor)
    shown = words if fit is None else shorten(words, *fit)
    element.text = shown
    if shown != words:
        add(element, "title").text = words
    return element


def shorten(words: str, width: float, font_size: float) -> str:
    """Cut `words` to what fits into `width`, with an ellipsis in place of its middle."""
    room = max(3, int(width / (font_size * CHARACTER_EM)))
    if len(words) <= room:
        return words
    # The end of a name tells more than its middle: run keys often end in a date or a number.
    tail = (room - 1) // 3
    return f"{words[: room - 1 - tail]}…{words[len(words) - tail :]}"


def number(value: float) -> str:
    """Write a coordinate with at most two decimals and no trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return at most `most` + 1 round values (1, 2 or 5 times a power of ten) covering low..high.

    The first is at most `low`, the last at least `high`; there are always two or more.

    Source: P. Heckbert, Nice Numbers for Graph Labels, Graphics Gems, 1990.
    """
    size = max(1.0, abs(low), abs(high))
    # What differs by less than can be read is one value; it gets room around it.
    span = high - low
    if span <= FLAT * size:
        span = size * 0.1
    rough = span / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [round(index * step, 12) for index in range(first, last + 1)]


_UNWRITABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(svg: Element) -> str:
    """Return the drawing as text to be put into a page; what XML has no character for is shown."""
    for element in svg.iter():
        if element.text:
            element.text = _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", element.text)
    return tostring(svg, encoding="unicode", short_empty_elements=True)
