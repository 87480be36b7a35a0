"""What the screen's libraries do without is not loaded with it, and can be had afterwards."""

from __future__ import annotations

import subprocess
import sys

from distconsole.tui.terminal.unneeded import hidden

NOT_LOADED = ("ssl", "_hashlib", "attr", "http.client", "distconsole_agent.probes")
SCREEN = f"""\
import sys
import distconsole.tui.app
import distconsole.rpc.pack
print([name for name in {NOT_LOADED!r} if name in sys.modules])
"""
LATER = """\
import sys
import distconsole.tui
import hashlib, hmac, ssl
print(hashlib.sha256(b"abc").hexdigest()[:8], hmac.new(b"k", b"abc", "sha1").hexdigest()[:8])
print(set(hashlib.algorithms_guaranteed) <= set(dir(hashlib)), ssl.create_default_context() is not None)
"""


def said_by(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert not done.stderr
    return done.stdout.splitlines()


def test_the_screen_loads_none_of_it() -> None:
    assert said_by(SCREEN) == ["[]"]


def test_who_asks_for_it_later_gets_it() -> None:
    assert said_by(LATER) == ["ba7816bf f9bef091", "True True"]


def test_what_is_loaded_already_is_not_hidden() -> None:
    with hidden("subprocess"):
        assert sys.modules["subprocess"] is subprocess
    assert sys.modules["subprocess"] is subprocess
