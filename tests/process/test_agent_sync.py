"""Code brought to a real agent: what is missing is asked for once, and each run has its own copy."""

import base64
import hashlib
import json
import os
import stat
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.contract.limits import KEEP_RUN_SECONDS
from distconsole_agent.node_folder.manifest import has_outputs
from distconsole_agent.node_folder.sync import CodeSync
from fakes.agents import AgentNode, Bridge, launch, spec_of


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest(contents: dict[str, bytes], **more: Any) -> bytes:
    files = [[path, 0o640, len(data), sha(data)] for path, data in contents.items()]
    return json.dumps({"files": files, "links": [], "folders": [], **more}).encode()


def offer(bridge: Bridge, run: str, contents: dict[str, bytes], **more: Any) -> list[str]:
    said = bridge.done("sync", run=run, manifest=packed(manifest(contents, **more)))
    missing: list[str] = said["missing"]
    return missing


def give(bridge: Bridge, run: str, *contents: bytes) -> None:
    pieces = [[sha(data), len(data), 0, len(data)] for data in contents]
    bridge.done("sync_take", run=run, pieces=pieces, data=packed(b"".join(contents)))


def bring(bridge: Bridge, run: str, contents: dict[str, bytes], **more: Any) -> str:
    """Bring everything that is missing; return the tree."""
    by_sha = {sha(data): data for data in contents.values()}
    give(bridge, run, *(by_sha[name] for name in offer(bridge, run, contents, **more)))
    said = bridge.done("sync", run=run)
    assert said["missing"] == []
    return str(said["tree"])


def code_of(node: AgentNode, run: str) -> Path:
    return node.node_dir / "runs" / run / "code"


def test_a_run_has_its_own_copy_and_changes_are_sent(node: AgentNode, bridge: Bridge) -> None:
    main = b"import pathlib, sys\nprint(pathlib.Path('pkg/a.py').read_text(), *sys.argv)"
    contents = {"main.py": main, "pkg/a.py": b"one", "pkg/empty.py": b""}
    assert offer(bridge, "run-1", contents) == sorted([sha(main), sha(b"one")])
    tree = bring(bridge, "run-1", contents, links=[["link.py", "pkg/a.py"]], folders=["logs"])
    spec = spec_of("run-1", [""])
    spec["ranks"][0]["argv"][1:] = ["{run_dir}/code/main.py"]
    spec |= {"code": tree, "workdir": "{run_dir}/code"}
    launch(bridge, spec)
    text = "".join(entry["text"] for entry in bridge.entries("run-1") if entry["kind"] == "log")
    code = code_of(node, "run-1")
    assert text == f"one {code}/main.py\n"
    assert stat.S_IMODE((code / "main.py").stat().st_mode) == 0o640
    assert (code / "link.py").readlink() == Path("pkg/a.py")
    assert (code / "logs").is_dir()
    assert (code / "pkg" / "empty.py").read_bytes() == b""

    (code / "pkg" / "a.py").write_text("written by the job")
    assert offer(bridge, "run-2", {**contents, "pkg/a.py": b"two"}) == [sha(b"two")]
    assert offer(bridge, "run-3", contents) == []
    assert (node.node_dir / "sync" / "run-3" / "code" / "pkg" / "a.py").read_bytes() == b"one"


def test_a_content_longer_than_a_message_comes_in_pieces(node: AgentNode, bridge: Bridge) -> None:
    data = os.urandom(300_000)
    half = len(data) // 2
    assert offer(bridge, "run-1", {"big": data}) == [sha(data)]

    def piece(offset: int, part: bytes) -> dict[str, Any]:
        return {"pieces": [[sha(data), len(data), offset, len(part)]], "data": packed(part)}

    assert bridge.refused("sync_take", run="run-1", **piece(half, data[half:])) == "bad_request"
    bridge.done("sync_take", run="run-1", **piece(0, data[:half]))
    bridge.done("sync_take", run="run-1", **piece(half, data[half:]))
    assert bridge.done("sync", run="run-1")["missing"] == []
    assert (node.node_dir / "sync" / "run-1" / "code" / "big").read_bytes() == data


def test_a_content_that_is_not_what_its_name_says_is_refused(bridge: Bridge) -> None:
    offer(bridge, "run-1", {"a": b"good"})
    lie = {"pieces": [[sha(b"good"), 4, 0, 4]], "data": packed(b"evil")}
    assert bridge.refused("sync_take", run="run-1", **lie) == "bad_request"
    in_two = {"pieces": [[sha(b"good"), 8, 0, 4]], "data": packed(b"evil")}
    bridge.done("sync_take", run="run-1", **in_two)
    in_two["pieces"] = [[sha(b"good"), 8, 4, 4]]
    assert bridge.refused("sync_take", run="run-1", **in_two) == "bad_request"
    assert bridge.done("sync", run="run-1")["missing"] == [sha(b"good")]


def test_a_damaged_content_is_asked_for_again(node: AgentNode, bridge: Bridge) -> None:
    bring(bridge, "run-1", {"a": b"good"})
    (blob,) = (path for path in (node.node_dir / "blobs").rglob("*") if path.is_file())
    blob.write_bytes(b"evil")
    assert offer(bridge, "run-2", {"a": b"good"}) == [sha(b"good")]
    give(bridge, "run-2", b"good")
    assert bridge.done("sync", run="run-2")["missing"] == []


MEANINGLESS: list[tuple[str, dict[str, Any]]] = [
    ("sync", {}),
    ("sync", {"run": "run-9"}),
    ("sync", {"run": "../x", "manifest": packed(manifest({}))}),
    ("sync", {"run": "run-9", "manifest": packed(manifest({"../x": b"1"}))}),
    ("sync", {"run": "run-9", "manifest": "no"}),
    ("sync_take", {"run": "run-9", "pieces": 1, "data": packed(b"")}),
    ("sync_take", {"run": "run-9", "pieces": [["../x", 1, 0, 1]], "data": packed(b"1")}),
    ("sync_take", {"run": "run-9", "pieces": [[sha(b"1"), 1, 0, 2]], "data": packed(b"12")}),
    ("sync_take", {"run": "run-9", "pieces": [[sha(b"1"), 1, 0, 1]], "data": packed(b"12")}),
    ("sync_take", {"run": "run-9", "pieces": [[sha(b"1"), 1, -1, 1]], "data": packed(b"1")}),
]


def test_what_means_nothing_is_refused(bridge: Bridge) -> None:
    for op, arguments in MEANINGLESS:
        assert bridge.refused(op, **arguments) == "bad_request", (op, arguments)


def test_a_run_whose_code_or_script_is_not_here_is_not_prepared(
    node: AgentNode, bridge: Bridge, tmp_path: Path
) -> None:
    spec = spec_of("run-1", [""]) | {"code": sha(b"other")}
    assert bridge.refused("prepare", run="run-1", spec=spec) == "bad_request"
    bring(bridge, "run-1", {"a": b"1"})
    assert bridge.refused("prepare", run="run-1", spec=spec) == "bad_request"
    spec = spec_of("run-2", [""]) | {"needs": [str(tmp_path / "none.py")]}
    assert bridge.refused("prepare", run="run-2", spec=spec) == "no_script"
    assert list((node.node_dir / "runs").iterdir()) == []


def test_what_a_job_wrote_into_its_copy_is_not_removed(node: AgentNode, bridge: Bridge) -> None:
    for run, script in (
        ("run-1", "pass"),
        ("run-2", "open('model.pt', 'w').write('weights')"),
        ("run-3", "import a"),
    ):
        tree = bring(bridge, run, {"a.py": b"1"})
        spec = spec_of(run, [f"import sys; sys.path.insert(0, ''); {script}"])
        spec["env"] = {"PYTHONDONTWRITEBYTECODE": ""}
        launch(bridge, spec | {"code": tree, "workdir": "{run_dir}/code"})
        bridge.entries(run)
    folders = {run: str(code_of(node, run).parent) for run in ("run-1", "run-2", "run-3")}
    assert (code_of(node, "run-3") / "__pycache__").is_dir()
    assert {run: has_outputs(folder) for run, folder in folders.items()} == {
        "run-1": False,
        "run-2": True,
        "run-3": False,
    }


def test_what_was_brought_for_nothing_goes(tmp_path: Path) -> None:
    now = 1000.0
    code = CodeSync(str(tmp_path), lambda: now)
    code.sync("run-1", packed(manifest({"a": b"good"})))
    give_all = {"pieces": [[sha(b"good"), 4, 0, 4]], "packed": packed(b"good")}
    code.take("run-1", **give_all)
    code.housekeep()
    assert code.sync("run-1", None)["missing"] == []
    code.housekeep()
    now += 7200
    code.housekeep()
    assert not (tmp_path / "sync" / "run-1").exists()
    assert code.sync("run-2", packed(manifest({"a": b"good"})))["missing"] == []
    now += 3 * KEEP_RUN_SECONDS
    code.housekeep()
    assert code.sync("run-3", packed(manifest({"a": b"good"})))["missing"] == [sha(b"good")]


@pytest.mark.parametrize("step", [-3600.0, 3601.0, 40 * 86400.0])
def test_a_clock_that_is_set_removes_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    code = CodeSync(str(tmp_path))
    code.sync("run-1", packed(manifest({"a": b"good"})))
    code.take("run-1", pieces=[[sha(b"good"), 4, 0, 4]], packed=packed(b"good"))
    code.housekeep()
    shown = time.time() + step
    monkeypatch.setattr(time, "time", lambda: shown)
    code.housekeep()
    assert code.sync("run-1", None)["missing"] == []
