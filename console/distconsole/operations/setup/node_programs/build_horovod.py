"""Builds a wheel of Horovod against the torch of this Python, and prints its place.

Usage: build_horovod.py SOURCE FOLDER, where SOURCE is an archive that lies beside it, or a requirement
for the node's own package index. Its last line is ``distconsole-wheel`` and a JSON object. It
installs nothing: what the build lacks (cmake, Python packages) is brought into a folder that goes
with it, from the wheels that lie beside it or from the node's package index. However it ends, what
it made goes with it, but for the wheel and the log.

Horovod 0.28's CMake files fix C++14, torch's headers want C++17 since 2.1 and C++20 since 2.13
(horovod issues 3996 and 4014), and newer compilers refuse some of its headers. So the compiler is
called by way of a program that replaces the standard and adds options.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib import util
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
WORD = "distconsole-wheel "
NEEDS = {
    **{
        name: name
        for name in ("setuptools", "wheel", "packaging", "psutil", "cffi", "cloudpickle")
    },
    "yaml": "pyyaml",
}
"""What Horovod's setup.py imports, and what brings it."""

STANDARDS = {"gnu++20": "-DFLATBUFFERS_USE_STD_SPAN", "gnu++17": ""}
"""With what Horovod's FlatBuffers needs beside: GCC 14 refuses the span that it has for C++ without one."""
INCLUDED = "-include string -include cstdint"
"""What Horovod and its Gloo use without including it: GCC 14 and GCC 16 include less by chance."""
ENGLISH = {"LC_ALL": "C"}
"""Bytes of compilers' output that are searched for errors."""
ERROR_LINES = 3
ROOM_BYTES = 300 * 1024 * 1024
"""That a build takes on the disk, with some to spare."""
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
PATIENCE = ("--retries", "1", "--timeout", "15")
"""Of pip with an index: nodes without a network are usual."""

_NO_INDEX = re.compile(
    "Could not find a version|No matching distribution|NewConnectionError|ConnectTimeout|"
    "Max retries exceeded|Temporary failure in name resolution"
)
_COMPILER_ERROR = re.compile(
    r"\S: (?:fatal |internal compiler )?error: |: undefined reference to |\bld(?:\.\w+)?: cannot find "
)
"""Of compilers and linkers; those of make, pip and setup.py, which follow from it, begin otherwise."""
_PERCENT = re.compile(r"\[ *(\d{1,3})%\]")
_COMPILER = """\
#!/bin/sh
# nvcc's calls stay as they are: it parses by its own standard, and has preprocessed text compiled.
for word; do
    case $word in -D__CUDACC__ | -D__CUDA_ARCH*) exec {compiler} "$@" ;; esac
done
for word; do
    case $word in -std=c++11 | -std=c++14 | -std=gnu++11 | -std=gnu++14) word=-std={standard} ;; esac
    set -- "$@" "$word"
    shift
done
exec {compiler} {options} "$@"
"""


class BuildError(Exception):
    """The wheel cannot be built; the text says why and what to do."""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def compiler_for(work: Path) -> Path:
    """Write the program that stands for the compiler; raises BuildError without one that knows C++17.

    It has to make a program, so that a missing linker or standard library is found here.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler:
        raise BuildError("there is no C++ compiler: install g++ (Debian: apt install g++)")
    source = work / "empty.cc"
    source.write_text(
        "#include <string>\nint main() { return std::string().size(); }\n", encoding="utf-8"
    )
    words = [*shlex.split(compiler), str(source), "-o", str(work / "empty")]
    for standard, options in STANDARDS.items():
        if not try_compiler([*words, f"-std={standard}"]):
            wrapper = work / "c++"
            values = {"standard": standard, "compiler": compiler}
            text = _COMPILER.format(**values, options=f"{INCLUDED} {options}")
            wrapper.write_text(text, encoding="utf-8")
            wrapper.chmod(0o700)
            return wrapper
    if error := try_compiler(words):
        raise BuildError(f"{compiler} cannot make an empty program: {error}")
    raise BuildError(f"{compiler} knows neither C++20 nor C++17: install a newer one (g++ 10)")


def try_compiler(words: list[str]) -> str:
    """Return the compiler's first error; empty if it made the program."""
    ended = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **ENGLISH},
        check=False,
    )
    if ended.returncode == 0:
        return ""
    said = ended.stdout.decode("utf-8", "replace").splitlines()
    return find_error(said) or f"exit code {ended.returncode}"


def bring_tools(work: Path, environment: dict[str, str]) -> None:
    """Bring missing cmake and Python packages into ``work``, and put it on the paths.

    Raises BuildError where neither a wheel beside this program nor the package index gives it.
    """
    missing = [package for module, package in NEEDS.items() if util.find_spec(module) is None]
    if shutil.which("cmake") is None:
        missing.append("cmake")
    if not missing:
        return
    tools, names = work / "tools", ", ".join(missing)
    say(f"bringing {names} for the build alone")
    words = [*PIP, "install", "-q", *PATIENCE, "--find-links", str(HERE), "--target", str(tools)]
    ended = subprocess.run(
        [*words, *missing],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=environment,
        check=False,
    )
    if ended.returncode:
        said = ended.stdout.decode("utf-8", "replace").strip()
        if not _NO_INDEX.search(said):
            last = (said.splitlines() or ["it said nothing"])[-1]
            raise BuildError(f"pip cannot bring {names}: {last}")
        cmake = "install cmake (Debian: apt install cmake)"
        how = cmake if "cmake" in missing else "pip install"
        raise BuildError(f"there is no {names} here, and pip reaches no package index: {how}")
    # setuptools gives distutils, which Horovod's CMake files import, by a .pth file.
    (tools / "sitecustomize.py").write_text(
        "import os, site\n\nsite.addsitedir(os.path.dirname(__file__))\n", encoding="utf-8"
    )
    for name, folder in (("PYTHONPATH", tools), ("PATH", tools / "bin")):
        before = environment.get(name, os.defpath if name == "PATH" else "")
        environment[name] = os.pathsep.join(filter(None, (str(folder), before)))


def nccl(work: Path) -> dict[str, str] | None:
    """Return what has Horovod use NCCL: the one that torch brought, or the system's; None without."""
    spec = util.find_spec("nvidia.nccl") if util.find_spec("nvidia") is not None else None
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        library, include = Path(folder) / "lib" / "libnccl.so.2", Path(folder) / "include"
        if library.is_file() and (include / "nccl.h").is_file():
            link = work / "nccl" / "libnccl.so"
            link.parent.mkdir()
            link.symlink_to(library)
            return {
                "HOROVOD_NCCL_INCLUDE": str(include),
                "HOROVOD_NCCL_LIB": str(link.parent),
                "HOROVOD_NCCL_LINK": "SHARED",
            }
    named = (os.environ.get(name) for name in ("HOROVOD_NCCL_HOME", "NCCL_HOME", "CUDA_HOME"))
    for folder in (*filter(None, named), "/usr", "/usr/local", "/usr/local/cuda"):
        if Path(folder, "include", "nccl.h").is_file():
            return {}
    return None


def options(work: Path) -> dict[str, str]:
    chosen = {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        ("HOROVOD_WITH_MPI" if shutil.which("mpicxx") else "HOROVOD_WITHOUT_MPI"): "1",
    }
    asked = "import torch; print(torch.version.cuda or '')"
    cuda = subprocess.run([sys.executable, "-c", asked], stdout=subprocess.PIPE, check=False)
    if cuda.stdout.strip():
        found = nccl(work) if shutil.which("nvcc") else None
        if found is None:
            say("without NCCL: there is no " + ("nccl.h" if shutil.which("nvcc") else "nvcc"))
        else:
            chosen.update({"HOROVOD_GPU_OPERATIONS": "NCCL", **found})
    return chosen


def build(source: str, work: Path, log: Path) -> Path:
    """Build the wheel, printing progress; return its place; raises BuildError."""
    # pip and the compiler write below a folder that is removed.
    # CMake 4 refuses the policy of Gloo's files without this.
    environment = {**os.environ, **ENGLISH, "TMPDIR": str(work)}
    environment["CMAKE_POLICY_VERSION_MINIMUM"] = "3.5"
    free = shutil.disk_usage(work).free
    if free < ROOM_BYTES:
        raise BuildError(
            f"{free >> 20} MiB are free in {work.parent}, and a build takes {ROOM_BYTES >> 20} MiB: "
            "make room, or give another place with node_dir in the configuration"
        )
    wrapper = compiler_for(work)
    bring_tools(work, environment)
    chosen = options(work)
    say("with " + ", ".join(sorted(name for name in chosen if name.startswith("HOROVOD_WITH_"))))
    cpus = len(os.sched_getaffinity(0))
    environment.update(chosen)
    environment.update({"CXX": str(wrapper), "MAKEFLAGS": f"-j{cpus}", "LDFLAGS": "-Wl,-s"})
    words = [*PIP, "wheel", "-v", *PATIENCE]
    words += ["--no-build-isolation", "--no-deps", "--no-cache-dir", "--no-binary", "horovod"]
    words += ["--wheel-dir", str(work / "wheel"), source]
    if run_pip(words, environment, log):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        # pip unpacks below work: the rest is the path within Horovod's source.
        unpacked = re.compile(re.escape(str(work)) + r"/pip-[^/\s]+/(?:horovod_[0-9a-f]{32}/)?")
        why = unpacked.sub("", reason(source, lines))
        raise BuildError(f"{why}\nall of it is in {log}")
    return next((work / "wheel").glob("*.whl"))


def reason(source: str, lines: list[str]) -> str:
    """Return why pip failed: in a line for a usual cause, else the first error."""
    text = "\n".join(lines)
    if "No space left on device" in text:
        return "no space is left on the disk of the build"
    if "Killed signal" in text or "Killed (program cc1plus)" in text:
        return "the compiler was killed: memory ran out; a host with more of it can build"
    if not Path(source).is_file() and _NO_INDEX.search(text):
        return (
            f"neither the operator's machine nor this host can fetch {source}: download it elsewhere "
            "and give it with setup --source horovod-0.28.1.tar.gz"
        )
    errors = [line for line in lines if re.search(r"error|fatal", line, re.IGNORECASE)] or lines
    return find_error(lines) or "\n".join(errors[-ERROR_LINES:])


def find_error(lines: list[str]) -> str:
    """Return the first error of a compiler or linker, with its file; else CMake's; else an empty text.

    A failed build goes on for many lines: other files are compiled to their end, then make, CMake,
    setup.py and pip each say that something failed.
    """
    for line in lines:
        if _COMPILER_ERROR.search(line):
            return line.strip()
    for number, line in enumerate(lines):
        if line.lstrip().startswith("CMake Error"):
            # Its text follows, indented; an empty line may be between.
            said = filter(None, map(str.strip, lines[number : number + ERROR_LINES + 1]))
            return "\n".join(list(said)[:ERROR_LINES])
    return ""


def run_pip(words: list[str], environment: dict[str, str], log: Path) -> int:
    """Run pip, say how far the compiler is; return the exit code. All that it prints is in ``log``."""
    pace = BuildPace()
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        with process.stdout, log.open("w", encoding="utf-8") as file:
            for line in process.stdout:
                file.write(line)
                percent = _PERCENT.search(line)
                if percent and (said := pace.reached(int(percent[1]), time.monotonic())):
                    say(said)
        return process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


class BuildPace:
    """How far the compiler is, by make's own count of files, and how long the rest takes at its pace."""

    def __init__(self) -> None:
        self._began: tuple[int, float] | None = None
        self._told = 0

    def reached(self, percent: int, now: float) -> str:
        """Return the progress to report; empty between the tenths."""
        if self._began is None:
            self._began = (percent, now)
        if percent // 10 <= self._told:
            return ""
        self._told = percent // 10
        first, then = self._began
        if percent >= 100 or percent == first:
            return f"compiled {percent} %"
        left = (now - then) / (percent - first) * (100 - percent)
        about = f"{left / 60:.0f} min" if left >= 90 else f"{left:.0f} s"
        return f"compiled {percent} %, about {about} left"


def leave(number: int, _frame: FrameType | None) -> None:
    """Leave by way of everything that tidies up."""
    raise SystemExit(128 + number)


def main(source: str, folder: str) -> int:
    """Build into ``folder`` below ``~/.cache/distconsole/wheels``, or an absolute one."""
    signal.signal(signal.SIGTERM, leave)
    out = Path.home() / ".cache" / "distconsole" / "wheels" / folder
    source = str(HERE / source) if (HERE / source).is_file() else source
    wheel = next(out.glob("*.whl"), None)
    if wheel is not None:
        say("it was built here before")
    else:
        # Beside the run's other files, which go with it even where this process is killed.
        work = Path(tempfile.mkdtemp(prefix="build-", dir=os.environ.get("DISTCONSOLE_RUN_DIR")))
        try:
            out.mkdir(parents=True, exist_ok=True)
            built = build(source, work, out / "build.log")
            aside = out / ".incoming"
            shutil.copyfile(built, aside)
            wheel = aside.replace(out / built.name)
        except (BuildError, OSError) as error:
            sys.stderr.write(f"{error}\n")
            return 1
        finally:
            shutil.rmtree(work, ignore_errors=True)
    data = wheel.read_bytes()
    told = {"wheel": f"{folder}/{wheel.name}", "size": len(data)}
    say(WORD + json.dumps({**told, "sha256": hashlib.sha256(data).hexdigest()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
