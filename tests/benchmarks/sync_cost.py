"""Bringing a project of 2,000 small files to two hosts: the first time, with one file changed, and
with none, over connections that stand; and rsync to the same hosts. It starts no run.
"""

import os
import random
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.alone import rows_of_turns
from benchmarks.cluster import on_hosts
from benchmarks.measure import Compared, compare, methods
from distconsole.config.schema import Config
from distconsole.launch.sync.send import KeptCode, bring, gather
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.requests import Run
from distconsole.session import Session, on_every
from testbed import Testbed

FILES = 2000
SEED = 7
OF = f"sync, {FILES:,} files to two hosts"
LINES = (
    Compared(f"{OF}, all new", "first"),
    Compared(f"{OF}, one changed", "changed", "rsync", "rsync -a", seconds=1.0),
    Compared(f"{OF}, none changed", "same"),
    Compared(f"{OF}, one changed, by rsync with kept connections", "rsync_kept"),
)


class Project:
    """A project of small files on this machine, and the hosts that get it."""

    def __init__(self, bed: Testbed, session: Session, folder: Path) -> None:
        self._bed = bed
        self._session = session
        self._folder = folder
        self._root = folder / "project"
        self._kept = KeptCode(folder / "kept")
        self._random = random.Random(SEED)
        self._runs = 0
        for number in range(FILES):
            path = self._root / f"package{number // 50:02d}" / f"module{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._text(self._random.randrange(200, 6000)))
        (self._root / "train.py").write_text("print('here')\n")

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self._root.rglob("*") if path.is_file())

    def first(self) -> float:
        """No host has seen a file of it."""
        shutil.rmtree(self._folder / "kept", ignore_errors=True)
        for host in self._bed.host_names:
            self._bed.ssh(host, f"rm -rf /tmp/distconsole-{os.getuid()}/blobs")
        return self._bring()

    def changed(self) -> float:
        self.same()
        self._change()
        return self._bring()

    def same(self) -> float:
        return self._bring()

    def rsync(self, *options: str) -> float:
        """The same project to the same hosts by rsync, all hosts at a time."""
        self._rsync(options)
        self._change()
        return self._rsync(options)

    def rsync_kept(self) -> float:
        sockets = self._folder / "ssh-%n"
        return self.rsync(
            *("-o", "ControlMaster=auto", "-o", f"ControlPath={sockets}", "-o", "ControlPersist=5")
        )

    def _bring(self) -> float:
        """Read the project and bring it; return the seconds."""
        hosts = [HostName(name) for name in self._bed.host_names]
        self._runs += 1
        began = time.perf_counter()
        code = gather(Run("train.py", sync=True), self._root, self._kept)
        contents, _ = bring(code, self._kept, f"bench-{self._runs}", self._session, hosts)
        seconds = time.perf_counter() - began
        if len(code.files) != FILES + 1 or contents > len(hosts) * len(code.files):
            raise RuntimeError(f"{len(code.files)} files, {contents} sent")
        return seconds

    def _rsync(self, options: Sequence[str]) -> float:
        ssh = " ".join(["ssh", *self._bed.ssh_options, *options])
        began = time.perf_counter()
        copies = [
            subprocess.Popen(
                ["rsync", "-a", "--delete", "-e", ssh, f"{self._root}/", f"{name}:/tmp/by-rsync/"]
            )
            for name in self._bed.host_names
        ]
        if codes := [code for copy in copies if (code := copy.wait())]:
            raise RuntimeError(f"rsync ended with {codes}")
        return time.perf_counter() - began

    def _change(self) -> None:
        number = self._random.randrange(FILES)
        path = self._root / f"package{number // 50:02d}" / f"module{number}.py"
        path.write_text(self._text(self._random.randrange(200, 6000)))

    def _text(self, size: int) -> str:
        words = ("def ", "return ", "self.", "model", "loss", " = ", "(x)", "\n    ")
        return "".join(self._random.choices(words, k=size // 5))


@on_hosts(2)
def measure(bed: Testbed, folder: Path, rounds: int = 9) -> dict[str, Any]:
    """Bring the project each way once a round and return seconds."""
    skipped = {} if shutil.which("rsync") else {"rsync": "rsync is not installed"}
    hosts = tuple(Host(name=HostName(name)) for name in bed.host_names)
    with Session(Config(), Cluster(hosts, str(bed.ssh_config), None)) as session:
        on_every(session, [host.name for host in hosts], lambda _link: None)
        project = Project(bed, session, folder)
        project.same()
        by_rsync = () if skipped else ("rsync", "rsync_kept")
        ways = methods(project, ("first", "changed", "same", *by_rsync))
        return {**compare(ways, rounds, LINES), "size": project.size, "skipped": skipped}


rows = rows_of_turns
