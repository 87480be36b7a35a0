"""The pictures of README and docs: they load nothing, are small, and show one frame at a time."""

import html
import re
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Static

from suite.moving_picture import picture_of
from suite.pages import REPOSITORY

MAX_BYTES = 1_000_000
IMAGES = sorted((REPOSITORY / "docs" / "images").glob("*.svg"))
SECONDS = (1.0, 2.0, 1.0)


class Counting(App[None]):
    """A screen whose second line changes."""

    def compose(self) -> ComposeResult:
        yield Static("the same\n0 & <0>\n[bold]the same again[/]", id="text")


async def frames() -> list[tuple[str, float]]:
    app = Counting()
    found = []
    async with app.run_test(size=(30, 5)) as pilot:
        for number, seconds in enumerate(SECONDS):
            app.query_one("#text", Static).update(
                f"the same\nframe {number} \\[&<]\n[bold]again[/]"
            )
            await pilot.pause()
            found.append((app.export_screenshot(title="counting"), seconds))
    return found


def seen_at(svg: str, second: float) -> str:
    """Return the text that a viewer shows then."""
    part = 100 * second / sum(SECONDS)
    shown = [re.sub(r'<g class="v.*?</g>', "", svg)]
    for name, group in re.findall(r'<g class="(v\d+)">(.*?)</g>', svg):
        (turns,) = re.findall(rf"@keyframes {name}{{((?:[\d.]+%{{\w+:\w+}})+)}}", svg)
        states = re.findall(r"([\d.]+)%{visibility:(\w+)}", turns)
        if [state for begin, state in states if float(begin) <= part][-1] == "visible":
            shown.append(group)
    return html.unescape(" ".join(shown)).replace("\xa0", " ")


async def test_each_frame_is_seen_in_its_time_and_alone() -> None:
    svg = picture_of(await frames())
    for second, number in ((0.0, 0), (0.9, 0), (1.1, 1), (2.9, 1), (3.1, 2)):
        seen = seen_at(svg, second)
        assert re.findall(r"frame (\d) \[&<]", seen) == [str(number)]
        assert "the same" in seen


async def test_what_frames_have_in_common_is_there_once() -> None:
    svg = picture_of(await frames())
    assert svg.count("again") == 1
    assert len(svg) < 2 * len(picture_of((await frames())[:1]))


async def test_without_motion_the_last_frame_is_seen() -> None:
    svg = picture_of(await frames())
    groups = dict(re.findall(r'<g class="(v\d+)">(.*?)</g>', svg))
    resting = re.findall(r"\.(v\d+){visibility:visible;", svg)
    seen = "".join(groups[name] for name in resting).replace("\xa0", " ")
    assert re.findall(r"frame (\d)", seen) == [str(len(SECONDS) - 1)]
    assert "prefers-reduced-motion" in svg


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_a_picture_loads_nothing_and_is_small(image: Path) -> None:
    text = image.read_text()
    assert len(text.encode()) < MAX_BYTES
    assert re.findall(r"url\((?!#)|@import|href=|<script|https?://(?!www\.w3\.org/)", text) == []
