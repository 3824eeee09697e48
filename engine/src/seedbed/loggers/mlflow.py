"""MLflow: a run in a tracking store, by default a SQLite file in the current folder.

View it with `mlflow ui`, which expects the file there. (MLflow 3 refuses its older
store, a folder of files.)
"""

import fcntl
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from seedbed import config, record
from seedbed.errors import InputError, one_line
from seedbed.loggers import Entry, Run, shown
from seedbed.names import flatten
from seedbed.record import untrusted

_ID = "mlflow_run_id"  # in the run folder

# per request
_MOST_PARAMETERS = 100
_MOST_METRICS = 1000
_SECONDS_BETWEEN_REQUESTS = 1.0  # each takes as long as a training step: milliseconds


@contextmanager
def _one_at_a_time(tracking_uri: str) -> Iterator[None]:
    """Wait until no other process opens a SQLite file: of several that create it, one
    succeeds.

    Its folder is locked, so that no other file is left there.
    """
    path = tracking_uri.removeprefix("sqlite:///")
    with ExitStack() as held:
        if path != tracking_uri:
            # MLflow says what is wrong; some file systems have no locks
            with suppress(OSError):
                folder = os.open(Path(path).absolute().parent, os.O_RDONLY)
                held.callback(os.close, folder)
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield


def _library() -> Any:
    # Read on import: no telemetry, and a server that is down delays a run by seconds
    # only.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    import mlflow

    for name in ("mlflow", "alembic"):  # no messages about creating the database
        logging.getLogger(name).setLevel(logging.WARNING)
    return mlflow


def require_logged(run: Path, online: bool) -> tuple[str, str]:
    """Return the tracking URI and the id of the MLflow run of a run folder.

    Raise InputError if it has none, or if a stranger's record names the address and
    `online` is not set.
    """
    recorded = record.read_config(run)
    uri = flatten(recorded).get("logger.mlflow.tracking_uri")
    file = run / _ID
    if not isinstance(uri, str) or not file.is_file():
        raise InputError(
            f"--mlflow: expected a run that was logged by logger=mlflow, got {run}"
        )
    if not config.may_connect(run, online):
        raise InputError(
            f"--mlflow: the record of {run} was not made here and names {uri:.200}; to"
            " send the file there: --online"
        )
    text = untrusted.read_bytes(file, 256).decode(errors="replace").strip()
    if not re.fullmatch(r"[0-9a-f]{1,64}", text):
        raise InputError(f"{file}: expected the id of an MLflow run, got {text[:40]!r}")
    path = uri.removeprefix("sqlite:///")
    if path != uri and not Path(path).is_file():
        raise InputError(
            f"--mlflow: {path} of the run is not there; start the command in the folder"
            " of the training"
        )
    if find_spec("mlflow") is None:
        raise InputError("--mlflow: needs a package: pip install mlflow")
    return uri, text


def add_artifacts(logged: tuple[str, str], files: Sequence[Path]) -> None:
    """Store files as artifacts of an MLflow run, in its folder `model`.

    `logged` is of `require_logged`. Raises InputError if the store refuses them.
    """
    uri, run_id = logged
    try:
        client = _library().MlflowClient(uri)
        for file in files:
            client.log_artifact(run_id, str(file), "model")
    except Exception as error:  # of MLflow, its database and its server
        raise InputError(
            f"--mlflow: the files are written, and not logged: {one_line(error, 300)}"
        ) from error


class MLflow:
    """Logs to a single MLflow run, however often the training is resumed."""

    def __init__(self, run: Run, tracking_uri: str, experiment: str) -> None:
        mlflow = _library()
        mlflow.set_tracking_uri(tracking_uri)
        self._entities = mlflow.entities
        with _one_at_a_time(tracking_uri):
            self._client = mlflow.MlflowClient()
            mlflow_experiment = mlflow.set_experiment(experiment).experiment_id
        file = run.folder / _ID
        if file.exists():
            self._id = file.read_text().strip()
            self._client.update_run(self._id, status="RUNNING")
        else:
            created = self._client.create_run(
                mlflow_experiment, run_name=run.folder.name
            )
            self._id = created.info.run_id
            record.write_atomically(file, f"{self._id}\n")
        for tag in run.settings.get("tags", ()):
            self._client.set_tag(self._id, tag, "")
        if run.settings.get("notes"):
            self._client.set_tag(self._id, "mlflow.note.content", run.settings["notes"])
        self._waiting: list[Any] = []
        self._sent = time.monotonic()
        # Logged values cannot be deleted. An earlier process may have logged rows from
        # after the checkpoint: when they come again, they are skipped.
        stored = self._client.get_run(self._id).data
        self._known = {
            (name, metric.step, metric.value)
            for name in stored.metrics
            for metric in self._client.get_metric_history(self._id, name)
        }
        parameters = [
            self._entities.Param(key, str(value))
            for key, value in record.flatten(shown(run.settings)).items()
            if key not in stored.params
        ]
        for start in range(0, len(parameters), _MOST_PARAMETERS):
            batch = parameters[start : start + _MOST_PARAMETERS]
            self._client.log_batch(self._id, params=batch)
        for entry in run.history:
            self.log(entry)

    def log(self, entry: Entry) -> None:
        """Queue a row; queued rows are sent together, after a second or by `save`."""
        milliseconds = int(time.time() * 1000)
        for name, value in entry.values.items():
            if (name, entry.step, value) not in self._known:
                self._waiting.append(
                    self._entities.Metric(name, value, milliseconds, entry.step)
                )
        if time.monotonic() - self._sent >= _SECONDS_BETWEEN_REQUESTS:
            self.save()

    def log_figure(self, name: str, step: int, path: Path) -> None:
        """Store a figure as an artifact of the run; its file name contains the step."""
        self._client.log_artifact(self._id, str(path), "figures")

    def save(self) -> None:
        for start in range(0, len(self._waiting), _MOST_METRICS):
            batch = self._waiting[start : start + _MOST_METRICS]
            self._client.log_batch(self._id, metrics=batch)
        self._waiting = []
        self._sent = time.monotonic()

    def close(self, finished: bool) -> None:
        """End the run in the store; one that was stopped may be resumed."""
        self.save()
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")
