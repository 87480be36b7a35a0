"""Records of the contract: what a value of JSON becomes, and which field a wrong one is named by."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest

from distconsole_agent.contract.records import Port, RecordError, Word, read, write


class Inner(NamedTuple):
    host: Word
    ranks: tuple[int, ...]
    port: Port = 1


class Outer(NamedTuple):
    run: str
    nodes: tuple[Inner, ...]
    seconds: float | None
    secret: bytes = b""
    env: Mapping[str, Word] = MappingProxyType({})
    watch: bool = True
    setup: str | None = None
    more: Mapping[str, object] = MappingProxyType({})


WHOLE = {
    "run": "r",
    "nodes": [{"host": "a", "ranks": [0, 1], "port": 7}],
    "seconds": 3,
    "secret": "ab01",
    "env": {"A": "b"},
    "watch": False,
    "new": [1],
}


def test_a_record_is_written_as_it_was_read_with_the_keys_of_another_version() -> None:
    record = read(Outer, WHOLE)
    assert record.nodes == (Inner("a", (0, 1), 7),)
    assert (record.seconds, record.secret, record.watch) == (3.0, b"\xab\x01", False)
    assert record.more == {"new": [1]}
    assert write(record) == WHOLE


def test_a_missing_key_and_a_null_are_the_default() -> None:
    record = read(Outer, {"run": "r", "nodes": [], "env": None, "watch": None})
    assert record == Outer("r", (), None)
    assert write(record)["seconds"] is None
    assert "setup" not in write(record)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": None}, "run is missing"),
        ({"run": 7}, "run is not text"),
        ({"nodes": {}}, "nodes is not a list"),
        ({"nodes": [3]}, r"nodes\[0\] is not an object"),
        (
            {"nodes": [{"host": "a\0", "ranks": []}]},
            r"nodes\[0\].host is not text without a zero byte",
        ),
        ({"nodes": [{"host": "a", "ranks": [True]}]}, r"ranks\[0\] is not a whole number"),
        ({"nodes": [{"host": "a", "ranks": [1 << 63]}]}, r"ranks\[0\] is not a whole number"),
        ({"nodes": [{"host": "a", "ranks": [], "port": 0}]}, "port is not a port"),
        ({"seconds": float("nan")}, "seconds is not a number"),
        ({"seconds": 10**400}, "seconds is not a number"),
        ({"secret": "xy"}, "secret is not hexadecimal"),
        ({"env": []}, "env is not an object"),
        ({"env": {"A": 1}}, "env.A is not text"),
        ({"watch": 1}, "watch is neither true nor false"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(change: dict[str, object], words: str) -> None:
    with pytest.raises(RecordError, match=words):
        read(Outer, {**WHOLE, **change})


def test_a_value_that_is_no_object_is_no_record() -> None:
    with pytest.raises(RecordError, match="it is not an object"):
        read(Outer, [])
