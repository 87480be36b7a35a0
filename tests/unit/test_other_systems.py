"""Claims about the console where it is not Linux: it loads, knows its folders, and says that nodes are Linux."""

import os
import subprocess
import sys
from pathlib import Path

from distconsole.errors import AgentError
from distconsole.rpc.pack import INSTALLER
from distconsole.rpc.wire import start_refusal

MACOS = Path(__file__).parents[1] / "fakes" / "macos"
LOAD_ALL = """
import importlib, pkgutil, distconsole
for each in pkgutil.walk_packages(distconsole.__path__, "distconsole."):
    if ".node_programs." not in each.name and not each.name.endswith("__main__"):
        try:
            importlib.import_module(each.name)
        except ModuleNotFoundError as error:
            if error.name not in ("mlflow", "wandb"):  # extras, which are not installed for the tests
                raise
from distconsole.__main__ import main
import sys
sys.argv[1:] = ["doctor"]
main()
"""


def test_every_module_of_the_console_loads_on_a_mac_and_doctor_names_its_folders(
    home: Path,
) -> None:
    asked = subprocess.run(
        [sys.executable, "-c", LOAD_ALL],
        env={**os.environ, "PYTHONPATH": str(MACOS), "HOME": str(home)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr
    assert "system       Darwin" in asked.stdout
    assert "distconsole/distconsole.toml" in asked.stdout


def test_a_node_that_is_no_linux_is_told_so() -> None:
    script = f"import sys; sys.platform = 'darwin'\n{INSTALLER}"
    words = [sys.executable, "-c", script, "/nowhere/agent", "0"]
    asked = subprocess.run(words, capture_output=True, timeout=60, check=False)
    error = start_refusal(asked.stdout)
    assert asked.returncode == 1
    assert isinstance(error, AgentError)
    assert error.message == "this is darwin; nodes are Linux"
