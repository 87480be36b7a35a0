"""Each sentence of README and docs that promises something is in one table with the tests that hold it.

``promises.yaml`` has by page the first words of each sentence with one of ``PROMISING``, and the tests that hold
it (or the import contracts of pyproject.toml). It says ``plain`` where the word promises nothing: a condition
("only where ..."), a limit of what is known, a figure that was measured once, what another program does.

Left out are blocks of code, what stands between ``<!-- x: begin -->`` and its end, what ``make pages`` writes, and
the pages that record what was measured or changed on a day.
"""

import ast
import functools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from suite.pages import README, REPOSITORY, pages

PROMISING = re.compile(
    r"(?<!-)\b(never|ever|always|only|nothing|at most|within|whatever|at once)\b", re.IGNORECASE
)
MADE_OF_THE_SOURCE = {"reference/cli.md"}
RECORDS = {"benchmarks.md", "changelog.md"}
DOCS = REPOSITORY / "docs"
JUDGED = {
    page.relative_to(REPOSITORY).as_posix(): page
    for page in pages()
    if page == README or page.relative_to(DOCS).as_posix() not in MADE_OF_THE_SOURCE | RECORDS
}
HELD: dict[str, dict[str, Any]] = yaml.load(
    Path(__file__).with_name("promises.yaml").read_text(), yaml.CSafeLoader
)
PLAIN = "plain"


def promising_sentences(text: str) -> list[str]:
    """Return the sentences that promise, each once; a heading, an entry and a cell of a table begin one."""
    text = re.sub(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```", "\n\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^#.*$", r"\n\g<0>\n", text, flags=re.MULTILINE)
    text = re.sub(r"^ *([*-] |\d+\. |\|)", r"\n\n\1", text, flags=re.MULTILINE)
    found: dict[str, None] = {}
    for part in re.split(r"\n\s*\n|(?<!\\)\|", text):
        words = " ".join(re.sub(r"^(#+|[*-]|\d+\.) ", "", part.strip()).split())
        for sentence in re.split(r"(?<=[.!?]) (?=[A-Z`*\[(\"“])", words):
            if PROMISING.search(re.sub("`[^`]*`", "", sentence)):
                found[sentence] = None
    return list(found)


@functools.cache
def claims(file: str) -> set[str]:
    """Return the names of the tests of a file, which is read and not imported."""
    tree = ast.parse((REPOSITORY / file).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def held(by: str) -> bool:
    file, _, claim = by.partition("::")
    if file == "pyproject.toml":
        project = tomllib.loads((REPOSITORY / file).read_text())
        return claim in {each["name"] for each in project["tool"]["importlinter"]["contracts"]}
    return claim.startswith("test_") and (REPOSITORY / file).is_file() and claim in claims(file)


def test_sentences_are_found_where_they_begin_and_end() -> None:
    text = (
        "# Never\nIt never\nwaits. It `only` runs (at\nmost 3). Read-only.\n\n* one at once\n* two\n"
        "```\nnothing\n```\n| a | only b\\|c |\n<!-- x: begin -->\nalways\n<!-- x: end -->\n"
    )
    assert promising_sentences(text) == [
        "Never", "It never waits.", "It `only` runs (at most 3).", "one at once", "only b\\|c"
    ]  # fmt: skip


def test_the_table_has_the_pages_that_promise() -> None:
    assert sorted(HELD) == sorted(
        name for name, page in JUDGED.items() if promising_sentences(page.read_text())
    )


@pytest.mark.parametrize("name", HELD)
def test_each_promise_of_a_page_is_in_the_table(name: str) -> None:
    """A sentence is the row with the most of its first words."""
    rows, unlisted = HELD[name], []
    unused = set(rows)
    for sentence in promising_sentences(JUDGED[name].read_text()):
        row = max(filter(sentence.startswith, rows), key=len, default=None)
        unused.discard(row)
        if row is None:
            unlisted.append(sentence)
    assert unlisted == [], "name the tests that hold it in promises.yaml, or change the sentence"
    assert unused == set(), "these begin no sentence of the page any more"


@pytest.mark.parametrize("name", HELD)
def test_each_test_that_holds_a_promise_is_there(name: str) -> None:
    listed = [
        (row, by)
        for row, tests in HELD[name].items()
        for by in ([tests] if isinstance(tests, str) else tests)
    ]
    assert [(row, by) for row, by in listed if by != PLAIN and not held(by)] == []
