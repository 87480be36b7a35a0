"""The testbed does what it says: each fault is looked at from where it should be felt."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from suite.programs import run_to_end
from testbed import HOME, Host, Testbed
from testbed.keeper import wait_for

pytestmark = pytest.mark.testbed

RECEIVE = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    connection.recv(1)
    connection.sendall(b"done")
    connection.close()
"""
SEND = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1) as connection:
        connection.sendall(b".")
        print("took" if connection.recv(4) == b"done" else "lost")
except TimeoutError:
    print("silence")
except OSError as error:
    print("error", type(error).__name__)
"""


def transfer(sender: Host, receiver: Host) -> str:
    """Send a byte over the training network; return what the sender met."""
    words = [receiver.train_address, "5000"]
    receiving = receiver.popen(
        [sys.executable, "-c", RECEIVE, *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert receiving.stdout.readline() == "listening\n"
        return sender.exec([sys.executable, "-c", SEND, *words]).stdout.strip()
    finally:
        receiver.signal(9, RECEIVE.strip()[:20])
        receiving.communicate()


def ssh_fails(bed: Testbed, host: str) -> str:
    """Return what ssh says when it cannot reach a host."""
    options = [*bed.ssh_options, "-o", "ConnectTimeout=1", "-o", "LogLevel=INFO"]
    done = run_to_end(["ssh", *options, host, "true"])
    assert done.returncode == 255
    return done.stderr


def test_each_host_has_its_own_name_home_and_folders(bed: Testbed) -> None:
    seen = "hostname; echo $HOME; pwd; touch ~/mine /tmp/mine /dev/shm/mine; ls ~ /tmp /dev/shm"
    first = bed.ssh("node1", seen).stdout
    assert first.startswith(f"node1\n{HOME}\n{HOME}\n")
    assert bed.ssh("node2", "hostname; ls -A ~ /dev/shm; ls /tmp/mine || true").stdout == (
        f"node2\n/dev/shm:\n\n{HOME}:\n.cache\n"
    )
    assert not Path("/tmp/mine").exists()
    assert not Path("/dev/shm/mine").exists()


def test_hosts_differ_in_boot_id_and_see_only_their_own_processes(healed_bed: Testbed) -> None:
    boots = {
        healed_bed.ssh(name, "cat /proc/sys/kernel/random/boot_id").stdout
        for name in healed_bed.host_names
    }
    assert len(boots) == 2
    own = healed_bed.ssh("node1", "ls -d /proc/[0-9]* | wc -l").stdout
    assert int(own) < 15


def test_hosts_see_the_tests_folder_and_the_tests_interpreter(
    healed_bed: Testbed, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text("import sys; print(sys.prefix)")
    assert healed_bed.ssh("node2", f"python3 {tmp_path}/script.py").stdout.strip() == sys.prefix


def test_names_resolve_to_the_same_addresses_everywhere(healed_bed: Testbed) -> None:
    for asking in healed_bed.hosts:
        for asked in healed_bed.hosts:
            found = asking.exec(["getent", "hosts", asked.name, f"{asked.name}-train"]).stdout
            assert [line.split()[0] for line in found.splitlines()] == [
                asked.address,
                asked.train_address,
            ]


def test_sftp_starts_in_the_hosts_own_home(healed_bed: Testbed) -> None:
    run_to_end(
        ["sftp", "-q", *healed_bed.ssh_options, "-b", "-", "node1"],
        input="mkdir pushed\n",
        check=True,
    )
    assert healed_bed.hosts[0].path(f"{HOME}/pushed").is_dir()


def test_a_host_that_the_console_cannot_route_to_is_reached_by_jump(healed_bed: Testbed) -> None:
    with pytest.raises(TimeoutError):
        socket.create_connection((healed_bed.hosts[1].train_address, 22), timeout=0.3)
    assert healed_bed.ssh("node2-behind", "hostname").stdout == "node2\n"


def test_a_power_cut_is_silent_and_power_brings_back_an_empty_host(bed: Testbed) -> None:
    host = bed.hosts[1]
    bed.ssh("node2", "touch ~/mine; nohup sleep 1000 >/dev/null 2>&1 &")
    first_boot = host.exec("cat /proc/sys/kernel/random/boot_id").stdout
    with socket.create_connection((host.address, 22), timeout=2) as peer:
        assert peer.recv(4) == b"SSH-"
        peer.settimeout(0.3)
        while True:
            try:
                host.power_cut() if host.is_on else None
                received = peer.recv(4096)
            except TimeoutError:
                break
            assert received, "the peer was told: a FIN came"
    assert not host.is_on
    host.power_on()
    assert host.processes("sleep 1000") == []
    assert bed.ssh("node2", "ls -A ~; cat /proc/sys/kernel/random/boot_id").stdout != first_boot
    assert not host.path(f"{HOME}/mine").exists()


@pytest.mark.parametrize("lost", ["mgmt", "train"])
def test_a_pulled_cable_cuts_one_network_only(healed_bed: Testbed, lost: str) -> None:
    host = healed_bed.hosts[1]
    host.link_down("mgmt" if lost == "mgmt" else "train")
    carrier = {
        name: host.exec(f"cat /sys/class/net/{name}/carrier", check=False).stdout.strip()
        for name in ("eth0", "eth1")
    }
    assert carrier == {"eth0": str(int(lost != "mgmt")), "eth1": str(int(lost != "train"))}
    assert transfer(healed_bed.hosts[0], host).startswith("took") == (lost == "mgmt")
    if lost == "mgmt":
        assert "timed out" in ssh_fails(healed_bed, "node2")
    else:
        healed_bed.ssh("node2", "true")
    host.heal()
    healed_bed.ssh("node2", "true")
    assert transfer(healed_bed.hosts[0], host).startswith("took")


def test_the_console_loses_every_host_and_the_hosts_do_not_lose_one_another(
    healed_bed: Testbed,
) -> None:
    healed_bed.cut_console()
    assert "timed out" in ssh_fails(healed_bed, "node1")
    first, second = healed_bed.hosts
    reach = f"exec 3<>/dev/tcp/{second.address}/22; head -c4 <&3"
    assert first.exec(reach).stdout == "SSH-"
    healed_bed.restore_console()
    healed_bed.ssh("node1", "true")


def test_one_host_is_cut_from_the_console_only(healed_bed: Testbed) -> None:
    first, second = healed_bed.hosts
    first.cut_from_console()
    assert "timed out" in ssh_fails(healed_bed, "node1")
    healed_bed.ssh("node2", "true")
    assert second.exec(f"exec 3<>/dev/tcp/{first.address}/22; head -c4 <&3").stdout == "SSH-"
    first.mend_to_console()
    healed_bed.ssh("node1", "true")


def test_sessions_survive_a_refusing_sshd(bed: Testbed) -> None:
    host = bed.hosts[0]
    session = subprocess.Popen(
        ["ssh", *bed.ssh_options, "node1", "echo on; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert session.stdout.readline() == "on\n"
    host.stop_sshd()
    assert "refused" in ssh_fails(bed, "node1")
    assert session.communicate("still here\n")[0] == "still here\n"
    host.start_sshd()
    bed.ssh("node1", "true")


def test_a_frozen_host_takes_connections_and_says_nothing(healed_bed: Testbed) -> None:
    host = healed_bed.hosts[0]
    host.freeze()
    with socket.create_connection((host.address, 22), timeout=2) as connection:
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(4)
    host.thaw()
    healed_bed.ssh("node1", "true")


def test_sessions_get_the_environment_that_was_set(bed: Testbed) -> None:
    bed.hosts[0].set_environment({"FLAVOUR": "sweet and sour"})
    assert bed.ssh("node1", "echo $FLAVOUR").stdout == "sweet and sour\n"
    bed.reset()
    assert bed.ssh("node1", "echo $FLAVOUR").stdout == "\n"


def test_nodes_reach_one_another_only_where_asked(healed_bed: Testbed) -> None:
    hop = "ssh -o BatchMode=yes node2 hostname"
    assert healed_bed.ssh("node1", hop, check=False).returncode == 255
    with Testbed(hosts=2, node_ssh=True) as open_bed:
        assert open_bed.ssh("node1", hop).stdout == "node2\n"


def test_processes_are_found_and_signalled_from_outside(bed: Testbed) -> None:
    host = bed.hosts[0]
    bed.ssh("node1", "setsid sleep 4711 >/dev/null 2>&1 < /dev/null &")
    assert wait_for(
        lambda: [it.argv for it in host.processes("sleep 4711")] == [("sleep", "4711")], 5
    )
    (met,) = host.processes("sleep 4711")
    assert host.signal(15, "sleep 4711") == [met]
    assert wait_for(lambda: not host.processes("sleep 4711"), 5)
    assert wait_for(lambda: not host.processes(), 5), "a session that ended leaves nothing"


def traces(folder: str, link: str, sleeper: str) -> list[str]:
    """Return what is left of a bed on this machine, where others may be up whose names begin like its own."""
    inside = re.compile(rf"{re.escape(folder)}(?!\d)")
    links = run_to_end(["ip", "-brief", "link"], check=True)
    left = [
        line for line in links.stdout.splitlines() if re.match(rf"{re.escape(link)}(?!\d)", line)
    ]
    left += [
        line
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if inside.search(line)
    ]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            left += [f"{entry.name} {argv}"] if inside.search(argv) or sleeper in argv else []
    return left + ([folder] if Path(folder).exists() else [])


OWNER = """
import os, sys
from testbed import Testbed
bed = Testbed(hosts=2)
bed.up()
bed.hosts[0].exec(f"setsid sleep 1{os.getpid()} >/dev/null 2>&1 < /dev/null &")
print(bed.folder, bed.uplink, bed.keeper_pid, bed.hosts[0].pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("victim", ["owner", "keeper"])
def test_a_killed_bed_leaves_nothing(victim: str) -> None:
    tests = str(Path(__file__).parents[1])
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env={"PYTHONPATH": tests, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    folder, link, keeper, host = owner.stdout.readline().split()
    sleeper = f"sleep 1{owner.pid}"
    namespaces = {name: namespace(host, name) for name in ("net", "mnt", "pid")}
    assert len(traces(folder, link, sleeper)) > 3
    assert users_of(namespaces)

    if victim == "owner":
        owner.kill()
    else:
        subprocess.run(["kill", "-9", keeper], check=True)
        owner.kill()
    owner.communicate()

    def swept() -> bool:
        if victim == "keeper":
            # Nobody was left to remove the folder: the next bed does.
            with Testbed(hosts=1):
                pass
        return not traces(folder, link, sleeper)

    assert wait_for(swept, 10), traces(folder, link, sleeper)
    # A process that ends has lost its command line before it leaves its namespaces.
    assert wait_for(lambda: not users_of(namespaces), 10), users_of(namespaces)


def namespace(pid: str, kind: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def users_of(namespaces: dict[str, str]) -> list[str]:
    """Return the processes that keep any of these namespaces alive."""
    users = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if any(namespace(entry.name, kind) == it for kind, it in namespaces.items()):
                    users.append(entry.name)
            except OSError:
                continue
    return users


def test_beds_run_side_by_side_on_networks_of_their_own(healed_bed: Testbed) -> None:
    with Testbed(hosts=1, prefix="other") as second:
        assert second.hosts[0].address != healed_bed.hosts[0].address
        assert second.ssh("other1", "hostname").stdout == "other1\n"
        assert healed_bed.ssh("node1", "hostname").stdout == "node1\n"
