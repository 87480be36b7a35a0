"""Keys are added to a configuration without touching the rest of it, all of them or none."""

from pathlib import Path

import pytest

from distconsole.config.load import read_config
from distconsole.config.writing import TomlEntry, add_entries
from distconsole.errors import ConfigError

MINE = """\
# mine
cluster = "lab"   # keep

[hosts.a]
nic = "eth0" # the fast one

[clusters.lab]
hosts = ["a", "b"]

[hosts.c]
python = "y"

[run]
name = "x"
env = {A = "1"}
"""
NIC = TomlEntry(("hosts", "b"), "nic", "eth1", "net.mtu")
SETUP = TomlEntry(("hosts", "c"), "setup", "module load x\nulimit -n 65536", "lim.nofile")
ENV = TomlEntry(("run", "env"), "OMPI_MCA_btl_tcp_if_include", "10.0.0.0/24", "net.x")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "distconsole.toml"
    path.write_text(MINE)
    path.chmod(0o640)
    return path


def test_what_was_there_stays_with_its_comments_and_order(file: Path) -> None:
    assert add_entries(file, (NIC, SETUP, ENV)) == [NIC, SETUP, ENV]
    lines = file.read_text().splitlines()
    assert [line for line in MINE.splitlines() if line not in lines] == ['env = {A = "1"}']
    assert [line for line in lines if line in MINE.splitlines() and line] == [
        line for line in MINE.splitlines() if line and line != 'env = {A = "1"}'
    ]
    assert 'nic = "eth1" # net.mtu' in lines
    config = read_config(file)
    assert (config.hosts["b"].nic, config.hosts["a"].nic) == ("eth1", "eth0")
    assert config.hosts["c"].setup == "module load x\nulimit -n 65536"
    assert config.verbs["run"]["env"] == ("A=1", "OMPI_MCA_btl_tcp_if_include=10.0.0.0/24")
    assert file.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_second_time_nothing_is_written(file: Path) -> None:
    add_entries(file, (NIC, SETUP, ENV))
    text, inode = file.read_text(), file.stat().st_ino
    assert add_entries(file, (NIC, SETUP, ENV)) == []
    assert (file.read_text(), file.stat().st_ino) == (text, inode)


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (TomlEntry(("hosts", "a"), "nic", "eth1"), 5),
        (TomlEntry(("run", "env"), "A", "2"), 15),
        (TomlEntry(("hosts", "c"), "python", "z"), 11),
    ],
)
def test_another_value_of_the_users_is_refused_with_its_line_and_nothing_is_written(
    file: Path, entry: TomlEntry, line: int
) -> None:
    with pytest.raises(ConfigError) as refused:
        add_entries(file, (NIC, entry))
    assert f"{file}:{line}: {entry.place} is " in refused.value.message
    assert "nothing was written" in refused.value.hint
    assert file.read_text() == MINE


def test_a_range_of_hosts_speaks_for_each_of_them(file: Path) -> None:
    file.write_text('[hosts."gpu[01-04]"]\nnic = "eth0"\n')
    with pytest.raises(ConfigError, match=r":2: \[hosts.gpu03\] nic is 'eth0' already"):
        add_entries(file, (TomlEntry(("hosts", "gpu03"), "nic", "eth1"),))
    assert add_entries(file, (TomlEntry(("hosts", "gpu03"), "nic", "eth0"),)) == []


def test_a_file_is_made_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    add_entries(path, (TomlEntry(("hosts", "a.b"), "nic", "eth1"), ENV))
    assert read_config(path).hosts["a.b"].nic == "eth1"


def test_what_cannot_be_written_or_read_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("import torch\n")
    with pytest.raises(ConfigError, match="not TOML"):
        add_entries(path, (NIC,))
    # A table that this configuration does not know, which must not become the user's problem.
    path.write_text("")
    with pytest.raises(ConfigError, match="unknown key"):
        add_entries(path, (TomlEntry(("hosts", "a"), "nick", "eth1"),))
    assert path.read_text() == ""
    assert [each.name for each in tmp_path.iterdir()] == ["job.toml"]
