"""The pages of help: verbs in groups, options under headings, examples that parse, exit codes; 80 columns hold them."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from distconsole.grammar.completion import complete_line
from distconsole.grammar.values import Vocabulary
from distconsole.grammar.verbs import HELP_CELLS, VERB_COMMANDS, VERBS, parse_args, root
from distconsole.model import requests as ask
from distconsole.model.options import HEADINGS, Heading, options_of
from distconsole.model.verbs import VERBS as TABLE
from distconsole.model.verbs import Group

COLUMNS = 80


def page(*words: str) -> str:
    shown = parse_args([*words, "--help"])
    assert isinstance(shown, ask.ShowHelp)
    return shown.text


def titles(text: str) -> list[str]:
    return re.findall(r"^(\S[^:\n]*):$", text, flags=re.MULTILINE)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_a_page_has_two_examples_the_exit_codes_and_lines_that_fit(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    text = page(*verb.split())
    assert [line for line in text.splitlines() if len(line) > COLUMNS] == []
    monkeypatch.setenv("COLUMNS", "200")
    assert COLUMNS < max(map(len, page(*verb.split()).splitlines())) <= HELP_CELLS
    assert titles(text)[-2:] == ["Examples", "Exit codes"]
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) == 2
    assert all(line.startswith(f"  distconsole {verb}".rstrip()) for line in examples)


def test_an_example_is_a_line_of_its_own_verb() -> None:
    for kind, verb in TABLE.items():
        for line in verb.examples:
            assert type(parse_args(shlex.split(line))) is kind, line


NOT_DONE = (
    "explain skip junit emit_hostfile write_profile env env_file pass_args hostfile cluster setup container slurm emit "
    "name only fail_if grep since exclude listen source"
)
"""Options without which something is not done, or not left out: no default is to be told."""


def test_an_option_says_what_holds_without_it() -> None:
    for command in (*VERB_COMMANDS, root):
        context = click.Context(command)
        for option in command.params:
            if not isinstance(option, click.Option) or (
                option.is_flag and not option.secondary_opts
            ):
                continue
            record = option.get_help_record(context)
            if record is not None:
                told = "[default: " in record[1]
                assert told or option.name in NOT_DONE.split(), record


def test_the_first_page_has_every_verb_in_a_group() -> None:
    text = page()
    assert titles(text)[:4] == [group.value.capitalize() for group in Group]
    verbs = text[text.index("Start:") : text.index("Hosts:")]
    assert set(re.findall(r"^  (\w+) ", verbs, flags=re.MULTILINE)) == {*VERBS}


def test_the_options_of_a_launch_stand_under_headings() -> None:
    wanted = ["Common", *(each.capitalize() for each in Heading if each is not Heading.OPTIONS)]
    text = page("run")
    assert titles(text)[:-2] == wanted[: wanted.index("Output") + 1]
    common = text[text.index("Common:") : text.index("\nHosts:\n")]
    flags = re.findall(r"^  (?:-d, )?(--[a-z]+)", common, flags=re.MULTILINE)
    assert flags == ["--hosts", "--nproc", "--sync", "--detach", "--name"]
    kinds = (*TABLE, ask.Where)
    known = {name for kind in kinds for name in options_of(kind)} | {"help", "version"}
    assert [
        name for names in HEADINGS.values() for name in names.split() if name not in known
    ] == []


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("help", "--help"),
        ("help run", "run --help"),
        ("run -h", "run --help"),
        ("version", "--version"),
        ("-V", "--version"),
    ],
)
def test_help_and_version_are_asked_for_in_any_way(line: str, same: str) -> None:
    assert parse_args(line.split()) == parse_args(same.split())


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("run --nproc-per-node 2 t.py", "run --nproc 2 t.py"),
        ("run --nproc_per_node=gpu t.py", "run --nproc gpu t.py"),
        ("run --ntasks-per-node 2 -H a:2,b:2 t.py", "run --nproc 2 --hosts a:2,b:2 t.py"),
        ("run --max_restarts 3 --machinefile f t.py", "run --max-restarts 3 --hostfile f t.py"),
        ("check -H a", "check --hosts a"),
        (
            "check --nproc-per-node 2 t.py --nproc_per_node 3",
            "check --nproc 2 t.py --nproc_per_node 3",
        ),
    ],
)
def test_an_option_of_another_launcher_that_means_the_same_is_taken(line: str, same: str) -> None:
    wanted, found = parse_args(same.split()), parse_args(line.split())
    assert found == wanted


@pytest.mark.parametrize("verb", ["attach", "logs", "show", "replay", "stop", "rerun", "why"])
def test_a_run_need_not_be_named(verb: str) -> None:
    request = parse_args([verb])
    assert isinstance(request, ask.OfRun)
    assert request.run == ""


def test_what_others_call_an_option_is_neither_shown_nor_completed() -> None:
    assert "--nproc-per-node" not in page("run")
    found = [each.word for each in complete_line("run --np", Vocabulary())]
    assert found == ["--nproc"]
