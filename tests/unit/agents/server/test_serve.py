"""The agent as a program: it stays on the node for days, so it holds no library that it does not use all the time."""

import sys

import pytest

from suite.programs import run_to_end

# OpenSSL alone is 3.6 MB, dataclasses with inspect 1.1, the others 0.3 to 1.6 each.
DEAR = (
    *("_hashlib", "dataclasses", "inspect", "statistics", "zipfile", "shutil", "bz2", "lzma"),
    *("pickle", "pathlib", "urllib.parse", "distconsole_agent.survey.surveying"),
)


@pytest.mark.parametrize(
    ("module", "dear"),
    [
        ("server.serve", DEAR),
        ("probes", ("_hashlib", "secrets", "hmac", "dataclasses", "logging")),
    ],
)
def test_an_agent_loads_only_what_it_always_needs(module: str, dear: tuple[str, ...]) -> None:
    program = (
        f"import sys; before = set(sys.modules); import distconsole_agent.{module}; "
        "from distconsole_agent.node_folder.folders import hash_file; "
        f"assert len(hash_file({__file__!r})) == 64; "
        f"print([name for name in {dear!r} if name in sys.modules and name not in before])"
    )
    done = run_to_end([sys.executable, "-c", program], check=True)
    assert done.stdout == "[]\n"
