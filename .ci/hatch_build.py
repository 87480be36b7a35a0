"""Puts the manual pages that ``make man`` wrote into the wheel; without them it is built all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface[Any]):
    """See https://hatch.pypa.io/latest/plugins/build-hook/custom/."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the pages; an editable installation needs none."""
        folder = Path(self.root) / "build" / "man"
        if version != "editable" and folder.is_dir():
            where = "shared_data" if self.target_name == "wheel" else "force_include"
            place = "share/man/man1" if self.target_name == "wheel" else "build/man"
            build_data[where][str(folder)] = place
