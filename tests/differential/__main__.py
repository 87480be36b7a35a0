"""Runs other people's test suites bare and watched, and writes the table of docs/reference/hook.md.

``make differential`` runs all; ``python -m differential`` (with tests/ on PYTHONPATH) takes the options below.
Every suite runs twice bare and once watched. A test whose two bare runs differ is compared by its outcome
alone, and not at all where the outcome differs, too.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from differential.page import write_page
from differential.suites import PACKAGES, SUITES, Suite
from distconsole_agent.node_folder.folders import NodeFolders, Program
from distconsole_agent.node_folder.hook_files import unpack_hook
from distconsole_training import records
from suite.environment import scrubbed

HERE = Path(__file__).parent
SECONDS = 3600
"""Of one command."""


class Outcome(NamedTuple):
    """How a test ended, and what it said: numbers that differ from run to run are taken out."""

    ended: str
    said: str


def main() -> int:
    asked = _options().parse_args()
    place = Path(asked.folder).absolute()
    names = [name for name in SUITES if all(word in name for word in asked.only.split())]
    results = place / "results"
    results.mkdir(parents=True, exist_ok=True)
    if not asked.no_run:
        python = make_environment(place)
        hook = make_hook(place)
        for name in names:
            began = time.monotonic()
            (results / f"{name}.json").write_text(json.dumps(try_suite(name, place, python, hook)))
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    print(write_page(results, Path(asked.page) if asked.page else None))
    return 0


def make_environment(place: Path) -> str:
    """Return a Python that has the suites' packages beside those of the tests' own environment."""
    venv = place / "venv"
    python = venv / "bin/python"
    if not (venv / ".made").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        (site,) = venv.glob("lib/python*/site-packages")
        (site / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
        held = [f"{name}=={version(name)}" for name in ("torch", "pytest")]
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES, *held], check=True)
        (venv / ".made").touch()
    return str(python)


def make_hook(place: Path) -> str:
    """Return the hook's folder, laid out by the agent's own function."""
    node = place / "node"
    shutil.rmtree(node, ignore_errors=True)
    node.mkdir(mode=0o700)
    return unpack_hook(NodeFolders(str(node), "dev"), Program((), "dev", None))


def try_suite(name: str, place: Path, python: str, hook: str) -> dict[str, object]:
    """Return what a suite's tests did: test -> bare, watched and bare again."""
    suite = SUITES[name]
    found: dict[str, object] = {
        "version": _version(python, suite.package),
        "day": time.strftime("%Y-%m-%d"),
    }
    folder = _checkout(suite, place)
    if isinstance(folder, str):
        return found | {"obstacle": folder}
    runs = [dict(_run(suite, folder, place, python, way)) for way in (None, hook, None)]
    return found | {
        "tests": {test: [run.get(test) for run in runs] for test in {**runs[0], **runs[1]}}
    }


def _checkout(suite: Suite, place: Path) -> Path | str:
    """Return the folder that a suite's commands run in, or why there is none."""
    if suite.checkout is None:
        folder = place / "empty"
        folder.mkdir(exist_ok=True)
        return folder
    url, tag, within = suite.checkout
    folder = place / f"{url.rpartition('/')[2]}-{tag}"
    if not folder.exists():
        words = ["git", "clone", "-q", "--depth", "1", "--branch", tag, url, str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
    return folder / within


def _run(
    suite: Suite, folder: Path, place: Path, python: str, hook: str | None
) -> Iterator[tuple[str, Outcome]]:
    """Run a suite; yield each test with its outcome."""
    state = place / "state"
    for test, command in suite.commands.items():
        shutil.rmtree(state, ignore_errors=True)
        for each in ("rings", "errors", "tmp", "home"):
            (state / each).mkdir(parents=True)
        env = scrubbed(os.environ) | {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **suite.env,
        }
        env |= {
            "HOME": str(state / "home"),
            "TMPDIR": str(state / "tmp"),
            "DIFFERENTIAL_FILE": str(state / "told"),
        }
        env.pop("PYTHONUNBUFFERED", None)  # with it, the words of a line come one by one
        env["PATH"] = f"{Path(python).parent}:{env['PATH']}"
        folders = [str(HERE.parent), str(folder)]
        if hook is not None:
            env |= {
                records.ENV_RUN: "differential",
                records.ENV_RINGS: str(state / "rings"),
                records.ENV_ERRORS: str(state / "errors"),
                records.ENV_HOOK: hook,
            }
            folders.insert(0, hook)
        env["PYTHONPATH"] = ":".join(folders)
        words = [python if word == "{python}" else word for word in command]
        done = subprocess.run(
            words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False, errors="replace",
        )  # fmt: skip
        told = sorted(state.glob("told.*"))
        if test or not told:
            yield (
                test or "the suite",
                Outcome(f"exit code {done.returncode}", plain(done.stdout, state)),
            )
        for path in told:
            for line in path.read_text().splitlines():
                name, outcome, said = json.loads(line)
                yield f"{name} [rank {path.suffix[1:]}]", Outcome(outcome, plain(said, state))


VOLATILE = (
    (re.compile(r"0x[0-9a-f]+"), "0x"),
    (re.compile(r"\b[WIEF]\d{4} \d\d:\d\d:\d\d\.\d+ +(\d+ )?"), ""),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,\d]*"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? ?(s|ms|seconds?|it/s|steps/s|samples/s)\b"), "TIME"),
    (re.compile(r"\b(tmp|torchelastic_|none_|pymp-)[a-z0-9_]{8}\b"), r"\1NAME"),
    (re.compile(r"(?<![.\d])\d{4,}"), "N"),
)
"""What differs from run to run: addresses, times, names of temporary files, processes and ports."""


def plain(text: str, state: Path) -> str:
    """Return the lines that every run of a test has, in order of their letters: ranks print at the same time."""
    text = text.replace(str(state), "STATE")
    for pattern, word in VOLATILE:
        text = pattern.sub(word, text)
    return "\n".join(sorted(line.rstrip() for line in re.split(r"[\n\r]", text)))


def _version(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not there"


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m differential", description=__doc__)
    options.add_argument("--only", default="", help="words that a suite's name has")
    options.add_argument(
        "--folder", default="build/differential", help="packages, checkouts and results"
    )
    options.add_argument("--page", metavar="FILE", help="write the table there")
    options.add_argument("--no-run", action="store_true", help="the table of what is there")
    return options


if __name__ == "__main__":
    sys.exit(main())
