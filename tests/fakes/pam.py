"""What a real sshd asks a person for, by PAM: a password, a one-time code, both. It needs root, for /etc/pam.d."""

import base64
import hmac
import os
import shutil
import struct
import time
from pathlib import Path

from fakes.sshd import SSHD, SSHD_VERSION

PASSWORD = "correct horse"
SECRET = base64.b32encode(b"twenty bytes secret!").decode()
MODULES = (
    Path("/lib/x86_64-linux-gnu/security"),
    Path("/lib/security"),
    Path("/usr/lib/security"),
)
CODES = "pam_google_authenticator.so"


def lacks_pam() -> str:
    """Return why nothing can be asked for here; empty if it can."""
    if os.getuid() != 0:
        return "only root can name a PAM service"
    if SSHD is None or not Path("/etc/pam.d").is_dir():
        return "no sshd or no PAM here"
    if not any((folder / CODES).exists() for folder in MODULES):
        return "no libpam-google-authenticator here"
    return ""


def code_now() -> str:
    """Return the code of this half minute (RFC 6238)."""
    counter = struct.pack(">Q", int(time.time() // 30))
    digest = hmac.new(base64.b32decode(SECRET), counter, "sha1").digest()
    start = digest[-1] & 15
    return f"{(struct.unpack('>I', digest[start : start + 4])[0] & 0x7FFFFFFF) % 10**6:06}"


class PamService:
    """A service of this name, and an sshd that asks by it: ``program`` with these ``lines`` of its configuration."""

    def __init__(self, folder: Path, *, password: bool = False, code: bool = False) -> None:
        folder.mkdir()
        self.file = Path("/etc/pam.d") / f"distconsole-test-{os.getpid()}"
        self.lines = "UsePAM yes\n"
        self.program = SSHD
        if SSHD_VERSION >= (9, 8):
            self.lines += f"PAMServiceName {self.file.name}\n"
        else:  # it takes the service of its own name
            assert SSHD is not None
            self.program = str(folder / self.file.name)
            Path(self.program).symlink_to(shutil.which(SSHD) or SSHD)
        lines = []
        if password:
            check = folder / "check"
            check.write_text(f'#!/bin/sh\n[ "$(tr -d "\\0")" = "{PASSWORD}" ]\n')
            check.chmod(0o700)
            lines.append(f"auth required pam_exec.so expose_authtok quiet {check}")
        if code:
            secret = folder / "secret"
            secret.write_text(f'{SECRET}\n" TOTP_AUTH\n')
            secret.chmod(0o400)
            lines.append(f"auth required {CODES} secret={secret} user=root")
        kinds = ("account", "session", "password")
        lines += [f"{kind} required pam_permit.so" for kind in kinds]
        self.file.write_text("\n".join(["#%PAM-1.0", *lines, ""]))

    def close(self) -> None:
        self.file.unlink()
