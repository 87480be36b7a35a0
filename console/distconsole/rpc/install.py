"""The program that stores the agent's file on a node, as text for the node's Python. It is not run here.

Python and not ``cat``: an error is then a sentence with its cause, the digest is verified before
the file gets its name, and no SFTP subsystem is needed, which would add six round trips and may show
other folders than the shell does. It parses under Python 2, so that an old one is refused in words.

It also keeps the program compiled, which costs less than what bridge and agent would spend on compiling
it for themselves; where that does not come about, the agent tries again.
"""

from __future__ import annotations

INSTALLER = r"""
import sys, os, json
def refuse(code, message, hint):
    sys.stdout.write(json.dumps({"error": {"code": code, "message": message, "hint": hint}}) + "\n")
    sys.stdout.flush()
    sys.exit(1)
if sys.version_info < (3, 9):
    refuse("python", "%s is Python %s; 3.9 or newer is needed" % (sys.executable, ".".join(str(part) for part in sys.version_info[:3])),
        "name a newer one with --python PATH, or activate an environment with --setup CMD")
import errno, hashlib, time, zlib
path, digest = sys.argv[1:3]
folder = os.path.dirname(path)
aside = os.path.join(folder, ".%s.%d.%s" % (os.path.basename(path), os.getpid(), os.urandom(6).hex()))
def read(size):
    parts = []
    while size:
        part = os.read(0, min(size, 65536))
        if not part:
            sys.exit(1)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
line = b""
while not line.endswith(b"\n") and len(line) < 16:
    line += read(1)
content = zlib.decompress(read(int(line)))
if hashlib.sha256(content).hexdigest() != digest:
    refuse("internal", "the agent's file arrived damaged", "try again")
try:
    os.makedirs(folder, 0o700, exist_ok=True)
    for name in os.listdir(folder):
        old = os.path.join(folder, name)
        if name.startswith(".agent-") and os.lstat(old).st_mtime < time.time() - 86400:
            os.unlink(old)
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(aside, path)
    except OSError:
        try:
            os.unlink(aside)
        except OSError:
            pass
        raise
except OSError as error:
    hint = "or choose another place: --setup 'export XDG_CACHE_HOME=/scratch/$USER'"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free some space (df -h %s; quota -s), %s" % (folder, hint)
    else:
        hint = "make it writable, " + hint
    refuse("storage", "cannot store the agent in %s: %s" % (folder, error.strerror), hint)
try:
    sys.path.insert(0, path)
    from distconsole_agent.node_folder.compiled import keep_compiled
    keep_compiled(path)
except Exception:
    pass
""".strip()
"""Usage: ``python -E -c INSTALLER PATH SHA256``, stdin: the length in decimal, a newline, the file deflated."""
