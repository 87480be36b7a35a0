"""Asks Git about a work tree, whose settings then start no monitor, hook, fetch or filter."""

from __future__ import annotations

import os
import subprocess

OF_THE_PERSON = ("GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_CEILING_", "GIT_DISCOVERY_")
"""Prefixes of Git's variables that are kept; others would have it answer for another repository or file."""


def ask_git(folder: str, *words: str, codes: tuple[int, ...] = (0,), seconds: float = 10) -> str:
    """Return Git's output; raises OSError, or SubprocessError for an exit code that is not in ``codes``."""
    quiet = ("--no-pager", "-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null", "-C", folder)
    environ = os.environ.items()
    kept = {k: v for k, v in environ if not k.startswith("GIT_") or k.startswith(OF_THE_PERSON)}
    env = dict(kept, GIT_OPTIONAL_LOCKS="0", GIT_NO_LAZY_FETCH="1", GIT_ALLOW_PROTOCOL="none")
    done = subprocess.run(
        ["git", *quiet, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=seconds,
        env=env,
        check=False,
    )
    if done.returncode not in codes:
        done.check_returncode()
    return os.fsdecode(done.stdout)


def is_changed(folder: str, seconds: float = 10) -> bool | None:
    """Return True if tracked files differ from the commit, also those of submodules; None if a filter of the repository would have to run."""
    status = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
    # Git compares a file by the program that a filter names; those of the person's own settings may run.
    # Only Git 2.26 and later shows the file of each.
    named = ("-z", "--name-only", "--get-regexp", r"^filter\.")
    if ask_git(folder, "config", *named, codes=(0, 1), seconds=seconds):
        scopes = ask_git(folder, "config", "--show-scope", *named, seconds=seconds).split("\0")[
            ::2
        ]
        if not {"local", "worktree"}.isdisjoint(scopes):
            return None
    if ask_git(folder, *status, seconds=seconds).strip():
        return True
    entries = ask_git(folder, "ls-files", "-z", "--stage", ":/", seconds=seconds).split("\0")
    links = (entry.partition("\t")[2] for entry in entries if entry.startswith("160000 "))
    submodules = (os.path.join(folder, link) for link in links)
    inside = {is_changed(each, seconds) for each in submodules if os.path.exists(f"{each}/.git")}
    return True if True in inside else None if None in inside else False
