"""Which hosts a command means."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from distconsole.config.hostfile import NamedHost, host_text, names_in, read_hostfile, read_list
from distconsole.config.hosts import offered_hosts, resolve_cluster
from distconsole.config.ranges import MAX_HOSTS, RangeError, expand
from distconsole.config.schema import ClusterSettings, Config, HostSettings
from distconsole.errors import ConfigError, UsageError
from distconsole.grammar.verbs import parse_args
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.requests import Check, Where


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu[01-03,12]", ["gpu01", "gpu02", "gpu03", "gpu12"]),
        ("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"]),
        ("gpu[008-010].rack", ["gpu008.rack", "gpu009.rack", "gpu010.rack"]),
        ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"]),
        ("plain", ["plain"]),
    ],
)
def test_ranges_expand_and_keep_their_zeros(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "said"),
    [("a,,b", "entry 2 of 3"), ("a,b,", "entry 3 of 3"), (",a", "entry 1 of 2"), ("g[1,2],", "entry 2 of 2")],
)  # fmt: skip
def test_an_empty_entry_is_an_error_that_says_where(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--hosts: {said} in '.*' is empty"):
        resolve_cluster(Where(hosts=text), Config(), {})


def test_an_error_does_not_speak_to_the_terminal() -> None:
    with pytest.raises(UsageError) as caught:
        resolve_cluster(Where(hosts="a\x1b[31m\x07,b"), Config(), {})
    assert caught.value.message.isprintable()
    assert "a\\x1b" in caught.value.message


def test_an_empty_list_is_not_this_machine() -> None:
    request = parse_args(["check", "--hosts", ""])
    assert isinstance(request, Check)
    with pytest.raises(UsageError, match="--hosts names no host"):
        resolve_cluster(request.where, Config(), {})


def test_a_large_range_is_bounded() -> None:
    assert len(expand(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a,b:4", [NamedHost("a"), NamedHost("b", slots=4)]),
        ("me@a:2 , b", [NamedHost("a", "me", 2), NamedHost("b")]),
        (
            "g[1-2,4]:8",
            [NamedHost("g1", slots=8), NamedHost("g2", slots=8), NamedHost("g4", slots=8)],
        ),
        ("[fe80::1]:4", [NamedHost("fe80::1", slots=4)]),
        ("me@a/2222", [NamedHost("a", "me", port=2222)]),
        ("ssh://me@a:22,ssh://b", [NamedHost("a", "me", port=22), NamedHost("b")]),
        ("ssh://[::1]:2222/,ssh://[::2]", [NamedHost("::1", port=2222), NamedHost("::2")]),
        ("g[1-2]:4/22", [NamedHost("g1", None, 4, 22), NamedHost("g2", None, 4, 22)]),
        ("me@[::1]", [NamedHost("::1", "me")]),
        ("fe80::1%eth0", [NamedHost("fe80::1%eth0")]),
        ("10.0.0.1:2", [NamedHost("10.0.0.1", slots=2)]),
        ("node_1.example", [NamedHost("node_1.example")]),
    ],
)
def test_the_list_reads_users_slots_ranges_and_ipv6(text: str, hosts: list[NamedHost]) -> None:
    assert read_list(text) == hosts
    assert read_list(",".join(map(host_text, hosts))) == hosts


def test_names_for_completion_are_those_of_the_lists_and_a_bad_list_costs_only_itself() -> None:
    lists = ["me@g[1-2]:8/22", "a b", "fe80::1%eth0", "me@[fe80::2]:4", "g2"]
    assert names_in(lists) == ["g1", "g2", "fe80::1%eth0", "fe80::2"]


NO_HOST = ["-oProxyCommand=x", "a:0", "a:x", "a:99999", "@a", "a;b", "a$(x)", "a:"]
NO_RANGE = ["gpu[", "gpu]", "gpu[a-b]", "gpu[5-1]", "gpu[]", "gpu[1-99999999]", "g[1-99]h[1-99]"]


@pytest.mark.parametrize("text", ["a b", "me you@a", *NO_HOST, *NO_RANGE])
def test_a_host_or_a_range_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(RangeError):
        read_list(text)


HOSTFILES = {
    "Open MPI": (
        "# my machines\n\na slots=4 max_slots=8\nme@b slots = 2  # the small one\n",
        [NamedHost("a", slots=4), NamedHost("b", "me", 2)],
    ),
    "Horovod": ("a slots=4\nb slots=4\n", [NamedHost("a", slots=4), NamedHost("b", slots=4)]),
    "MPICH": ("a:4\nb:2 ifhn=b-ib\n", [NamedHost("a", slots=4), NamedHost("b", slots=2)]),
    "Slurm": ("n[01-02]\n", [NamedHost("n01"), NamedHost("n02")]),
    "plain": ("a\r\nb\r\n", [NamedHost("a"), NamedHost("b")]),
    "a line a slot": ("a\na\nb\n", [NamedHost("a", slots=2), NamedHost("b", slots=1)]),
    "a line a slot, and a number": (
        "a\na\nb slots=4\n",
        [NamedHost("a", slots=2), NamedHost("b", slots=4)],
    ),
    "Grid Engine": (
        "a 4 gpu.q@a UNDEFINED\nb 2 gpu.q@b <NULL>\na 3 all.q@a UNDEFINED\n",
        [NamedHost("a", slots=7), NamedHost("b", slots=2)],
    ),
    "IPv6": (
        "[fe80::1]:2\nfe80::2 slots=3\n",
        [NamedHost("fe80::1", slots=2), NamedHost("fe80::2", slots=3)],
    ),
    "with a port": ("a port=2222 user=me\n", [NamedHost("a", "me", port=2222)]),
}


@pytest.mark.parametrize("kind", HOSTFILES)
def test_every_launcher_s_hostfile_is_read(kind: str, tmp_path: Path) -> None:
    text, hosts = HOSTFILES[kind]
    file = tmp_path / "hosts"
    file.write_text(text)
    assert read_hostfile(file) == hosts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\n\n# c\nb\na slots=2\n", [":5:", "a is there already, in line 1"]),
        ("a slots=4\nb slot=4\n", [":2:", "unknown setting 'slot'", "did you mean slots?"]),
        ("a\nb slots=many\n", [":2:", "'many'"]),
        ("a b\n", [":1:", "'a b'"]),
        ("a:4 slots=2\n", [":1:", "given twice: 4 and 2", "port=N"]),
        ("# nothing\n", ["names no host"]),
        ("a, b\n", [":1:", "is not a host with settings"]),
        ("x[3-1]\n", [":1:", "backwards"]),
    ],
)
def test_a_wrong_line_is_named_with_its_file(text: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_hostfile(file)
    assert str(file) in caught.value.message
    assert all(word in caught.value.message for word in words)
    assert "a port stands" not in caught.value.hint or "/" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a:2222", "a/2222"),
        ("a:2222,me@b:2222", "a/2222,me@b/2222"),
        ("a:4,gpu[1-2]:2222", "a:4,gpu[1-2]/2222"),
        ("10.0.0.1:6006:1", "10.0.0.1:1/6006"),
        ("a:2222/2", "a:2/2222"),
        ("[a]:2222,[10.0.0.1]:2222", "a/2222,10.0.0.1/2222"),
        ("me@[::1]:2222", "me@[::1]/2222"),
        ("-p 2222 me@a", "me@a/2222"),
        ("ssh -p2222 a", "a/2222"),
        ("a -p 2222", "a/2222"),
        ("a 2222", "a/2222"),
    ],
)
def test_a_port_in_another_spelling_is_told_as_it_is_read_here(
    tmp_path: Path, text: str, meant: str
) -> None:
    assert read_list(meant)
    (tmp_path / "hosts").write_text(f"{text}  # mine\n")
    config = Config(clusters={"c": ClusterSettings(hosts=(text,))})
    for where in (Where(hosts=text), Where(hostfile=str(tmp_path / "hosts")), Where(cluster="c")):
        with pytest.raises((UsageError, ConfigError)) as caught:
            resolve_cluster(where, config, {})
        assert caught.value.hint == f"a port stands behind a slash: {meant}"


def test_what_is_said_of_an_inventory_of_ansible_writes_over_no_file(cwd: Path) -> None:
    (cwd / "hosts.txt").write_text("mine\n")
    inventory = cwd / "my inventory"
    inventory.write_text("[gpu]\na\nb\n")
    tool = cwd / "bin" / "ansible"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "  hosts (2):"\nsed "1d; s/^/    /" "$3"\n')
    tool.chmod(0o755)
    with pytest.raises(ConfigError) as caught:
        read_hostfile(inventory)
    before = {each: each.read_bytes() for each in cwd.iterdir() if each.is_file()}
    command = caught.value.hint.partition(": ")[2]
    subprocess.run(command, shell=True, check=True, env={"PATH": f"{tool.parent}:{os.defpath}"})
    assert {each: each.read_bytes() for each in before} == before
    (made,) = {each for each in cwd.iterdir() if each.is_file()} - before.keys()
    assert read_hostfile(made) == [NamedHost("a"), NamedHost("b")]


def test_a_hostfile_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_hostfile(tmp_path / "nowhere")


def names(where: Where, config: Config, environ: dict[str, str]) -> list[tuple[str, int | None]]:
    return [(host.name, host.slots) for host in resolve_cluster(where, config, environ).hosts]


SLURM = {"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_TASKS_PER_NODE": "2(x3),1"}
LAB = Config(cluster="lab", clusters={"lab": ClusterSettings(hosts=("a", "b:2"))})


def test_localhost_alone_is_this_machine_without_ssh() -> None:
    (here,) = resolve_cluster(Where(hosts="localhost"), LAB, {}).hosts
    assert (here.name, here.local) == ("localhost", True)
    both = resolve_cluster(Where(hosts="localhost,b"), LAB, {}).hosts
    assert [host.local for host in both] == [False, False]


def test_flags_win_over_slurm_over_the_configuration_over_this_machine() -> None:
    assert names(Where(hosts="x"), LAB, SLURM) == [("x", None)]
    assert names(Where(cluster="lab"), LAB, SLURM) == [("a", None), ("b", 2)]
    assert names(Where(), LAB, SLURM) == [("n1", 2), ("n2", 2), ("n3", 2), ("n4", 1)]
    assert names(Where(), LAB, {}) == [("a", None), ("b", 2)]
    (here,) = resolve_cluster(Where(), Config(), {}).hosts
    assert (here.name, here.local) == (socket.gethostname(), True)


@pytest.mark.parametrize(
    ("environ", "slots"),
    [
        ({"SLURM_TASKS_PER_NODE": "1(x2)"}, [None, None]),
        ({"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_NTASKS": "2"}, [1, 1]),
        ({"SLURM_TASKS_PER_NODE": "4"}, [None, None]),
        ({"SLURM_TASKS_PER_NODE": "nonsense"}, [None, None]),
        ({"SLURM_TASKS_PER_NODE": "2(x99999999999)"}, [None, None]),
        ({}, [None, None]),
    ],
)
def test_slurm_s_tasks_are_slots_only_where_somebody_asked_for_them(
    environ: dict[str, str], slots: list[int | None]
) -> None:
    found = names(Where(), Config(), {"SLURM_JOB_NODELIST": "n[1-2]", **environ})
    assert [slot for _, slot in found] == slots


def test_a_heterogeneous_job_has_the_hosts_of_its_components_in_order_and_once() -> None:
    environ = {f"SLURM_JOB_NODELIST_HET_GROUP_{each}": f"n{each}" for each in range(12)}
    environ["SLURM_JOB_NODELIST_HET_GROUP_11"] = "n[0,11]"
    found = [name for name, _ in names(Where(), Config(), environ)]
    assert found == [f"n{each}" for each in range(12)]


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_NODELIST_HET_GROUP_0": "n1", "SLURM_JOB_NODELIST_HET_GROUP_1": "n2"},
        {"SLURM_STEP_NODELIST": "n1,n2"},
        {"LSB_MCPU_HOSTS": "n1 4 n2 4"},
        {"PBS_NODEFILE": "job"},
        {"PE_HOSTFILE": "job"},
    ],
)
def test_in_a_job_there_is_nothing_to_choose_from(environ: dict[str, str], cwd: Path) -> None:
    (cwd / "job").write_text("n1\nn2\n")
    (cwd / "config").write_text("Host a b\n")
    where = Where(ssh_config="config")
    assert offered_hosts(where, Config(), {})
    assert offered_hosts(where, Config(), environ) == ()
    assert names(Where(), Config(), environ)[0][0] == "n1"


def test_the_nodes_of_slurm_s_own_file_are_offered_and_those_that_may_never_be_are_not(
    cwd: Path,
) -> None:
    (cwd / "config").write_text("")
    (cwd / "slurm.conf").write_text(
        "NodeName=DEFAULT CPUs=64\nnodename=gpu[01-02] \\\n  State=UNKNOWN\nInclude nodes\n"
        "ClusterName=lab\ninclude %c.conf\nInclude missing\nNodeName=gpu[02-04],[x-y]\n"
        "#NodeName=old1\nNodeName=cloud[1-9] \\\n  State=CLOUD\nPartitionName=all Nodes=ALL\n"
    )
    (cwd / "nodes").write_text("  NodeName=big NodeHostname=b NodeAddr=10.0.0.9\n")
    (cwd / "lab.conf").write_text("NodeName=many[0001-3000] NodeHostName=m[0001-3000] CPUs=1\n")
    file = str(cwd / "slurm.conf")
    offered, here = offered_hosts(Where(ssh_config="config"), Config(), {"SLURM_CONF": file})
    assert offered.line == "gpu[01-02],gpu03,gpu04,10.0.0.9,m[0001-3000]"
    assert (len(offered.names), offered.place) == (3005, file)
    assert len(resolve_cluster(Where(hosts=offered.line), Config(), {}).hosts) == 3005
    assert not offered.is_job
    assert here.line == "localhost"
    assert not offered_hosts(Where(ssh_config="config"), Config(), {"SLURM_CONF": "/none"})


def test_the_slurm_node_we_stand_on_needs_no_ssh() -> None:
    here = socket.gethostname().split(".")[0]
    cluster = resolve_cluster(Where(), Config(), {"SLURM_JOB_NODELIST": f"{here},other9"})
    assert [host.local for host in cluster.hosts] == [True, False]


def test_a_flag_wins_over_the_host_over_its_cluster_over_all() -> None:
    config = Config(
        shared=HostSettings(python="p-all", setup="s-all", nic="n-all"),
        hosts={"a": HostSettings(setup="s-host", slots=7, user="u-host", address="10.0.0.9")},
        clusters={
            "lab": ClusterSettings(
                hosts=("me@a", "b:2"), shared=HostSettings(nic="n-lab", slots=3)
            )
        },
    )
    a, b = resolve_cluster(Where(cluster="lab", python="p-flag"), config, {}).hosts
    assert (a.python, a.setup, a.nic, a.slots) == ("p-flag", "s-host", "n-lab", 7)
    assert (a.user, a.address) == ("me", "10.0.0.9")
    assert (b.python, b.setup, b.nic, b.slots) == ("p-flag", "s-all", "n-lab", 2)


def test_a_host_named_twice_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="a twice"):
        resolve_cluster(Where(hosts="a,b,a"), Config(), {})


def test_an_unknown_cluster_is_told_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_cluster(Where(cluster="lba"), LAB, {})
    assert "did you mean 'lab'" in caught.value.hint


def test_the_ssh_config_comes_from_the_flag_then_the_environment_then_the_file(
    tmp_path: Path,
) -> None:
    config = Config(ssh_config=Path("/c/ssh"))
    environ = {"DISTCONSOLE_SSH_CONFIG": "/e/ssh"}
    own = tmp_path / "ssh"
    flag = Where(hosts="a", ssh_config=str(own))
    with pytest.raises(ConfigError, match="no such file"):
        resolve_cluster(flag, config, environ)
    own.touch()
    assert resolve_cluster(flag, config, environ).ssh_config == str(own)
    assert resolve_cluster(Where(hosts="a"), config, environ).ssh_config == "/e/ssh"
    assert resolve_cluster(Where(hosts="a"), config, {}).ssh_config == "/c/ssh"
    assert resolve_cluster(Where(hosts="a"), Config(), {}).ssh_config is None


def test_a_user_of_a_host_file_is_a_user(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("gpu0\ngpu1 user=$(touch${IFS}/x)\n")
    with pytest.raises(ConfigError, match=r"hosts:2: '\$\(touch\$\{IFS\}/x\)' is not a user"):
        read_hostfile(path)


def test_a_node_of_slurm_is_a_host() -> None:
    with pytest.raises(ConfigError, match=r"SLURM_JOB_NODELIST: 'a;touch' is not a host"):
        resolve_cluster(Where(), Config(), {"SLURM_JOB_NODELIST": "n[1-2],a;touch"})


def test_of_a_thousand_hosts_one_is_found_without_a_look_at_the_others() -> None:
    looked_at = 0

    class Watched(str):
        """A name that counts how often any is compared."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return str.__eq__(self, other)

    hosts = tuple(Host(HostName(Watched(f"node{number}"))) for number in range(1000))
    cluster = Cluster(hosts)
    assert [cluster.host(f"node{number}") for number in (0, 500, 999)] == [
        hosts[0],
        hosts[500],
        hosts[999],
    ]
    assert cluster.host("node1000") is None
    assert looked_at < 100


def test_hosts_of_which_nothing_is_configured_share_what_holds_for_all() -> None:
    shared = HostSettings(python="/opt/py")
    assert HostSettings().over(shared) is shared
    assert HostSettings(slots=2).over(shared) == HostSettings(python="/opt/py", slots=2)
