"""A real browser without a window, that tells what a page did. It asserts nothing."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
T = TypeVar("T")


class Page:
    """A page that is open."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    def open(self, path: Path, *, width: int = 1400, scheme: str = "light") -> None:
        """Load a file."""
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self._driver.get(path.as_uri())

    def run(self, script: str, *arguments: object) -> Any:
        """Return what a script of the test's own returns."""
        return self._driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        """Return the elements that a CSS selector finds."""
        return self._driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """Return the first one."""
        return self._driver.find_element(By.CSS_SELECTOR, selector)

    def hover(self, element: WebElement, x: float = 0.5, y: float = 0.5) -> None:
        """Put the pointer over an element, at shares of its width and height."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        size = element.size
        over = ActionChains(self._driver)
        over.move_to_element_with_offset(
            element, round((x - 0.5) * size["width"]), round((y - 0.5) * size["height"])
        ).perform()

    def until(self, found: Callable[[], T], seconds: float = 20.0) -> T:
        """Return what ``found`` finds as soon as it is something."""
        deadline = time.monotonic() + seconds
        while not (value := found()):
            if time.monotonic() > deadline:
                raise AssertionError("it does not come")
            time.sleep(0.05)
        return value

    def complaints(self) -> list[str]:
        """Return what was written to the console since the last call."""
        return [entry["message"] for entry in self._log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that a page asked for since the last call; not what Chromium asks for itself."""
        told = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        return [
            each["params"]["request"]["url"]
            for each in told
            if each["method"] == "Network.requestWillBeSent"
            and not each["params"].get("documentURL", "").startswith(OWN)
        ]

    def _log(self, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._driver.get_log(kind)  # type: ignore[no-untyped-call]
        return entries


OWN = ("chrome:", "chrome-")
"""Pages of Chromium itself, such as that of a new tab, which it may open late."""


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start Chromium with an empty profile in ``folder``."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        yield Page(driver)
    finally:
        driver.quit()
