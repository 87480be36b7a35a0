"""How a bare and a watched run of a test are compared."""

import sys
from pathlib import Path

import pytest

from differential import __main__ as differential
from differential.page import judge, write_page
from differential.suites import PYTHON, Suite

ALIKE, OTHER = ["passed", "three lines"], ["passed", "four lines"]
FAILED = ["failed", "three lines"]


@pytest.mark.parametrize(
    ("bare", "watched", "again", "found"),
    [
        (["passed", "one\ntwo"], ["passed", "onetwo\n"], ["passed", "one\ntwo"], "same"),
        (ALIKE, ALIKE, ALIKE, "same"),
        (ALIKE, OTHER, OTHER, "same"),
        (ALIKE, OTHER, ALIKE, "different"),
        (ALIKE, FAILED, ALIKE, "different"),
        (ALIKE, FAILED, OTHER, "different"),
        (ALIKE, None, ALIKE, "different"),
        (None, ALIKE, None, "different"),
        (ALIKE, ["passed", "five lines"], OTHER, "outcome"),
        (ALIKE, ["failed", "five lines"], FAILED, "unsteady"),
    ],
)
def test_a_watched_run_is_compared_with_both_bare_ones(
    bare: list[str] | None, watched: list[str] | None, again: list[str] | None, found: str
) -> None:
    assert judge([bare, watched, again]) == found


def test_what_differs_from_run_to_run_is_taken_out(tmp_path: Path) -> None:
    first = (
        f"[rank0]:W1128 23:48:35.138000 4711 torch/x.py:12] at 0x7f01 {tmp_path}/tmpab12cd_9\nb"
    )
    second = f"b\n[rank0]:W1129 00:48:35.1 815 torch/x.py:12] at 0x7f02 {tmp_path}/tmpxyz12345"
    assert differential.plain(first, tmp_path) == differential.plain(second, tmp_path)
    times = ["[W1128 23:59:37.015128951 x.cpp:1] a", "[W1129 03:01:31.8 x.cpp:1] a"]
    assert len({differential.plain(each, tmp_path) for each in times}) == 1
    assert "packages" in differential.plain("site-packages/torch: three lines", tmp_path)


def test_the_watched_run_is_watched_and_a_difference_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {
        "same": (PYTHON, "-c", "print(6 * 7)"),
        "other": (
            PYTHON,
            "-c",
            "import sys; print([type(each).__module__ for each in sys.meta_path])",
        ),
    }
    monkeypatch.setitem(differential.SUITES, "tiny", Suite("pytest", programs))
    hook = differential.make_hook(tmp_path)
    tests = differential.try_suite("tiny", tmp_path, sys.executable, hook)["tests"]
    assert isinstance(tests, dict)
    assert {name: judge(runs) for name, runs in tests.items()} == {
        "same": "same",
        "other": "different",
    }
    assert "sitecustomize" in tests["other"][1][1]


def test_a_suite_without_results_is_no_row(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- differential: begin -->\n<!-- differential: end -->\nafter\n")
    assert write_page(tmp_path, page).startswith("Not tried.")
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("<!-- differential: end -->\nafter\n")
