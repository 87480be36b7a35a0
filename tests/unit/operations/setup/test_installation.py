"""What ``setup`` fetches on the laptop."""

from __future__ import annotations

from pathlib import Path

import pytest

from distconsole.operations.setup.installation import _fetch_source


def test_a_module_of_the_working_folder_is_not_taken_for_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert _fetch_source(None, tmp_path) is None
    assert not (tmp_path / "mark").exists()
