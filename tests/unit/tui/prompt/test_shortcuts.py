"""Claims about keys and aliases of the operator's own, and about the start-up file."""

import threading
from pathlib import Path

import pytest
from textual import events
from textual._xterm_parser import XTermParser

from distconsole.config.load import read_config
from distconsole.config.schema import Config
from distconsole.config.shortcuts import Alias, keep_alias, read_aliases_file, startup_lines
from distconsole.errors import ConfigError, UsageError
from distconsole.grammar.aliases import expand_alias, expand_words
from distconsole.tui.prompt.keymap import Keymap, make_keymap
from distconsole.tui.prompt.keys import KEYS, VIEWS
from distconsole.tui.prompt.shortcuts import Shortcuts


def configured(folder: Path, text: str) -> Config:
    path = folder / "distconsole.toml"
    path.write_text(text)
    return read_config(path)


def keymap(folder: Path, text: str) -> Keymap:
    return Shortcuts(configured(folder, text)).keymap


def aliases(**lines: str) -> dict[str, Alias]:
    return {name: Alias(name, line) for name, line in lines.items()}


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("F11", "f11"),
        ("ctrl+t", "ctrl+t"),
        ("Ctrl+T", "ctrl+t"),
        ("^t", "ctrl+t"),
        ("alt+x", "alt+x"),
    ],
)
def test_a_key_is_read_however_it_is_written(written: str, named: str, tmp_path: Path) -> None:
    found = keymap(tmp_path, f'[keys]\n"{written}" = "check --level quick"\n').of(named, "logs")
    assert found.line == "check --level quick"


@pytest.mark.parametrize("written", [*"/?Z[-+@~", "space"])
def test_a_letter_works_inside_its_view_alone(written: str, tmp_path: Path) -> None:
    keys = keymap(tmp_path, f'[keys.runs]\n"{written}" = "theme "\n')
    own = keys.keys[0]
    assert (own.line, own.asks, own.inside, own.views) == ("theme ", True, True, ("runs",))
    pressed = XTermParser().feed(" " if written == "space" else written)
    assert own.key == next(event.key for event in pressed if isinstance(event, events.Key))
    assert keys.of(own.key, "runs") is own
    assert keys.of(own.key, "check") is not own


def test_a_key_takes_the_place_of_ours_and_that_is_told(tmp_path: Path) -> None:
    text = '[keys]\nf7 = "check --level full"\nf8 = ""\n"alt+1" = "view cluster"\nf2 = ""\n'
    keys = keymap(tmp_path, text)
    assert [key.line for key in keys.keys if key.key == "f7"] == ["check --level full"]
    assert keys.of("f8", "run") is None
    assert keys.tabs[0].key == "alt+1"
    assert keys.told[0].startswith("F7 is 'check --level full'")
    assert keys.told[0].endswith("distconsole.toml:2), no more 'check'")
    assert "F8 does nothing" in keys.told[1]


def test_a_letter_for_all_views_hides_those_of_views_and_says_so(tmp_path: Path) -> None:
    keys = keymap(tmp_path, '[keys]\nx = "jobs"\n')
    assert {keys.of("x", view).line for view in VIEWS} == {"jobs"}  # type: ignore[union-attr]
    assert all(
        line in keys.told[0] for line in ("'lines first-error'", "'cancel'", "'cancel {job}'")
    )


def test_without_keys_of_ones_own_all_are_as_they_were(tmp_path: Path) -> None:
    assert Keymap() == keymap(tmp_path, "[keys]\n")
    assert Keymap().keys == KEYS


def test_the_project_wins_over_the_user(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    user = configured(tmp_path / "user", '[keys]\nf11 = "runs"\nf12 = "jobs"\n')
    both = configured(tmp_path, '[keys]\nF11 = "check"\n').over(user)
    keys = make_keymap(both.keys, {})
    assert [keys.of(key, "run").line for key in ("f11", "f12")] == ["check", "jobs"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ('[keys]\n"ctlr+t" = "check"', 2, "there is no key 'ctlr+t'", "keys are such as"),
        ('[keys]\npagup = "check"', 2, "there is no key 'pagup'", "did you mean 'pageup'"),
        ('[keys]\n\ntab = "check"', 3, "'tab' is the prompt's own", "free are"),
        ('[keys]\n"ctrl+r" = "check"', 2, "searches the history", "free are"),
        ('[keys]\n"ctrl+i" = "check"', 2, "sends the same for 'ctrl+i' and for Tab", "free are"),
        (
            '[keys]\nf11 = "chek"',
            2,
            "begins with 'chek', which is no verb",
            "did you mean 'check'",
        ),
        (
            '[keys]\nf11 = "check --leval full"',
            2,
            "check has no option --leval",
            "did you mean --level?",
        ),
        ('[keys]\nf11 = "stop {rn}"', 2, "{rn}, which stands for nothing", "{run}"),
        ("[keys]\nf11 = 3", 2, "'f11' must be a line", ""),
        ('[keys]\nf11 = {lin = "check"}', 2, "there is no view 'f11'", "known are"),
        ('[keys]\nf11 = {line = "check", lable = "x"}', 2, "unknown key 'lable'", "'label'"),
        ('[keys.rum]\nf11 = "check"', 2, "there is no view 'rum'", "did you mean 'run'"),
        ("keys = 1", 1, "'keys' must be a table", ""),
        ('[aliases]\ncheck = "check --strict"', 2, "'check' is a verb", "[check]"),
        ('[aliases]\nnight = "chek"', 2, "begins with 'chek'", "did you mean check?"),
        ('[aliases]\n"a b" = "check"', 2, "cannot be the name", "letters"),
        ("[aliases]\na = 1", 2, "'a' must be a line", ""),
    ],
)
def test_what_means_nothing_is_one_error_with_its_place(
    text: str, line: int, message: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        Shortcuts(configured(tmp_path, f"{text}\n"))
    assert f"{tmp_path / 'distconsole.toml'}:{line}: " in caught.value.message
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("typed", "done"),
    [
        ("full", "check --level full"),
        ("full --hosts a,b", "check --level full --hosts a,b"),
        ("on 'a b' --strict", "check --hosts 'a b' --strict --level quick"),
        ("on a", "check --hosts a  --level quick"),
        ("slow 5 ", "filter step_ms>5 and $x"),
        ("check full", "check full"),
        ("", ""),
    ],
)
def test_an_alias_takes_its_arguments_as_they_were_typed(typed: str, done: str) -> None:
    known = aliases(
        full="check --level full",
        on="check --hosts $1 $@ --level quick",
        slow="filter step_ms>$1 and $$x",
    )
    assert expand_alias(typed, known) == done


@pytest.mark.parametrize("typed", ["on", "slow", "slow 1 2"])
def test_an_alias_says_what_it_lacks(typed: str) -> None:
    known = aliases(on="check --hosts $1 $@", slow="filter step_ms>$1")
    with pytest.raises(UsageError, match="takes 1 argument"):
        expand_alias(typed, known)


def test_an_alias_works_among_the_words_of_a_shell() -> None:
    known = aliases(on="check --hosts $1 --level quick")
    words = ["--ssh-config", "on", "--python=x", "on", "a b"]
    assert expand_words(words, known) == [
        *words[:3],
        "check",
        "--hosts",
        "a b",
        "--level",
        "quick",
    ]
    assert expand_words(["check", "on"], known) == ["check", "on"]


def test_an_alias_is_kept_for_the_next_sitting_and_seen_by_the_other(tmp_path: Path) -> None:
    path = tmp_path / "aliases"
    one, other = Shortcuts(Config(), path), Shortcuts(Config(), path)
    assert one.define("night = check --level full") == "night is an alias"
    assert one.define("q2='run t.py'") == "q2 is an alias"
    assert other.expand("night -h") == "check --level full -h"
    assert Shortcuts(Config(), path).expand("q2") == "run t.py"
    one.forget("night")
    assert other.expand("night") == "night"


def test_consoles_that_keep_aliases_at_once_lose_none(tmp_path: Path) -> None:
    path = tmp_path / "aliases"

    def keep(name: str) -> None:
        keep_alias(path, name, "check")

    threads = [threading.Thread(target=keep, args=(f"a{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_aliases_file(path)) == 8


@pytest.mark.parametrize(
    "words", ["check = runs", "a = zzz", "a = a", "a\x1b[2J = check", "é = check", "quit = check"]
)
def test_an_alias_that_means_nothing_is_refused(words: str) -> None:
    with pytest.raises(UsageError):
        Shortcuts(Config()).define(words)


def test_an_alias_with_a_secret_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "aliases"
    shortcuts = Shortcuts(Config(), path)
    assert "a secret in it" in shortcuts.define("t = run --env HF_TOKEN=hunter2 t.py")
    assert shortcuts.expand("t") == "run --env HF_TOKEN=hunter2 t.py"
    assert "hunter2" not in shortcuts.listed()
    assert not path.exists()


def test_a_hostile_file_of_aliases_costs_only_its_bad_lines(tmp_path: Path) -> None:
    path = tmp_path / "aliases"
    path.write_bytes(
        b"\xff\xfe\na = check\n= x\nb = che\x1b[2Jck\ncheck = runs\nc = zzz\n"
        + b"x" * 99_999
        + b" = check\n"
    )
    assert list(Shortcuts(Config(), path).aliases) == ["a"]


def test_the_configurations_alias_is_taken_out_there(tmp_path: Path) -> None:
    shortcuts = Shortcuts(configured(tmp_path, '[aliases]\nn = "check"\n'), tmp_path / "aliases")
    with pytest.raises(UsageError, match=r"stands in .*distconsole.toml:2"):
        shortcuts.forget("n")
    assert "in place of" in shortcuts.define("n = runs")
    assert shortcuts.expand("n") == "runs"
    shortcuts.forget("n")
    assert shortcuts.expand("n") == "check"


def test_a_start_up_file_has_comments_and_an_end(tmp_path: Path) -> None:
    path = tmp_path / "startup"
    assert startup_lines(path) == []
    path.write_text("# mine\n\n  theme light\nwatch state=failed\n")
    assert startup_lines(path) == [(3, "theme light"), (4, "watch state=failed")]
    path.write_text("runs\n" * 1000)
    with pytest.raises(ConfigError, match="1000 lines, and 200 are the most"):
        startup_lines(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="startup: Is a directory"):
        startup_lines(path)
