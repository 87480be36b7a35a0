"""The files that real OpenSSH reads, on the hosts and on the console; it runs ssh-keygen only."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Alias:
    """One Host block of an ssh_config."""

    name: str
    address: str
    port: int = 22
    jump: str | None = None


def make_key(path: Path, comment: str) -> str:
    """Make an ed25519 key at ``path``, replacing one that is there; return its public line."""
    for old in (path, path.with_name(path.name + ".pub")):
        old.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )
    return path.with_name(path.name + ".pub").read_text().strip()


def known_hosts_line(public_key: str, names: Iterable[str], port: int = 22) -> str:
    """Return the known_hosts(5) line of a host under all its names."""
    patterns = [name if port == 22 else f"[{name}]:{port}" for name in names]
    kind, blob, *_ = public_key.split()
    return f"{','.join(patterns)} {kind} {blob}\n"


def ssh_config(aliases: Iterable[Alias], *, user: str, identity: Path, known_hosts: Path) -> str:
    """Return an ssh_config(5) that knows these hosts and trusts nothing else of the machine."""
    blocks = []
    for alias in aliases:
        jump = f"    ProxyJump {alias.jump}\n" if alias.jump else ""
        blocks.append(
            f"Host {alias.name}\n    HostName {alias.address}\n    Port {alias.port}\n{jump}"
        )
    everywhere = f"""Host *
    User {user}
    IdentityFile {identity}
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {known_hosts}
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    UpdateHostKeys no
    BatchMode yes
    ControlMaster no
    ControlPath none
    ConnectTimeout 10
    LogLevel ERROR
"""
    return "\n".join([*blocks, everywhere])


def sshd_config(
    *,
    host_key: Path,
    authorized_keys: Path,
    listen: str,
    pid_file: Path,
    environment: Mapping[str, str],
) -> str:
    """Return an sshd_config(5) with Debian's limits, keys only, and ``environment`` set."""
    sftp = next((path for path in SFTP_SERVERS if Path(path).exists()), "internal-sftp")
    variables = " ".join(f'"{name}={value}"' for name, value in environment.items())
    return f"""{listen}
HostKey {host_key}
AuthorizedKeysFile {authorized_keys}
PidFile {pid_file}
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin yes
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PrintLastLog no
AcceptEnv LANG LC_*
LogLevel VERBOSE
Subsystem sftp {sftp}
SetEnv {variables}
"""


def this_user() -> pwd.struct_passwd:
    return pwd.getpwuid(os.getuid())


def write_accounts(etc: Path, home: str, shell: str) -> None:
    """Write a passwd in which this user's home is ``home``, and a shadow without secrets."""
    user, lines, shadow = this_user(), [], []
    for entry in pwd.getpwall():
        fields = [str(field) for field in entry]
        if entry.pw_name == user.pw_name:
            fields[5:] = [home, shell]
        lines.append(":".join(fields))
        shadow.append(f"{entry.pw_name}:*:19000:0:99999:7:::")
    (etc / "passwd").write_text("\n".join(lines) + "\n")
    (etc / "shadow").write_text("\n".join(shadow) + "\n")


def find_sshd() -> str | None:
    """Return where sshd is; it is rarely on a user's PATH."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
