"""README and docs hold together: size, site, links."""

import re
from itertools import pairwise
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from distconsole.config.load import load_config
from distconsole.model.run_events import RunEvents
from suite.pages import README, REPOSITORY, anchors, blocks, inline_code, links, pages

MAX_LINES, MAX_COLUMNS = 150, 140
DOCS = REPOSITORY / "docs"


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


@pytest.mark.parametrize("page", [README, DOCS / "index.md"], ids=lambda page: page.name)
def test_the_picture_is_there_in_dark_and_in_light(page: Path) -> None:
    shown = re.findall(r'(?:srcset|src)="([^"]+)"', page.read_text())
    others = ["check.svg", "form.svg"] if page == README else []
    assert [Path(path).name for path in shown] == ["run-dark.svg", "run-light.svg", *others]
    assert all((page.parent / path).is_file() for path in shown)


def test_the_site_names_every_page() -> None:
    named = re.findall(r"\S+\.md$", (REPOSITORY / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    there = [page.relative_to(DOCS).as_posix() for page in pages() if page != README]
    assert sorted(named) == sorted(there)


def test_a_page_that_the_source_names_is_there() -> None:
    roots = [REPOSITORY / name for name in ("console", "agents", "training", "tests")]
    files = [path for root in roots for path in root.rglob("*.py")]
    named = {
        page for path in files for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text())
    }
    assert named
    assert sorted(page for page in named if not (REPOSITORY / page).is_file()) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_lists_and_tables_are_read_alike_by_github_and_by_the_site(page: Path) -> None:
    """Python-Markdown wants a blank line before them, and four blanks for what is inside an entry."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    begins = re.compile(r"(?:[*-]|\d+\.) |\|")
    lost = [
        line
        for before, line in pairwise(text.splitlines())
        if (begins.match(line) and re.match(r"[\w`[]|[*][*]", before) and not begins.match(before))
        or re.match(r" {1,3}([*-] |\|)", line)
    ]
    assert lost == []


def test_the_architecture_names_files_that_are_there() -> None:
    roots = [REPOSITORY / name for name in ("console", "agents", "training", "tests")]
    named = [
        code.rpartition("…")[2].strip("/")
        for code in inline_code((DOCS / "architecture.md").read_text())
        if re.fullmatch(r"[\w…/*]+\.py", code)
    ]
    assert named
    assert [name for name in named if not any(any(root.rglob(name)) for root in roots)] == []


def test_a_test_that_a_page_names_is_there() -> None:
    missing = []
    tests = list((REPOSITORY / "tests").rglob("test_*.py"))
    # What contributing.md names, a contributor is to write.
    for page in [page for page in pages() if page.name != "contributing.md"]:
        for name, _, claim in re.findall(r"([\w/]*test_\w+\.py)(::(\w+))?", page.read_text()):
            files = [path for path in tests if path.as_posix().endswith(f"/{name}")]
            if not any(f"def {claim}" in path.read_text() for path in files):
                missing.append((page.name, name, claim))
    assert missing == []


SHOWN = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in pages()
    for number, block in enumerate(blocks(page.read_text(), "toml"))
]


@pytest.mark.parametrize("shown", SHOWN)
def test_a_configuration_that_a_page_shows_is_taken(
    shown: str, home: Path, tmp_path: Path
) -> None:
    own = home / ".config" / "distconsole" / "distconsole.toml"
    own.parent.mkdir(parents=True)
    own.write_text(shown)
    assert load_config(tmp_path).files == (own,)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_link_leads_somewhere(page: Path) -> None:
    lost = [
        f"{path}#{anchor}"
        for path, anchor in _targets(page)
        if not path.exists()
        or (anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()))
    ]
    assert lost == []


def test_the_events_of_the_page_have_the_fields_of_the_program() -> None:
    text = (DOCS / "reference/json-events.md").read_text()
    shown = re.findall(r"^\| `(\w+)` \| (`\w+`(?: `\w+`)*) \|", text, flags=re.MULTILINE)
    assert {event: re.findall(r"\w+", names) for event, names in shown} == {
        kind.__struct_config__.tag: [
            field.encode_name
            for field in msgspec.structs.fields(kind)
            if field.name not in ("t", "run")
        ]
        for kind in get_args(RunEvents)
    }


def test_source_and_pages_name_the_same_variables_and_one_page_has_all_of_them() -> None:
    roots = [REPOSITORY / name for name in ("console", "agents", "training")]
    source = "".join(path.read_text() for root in roots for path in root.rglob("*.py"))
    named = {
        name for page in pages() for name in re.findall(r"DISTCONSOLE_[A-Z]\w*", page.read_text())
    }
    assert sorted(name for name in named if name not in source) == []
    page = (REPOSITORY / "docs" / "reference" / "configuration.md").read_text()
    assert {
        name for name in re.findall(r"DISTCONSOLE_[A-Z]\w*", source) if name not in page
    } == set()
