"""Tries the same claims on every platform of ``platforms.rows``, and writes the table of docs/compatibility.md.

``make platforms`` runs all, for hours; ``python -m platforms`` (with tests/ on PYTHONPATH) takes the options below.
It needs root and debootstrap: each Debian is a root of its own, made once and kept in the cache of the development set-up.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

from platforms.page import make_table
from platforms.rows import CLAIMS, ROWS, Row
from suite.pages import put_between_marks

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent
MIRROR = "http://deb.debian.org/debian"
TOOLS = (
    "ca-certificates,git,make,gcc,g++,iproute2,procps,hostname,python3,python3-venv,python3-dev"
)
SECONDS = 3600
"""Of a row, the installation of torch and the building of Horovod included."""


def main() -> int:
    asked = _options().parse_args()
    rows = [row for row in ROWS if all(word in row.name for word in asked.only.split())]
    if asked.list:
        print("\n".join(row.name for row in rows))
        return 0
    results = Path(asked.results).absolute()
    results.mkdir(parents=True, exist_ok=True)
    failed = [row.name for row in rows if not asked.no_run and not try_row(row, results)]
    if asked.page:
        put_between_marks(Path(asked.page), "platforms", make_table(results))
    print(f"{len(rows)} platforms, results in {results}", *failed, sep="\nnot all right: ")
    return 1 if failed else 0


def try_row(row: Row, results: Path) -> bool:
    """Try a platform's claims; return whether all of them hold."""
    began = time.monotonic()
    for kind in ("xml", "versions"):
        (results / f"{row.name}.{kind}").unlink(missing_ok=True)
    tests = [test for each in CLAIMS.values() for test in each]
    with (results / f"{row.name}.log").open("wb") as log:
        root = make_root(row.debian, log)
        source = copy_source(root)
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", str(HERE / "enter.sh")]
        command += [root, source, results, "tests/platforms/row.sh"]
        command += [row.python, row.torch, row.mpi, row.name, *tests]
        code = subprocess.run(
            command,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        ).returncode
    said = "all right" if code == 0 else f"exit code {code}"
    print(f"{row.name}: {said} after {time.monotonic() - began:.0f} s", flush=True)
    return code == 0


def make_root(debian: str, log: BinaryIO) -> Path:
    """Return the root of a Debian release, made by debootstrap if it is not there yet.

    Raises CalledProcessError if debootstrap fails.
    """
    root = _cache() / debian
    if (root / ".made").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    # A debootstrap that is older than the release has no script of its name: they are all the same one.
    script = Path("/usr/share/debootstrap/scripts") / debian
    words = [] if script.exists() else [script.with_name("sid")]
    subprocess.run(
        [
            "debootstrap",
            "--variant=minbase",
            f"--include={TOOLS}",
            debian,
            root,
            _mirror(),
            *words,
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        check=True,
    )
    # No package starts a daemon there; the time of an archive's snapshot does not matter.
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    (root / "etc/apt/apt.conf.d/90any-age").write_text('Acquire::Check-Valid-Until "false";\n')
    # Not every release has a package that writes it.
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
    (root / ".made").touch()
    return root


def copy_source(root: Path) -> Path:
    """Return a copy of the files that git knows, beside the root, as they are in the working folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=SOURCE,
        capture_output=True,
        check=True,
    ).stdout
    copy = root.with_name(f"{root.name}-src")
    shutil.rmtree(copy, ignore_errors=True)
    for name in map(os.fsdecode, filter(None, listed.split(b"\0"))):
        if (SOURCE / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(SOURCE / name, copy / name, follow_symlinks=False)
    for name in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"):
        if Path(name).exists():
            shutil.copy2(name, root / name[1:])
    return copy


def _environment() -> dict[str, str]:
    """Return what a shell of the other Debian needs, and how pip is told to reach its index."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    kept.pop("PIP_FIND_LINKS", None)
    return kept | {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def _cache() -> Path:
    kept = os.environ.get("DISTCONSOLE_DEV_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(kept or Path(cache) / "distconsole-dev") / "platforms"


def _mirror() -> str:
    """Return the mirror of this machine's own Debian, which it can reach."""
    for path in sorted(Path("/etc/apt").glob("sources.list*/*.sources")):
        for line in path.read_text().splitlines():
            if line.startswith("URIs:"):
                return line.split()[1]
    return MIRROR


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m platforms", description=__doc__)
    options.add_argument("--only", default="", help="words that a platform's name has")
    options.add_argument("--results", default="build/platforms", metavar="FOLDER")
    options.add_argument("--page", metavar="FILE", help="write the table there")
    options.add_argument("--no-run", action="store_true", help="the table of what is there")
    options.add_argument("--list", action="store_true", help="name the platforms, and stop")
    return options


if __name__ == "__main__":
    sys.exit(main())
