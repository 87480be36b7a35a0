"""A launch as a form has it and as a line has it are the same launch, whatever is in it."""

import random
import shlex
from dataclasses import fields, replace

import pytest

from distconsole.errors import UsageError
from distconsole.grammar.drafts import (
    ARGUMENTS,
    NO,
    SCRIPT,
    YES,
    Draft,
    FieldKind,
    draft_of,
    launch_fields,
    read_draft,
)
from distconsole.grammar.verbs import parse_line, root
from distconsole.model import requests as ask
from fakes.any_launch import any_request
from suite.seeds import seeds

SEEDS = 60
TIMES = 25


@pytest.mark.parametrize("seed", seeds(SEEDS, always=8))
def test_the_line_of_a_request_asks_for_that_request(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(TIMES):
        request = any_request(dice)
        draft = draft_of(request)
        assert parse_line(draft.line()) == request
        read = read_draft(draft.line())
        assert read == draft
        assert read.line() == draft.line()


@pytest.mark.parametrize("seed", seeds(SEEDS, always=8))
def test_what_a_form_shows_and_takes_again_is_what_the_line_says(seed: int) -> None:
    dice = random.Random(seed)
    draft = draft_of(any_request(dice))
    typed = Draft(divided=draft.divided)
    for each in launch_fields():
        typed = typed.holding(each.name, draft.text(each.name))
    # An option that was given nothing, and was not left out, looks like one that was left out.
    blank = {name for name, values in draft.given.items() if values == ("",)}
    blank -= {each.name for each in launch_fields() if each.kind is FieldKind.WORDS}
    shown = {name: values for name, values in draft.given.items() if name not in blank}
    assert typed.given == shown


def test_an_option_without_effect_that_an_older_launch_had_is_left_out() -> None:
    older = ask.Run("x", output="f", slurm_login="a", detach=True, notify="bell")
    assert draft_of(older).line() == "run --detach x"


def test_every_option_of_run_is_a_field_with_a_kind_and_a_help() -> None:
    params = {str(param.name) for param in root.commands["run"].params}
    assert {each.name for each in launch_fields()} == params
    names = {each.name for each in fields(ask.Run)} | {each.name for each in fields(ask.Where)}
    assert params <= names
    assert all(each.help for each in launch_fields())
    assert {each.kind for each in launch_fields()} == set(FieldKind)


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("run train.py", {SCRIPT: ("train.py",)}),
        ("run --launcher tochrun -m a.b", {"launcher": ("tochrun",), "module": (YES,), SCRIPT: ("a.b",)}),
        ("distconsole --hosts a,b run --no-sync x -- y", {"hosts": ("a,b",), "sync": (NO,), SCRIPT: ("x",), ARGUMENTS: ("--", "y")}),
        ("--hosts a --python p run --cluster c x", {"cluster": ("c",), "python": ("p",), SCRIPT: ("x",)}),
        ("run", {}),
        ("run a#b.py --tag c#d # e", {SCRIPT: ("a#b.py",), ARGUMENTS: ("--tag", "c#d")}),
        (r'run "a\$b.py"', {SCRIPT: ("a$b.py",)}),
        ("run --nproc", None),
        ("check --nproc 2", None),
        ("rund x", None),
        ("run --help", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_line_is_read_as_far_as_its_words_can_be_told_apart(
    line: str, given: dict[str, tuple[str, ...]] | None
) -> None:
    if line == "run --nproc":
        with pytest.raises(UsageError, match="requires an argument"):
            read_draft(line)
        return
    draft = read_draft(line)
    assert (None if draft is None else dict(draft.given)) == given


def test_what_is_wrong_says_which_option_it_is_about() -> None:
    with pytest.raises(UsageError) as wrong:
        parse_line("run --launcher tochrun x")
    assert (wrong.value.option, wrong.value.hint) == ("launcher", "did you mean torchrun?")
    with pytest.raises(UsageError) as wrong:
        parse_line("run --nproc 0 x")
    assert wrong.value.option == "nproc"


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b"])
def test_a_path_that_no_file_can_have_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="no file can have such a path"):
        parse_line(Draft({SCRIPT: ("x",), "env_file": (path,)}).line())


def test_an_open_quote_stays_in_the_line_until_it_is_closed() -> None:
    draft = Draft({SCRIPT: ("x",)}).holding("env", "A='b c")
    assert draft.text("env") == "A='b c"
    assert draft.line() == "run --env A='b c x"
    closed = draft.holding("env", "A='b c' D=e")
    assert closed.line() == f"run --env {shlex.quote('A=b c')} --env D=e x"
    assert closed.holding("env", "").line() == "run x"


def test_hosts_by_one_name_take_back_the_others() -> None:
    draft = Draft().holding("hostfile", "f").holding("hosts", "a")
    assert draft.line() == "run --hosts a"


def test_the_configuration_is_said_only_where_the_launch_differs() -> None:
    defaults = {"run": {"launcher": "mpi", "nproc": "2", "sync": True}}
    request = parse_line("run x", defaults=defaults)
    assert isinstance(request, ask.Run)
    assert draft_of(request, defaults).line() == "run x"
    other = replace(request, launcher=ask.LauncherName.AUTO, sync=False)
    assert parse_line(draft_of(other, defaults).line(), defaults=defaults) == other
