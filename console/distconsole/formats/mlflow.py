"""A run in MLflow, by its own package (an extra): a tracking server, or a database in a folder.

Server, login and experiment are as the package's own variables say: MLFLOW_TRACKING_URI,
MLFLOW_TRACKING_TOKEN, MLFLOW_EXPERIMENT_NAME.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from distconsole.errors import UnavailableError
from distconsole.formats.curves import PROJECT, CurveValue, Tracker
from distconsole.model.run_events import EndState, RunEnded, RunEvents

MAX_VALUE_CHARS = 500
METRICS_A_REQUEST = 1000
"""More are refused by a tracking server."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""Instead of two minutes and seven tries, unless they are set."""
STATES = {EndState.SUCCEEDED: "FINISHED", EndState.FAILED: "FAILED", EndState.STOPPED: "KILLED"}

_UNNAMEABLE = re.compile(r"[^\w./: -]|(?<=/)/+|^/+|\.\.+")


class MlflowRun(Tracker):
    """Args: folder: gets the database ``mlflow.db``; None for the server that MLFLOW_TRACKING_URI names."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self._id = ""
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        store = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            store = f"sqlite:///{folder.absolute()}/mlflow.db"
        with _refusals():
            self._client = MlflowClient(tracking_uri=store)

    def begin(self, event: RunEvents, name: str, settings: dict[str, str]) -> None:
        wanted = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        tags = {"distconsole.run": event.run, "mlflow.source.name": settings.get("script", "")}
        params = [Param(key, value[:MAX_VALUE_CHARS]) for key, value in settings.items()]
        with _refusals():
            known = self._client.get_experiment_by_name(wanted)
            experiment = known.experiment_id if known else self._client.create_experiment(wanted)
            began = int(event.t * 1000)
            if not self._id:  # else it was made, and what follows was refused
                made = self._client.create_run(experiment, began, tags, run_name=name or event.run)
                self._id = made.info.run_id
            self._client.log_batch(self._id, params=params)
        self.place = f"MLflow's experiment {wanted}, run {self._id}"

    def send(self, values: list[CurveValue]) -> None:
        while batch := values[:METRICS_A_REQUEST]:
            metrics = [
                Metric(
                    _UNNAMEABLE.sub("_", each.name)[:250],
                    each.value,
                    int(each.t * 1000),
                    each.step,
                )
                for each in batch
            ]
            with _refusals():
                self._client.log_batch(self._id, metrics=metrics)
            del values[: len(batch)]

    def end(self, end: RunEnded | None, note: str) -> None:
        with _refusals():
            tags = [RunTag("mlflow.note.content", note)]
            if end is not None:
                tags.append(RunTag("distconsole.exit_code", str(end.exit_code)))
            self._client.log_batch(self._id, tags=tags)
            if end is not None:
                self._client.set_terminated(self._id, STATES[end.state], int(end.t * 1000))


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn what server or database refuses into a UnavailableError without its trace."""
    try:
        yield
    except (MlflowException, OSError) as error:
        words = str(error).splitlines()[0][:300]
        raise UnavailableError(f"MLflow refuses: {words}", "see MLFLOW_TRACKING_URI") from None
