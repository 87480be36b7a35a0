"""What was asked for and has no verdict: everything, a word of ``--only``, or all of it on a host."""

from __future__ import annotations

import pytest

from distconsole.checks.engine.unmade import find_unmade
from distconsole.checks.facts.evidence import ELSEWHERE

NO_GPU = "no GPU"
REST = "the selection and the configuration leave none"


@pytest.mark.parametrize(
    ("only", "first", "second", "expected"),
    [
        (("gpu",), {"gpu.cuda": NO_GPU}, {"gpu.cuda": NO_GPU}, [("ab", " of gpu", NO_GPU)]),
        (("os", "gpu"), {"os.user": "", "gpu.cuda": NO_GPU}, {"os.user": "", "gpu.cuda": NO_GPU},
         [("ab", " of gpu", NO_GPU)]),
        (("gpu",), {"gpu.cuda": ""}, {"gpu.cuda": NO_GPU}, [("b", "", NO_GPU)]),
        ((), {"gpu.cuda": NO_GPU}, {}, [("ab", "", NO_GPU)]),
        (("os", "expect"), {"os.user": ""}, {"os.user": ""}, [("ab", " of expect", REST)]),
        ((), {"os.user": "", "gpu.cuda": NO_GPU}, {"os.user": ""}, []),
        (("port",), {"port.master_free": ""}, {"port.master_free": ELSEWHERE}, []),
        (("port",), {"port.master_free": ELSEWHERE}, {}, [("ab", " of port", ELSEWHERE)]),
    ],
)  # fmt: skip
def test_what_is_not_there_to_be_judged_is_told(
    only: tuple[str, ...],
    first: dict[str, str],
    second: dict[str, str],
    expected: list[tuple[str, str, str]],
) -> None:
    """The reasons for skipped checks by host; an empty one: it passed."""
    why = {"a": first, "b": second}
    cells = {
        host: {check: "skipped" if reason else "pass" for check, reason in checks.items()}
        for host, checks in why.items()
    }
    found = [("".join(each.hosts), each.summary) for each in find_unmade(cells, why, (), only)]
    assert found == [(hosts, f"no check{of} was made: {why}") for hosts, of, why in expected]
