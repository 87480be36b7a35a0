import base64
import sys
from pathlib import Path

import pytest

from distconsole_agent.probes import ProbeError, run
from distconsole_agent.probes.software.engines import MAX_PIECE_BYTES, WHEELS

NAME = "horovod0.28.1-0123/horovod-0.28.1-cp311-cp311-linux_x86_64.whl"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path.joinpath(*WHEELS, NAME)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PK" + bytes(MAX_PIECE_BYTES))
    return path


def ask(home: Path, **args: object) -> dict[str, object]:
    return run("build.wheel", args, 5.0, {"HOME": str(home)})


def test_a_wheel_comes_in_pieces(tmp_path: Path, wheel: Path) -> None:
    first = ask(tmp_path, wheel=NAME)
    last = ask(tmp_path, wheel=NAME, offset=MAX_PIECE_BYTES)
    assert first["size"] == MAX_PIECE_BYTES + 2
    pieces = [base64.b64decode(str(piece["data"])) for piece in (first, last)]
    assert [len(piece) for piece in pieces] == [MAX_PIECE_BYTES, 2]
    assert b"".join(pieces) == wheel.read_bytes()
    assert ask(tmp_path, wheel=NAME, offset=MAX_PIECE_BYTES + 2)["data"] == ""


@pytest.mark.parametrize(
    "name",
    [
        "../../.ssh/id_ed25519",
        "../x.whl",
        "a/../b.whl",
        "a/b/c.whl",
        "/etc/passwd.whl",
        "a/.build.log",
        "a/b.whl\n",
        7,
    ],
)
def test_nothing_else_is_handed_out(tmp_path: Path, wheel: Path, name: object) -> None:
    with pytest.raises(ProbeError):
        ask(tmp_path, wheel=name)


def test_a_link_is_not_followed(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "secret").write_text("x")
    link = wheel.with_name("link.whl")
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(ProbeError):
        ask(tmp_path, wheel=f"{wheel.parent.name}/link.whl")
    with pytest.raises(ProbeError, match="No such file"):
        ask(tmp_path, wheel=f"{wheel.parent.name}/none.whl")


def test_what_a_build_needs_is_told_without_importing_torch() -> None:
    facts = run("build", {"python": sys.executable}, 20.0)
    torch = pytest.importorskip("torch")
    assert facts["torch"]["version"] == torch.__version__
    assert "cpython-" in facts["tag"]
    assert facts["pip"] is True
    assert facts["cpus"] >= 1
    assert facts["site_id"]
    (loaded,) = {
        Path(path).resolve().name
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libstdc++.so" in (path := line.split()[-1])
    }
    assert facts["libstdcxx"] == loaded  # torch loads it here, too
