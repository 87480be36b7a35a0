"""Each command of the pages is one that the grammar takes."""

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from distconsole.errors import ConsoleError
from distconsole.grammar.pasting.read import read_command
from distconsole.grammar.verbs import VERBS, parse_args
from suite.pages import README, REPOSITORY, blocks, inline_code, pages

SHELLS = ("", "console", "sh")
ENDS = ("|", "||", "&&", ";", "&", ">", ">>")
PLACEHOLDERS = ("VERB", "OPTION", "[", "…")
"""What stands for something else; such a command is not meant to be typed."""
MENTIONS = [[verb] for verb in VERBS]
"""A verb alone, in the middle of a sentence."""
STARTERS = ("torchrun ", "horovodrun ", "mpirun ", "srun ", "python -m torch.distributed.launch ")


def _commands(page: Path) -> Iterator[list[str]]:
    """Yield what stands behind ``distconsole`` in each command of a page."""
    text = page.read_text()
    lines = [line for block in blocks(text, *SHELLS) for line in block.splitlines()]
    for line in [*lines, *inline_code(text)]:
        for found in re.finditer(r"(?:^|\$ |&& |\"|^\w+=\S+ )distconsole (.*)", line):
            behind = found[1].partition('"')[0] if found[0].startswith('"') else found[1]
            words = shlex.split(behind, comments=True)
            yield list(takewhile(lambda word: word not in ENDS, words))


TYPED = [page for page in pages() if page.name != "contributing.md"]
"""The commands of the other one are of verbs that a reader is to write."""


@pytest.mark.parametrize("page", TYPED, ids=lambda page: page.stem)
def test_a_command_is_one_of_the_grammar(page: Path) -> None:
    refused = []
    for words in _commands(page):
        if words in MENTIONS or any(mark in word for word in words for mark in PLACEHOLDERS):
            continue
        try:
            parse_args(words)
        except ConsoleError as error:
            refused.append(f"distconsole {shlex.join(words)}: {error.message}")
    assert refused == []


def test_a_command_of_another_launcher_is_understood() -> None:
    commands = {
        code
        for page in (README, REPOSITORY / "docs/start/from-torchrun.md")
        for code in inline_code(page.read_text())
        if code.startswith(STARTERS) and code.endswith(".py")
    }
    assert len(commands) > 4
    for command in commands:
        assert read_command(shlex.split(command)).script.startswith("train")


def test_a_target_of_make_that_a_page_names_exists() -> None:
    targets = re.findall(r"^(\w+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE)
    named = {
        target
        for page in pages()
        for line in [*blocks(page.read_text(), *SHELLS), *inline_code(page.read_text())]
        for target in re.findall(r"^(?:\$ )?make (\w+)", line, flags=re.MULTILINE)
    }
    assert named > {"docs", "test"}
    assert sorted(named - set(targets)) == []
