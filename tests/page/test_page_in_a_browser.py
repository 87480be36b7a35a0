"""The page of a run, in a real browser: values are read off, ranks sort, nothing is asked for."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole.formats.page import page_of
from distconsole.model.names import RunId
from distconsole.runs.report_data import ReportData
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import stored_events
from fakes.journals import START, Journal
from suite.browser import Page, browser

pytestmark = pytest.mark.browser

HOSTILE = (
    "\"><script>window.bad=1</script>'`${window.bad=1}</style></textarea><img src=x "
    "onerror=window.bad=1><svg onload=window.bad=1>&lt;b&gt;{{7*7}}\x1b[31m\u202eevil"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def chronicle_of(journal: Journal, folder: Path) -> ReportData:
    store = RunStore(folder / "runs")
    journal.write(store)
    data = ReportData()
    with store.open(RunId(journal.run)) as run_file:
        for event in stored_events(run_file):
            data.apply(event)
    data.close()
    return data


def written(journal: Journal, folder: Path) -> Path:
    path = folder / "run.html"
    path.write_bytes(page_of(chronicle_of(journal, folder), START + 300))
    return path


def column(page: Page, number: int) -> list[str]:
    texts: list[str] = page.run(
        "return [...document.querySelectorAll('#ranks tbody tr:not([hidden])')]"
        ".map(row => row.cells[arguments[0]].textContent)",
        number,
    )
    return texts


def foreign(asked: list[str]) -> list[str]:
    return [url for url in asked if not url.startswith(("file://", "data:image/png"))]


def test_values_are_read_off_and_ranks_sort(page: Page, tmp_path: Path) -> None:
    path = written(Journal(hosts=4, per_host=4, slow=6, fails=9), tmp_path)
    page.complaints(), page.requests()
    page.open(path)
    assert page.one(".verdict h2").text == "Failed"
    assert "Rank 9 on node3 failed first: " in page.one(".says").text
    assert "loss.backward()" in page.one(".verdict pre").text

    page.hover(page.one("[data-plot='0'] .box"))
    tip = page.until(lambda: page.one("#tip").text)
    step, value, spread = tip.split("\n")
    middle = int(re.sub(r"\D", "", step))
    assert 550 < middle < 650
    low, high = map(float, spread.split(" to "))
    assert low < float(value) < high

    page.hover(page.one(".heat .box"), y=6.5 / 16)
    tip = page.until(lambda: (text := page.one("#tip").text).startswith("rank 6") and text)
    assert 72 < float(tip.split("\n")[1].removesuffix(" ms")) < 78

    assert column(page, 0)[:2] == ["9", "0"]  # the one that failed stands first
    assert column(page, 3)[0] == "failed first"
    step_ms = page.one("#ranks [data-column='6']")
    step_ms.click()
    assert column(page, 0)[0] == "6"
    assert page.one("#ranks th[aria-sort]").text.startswith("Step ms")
    step_ms.click()
    assert column(page, 0)[-1] == "6"
    page.one("#ranks [data-column='1']").click()
    assert column(page, 1)[0] == "node1"
    page.one("#filter").send_keys("node3 failed")
    page.until(lambda: column(page, 0) == ["9"])

    assert page.complaints() == []
    asked = page.requests()
    assert path.as_uri() in asked
    assert foreign(asked) == []


def test_what_a_node_says_is_text(page: Page, tmp_path: Path) -> None:
    page.complaints(), page.requests()
    path = written(Journal(fails=2, words=HOSTILE), tmp_path)
    page.open(path)
    page.hover(page.one("[data-plot='0'] .box"))
    page.until(lambda: page.one("#tip").text)
    assert page.run("return window.bad") is None
    assert page.run("return document.querySelectorAll('main img, script, style').length") == 4
    assert "<script>window.bad=1</script>" in page.one(".says").text
    assert "\u202e" not in page.run("return document.documentElement.textContent")
    assert page.complaints() == []
    assert foreign(page.requests()) == []


@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(page: Page, tmp_path: Path, width: int, scheme: str) -> None:
    page.open(written(Journal(slow=3, ended=False), tmp_path), width=width, scheme=scheme)
    assert page.run("return document.documentElement.scrollWidth") <= width
    contrast, where = page.run(CONTRAST)
    assert contrast >= 4.5, where
    before = page.run("return getComputedStyle(document.body).backgroundColor")
    page.one("#theme").click()
    assert page.run("return getComputedStyle(document.body).backgroundColor") != before
    contrast, where = page.run(CONTRAST)
    assert contrast >= 4.5, where


CONTRAST = """
const light = (text) => {
  const parts = text.match(/[\\d.]+/g).slice(0, 3).map(Number).map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (!/^rgba.*, 0\\)$/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
let worst = [21, ''];
for (const each of document.querySelectorAll("h1, h2, p, dt, dd, td, th, li strong, .chip, summary, figcaption span, button")) {
  if (!each.textContent.trim() || each.hidden || each.classList.contains("ramp")) continue;
  const [one, other] = [light(getComputedStyle(each).color), light(behind(each))].sort((a, b) => b - a);
  const ratio = (one + 0.05) / (other + 0.05);
  if (ratio < worst[0]) worst = [ratio, each.outerHTML.slice(0, 80) + getComputedStyle(each).color + behind(each)];
}
return worst;
"""
