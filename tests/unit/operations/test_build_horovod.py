"""The program that builds Horovod on a node: what it says of how far it is, and of what stands in the way."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distconsole.operations.setup.installation import BuildFacts
from distconsole.operations.setup.node_programs import build_horovod
from distconsole.operations.setup.node_programs.build_horovod import BuildPace, reason
from distconsole.rpc.wire import decode_as
from distconsole_agent.probes import run
from suite.packages import COMPILES, FIRST_ERROR, WRONG, pack_source, pack_wheel, python_without
from suite.programs import run_to_end

PROGRAM = Path(build_horovod.__file__)
SLOW = """\
import pathlib, signal
pathlib.Path(%r).write_text("x")
while True:
    signal.pause()
"""


def environment(tmp_path: Path, *programs: str) -> dict[str, str]:
    """Give a node that has these programs and no network."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in programs:
        path = shutil.which(name)
        assert path is not None
        folder.joinpath(name).symlink_to(path)
    run = tmp_path / "run"
    run.mkdir()
    return {
        "HOME": str(tmp_path),
        "PATH": str(folder),
        "DISTCONSOLE_RUN_DIR": str(run),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
    }


def build(
    tmp_path: Path, source: str, variables: dict[str, str], python: str = sys.executable
) -> subprocess.Popen[str]:
    program = shutil.copy(PROGRAM, tmp_path)
    return subprocess.Popen(
        [python, str(program), source, "kind"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
    )


def test_how_far_it_is_is_what_make_counts_and_the_rest_is_at_its_pace() -> None:
    pace = BuildPace()
    steps = [(1, 100.0), (5, 104.0), (11, 110.0), (12, 111.0), (51, 150.0), (100, 199.0)]
    assert [pace.reached(*step) for step in steps] == [
        "",
        "",
        "compiled 11 %, about 89 s left",
        "",
        "compiled 51 %, about 49 s left",
        "compiled 100 %",
    ]
    slow = BuildPace()
    slow.reached(1, 0.0)
    assert slow.reached(10, 90.0) == "compiled 10 %, about 15 min left"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fatal error: error writing to /tmp/x.s: No space left on device", "no space is left"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "memory ran out"),
        ("ERROR: No matching distribution found for horovod==0.28.1", "--source"),
        ("x.cc:3:1: error: expected unqualified-id", "expected unqualified-id"),
        ("/usr/bin/ld.bfd: cannot find -lc10: No such file", "ld.bfd: cannot find -lc10"),
        ("x.cc:(.text+0x5): undefined reference to `f'", "x.cc:(.text+0x5): undefined reference"),
    ],
)
def test_what_stood_in_the_way_is_one_line(line: str, said: str) -> None:
    told = reason("horovod==0.28.1", ["compiling", line, "make: *** [x.o] killed"])
    assert said in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ((), "there is no C++ compiler: install g++"),
        (("g++",), "g++ cannot make an empty program: "),
        (("g++", "as", "ld"), "there is no cmake here, and pip reaches no package index: install"),
    ],
)
def test_what_a_node_lacks_is_one_line_and_nothing_is_left(
    tmp_path: Path, programs: tuple[str, ...], said: str
) -> None:
    variables = environment(tmp_path, *programs)
    with build(tmp_path, "horovod==0.28.1", variables) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out
    assert said in err
    assert len(err.splitlines()) == 1
    assert list((tmp_path / "run").iterdir()) == []


def test_a_disk_without_room_is_said_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_horovod, "ROOM_BYTES", 1 << 60)
    with pytest.raises(build_horovod.BuildError, match=r"MiB are free in .*node_dir"):
        build_horovod.build("horovod==0.28.1", tmp_path, tmp_path / "log")


def test_the_calls_of_nvcc_reach_the_compiler_as_they_are(tmp_path: Path) -> None:
    """nvcc parses what the compiler preprocessed, and fails on headers of another standard."""
    wrapper = build_horovod.compiler_for(tmp_path)
    source = tmp_path / "kernel.cpp"
    source.write_text("#if __cplusplus != 201402L or defined(_GLIBCXX_STRING)\n#error\n#endif\n")
    words = [wrapper, "-std=c++14", "-fsyntax-only", source]
    subprocess.run([*words, "-D__CUDA_ARCH_LIST__=900"], check=True)
    assert subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 1


def test_a_build_that_fails_shows_the_first_error_of_the_compiler_with_its_file(
    tmp_path: Path,
) -> None:
    archive = pack_source(tmp_path, COMPILES % WRONG).name
    variables = environment(tmp_path, "g++", "as", "ld", "cmake", "env", "sh")
    with build(tmp_path, archive, variables) as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    log = tmp_path / ".cache" / "distconsole" / "wheels" / "kind" / "build.log"
    assert err.splitlines() == [FIRST_ERROR, f"all of it is in {log}"]
    assert "'nothing' was not declared" in log.read_text()


def test_an_old_horovod_is_built_by_a_newer_compiler_for_a_python_without_setuptools(
    tmp_path: Path,
) -> None:
    """CMake asks for distutils, which setuptools brings."""
    code = """
std::string name;
uint8_t bytes[] = {1};
#if __cplusplus < 201703L
#error C++14
#endif
#if __cplusplus >= 202002L and not defined(FLATBUFFERS_USE_STD_SPAN)
#error FlatBuffers with a span of its own
#endif
"""
    python = python_without(("setuptools", "_distutils_hack"), tmp_path)
    pack_wheel("setuptools", tmp_path, tag="py3-none-any")
    asks = "from distutils.sysconfig import get_python_inc as get; print(get())"
    setup = f"import subprocess, sys\nsubprocess.check_call([sys.executable, '-c', '{asks}'])\n"
    archive = pack_source(tmp_path, setup + COMPILES % code).name
    variables = environment(tmp_path, "g++", "as", "ld", "cmake", "env", "sh")
    with build(tmp_path, archive, variables, python) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "bringing setuptools for the build alone" in out.splitlines()
    assert '"wheel": "kind/horovod-0.28.1-py3-none-any.whl"' in out.splitlines()[-1]


def test_stopping_it_ends_the_compiler_and_leaves_nothing(tmp_path: Path) -> None:
    variables = environment(tmp_path, "g++", "as", "ld", "cmake")
    began = tmp_path / "began"
    os.mkfifo(began)
    archive = pack_source(tmp_path, SLOW % str(began)).name
    with build(tmp_path, archive, variables) as process:
        assert began.read_text() == "x"  # it waits for setup.py
        (work,) = (tmp_path / "run").iterdir()
        assert any(work.iterdir())  # pip unpacks there
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert list((tmp_path / "run").iterdir()) == []
    assert not any(variables["DISTCONSOLE_RUN_DIR"] in each for each in environments())


def environments() -> list[str]:
    """Return the environments of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found


def development_wheel(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    program = Path(__file__).resolve().parents[3] / ".ci" / "horovod-wheel"
    return run_to_end(
        [program, sys.executable],
        env={**os.environ, "DISTCONSOLE_DEV_CACHE": str(tmp_path), **variables},
    )


@pytest.mark.torch_ranks
def test_the_wheel_of_the_tests_is_kept_by_all_that_it_depends_on(tmp_path: Path) -> None:
    facts = decode_as(run("build", {"python": sys.executable}, 60.0), BuildFacts)
    folder = tmp_path / "wheels" / facts.wheel_folder
    folder.mkdir(parents=True)
    (folder / "horovod-0.28.1.whl").touch()
    ended = development_wheel(tmp_path)
    assert Path(ended.stdout.strip()) == folder / "horovod-0.28.1.whl", ended.stderr


@pytest.mark.torch_ranks
def test_a_wheel_of_the_tests_that_cannot_be_built_shows_why(tmp_path: Path) -> None:
    ended = development_wheel(tmp_path, CXX="false")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "/c++ cannot make an empty program: exit code 1\n" in ended.stderr
