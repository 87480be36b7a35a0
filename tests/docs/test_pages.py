"""README and docs hold together: size, index, links."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.pages import README, REPOSITORY, anchors, links, pages

MAX_LINES, MAX_COLUMNS = 150, 140


def _targets(page: Path) -> list[tuple[Path, str]]:
    """Return the file and the anchor of each link that stays in the repository."""
    found = []
    for link in links(page.read_text()):
        if not link.startswith(("http://", "https://")):
            path, _, anchor = link.partition("#")
            found.append(((page.parent / path).resolve() if path else page, anchor))
    return found


def test_the_readme_is_read_in_one_go() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= MAX_LINES
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []


def test_the_readme_shows_one_picture() -> None:
    assert [link for link in links(README.read_text()) if link.endswith(".svg")] == [
        "docs/images/run.svg"
    ]


def test_the_index_names_every_page() -> None:
    index = {path for path, _ in _targets(README)}
    internals = {path for path, _ in _targets(REPOSITORY / "docs" / "architecture.md")}
    reached = index | {path for path in internals if path.parent.name == "internals"}
    assert [page for page in pages() if page != README and page not in reached] == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_link_leads_somewhere(page: Path) -> None:
    lost = [
        f"{path}#{anchor}"
        for path, anchor in _targets(page)
        if not path.exists()
        or (anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()))
    ]
    assert lost == []
