"""Whose project's file is taken, and what a person has to trust in it first."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from distconsole.config import notify, schema
from distconsole.config.load import load_config, needs_no_trust, trust_as_it_is
from distconsole.config.trust import distrust, keys_to_trust, trust_store
from distconsole.errors import ConfigError, UntrustedError
from distconsole.model.options import Kind, Option, TrustNeed
from suite.pages import REPOSITORY

STRANGER = 65534
EXECUTES = """
setup = "touch /tmp/x"
theme = "nord"
[clusters.lab]
hosts = ["gpu[01-02]"]
node-dir = "/tmp/n"
[hosts.gpu01]
python = "/tmp/python"
nic = "eth1"
[run]
nproc = 2
env = { LD_PRELOAD = "x.so" }
[aliases]
go = "run train.py"
"""

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")


def project(folder: Path, text: str) -> Path:
    file = folder / "distconsole.toml"
    file.write_text(text)
    return file


@needs_root
def test_a_stranger_s_file_above_is_passed_by_with_a_word(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "mine" / "deep").mkdir(parents=True)
    shared.chmod(0o1777)
    file = project(shared, EXECUTES)
    os.chown(file, STRANGER, STRANGER)
    config = load_config(shared / "mine" / "deep")
    assert (config.shared.setup, config.theme, config.files) == (None, None, ())
    (words,) = config.passed
    assert words.startswith(f"{file} is not read: it belongs to ")
    assert words.endswith(f"distconsole trust {shared}")


@pytest.mark.parametrize(
    ("what", "mode", "words"),
    [
        ("file", 0o666, "everybody may write it"),
        ("folder", 0o1777, "everybody may write into its folder"),
    ],
)
def test_what_all_may_write_is_not_read(what: str, mode: int, words: str, tmp_path: Path) -> None:
    file = project(tmp_path, "theme = 'theirs'\n")
    (file if what == "file" else tmp_path).chmod(mode)
    config = load_config(tmp_path)
    assert config.theme is None
    assert words in config.passed[0]


@needs_root
def test_a_file_of_one_s_own_above_a_stranger_s_is_read(tmp_path: Path) -> None:
    project(tmp_path, "theme = 'mine'\n")
    (tmp_path / "sub").mkdir()
    os.chown(project(tmp_path / "sub", "theme = 'theirs'\n"), STRANGER, STRANGER)
    config = load_config(tmp_path / "sub")
    assert (config.theme, len(config.passed)) == ("mine", 1)


@needs_root
def test_a_stranger_s_file_that_was_trusted_is_read_until_it_changes(tmp_path: Path) -> None:
    file = project(tmp_path, "theme = 'theirs'\n")
    os.chown(file, STRANGER, STRANGER)
    trust_as_it_is(file)
    assert load_config(tmp_path).theme == "theirs"
    file.write_text("theme = 'other'\n")
    assert load_config(tmp_path).theme is None


def test_nothing_above_the_git_root_is_read(tmp_path: Path) -> None:
    project(tmp_path, "theme = 'above'\n")
    root = tmp_path / "clone"
    (root / "src").mkdir(parents=True)
    (root / ".git").write_text("gitdir: elsewhere\n")
    assert load_config(root / "src").files == ()
    file = project(root, "theme = 'root'\n")
    assert load_config(root / "src").files == (file,)


def test_nothing_above_the_home_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(tmp_path, "theme = 'above'\n")
    home = tmp_path / "home"
    (home / "src").mkdir(parents=True)
    (tmp_path / "beside").mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert load_config(home / "src").files == ()
    assert load_config(tmp_path / "beside").files == ()
    file = project(home, "theme = 'own'\n")
    assert load_config(home / "src").files == (file,)


def test_keys_that_execute_are_named_with_the_file_and_the_command_that_trusts_it(
    tmp_path: Path,
) -> None:
    file = project(tmp_path, EXECUTES)
    with pytest.raises(UntrustedError) as caught:
        load_config(tmp_path)
    assert caught.value.message == (
        f"{file} is not trusted, and can have something executed: setup (line 2), "
        "clusters.lab.node-dir (line 6), hosts.gpu01.python (line 8), run.env (line 12), "
        "aliases (line 13)"
    )
    assert caught.value.hint == f"look at it; if you trust it: distconsole trust {tmp_path}"
    assert caught.value.exit_code == 2


def test_keys_that_execute_nothing_are_taken_from_a_file_that_nobody_trusted(
    tmp_path: Path,
) -> None:
    project(tmp_path, EXECUTES)
    config = load_config(tmp_path, refuse=False)
    assert (config.theme, config.hosts["gpu01"].nic) == ("nord", "eth1")
    assert config.clusters["lab"].hosts == ("gpu[01-02]",)
    assert config.verbs["run"] == {"nproc": "2"}
    settings = config.settings("gpu01", config.clusters["lab"])
    assert (settings.setup, settings.python, settings.node_dir) == (None, None, None)
    assert config.aliases == {}


def test_a_trusted_file_is_taken_until_it_is_changed_or_moved(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = project(tmp_path / "a", EXECUTES)
    trust_as_it_is(file)
    assert load_config(tmp_path / "a").shared.setup == "touch /tmp/x"
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(UntrustedError, match="is not trusted"):
        load_config(tmp_path / "b")
    (tmp_path / "b").rename(tmp_path / "a")
    file.write_text(EXECUTES.replace("/tmp/x", "/tmp/y"))
    with pytest.raises(UntrustedError, match="was changed since it was trusted"):
        load_config(tmp_path / "a")


def test_trust_that_is_taken_back_is_asked_for_again(tmp_path: Path) -> None:
    file = project(tmp_path, EXECUTES)
    trust_as_it_is(file)
    assert distrust(file)
    assert not distrust(file)
    with pytest.raises(UntrustedError):
        load_config(tmp_path)


def test_a_file_that_a_trusted_key_names_is_trusted_as_it_is_too(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("Host gpu\n")
    file = project(tmp_path, "ssh_config = 'ssh'\n")
    trust_as_it_is(file)
    assert load_config(tmp_path).ssh_config == ssh
    ssh.write_text("Host *\nProxyCommand touch /tmp/x\n")
    with pytest.raises(UntrustedError):
        load_config(tmp_path)


def test_a_file_that_was_not_there_when_it_was_trusted_asks_when_it_comes(tmp_path: Path) -> None:
    trust_as_it_is(project(tmp_path, "[run]\nenv_file = 'later.env'\n"))
    assert load_config(tmp_path).verbs["run"]["env_file"]
    with (tmp_path / "later.env").open("wb") as file:
        file.truncate(100 << 20)
    with pytest.raises(UntrustedError):
        load_config(tmp_path)


def test_one_s_own_ssh_configuration_may_change(tmp_path: Path, home: Path) -> None:
    own = home / ".ssh" / "config"
    own.parent.mkdir()
    own.write_text("Host gpu\n")
    trust_as_it_is(project(tmp_path, "ssh_config = '~/.ssh/config'\n"))
    own.write_text("Host other\n")
    assert load_config(tmp_path).ssh_config == own


def test_the_user_s_own_file_needs_no_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "distconsole"
    folder.mkdir()
    project(folder, "setup = 'module load cuda'\n")
    assert load_config(folder).shared.setup == "module load cuda"
    assert load_config(tmp_path).shared.setup == "module load cuda"


def test_what_is_trusted_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    trust_as_it_is(project(tmp_path, EXECUTES))
    assert stat.S_IMODE(trust_store().stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["", "[", "[]", "{}", "\x00", '{"a": 1}'])
def test_a_damaged_list_of_trusted_files_trusts_none(damage: str, tmp_path: Path) -> None:
    trust_as_it_is(project(tmp_path, EXECUTES))
    trust_store().write_text(damage)
    with pytest.raises(UntrustedError):
        load_config(tmp_path)


def test_a_list_that_cannot_be_written_is_told(home: Path, tmp_path: Path) -> None:
    (home / ".config").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        trust_as_it_is(project(tmp_path, EXECUTES))


def test_a_file_is_taken_whole_where_it_needs_no_trust_or_has_it(tmp_path: Path) -> None:
    assert needs_no_trust(tmp_path / "distconsole.toml")
    assert needs_no_trust(project(tmp_path, "theme = 'nord'\n"))
    file = project(tmp_path, EXECUTES)
    assert not needs_no_trust(file)
    trust_as_it_is(file)
    assert needs_no_trust(file)


def every_key() -> Iterator[tuple[str, Option]]:
    tables: Mapping[str, Mapping[str, Option]] = {
        "": schema.TOP_KEYS,
        "hosts.": schema.HOST_KEYS,
        "clusters.": schema.CLUSTER_KEYS,
        "notify.": notify.NOTIFY_KEYS,
        "expect.": {**schema.EXPECT_KEYS, "packages": schema.PACKAGE_KEY},
        "expect.collectives.": schema.COLLECTIVE_KEYS,
        **{f"{verb}.": keys for verb, keys in schema.VERB_KEYS.items()},
    }
    for table, keys in tables.items():
        for name, key in keys.items():
            yield f"{table}{name}", key


HOST_WIDE = ("container", "node_dir", "python", "setup")
NEED_TRUST = {
    *HOST_WIDE,
    *(f"hosts.{name}" for name in HOST_WIDE),
    *(f"clusters.{name}" for name in HOST_WIDE),
    *("ssh_config", "clusters.ssh_config"),
    *("run.env", "run.env_file", "run.workdir", "run.slurm", "run.output"),
    "run.export",
    *("check.junit", "check.emit_hostfile", "export.output", "export.listen", "report.output"),
    "trace.output",
    *("setup.source", "setup.yes", "init.yes", "stop.yes"),
    *(f"notify.{name}" for name in notify.OWN_KEYS),
}


def test_every_key_is_declared_to_need_trust_or_not() -> None:
    """A new key fails here until somebody has thought of what a stranger would write into it."""
    assert {name for name, key in every_key() if key.trust is not TrustNeed.NONE} == NEED_TRUST
    whose_content = {name for name, key in every_key() if key.trust is TrustNeed.CONTENT}
    assert whose_content == {"ssh_config", "clusters.ssh_config", "run.env_file", "setup.source"}
    with pytest.raises(TypeError, match="trust"):
        Option(Kind.TEXT)  # type: ignore[call-arg]


def test_the_page_of_the_configuration_names_every_key_that_needs_trust() -> None:
    page = (REPOSITORY / "docs/reference/configuration.md").read_text()
    section = page.partition("\n## Trust\n")[2].partition("\n## ")[0]
    told = {
        f"{table}.{key}".lstrip(".")
        for table, keys in re.findall(
            r"^\* of (?:`\[(\w+)\]`|hosts): (.+)$", section, re.MULTILINE
        )
        for key in re.findall(r"`(\w+)`", keys)
    }
    elsewhere = ("hosts.", "clusters.", "notify.")
    assert told == {name for name in NEED_TRUST if not name.startswith(elsewhere)}


@pytest.mark.parametrize("name", sorted({*NEED_TRUST, "keys", "aliases"} - {"setup"}))
def test_every_such_key_is_found_in_a_file(name: str) -> None:
    *above, key = name.split(".")
    where = (*above, *(("gpu01",) if above and above[0] in ("hosts", "clusters") else ()))
    for spelled in {key, key.replace("_", "-")}:
        table: dict[str, object] = {spelled: {"a": "b"}}
        for each in reversed(where):
            table = {each: table}
        assert [path for path, _ in keys_to_trust(table)] == [(*where, spelled)]
