"""What distconsole.toml says, and what it says about a mistake in it.
``[expect]`` of the configuration: versions, sizes, limits; for all, for a cluster, for a host.
"""

import math
from pathlib import Path

import click
import pytest

from distconsole.config import paths
from distconsole.config.load import load_config, read_config, trust_as_it_is
from distconsole.config.schema import VERB_KEYS, Config
from distconsole.errors import ConfigError
from distconsole.grammar.options import HOST_OPTIONS, LAUNCH_OPTIONS, OPENING_OPTIONS
from distconsole.grammar.verbs import root
from distconsole.model.expectation import CollectiveExpectation, Expectation

WHOLE = """
cluster = "lab"
ssh_config = "ssh/config"
startup = false
python = "/opt/py/bin/python"
node-dir = "/local/dc"

[clusters.lab]
hosts = ["gpu[01-02]:8", "me@big"]
setup = '''
module load cuda
source ~/venv/bin/activate
'''

[hosts."gpu[01-02]"]
nic = "eth1"
slots = 4

[hosts.gpu02]
address = "10.0.0.2"
port = 2222

[run]
launcher = "torchrun"
nproc = "gpu"
max-restarts = 3
grace = 5
env = { OMP_NUM_THREADS = 4, A = "b c" }

[check]
only = ["net", "coll"]
budget = 30
"""


def test_a_whole_file_is_understood(tmp_path: Path) -> None:
    file = tmp_path / "distconsole.toml"
    file.write_text(WHOLE)
    config = read_config(file)
    assert config.cluster == "lab"
    assert config.ssh_config == tmp_path / "ssh" / "config"
    assert config.startup is False
    assert config.shared.node_dir == "/local/dc"
    lab = config.clusters["lab"]
    assert lab.hosts == ("gpu[01-02]:8", "me@big")
    two = config.settings("gpu02", lab)
    assert (two.nic, two.slots, two.address, two.port) == ("eth1", 4, "10.0.0.2", 2222)
    assert two.python == "/opt/py/bin/python"
    assert two.setup == "module load cuda\nsource ~/venv/bin/activate\n"
    assert config.verbs["run"] == {
        "launcher": "torchrun",
        "nproc": "gpu",
        "max_restarts": 3,
        "grace_seconds": 5.0,
        "env": ("OMP_NUM_THREADS=4", "A=b c"),
    }
    assert config.verbs["check"]["only"] == ("net", "coll")


@pytest.mark.parametrize(
    ("text", "line", "words", "hint"),
    [
        ("\nclustre = 'a'\n", 2, "unknown key 'clustre'", "'cluster'"),
        ("[run]\n\nluancher = 'torch'\n", 3, "'luancher' in [run]", "'launcher'"),
        ("[run]\nlauncher = 'torchrn'\n", 2, "one of auto, torch", "'torchrun'"),
        ("[check]\nnproc = 0\n", 2, "whole number from 1", ""),
        ("[check]\nstrict = 'yes'\n", 2, "true or false", ""),
        ("[hosts.a]\nx = 1\n[hosts.b]\npyhton = 'p'\n", 4, "[hosts.b]", "'python'"),
        ("[hosts.a]\nuser = 'x;touch'\n", 2, "a user name", ""),
        ("[hosts.a]\nport = 70000\n", 2, "a port", ""),
        ("[clusters.lab]\nslots = 2\n", 1, "one of 'hosts' and 'hostfile'", ""),
        ("[chek]\nnproc = 1\n", 1, "unknown key 'chek'", "'check'"),
        ("run.launchr = 'x'\n", 1, "'launchr' in [run]", "'launcher'"),
        ("hosts = 'a,b'\n", 1, "must be a table", ""),
        ("[run]\nnproc = true\n", 2, "or 'gpu'", ""),
        ("[logs]\nrank = '3-x'\n", 2, "such as '0-3,8'", ""),
        ("[run]\nnnodes = '0:2'\n", 2, "or 'MIN:MAX'", ""),
        ("[hosts.'a[3-1]']\nslots = 1\n", 1, "backwards", ""),
    ],
)
def test_a_mistake_names_file_line_key_and_the_right_one(
    text: str, line: int, words: str, hint: str, tmp_path: Path
) -> None:
    file = tmp_path / "distconsole.toml"
    file.write_text(text.replace("x = 1\n", "slots = 1\n"))
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    assert caught.value.message.startswith(f"{file}:{line}: ")
    assert words in caught.value.message
    assert hint in caught.value.hint


def test_a_file_that_is_not_toml_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "distconsole.toml"
    file.write_text("a = 1\nb = = 2\n")
    with pytest.raises(ConfigError, match=r"not TOML.*line 2"):
        read_config(file)


def test_the_nearest_project_file_wins_over_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    user = paths.user_config_file()
    user.parent.mkdir(parents=True)
    user.write_text("python = 'user'\nnic = 'ib0'\n[run]\nname = 'n'\ngrace = 1\n")
    inner = tmp_path / "project" / "src" / "deep"
    inner.mkdir(parents=True)
    own = tmp_path / "project" / "distconsole.toml"
    own.write_text("python = 'mine'\n[run]\ngrace = 2\n")
    trust_as_it_is(own)
    config = load_config(inner)
    assert (config.shared.python, config.shared.nic) == ("mine", "ib0")
    assert config.verbs["run"] == {"name": "n", "grace_seconds": 2.0}
    assert config.files == (own, user)


def test_without_any_file_nothing_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load_config(tmp_path).files == ()


def test_setup_is_a_command_for_all_hosts_or_the_table_of_the_verb(tmp_path: Path) -> None:
    path = tmp_path / "distconsole.toml"
    path.write_text("setup = 'module load cuda'\n")
    assert read_config(path).shared.setup == "module load cuda"
    path.write_text("[setup]\nyes = true\n")
    found = read_config(path)
    assert (found.shared.setup, found.verbs["setup"]) == (None, {"yes": True})


def test_ranks_are_one_or_spans(tmp_path: Path) -> None:
    path = tmp_path / "distconsole.toml"
    path.write_text("[logs]\nrank = '0-3,8'\n")
    assert read_config(path).verbs["logs"] == {"ranks": ((0, 3), (8, 8))}
    path.write_text("[logs]\nrank = 3\n")
    assert read_config(path).verbs["logs"] == {"ranks": ((3, 3),)}


def test_every_flag_of_every_verb_has_its_key() -> None:
    """``why``'s flags are the hosts', ``explain`` is a question, ``at`` a moment, ``write_profile`` and
    ``revoke``, ``show`` are acts, not settings; how the console opens stands at the top of the file."""
    elsewhere = (*HOST_OPTIONS, *OPENING_OPTIONS)
    for command in root.commands.values():
        flags = {
            option.name
            for option in command.params
            if isinstance(option, click.Option)
            and option.name
            not in (*elsewhere, "help", "explain", "write_profile", "at", "revoke", "show")
        }
        if command.name == "check":  # a launch that is checked has its keys in [run]
            flags -= set(LAUNCH_OPTIONS) - {"nproc"}
        keys = VERB_KEYS.get(command.name or "", {})
        assert {key.parameter or name for name, key in keys.items()} == flags, command.name


def config(folder: Path, text: str) -> Config:
    path = folder / "distconsole.toml"
    path.write_text(text)
    return read_config(path)


def test_a_hosts_own_word_counts_then_its_clusters_then_everybodys(tmp_path: Path) -> None:
    found = config(
        tmp_path,
        """
        [expect]
        torch = ">=2.4"
        python = "3.11"
        gpus = 8
        memlock = "unlimited"
        disk-free = "10GiB"
        packages = {numpy = "2.1.0", scipy = ">1"}
        collectives = [{op = "all_reduce", bytes = "64MiB", busbw_gbs = 10}]
        [clusters.lab]
        hosts = "gpu[1-2]"
        [clusters.lab.expect]
        gpus = 4
        [hosts."gpu[2-3]".expect]
        gpu_model = "A100"
        [hosts.gpu2.expect]
        gpus = 2
        packages = {numpy = "==1.26.*"}
        """,
    )
    lab = found.clusters["lab"]
    assert found.expect == Expectation(
        torch=">=2.4",
        python="==3.11.*",
        gpus=8,
        memlock=math.inf,
        disk_free=10 * 1024.0**3,
        packages={"numpy": "==2.1.0.*", "scipy": ">1"},
        collectives=(CollectiveExpectation("all_reduce", 64 * 1024**2, busbw_gbs=10.0),),
    )
    first, second = found.expected("gpu1", lab), found.expected("gpu2", lab)
    assert (first.gpus, first.gpu_model, first.torch) == (4, None, ">=2.4")
    assert (second.gpus, second.gpu_model) == (2, "A100")
    assert second.packages == {"numpy": "==1.26.*", "scipy": ">1"}
    assert found.expected("gpu3").gpus == 8
    assert (found.hosts["gpu2"].nic, found.over(Config()).expect) == (None, found.expect)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[expect]\ntorhc = '2'", ":2: unknown key 'torhc' in [expect]", "did you mean 'torch'?"),
        ("[expect]\n\ntorch = 'new'", ":3: 'torch' must be a version such as", ""),
        ("[expect]\ngpus = -1", ":2: 'gpus' must be a whole number from 0, not -1", ""),
        ("[expect]\nshm = '8 apples'", ":2: 'shm' must be a size", ""),
        ("[expect]\nrtt_us = 0", ":2: 'rtt_us' must be a number above 0", ""),
        ("[hosts.a.expect]\ngpu = 1", ":2: unknown key 'gpu' in [hosts.a.expect]", "'gpus'"),
        ("[clusters.l]\nhosts = 'a'\n[clusters.l.expect]\nmpy = '1'", ":4: unknown key", "'mpi'"),
        ("expect = 3", ":1: 'expect' must be a table: [expect]", ""),
        ("[expect]\npackages = 3", ":2: 'packages' must be a table", ""),
        ("[expect.packages]\nnumpy = 3", ":2: 'numpy' must be a version", ""),
        (
            "[[expect.collectives]]\nop = 'allreduce'\nbusbw_gbs = 3",
            ":2: 'op' must be one of all_reduce",
            "did you mean 'all_reduce'?",
        ),
        (
            "[[expect.collectives]]\nop = 'all_reduce'",
            ":1: [[expect.collectives]]: each needs",
            "",
        ),
    ],
)
def test_what_means_nothing_is_refused_with_its_line_and_the_nearest_name(
    tmp_path: Path, text: str, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        config(tmp_path, text)
    assert message in refused.value.message
    assert hint in refused.value.hint
