"""Builds a wheel of Horovod against the torch that this Python has, and says where it lies.

Usage: build_horovod.py SOURCE FOLDER, where SOURCE is an archive that lies beside it, or a requirement
for the node's own package index. Its last line is ``distconsole-wheel`` and a JSON object. It
installs nothing: what the build lacks (cmake, Python packages) is brought into a folder that goes
with it.

Horovod 0.28's CMake files fix C++14, torch's headers want C++17 since 2.1 and C++20 since 2.13
(horovod issues 3996 and 4014), so the compiler is called by way of a program that replaces it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import util
from pathlib import Path

WORD = "distconsole-wheel "
NEEDS = {
    "setuptools": "setuptools",
    "wheel": "wheel",
    "packaging": "packaging",
    "yaml": "pyyaml",
    "psutil": "psutil",
    "cffi": "cffi",
    "cloudpickle": "cloudpickle",
}
"""What Horovod's setup.py imports, and what brings it."""

STANDARDS = ("gnu++20", "gnu++17")
KEPT_LINES = 40

_PERCENT = re.compile(r"\[ *(\d{1,3})%\]")
_COMPILER = """\
#!/bin/sh
for word; do
    case $word in -std=c++11 | -std=c++14 | -std=gnu++11 | -std=gnu++14) word=-std={standard} ;; esac
    set -- "$@" "$word"
    shift
done
exec {compiler} "$@"
"""


class BuildError(Exception):
    """The wheel cannot be built; the text says why and what to do."""


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def compiler_for(work: Path) -> Path:
    """Write the program that stands for the compiler.

    Raises:
        BuildError: where there is no compiler that knows C++17.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler:
        raise BuildError("there is no C++ compiler: install g++ (Debian: apt install g++)")
    source = work / "empty.cc"
    source.write_text("int main() { return 0; }\n", encoding="utf-8")
    for standard in STANDARDS:
        words = [*shlex.split(compiler), f"-std={standard}", "-fsyntax-only", str(source)]
        if subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            wrapper = work / "c++"
            wrapper.write_text(
                _COMPILER.format(standard=standard, compiler=compiler), encoding="utf-8"
            )
            wrapper.chmod(0o700)
            return wrapper
    raise BuildError(f"{compiler} knows neither C++20 nor C++17: install a newer one (g++ 10)")


def bring_tools(work: Path, environment: dict[str, str]) -> None:
    """Bring what is missing of cmake and Python packages into ``work``, and put it on the paths.

    Raises:
        BuildError: where the package index does not give it.
    """
    missing = [package for module, package in NEEDS.items() if util.find_spec(module) is None]
    if shutil.which("cmake") is None:
        missing.append("cmake")
    if not missing:
        return
    say(f"bringing {', '.join(missing)} for the build alone")
    tools = work / "tools"
    words = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    ended = subprocess.run(
        [*words, "--target", str(tools), *missing],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if ended.returncode:
        said = ended.stdout.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise BuildError(f"pip cannot bring {', '.join(missing)}: {' '.join(said)}")
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(tools), environment.get("PYTHONPATH")))
    )
    environment["PATH"] = f"{tools / 'bin'}{os.pathsep}{environment.get('PATH', os.defpath)}"


def nccl(work: Path) -> dict[str, str]:
    """Return what has Horovod use NCCL: the one that torch brought, or the system's."""
    spec = util.find_spec("nvidia.nccl") if util.find_spec("nvidia") is not None else None
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        library = Path(folder) / "lib" / "libnccl.so.2"
        if library.is_file() and (Path(folder) / "include" / "nccl.h").is_file():
            link = work / "nccl" / "libnccl.so"
            link.parent.mkdir()
            link.symlink_to(library)
            return {
                "HOROVOD_NCCL_INCLUDE": str(Path(folder) / "include"),
                "HOROVOD_NCCL_LIB": str(link.parent),
                "HOROVOD_NCCL_LINK": "SHARED",
            }
    return {}


def torch_is_for_cuda() -> bool:
    """Whether the torch of this Python was built for CUDA."""
    asked = "import torch; print(torch.version.cuda or '')"
    ended = subprocess.run([sys.executable, "-c", asked], stdout=subprocess.PIPE, check=False)
    return bool(ended.stdout.strip())


def options(work: Path) -> dict[str, str]:
    """Return the variables that say what Horovod is built with."""
    chosen = {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        ("HOROVOD_WITH_MPI" if shutil.which("mpicxx") else "HOROVOD_WITHOUT_MPI"): "1",
    }
    if shutil.which("nvcc") and torch_is_for_cuda():
        chosen.update({"HOROVOD_GPU_OPERATIONS": "NCCL", **nccl(work)})
    return chosen


def build(source: str, work: Path, log: Path) -> Path:
    """Build the wheel, saying how far it is; return where it lies.

    Raises:
        BuildError: with the last lines of what pip and the compiler said.
    """
    environment = dict(os.environ)
    bring_tools(work, environment)
    chosen = options(work)
    say("with " + ", ".join(sorted(name for name in chosen if name.startswith("HOROVOD_WITH_"))))
    cpus = len(os.sched_getaffinity(0))
    environment.update(chosen)
    environment.update(
        {"CXX": str(compiler_for(work)), "MAKEFLAGS": f"-j{cpus}", "LDFLAGS": "-Wl,-s"}
    )
    words = [sys.executable, "-m", "pip", "wheel", "-v", "--disable-pip-version-check"]
    words += ["--no-build-isolation", "--no-deps", "--no-cache-dir", "--no-binary", "horovod"]
    words += ["--wheel-dir", str(work / "wheel"), source]
    code, kept = watched(words, environment, log)
    if code:
        errors = [line for line in kept if "error" in line.lower()] or kept
        raise BuildError("\n".join([*errors[-12:], f"all of it is in {log}"]))
    return next((work / "wheel").glob("*.whl"))


def watched(words: list[str], environment: dict[str, str], log: Path) -> tuple[int, list[str]]:
    """Run pip, say how far the compiler is; return the exit code and the last lines."""
    told, kept = -1, [""]
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    with process.stdout, log.open("w", encoding="utf-8") as file:
        for line in process.stdout:
            file.write(line)
            kept = [*kept[1 - KEPT_LINES :], line.rstrip()]
            percent = _PERCENT.search(line)
            if percent and int(percent[1]) // 10 > told:
                told = int(percent[1]) // 10
                say(f"compiled {percent[1]} %")
    return process.wait(), kept


def main(source: str, folder: str) -> int:
    """Build into ``folder`` below ``~/.cache/distconsole/wheels``."""
    out = Path.home() / ".cache" / "distconsole" / "wheels" / folder
    out.mkdir(parents=True, exist_ok=True)
    beside = Path(__file__).resolve().with_name(source)
    source = str(beside) if beside.is_file() else source
    wheel = next(out.glob("*.whl"), None)
    if wheel is not None:
        say("it was built here before")
    else:
        with tempfile.TemporaryDirectory() as work:
            try:
                built = build(source, Path(work), out / "build.log")
            except BuildError as error:
                sys.stderr.write(f"{error}\n")
                return 1
            aside = out / ".incoming"
            shutil.copyfile(built, aside)
            wheel = aside.replace(out / built.name)
    data = wheel.read_bytes()
    told = {"wheel": f"{folder}/{wheel.name}", "size": len(data)}
    say(WORD + json.dumps({**told, "sha256": hashlib.sha256(data).hexdigest()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
