"""``make gallery``: every view in every state, size and look on one page. It judges none.

It takes the pages of ``test_pictures_of_views``, and states of which no test keeps a picture.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.color import Color, ColorSystem

from distconsole.errors import PlanError
from distconsole.model import requests as ask
from distconsole.model.events import Event

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes import scenes
from fakes.album import SIZES, Page, pictures
from suite.moving_picture import picture_of
from suite.pages import REPOSITORY
from tui.test_pictures_of_views import FORM, attached, five_minutes, laptop, troubled_hosts
from tui.test_pictures_of_views import PAGES as TESTED

__all__ = ["laptop"]

pytestmark = pytest.mark.usefixtures("utc", "home", "colours")

FOLDER = REPOSITORY / "build" / "gallery"
COLOURED = {
    "narrow": ("dark",),
    "small": ("dark", "light"),
    "large": ("dark", "light"),
    "wide": ("dark",),
    "huge": ("dark",),
}
PLAIN = {"small": ("terminal",), "large": ("terminal",)}
LOOKS: dict[str, tuple[dict[str, str], dict[str, tuple[str, ...]]]] = {
    "colours": ({}, COLOURED),
    "256": ({}, {"small": ("dark", "light"), "large": ("dark",)}),
    "no-color": ({"NO_COLOR": "1"}, PLAIN),
    "linux": ({"TERM": "linux", "COLORTERM": ""}, PLAIN),
    "ascii": ({"TERM": "vt100", "COLORTERM": "", "LC_ALL": "C"}, PLAIN),
}
"""What a terminal is told to be, and in which sizes and themes it is looked at."""

HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>distconsole: every view</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 24px; background: #24272b; color: #ddd; }
a { color: #a9bbff; margin-right: 12px; } h2 { margin: 36px 0 8px; }
input { font: inherit; padding: 4px 10px; width: 24em; margin-bottom: 12px; }
figure { display: inline-block; vertical-align: top; margin: 0 16px 16px 0; }
figure[hidden] { display: none; }
figcaption { color: #aaa; font-size: 13px; } img { max-width: calc(100vw - 64px); }
</style>
<input placeholder="words of names, such as: run small light" oninput="
  for (const each of document.querySelectorAll('figure'))
    each.hidden = !this.value.split(' ').every(word => each.id.includes(word))">
"""


def refused() -> Iterator[Event]:
    raise PlanError("--nnodes 3 means 3 hosts, and there are 2", "give --hosts")
    yield


PAGES = {
    **TESTED,
    "healthy": attached(scenes.training, healthy=()),
    "hung": attached(scenes.hung, hung=()),
    "lost": attached(scenes.host_lost, lost=()),
    "restarted": attached(scenes.restarting, restarted=()),
    "succeeded": attached(scenes.succeeded, succeeded=()),
    "refused": Page(
        FORM | {ask.Foresee: refused},
        {"refused": ("offer run --nnodes 3 train.py", "press ctrl+n")},
    ),
    "host": Page({ask.Top: troubled_hosts}, {"host": ("press down enter",)}, after=five_minutes),
    "cells": Page({ask.Top: partial(scenes.hosts, 200)}, {"cells": ()}, after=five_minutes),
    "many-ranks": attached(partial(scenes.large, 64, slow=62), **{"many-ranks": ()}),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("page", PAGES)
async def test_pictures_are_taken(page: str, look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, themes = LOOKS[look]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    place = FOLDER / page
    place.mkdir(parents=True, exist_ok=True)
    async for name, picture in pictures(replace(PAGES[page], themes=themes)):
        view, size, theme = name.rsplit("-", 2)
        if look == "256":
            # What a terminal with 256 colours shows instead.
            picture = COLOUR.sub(
                lambda at: Color.parse(at[0]).downgrade(ColorSystem.EIGHT_BIT).get_truecolor().hex,
                picture,
            )
            look_of = f"256-{theme}"
        else:
            look_of = theme if look == "colours" else look
        file = place / f"{view}.{size}.{look_of}.svg"
        file.write_text(picture_of([(picture, 1.0)]), encoding="utf-8")


COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")


def page_of(pages: Iterable[str]) -> Iterator[str]:
    """Give the page of all pictures that were taken of ``pages``."""
    yield HEAD
    for page in pages:
        yield f'<a href="#{page}">{page}</a>'
    for page in pages:
        yield f'<h2 id="{page}">{page}</h2>'
        for file in sorted((FOLDER / page).glob("*.svg"), key=_place):
            _, width, lines = _place(file)
            name = f"{page}: {file.stem.replace('.', ' ')} {width}x{lines}"
            yield (
                f'<figure id="{name}"><figcaption>{name}</figcaption>'
                f'<img loading="lazy" width="{width * 8}" src="{page}/{file.name}" alt=""></figure>'
            )


def _place(file: Path) -> tuple[str, int, int]:
    view, size, _ = file.stem.rsplit(".", 2)
    return view, *SIZES[size]


def main() -> int:
    """Take the pictures, those of views that pytest's ``-k`` names, and write the page."""
    if "-k" not in sys.argv:
        shutil.rmtree(FOLDER, ignore_errors=True)
    asked = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        __file__,
        *sys.argv[1:],
    ]
    code = subprocess.run(asked, cwd=REPOSITORY, check=False).returncode
    taken = [page for page in PAGES if (FOLDER / page).is_dir()]
    (FOLDER / "index.html").write_text("\n".join(page_of(taken)), encoding="utf-8")
    print(FOLDER / "index.html")
    return code


if __name__ == "__main__":
    sys.exit(main())
