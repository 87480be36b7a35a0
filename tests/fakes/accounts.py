"""An sshd with accounts of its own, in a mount namespace whose /etc/passwd has them; needs root, changes nothing outside."""

import os
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from fakes.sshd import SSHD, SshServer

MOST = 20
FIRST_UID = 40_000 + os.getpid() * MOST % 20_000
"""Other workers have other users: an agent outlives its link."""


class Accounts:
    """Accounts with a home and a login shell each, all with one key, and a server that lets them in."""

    def __init__(self, shells: dict[str, str], *, expired: tuple[str, ...] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dc-accounts-"))
        self.folder.chmod(0o755)
        passwd, shadow = Path("/etc/passwd").read_text(), Path("/etc/shadow").read_text()
        for uid, (name, shell) in enumerate(shells.items(), FIRST_UID):
            home = self.home(name)
            home.mkdir(parents=True)
            shutil.chown(home, uid, uid)
            passwd += f"{name}:x:{uid}:{uid}::{home}:{shell}\n"
            shadow += f"{name}:*:{0 if name in expired else 20000}:0:99999:7:::\n"
        files = {"passwd": passwd, "shadow": shadow}
        mounts = []
        for name, text in files.items():
            (self.folder / name).write_text(text)
            mounts.append(f"mount --bind {self.folder / name} /etc/{name}")
        inner = " && ".join([*mounts, f'exec {SSHD} "$@"'])
        self.program = self.folder / "sshd"
        self.program.write_text(
            f'#!/bin/sh\nexec unshare --mount sh -c {shlex.quote(inner)} sshd "$@"\n'
        )
        self.program.chmod(0o755)
        self._servers: list[SshServer] = []

    def home(self, name: str) -> Path:
        return self.folder / "home" / name

    def put(self, name: str, files: dict[str, str]) -> None:
        """Write files of a home, with HOME for its path."""
        for path, text in files.items():
            file = self.home(name) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("HOME", str(self.home(name))))

    def serve(self, lines: str = "", matches: str = "") -> SshServer:
        """Return a server that runs; its ``node`` is reached as the account that User, or the host, names."""
        server = SshServer(
            self.folder / f"server{len(self._servers)}",
            lines=f"SetEnv PATH=/usr/local/bin:/usr/bin:/bin XDG_CACHE_HOME=\n{lines}",
            matches=matches,
            program=str(self.program),
        )
        self._servers.append(server)
        return server.start()

    def close(self) -> None:
        for server in self._servers:
            server.stop()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if FIRST_UID <= process.uids().real < FIRST_UID + MOST:
                    process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def lacks_accounts() -> str:
    """Return why there can be none here; empty if there can."""
    if os.getuid() != 0 or SSHD is None:
        return "accounts need root and an sshd"
    tried = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True)
    return "" if tried.returncode == 0 else "there are no mount namespaces here"
