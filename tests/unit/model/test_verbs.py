"""The table of verbs is whole, names what is there, and loads nothing; which hosts are to be named again."""

import inspect
import sys

import pytest

from distconsole.grammar.verbs import VERB_COMMANDS, parse_line
from distconsole.model import requests as ask
from distconsole.model.requests import Where
from distconsole.model.verbs import VERBS, Opens, RunRole, verb_of
from distconsole.operations.perform import operation_of
from distconsole.tui.prompt.keys import VIEWS
from suite.programs import run_to_end

KINDS = [
    each
    for each in vars(ask).values()
    if isinstance(each, type) and issubclass(each, ask.Request) and each is not ask.Request
]


def test_every_kind_of_request_has_a_row() -> None:
    assert set(VERBS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_operation_takes_its_request_and_what_its_row_says(kind: type) -> None:
    request, *others = inspect.signature(operation_of(VERBS[kind])).parameters.values()
    assert str(request.annotation).rpartition(".")[2] == kind.__name__
    names = [each.name for each in others]
    assert set(VERBS[kind].needs) <= set(names)
    needed = {each.name for each in others if each.default is inspect.Parameter.empty}
    assert needed <= set(VERBS[kind].needs)


def test_the_verbs_that_are_typed_are_those_of_the_table() -> None:
    assert {verb.name.split()[0] for verb in VERBS.values() if verb.name} == {
        verb.name for verb in VERB_COMMANDS
    }


def test_a_view_of_the_table_is_one_of_the_screen() -> None:
    fixed = {verb.view for verb in VERBS.values()}
    assert fixed - {""} <= set(VIEWS)


@pytest.mark.parametrize(
    ("line", "view", "role"),
    [
        ("run train.py", "run", RunRole.RECORDS),
        ("run --dry-run train.py", "transcript", RunRole.NONE),
        ("run --detach train.py", "transcript", RunRole.RECORDS),
        ("attach last", "run", RunRole.FOLLOWS),
        ("replay last", "run", RunRole.REPLAYS),
        ("demo", "check", RunRole.RECORDS),
        ("top", "cluster", RunRole.NONE),
        ("top --once", "transcript", RunRole.NONE),
        ("stop last", "", RunRole.NONE),
    ],
)
def test_where_a_line_is_seen_and_what_it_has_to_do_with_a_run(
    line: str, view: str, role: RunRole
) -> None:
    request = parse_line(line)
    assert (verb_of(request).view, verb_of(request).role) == (view, role)


@pytest.mark.parametrize(
    ("line", "opens"),
    [
        ("top", Opens.ON_TERMINAL),
        ("top --json", Opens.NEVER),
        ("attach last --json", Opens.NEVER),
        ("demo --headless", Opens.NEVER),
        ("replay last", Opens.ALWAYS),
        ("check", Opens.NEVER),
    ],
)
def test_which_lines_open_the_screen(line: str, opens: Opens) -> None:
    assert verb_of(parse_line(line)).opens is opens


def test_the_table_loads_no_operation() -> None:
    loaded = "import sys, distconsole.model.verbs; print([name for name in sys.modules if name.startswith('distconsole.operations')])"
    found = run_to_end([sys.executable, "-c", loaded], check=True)
    assert found.stdout.strip() == "[]"


KEPT = Where(hosts="a,b", ssh_config="/etc/ours", python="/opt/python")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (KEPT, Where()),
        (Where(hosts="a", ssh_config="/etc/ours", python="/opt/python"), Where(hosts="a")),
        (Where(hostfile="h", ssh_config="/else", python="/opt/python"), Where(hostfile="h", ssh_config="/else")),
        (Where(hosts="a,b", ssh_config="/etc/ours", python="/usr/python"), Where(python="/usr/python")),
    ],
)  # fmt: skip
def test_only_what_differs_is_said_again_and_means_the_same(where: Where, said: Where) -> None:
    assert where.beyond(KEPT) == said
    assert said.over(KEPT) == where


def test_ctrl_c_while_a_verb_is_loaded_is_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.12 a class that is being made raises a RuntimeError of what a signal raised."""

    def interrupted(_name: str) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(sys.modules[operation_of.__module__], "import_module", interrupted)
    with pytest.raises(KeyboardInterrupt):
        operation_of(next(iter(VERBS.values())))
