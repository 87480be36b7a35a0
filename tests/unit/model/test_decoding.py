"""Threads may decode into the same types from the first moment on."""

import re
import sys
from pathlib import Path

from suite.programs import run_to_end

CONSOLE = Path(__file__).parents[3] / "console" / "distconsole"
RACE = """
import sys, threading, types
import msgspec
from distconsole.model.decoding import threadsafe

SOURCE = '''
from __future__ import annotations
import msgspec
class Inner(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: float | None
class Outer(msgspec.Struct, frozen=True, kw_only=True):
    inner: Inner
    many: tuple[Inner, ...] = ()
    named: dict[str, Inner] | None = None
'''
RAW = {"inner": {"name": "x", "value": 1.0}}
sys.setswitchinterval(1e-6)
for number in range(100):
    module = sys.modules[f"m{number}"] = types.ModuleType(f"m{number}")
    exec(SOURCE, module.__dict__)
    together = threading.Barrier(8)
    def work():
        together.wait()
        msgspec.convert(RAW, threadsafe(module.Outer))
        msgspec.convert(RAW["inner"], threadsafe(module.Inner))
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_first_uses_at_the_same_moment_crash_nothing() -> None:
    done = run_to_end([sys.executable, "-c", RACE])
    assert (done.returncode, done.stderr) == (0, "")


def test_every_type_that_is_decoded_into_is_safe() -> None:
    uses = re.compile(r"msgspec\.(?:convert|(?:json|msgpack)\.(?:decode|Decoder))\(")
    lacking = []
    for path in CONSOLE.rglob("*.py"):
        text = path.read_text()
        for use in uses.finditer(text):
            call = text[use.end() : use.end() + 120]
            typed = "convert" in use[0] or "Decoder" in use[0] or "type=" in call.split("\n")[0]
            if typed and "threadsafe(" not in call and path.name != "decoding.py":
                lacking.append(f"{path.name}: {use[0]}{call.splitlines()[0]}")
    assert lacking == []
