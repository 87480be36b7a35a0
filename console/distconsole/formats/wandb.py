"""A run in Weights & Biases, by its own package (an extra).

Who one is, where and whether it is sent now or later (``WANDB_MODE=offline``, then ``wandb sync``) is as
the package's own variables and files say: WANDB_API_KEY, WANDB_PROJECT, WANDB_ENTITY, ~/.netrc.
"""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import wandb

from distconsole.errors import UnavailableError
from distconsole.formats.curves import PROJECT, CurveValue, Tracker
from distconsole.model.run_events import RunEnded, RunEvents

STEP = "step"
"""The axis of every curve; a script's metric of this name gets another one."""


class WandbRun(Tracker):
    """Args: folder: where ``wandb/`` is made; None for the package's own choice."""

    def __init__(self, folder: Path | None) -> None:
        """Raise UnavailableError without a login: no key is asked for here."""
        super().__init__()
        settings = wandb.setup().settings
        self._folder = folder
        if settings.mode == "online" and not (settings.api_key or _kept_key(settings.base_url)):
            raise UnavailableError(
                "Weights & Biases has no API key here",
                "wandb login, or WANDB_API_KEY; WANDB_MODE=offline writes a folder for wandb sync",
            )
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def begin(self, event: RunEvents, name: str, settings: dict[str, str]) -> None:
        try:
            self._run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=event.run,
                name=name or None,
                dir=self._folder,
                config=settings,
                resume="allow",
                settings=wandb.Settings(
                    console="off",
                    silent=True,
                    disable_git=True,
                    disable_code=True,
                    x_disable_stats=True,
                    x_disable_meta=True,
                    x_save_requirements=False,
                ),
            )
        except wandb.Error as error:
            raise UnavailableError(f"Weights & Biases refuses: {error}") from None
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        offline = self._run.settings.mode == "offline"
        self.place = str(Path(self._run.dir).parent) if offline else self._run.url
        self.place += "; wandb sync sends it" if offline else ""

    def send(self, values: list[CurveValue]) -> None:
        """Send a row a step and second; rows of one step may be several, as ranks come to it."""
        rows: dict[tuple[int, int], list[CurveValue]] = {}
        for value in values:
            rows.setdefault((int(value.t), value.step), []).append(value)
        try:
            for (second, step), row in list(rows.items()):
                named = {_named(value.name): value.value for value in row}
                self._run.log({"_timestamp": row[0].t, **named, STEP: step})
                del rows[second, step]
        finally:
            values[:] = [value for row in rows.values() for value in row]

    def end(self, end: RunEnded | None, note: str) -> None:
        self._run.notes = note
        if end is not None:
            self._run.summary.update({"state": end.state.value, "seconds": end.seconds})
        self._run.finish(exit_code=end.exit_code if end is not None else 0)


def _named(name: str) -> str:
    return f"metric/{name}" if name.startswith("_") or name == STEP else name


def _kept_key(base_url: str) -> bool:
    """Whether ``wandb login``, or a token of the environment, identifies the user."""
    if os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        kept = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return False
    return kept.authenticators(urlsplit(base_url).hostname or "") is not None
