"""Where secrets of every kind come to: one marker is given wherever a secret may be, and looked for everywhere."""

import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from distconsole.__main__ import run
from testbed import Testbed

pytestmark = pytest.mark.testbed

MARKER = "xmarkx"
SCRIPT = f"""
import json, os, sys
assert len(sys.argv) == 10 and sum({MARKER!r} in word for word in sys.argv) == 6, sys.argv
assert all({MARKER!r} in os.environ[name] for name in ("A_TOKEN", "DB_PASSWORD", "OWN_JWT"))
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{{pid}}/cmdline").read().split("\\0")
        given = open(f"/proc/{{pid}}/environ").read()
    except OSError:
        continue
    if any(".pyz" in word for word in words):
        assert "A_TOKEN" not in given and "DB_PASSWORD" not in given, words
"""
ARGUMENTS = (
    *("--lr", "1", "+logger.api_key=xmarkx-1", "--api-key=xmarkx-2", "--auth-token", "xmarkx-3"),
    *('{"password": "xmarkx-4", "lr": 1}', "https://u:xmarkx-5@host/x"),
    "sh -c 'MY_PASS=xmarkx-6 x'",
)
SETUP = "export OWN_JWT=xmarkx-8 SLURM_JWT=xmarkx-9 OMPI_MCA_pass=xmarkx-10; : password=xmarkx-11"

CONFIG = """
setup = ": token=xmarkx-14"
[notify]
webhook = "https://127.0.0.1:1/xmarkx-15"
services = ["json://u:xmarkx-16@127.0.0.1:1/xmarkx-17"]
on = ["failure"]
"""


@contextmanager
def command_lines() -> Iterator[set[bytes]]:
    """Collect the command lines of all processes here and on the hosts, which are namespaces of this machine."""
    seen: set[bytes] = set()
    over = threading.Event()
    looks: Counter[str] = Counter()

    def look() -> None:
        while not over.wait(0.01):
            for entry in os.scandir("/proc"):
                looks[entry.name] += 1
                # The young have just got their program.
                if entry.name.isdigit() and (
                    looks[entry.name] < 20 or looks[entry.name] % 20 == 0
                ):
                    with suppress(OSError):
                        seen.add(Path(entry.path, "cmdline").read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


class Outputs:
    """What every verb printed: the command, and its text."""

    def __init__(self, bed: Testbed, capfd: pytest.CaptureFixture[str]) -> None:
        self._bed, self._capfd = bed, capfd
        self.told: list[tuple[str, str]] = []

    def run(self, verb: str, host: str, *words: str, code: int = 0) -> None:
        self.past(
            verb, "--ssh-config", str(self._bed.ssh_config), "--hosts", host, *words, code=code
        )

    def past(self, *words: str, code: int = 0) -> None:
        ended = run(list(words))
        printed = "".join(self._capfd.readouterr())
        assert ended == code, printed
        self.told.append((" ".join(words), printed))


def test_a_secret_is_in_nothing_that_others_may_read(
    lean_bed: Testbed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    host = lean_bed.host_names[0]
    project, config = tmp_path / "project", tmp_path / "config" / "distconsole"
    for folder in (project, config):
        folder.mkdir(parents=True)
    (project / "train.py").write_text(SCRIPT)
    (project / "fails.py").write_text("raise SystemExit(9)")
    (project / "env").write_text("DB_PASSWORD=xmarkx-12\n")
    (config / "distconsole.toml").write_text(CONFIG)
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.chdir(project)
    out = Outputs(lean_bed, capfd)
    where = ("--env", "A_TOKEN=xmarkx-13", "--env-file", "env", "--setup", SETUP, "--sync")
    job = ("train.py", *ARGUMENTS)
    with command_lines() as seen:
        out.run("run", host, *where, "fails.py", *ARGUMENTS, code=9)
        assert "the webhook cannot be reached" in out.told[-1][1]
        out.run("run", host, *where, "--json", *job)
        out.run("run", host, *where, *job)
        out.run(
            "run", host, "--setup", f"{SETUP}; export API_KEY=xmarkx-18 +; false", *job, code=3
        )
        out.run("check", host, "--setup", SETUP, "--json", *job)
        out.run("check", host, "--setup", SETUP, "--details", *job)
        out.run("runs", host, "--json")
    typed = re.compile(rb"(train|fails)\.py\0--lr\0")
    ours = [line for line in seen if MARKER.encode() in line and not typed.search(line)]
    assert ours == []
    out.run("run", host, *where, "--dry-run", "--json", *job)
    out.run("run", host, *where, "--dry-run", *job)
    runs = [path.stem for path in (tmp_path / "data" / "distconsole" / "runs").glob("*.db")][:2]
    page = str(tmp_path / "page.html")
    for words in (
        *(("runs",), ("runs", "--json"), ("compare", *runs)),
        *(("compare", *runs, "--json"), ("report", "last", "--output", page)),
        *(("export", "last", "--format", kind) for kind in ("jsonl", "csv", "prometheus")),
        *(("notify",), ("doctor",)),
    ):
        out.past(*words)
    assert [told for told in out.told if MARKER in told[1]] == []
    assert any("***" in text for _, text in out.told)
    files = [
        path for path in tmp_path.rglob("*") if path.is_file() and path not in project.iterdir()
    ]
    marked = [path for path in files if MARKER.encode() in path.read_bytes()]
    # What a rerun needs, what was brought, and the person's own file.
    kept = {tmp_path / "data" / "distconsole" / name for name in ("runs", "code")}
    assert [path for path in marked if kept.isdisjoint(path.parents)] == [
        config / "distconsole.toml"
    ]
    assert all(path.stat().st_mode & 0o077 == 0 for path in marked if path.parent != config)
    node = f"/tmp/distconsole-{os.getuid()}"
    listed = lean_bed.ssh(
        host, f"grep -rlsI {MARKER} {node} ~/.cache/distconsole; true"
    ).stdout.split()
    assert {
        path.rpartition("/")[2] for path in listed if not re.search("/(code|blobs)/", path)
    } <= {"spec.json"}
