"""Claims about the manual pages: one a verb, with its options, which groff takes without a complaint."""

import shutil

import pytest

from distconsole.grammar.verbs import VERBS
from suite.man_pages import man_pages
from suite.programs import run_to_end


def test_each_verb_has_a_page_that_groff_takes() -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff here")
    pages = dict(man_pages())
    assert set(pages) == {"distconsole.1", *(f"distconsole-{verb}.1" for verb in VERBS)}
    words = ["groff", "-man", "-Tutf8", "-ww", "-P-cbou"]
    made = run_to_end(words, input="".join(pages.values()), check=True)
    assert made.stderr == ""
    plain = " ".join(made.stdout.split())
    assert "distconsole-run - Launch a script on every host" in plain
    assert "--nproc N|gpu Ranks on each host" in plain
    assert "distconsole run --hosts gpu1:4,gpu2:4 --sync train.py --epochs 3" in plain
