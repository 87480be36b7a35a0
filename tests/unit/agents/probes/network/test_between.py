"""Logins from node to node, against stand-ins for ssh and mpirun on the PATH."""

import json
from pathlib import Path

import pytest

from distconsole_agent import probes
from distconsole_agent.probes import ProbeError
from distconsole_agent.probes.network import between
from distconsole_agent.probes.programs import Ended

SSH = """\
#!/bin/sh
echo "$@" >> {log}
while [ "$1" != -- ]; do shift; done
case $2 in
nowhere) echo "ssh: Could not resolve hostname nowhere: Name or service not known" >&2; exit 255 ;;
locked) echo "root@locked: Permission denied (publickey)." >&2; exit 255 ;;
esac
[ "$3" = true ]
"""
MPIRUN = """\
#!/bin/sh
echo "$@" > {log}
env | grep -E "_args|if_include" | sort >> {log}
echo '[1,0]<stdout>:distconsole-rank {{"stage": "started"}}'
echo 'distconsole-rank {{"group": {{"rank": 0, "world_size": 2}}}}'
echo 'distconsole-rank not JSON'
printf '%s\\n' ---------- 'orted: command not found' >&2
exit 1
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("ssh", SSH), ("mpirun", MPIRUN)):
        program = tmp_path / name
        program.write_text(text.format(log=tmp_path / f"{name}.log"))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_a_host_is_tried_by_its_names_until_one_means_something(programs: Path) -> None:
    targets = [
        {"name": "b", "as": ["nowhere", "b-train", "10.0.0.2"]},
        {"name": "c", "as": ["locked", "c-train"]},
        {"name": "d", "as": ["nowhere", "-oProxyCommand=x"]},
    ]
    facts = probes.run("between", {"targets": targets}, 10.0)
    assert facts["client"] is True
    told = [(each["target"], each["name"], each["ok"], each["error"]) for each in facts["logins"]]
    assert told == [
        ("b", "b-train", True, ""),
        ("c", "locked", False, "auth"),
        ("d", "nowhere", False, "resolve"),
    ]
    assert facts["logins"][1]["said"] == "root@locked: Permission denied (publickey)."


def test_a_login_asks_nobody_learns_nothing_and_forwards_nothing(programs: Path) -> None:
    probes.run("between", {"targets": [{"name": "b", "as": ["b"]}]}, 10.0)
    words = (programs / "ssh.log").read_text()
    for option in ("BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no"):
        assert f"-o {option}" in words
    for option in ("ControlPath=none", "ClearAllForwardings=yes", "ForwardAgent=no"):
        assert f"-o {option}" in words


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("ssh: connect to host b port 22: Connection refused", "refused"),
        ("ssh: connect to host b port 22: Connection timed out", "connect"),
        ("No ED25519 host key is known for b and you have requested strict checking.", "host_key_unknown"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "host_key_changed"),
        ("Permissions 0644 for 'id' are too open.\nWARNING: UNPROTECTED PRIVATE KEY FILE!\nPermission denied", "modes"),
        ("something else", "other"),
    ],
)  # fmt: skip
def test_what_ssh_says_is_sorted_by_cause(said: str, kind: str) -> None:
    assert between.kind_of(Ended(255, "", said, 0.1)) == kind


def test_a_host_without_ssh_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = probes.run("between", {"targets": [{"name": "b", "as": ["b"]}]}, 5.0)
    assert facts == {"client": False, "logins": []}


@pytest.mark.parametrize("targets", [["b"], [{"as": ["b"]}], [{"name": "b", "as": "b"}]])
def test_targets_that_are_none_are_refused(targets: object) -> None:
    with pytest.raises(ProbeError):
        probes.run("between", {"targets": targets}, 5.0)


def test_mpirun_is_started_as_by_hand_and_its_ranks_words_are_read(programs: Path) -> None:
    asked = {"hosts": ["a", "b-train"], "family": "Open MPI", "networks": ["10.0.0.0/24"]}
    facts = probes.run("mpi.ssh", asked, 12.0)
    assert facts == {
        "exit_code": 1,
        "groups": [{"rank": 0, "world_size": 2}],
        "said": ["orted: command not found"],
    }
    log = (programs / "mpirun.log").read_text()
    words, *variables = log.splitlines()
    assert words.startswith(
        "--host a:1,b-train:1 -np 2 --map-by slot --bind-to none --timeout 10 "
    )
    assert "OMPI_MCA_btl_tcp_if_include=10.0.0.0/24" in variables
    assert any("OMPI_MCA_plm_rsh_args=-o BatchMode=yes" in each for each in variables)
    job = log.rpartition(" mpi ")[2].splitlines()[0]
    assert json.loads(job)["world_size"] == 2


def test_mpich_takes_the_hosts_in_its_own_words(programs: Path) -> None:
    probes.run("mpi.ssh", {"hosts": ["a", "b"], "family": "MPICH"}, 12.0)
    assert (
        (programs / "mpirun.log").read_text().startswith("-hosts a,b -ppn 1 -n 2 -launcher ssh ")
    )


def test_no_host_becomes_an_option_of_mpirun() -> None:
    with pytest.raises(ProbeError):
        probes.run("mpi.ssh", {"hosts": ["a", "--prefix=/x"]}, 12.0)


class Clock:
    """Time that only passes while something waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_login_that_failed_is_tried_again_after_what_sshd_adds_for_it(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(between, "time", clock)
    monkeypatch.setattr(between, "_FAILED", {})

    def look() -> tuple[bool, float]:
        began, asked = clock.now, {"targets": [{"name": "c", "as": ["locked"]}]}
        (login,) = probes.run("between", asked, 10.0)["logins"]
        return login["ok"], clock.now - began

    assert look() == (False, 0.0)
    (programs / "ssh").write_text("#!/bin/sh\n")  # the key is accepted now
    assert look() == (True, between.AGAIN_SECONDS)
    assert look() == (True, 0.0)
