"""A manifest from outside is believed only as far as it stays in its folder."""

import base64
import hashlib
import json
import zlib
from typing import Any

import pytest

from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.node_folder.manifest import read_manifest
from distconsole_agent.node_folder.sync import unpack

SHA = hashlib.sha256(b"x").hexdigest()


def manifest(**fields: Any) -> bytes:
    return json.dumps({"files": [], "links": [], "folders": [], **fields}).encode()


def files(*paths: str) -> list[list[object]]:
    return [[path, 0o644, 1, SHA] for path in paths]


def test_a_manifest_is_named_by_its_bytes() -> None:
    raw = manifest(
        files=[["a/b.py", 0o100755, 1, SHA]], links=[["a/c", "../a/b.py"]], folders=["d"]
    )
    read = read_manifest(raw)
    assert read.tree == hashlib.sha256(raw).hexdigest()
    assert read.files[0].mode == 0o755
    assert (read.links, read.folders) == ((("a/c", "../a/b.py"),), ("d",))


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "a/../x", "a//x", "./x", "a/.", "", "a/", "a\0b", "x" * 300, "a/" * 2500 + "b", 7, None, "\ud800"],
)  # fmt: skip
def test_a_path_that_could_leave_the_folder_is_refused(path: Any) -> None:
    for field, entry in (
        ("files", [path, 0o644, 1, SHA]),
        ("folders", path),
        ("links", [path, "b"]),
    ):
        with pytest.raises(Refusal) as refused:
            read_manifest(manifest(**{field: [entry]}))
        assert refused.value.code == "bad_request"


CONTENTS = [
    ["a", 0o644, 1],
    ["a", -1, 1, SHA],
    ["a", True, 1, SHA],
    ["a", 0o644, "1", SHA],
    ["a", 0o644, 1, "../../x"],
    ["a", 0o644, 1, SHA.upper()],
    ["a", 0o644, 1 << 50, SHA],
    "a",
]
TARGETS = ["/etc", "../..", "../../x", "b/../../../x", "", "a\0", 3]


@pytest.mark.parametrize(
    "fields",
    [
        {"links": [["a", "b"]], "files": files("a/evil.py")},
        {"links": [["a", "b"]], "folders": ["a/deep"]},
        {"links": [["a", "b"], ["a/c", "d"]]},
        {"files": files("a", "a/b")},
        {"files": files("a", "a")},
        {"files": files("a"), "links": [["a", "b"]]},
        {"files": files("a"), "folders": ["a"]},
        *({"files": [entry]} for entry in CONTENTS),
        *({"links": [["a/link", target]]} for target in TARGETS),
    ],
)
def test_nothing_is_written_twice_below_a_link_or_out_of_it(fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal):
        read_manifest(manifest(**fields))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"files": 1}', b"\xff", b"[" * 10_000])
def test_what_is_no_manifest_is_refused(raw: bytes) -> None:
    with pytest.raises(Refusal):
        read_manifest(raw)


def test_packed_data_is_bounded_before_it_is_unpacked() -> None:
    packed = base64.b64encode(zlib.compress(b"0" * 1_000_000)).decode()
    assert len(packed) < 3000
    assert unpack(packed, 1_000_000) == b"0" * 1_000_000
    with pytest.raises(Refusal, match="longer than 999999 bytes"):
        unpack(packed, 999_999)
    cut = base64.b64encode(zlib.compress(b"abc" * 100)[:-4]).decode()
    with pytest.raises(Refusal, match="cut off"):
        unpack(cut, 1000)


@pytest.mark.parametrize(
    "packed", [None, "no base64!", "AAAA", 3, base64.b64encode(b"x").decode()]
)
def test_what_cannot_be_unpacked_is_refused(packed: Any) -> None:
    with pytest.raises(Refusal):
        unpack(packed, 100)
