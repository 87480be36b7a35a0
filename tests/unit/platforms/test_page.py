"""The table of platforms says of a claim what pytest said of its tests."""

import subprocess
import sys
from pathlib import Path

import pytest

from platforms import page, rows
from suite.pages import put_between_marks

ROOT = Path(rows.__file__).parent.parent.parent
OUTCOMES = """
import pytest

def test_holds(): pass
def test_breaks(): assert False
def test_lacks(): pytest.skip("needs Horovod")
@pytest.mark.parametrize("way", ["a b", "c"])
def test_ways(way): assert way == "c"
"""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a real pytest reported of one platform."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_some.py").write_text(OUTCOMES)
    row = rows.ROWS[0]
    words = ["-q", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider"]
    report = f"--junitxml={row.name}.xml"
    command = [sys.executable, "-m", "pytest", *words, report, "tests/test_some.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1, done.stdout
    (tmp_path / f"{row.name}.versions").write_text("debian: 12 (12.11)\nslurm: \nmpirun: 4.1.4\n")
    some = "tests/test_some.py"
    claims = {
        "holds": (f"{some}::test_holds", f"{some}::test_ways[c]"),
        "breaks": (f"{some}::test_holds", f"{some}::test_breaks"),
        "one way breaks": (f"{some}::test_ways[a b]",),
        "file": (some,),
        "lacks": (f"{some}::test_lacks",),
        "was never run": (f"{some}::test_other",),
    }
    monkeypatch.setattr(page, "CLAIMS", claims)
    return tmp_path


def test_a_claim_is_real_only_if_all_of_its_tests_passed(results: Path) -> None:
    lines = page.make_table(results).splitlines()
    cells = dict(
        line[2:-2].split(" | ") for line in lines if line.startswith("| ") and line[2] != "|"
    )
    assert "Real on each: holds." in lines
    assert cells["breaks"] == cells["one way breaks"] == cells["file"] == "**fails**"
    assert cells["lacks"] == "not tried"
    assert cells["was never run"] == "not tried"
    assert (cells["mpirun"], cells["slurm"]) == ("4.1.4", "–")


def test_a_table_stands_between_the_marks_of_its_page(tmp_path: Path) -> None:
    path, text = (
        tmp_path / "page.md",
        "before\n<!-- rows: begin -->\n{}\n<!-- rows: end -->\nafter\n",
    )
    path.write_text(text.format("of yesterday"))
    put_between_marks(path, "rows", "Tried 2026")
    assert path.read_text() == text.format("Tried 2026")
    path.write_text("no marks")
    with pytest.raises(ValueError, match="no <!-- rows: begin"):
        put_between_marks(path, "rows", "")


def test_every_claim_names_tests_that_exist() -> None:
    tests = [test for each in rows.CLAIMS.values() for test in each]
    words = ["-q", "--collect-only", "--campaign", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *words, *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
