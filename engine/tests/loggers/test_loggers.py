"""Loggers: each library reads back the values of metrics.csv, and none changes a
bit."""

import json
import os
import random
import signal
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from seedbed import loggers, record
from seedbed.compare import verify
from seedbed.config.compose import compose
from seedbed.loggers import Entry, Run
from tests.end_to_end.live import begin, until
from tests.run.runs import work
from tests.run.test_resume import begun, stopped
from tests.running import QUICK, command, made_once
from tests.ways import differences

INSTALLED = [name for name in ("tensorboard", "mlflow", "wandb") if find_spec(name)]
Values = dict[str, list[tuple[int, float]]]  # by name: (step, value)


def words(folder: Path, *libraries: str) -> list[str]:
    """Return overrides that choose loggers, with MLflow's database in a folder."""
    store = [f"logger.mlflow.tracking_uri=sqlite:///{folder}/mlflow.db"]
    return [
        f"logger=[csv,{','.join(libraries)}]",
        *(store if "mlflow" in libraries else []),
    ]


def in_record(run: Path) -> Values:
    """Return the values in metrics.csv by the names under which they are logged."""
    found: Values = {}
    for row in record.read_metrics(run):
        for column in row.keys() - {"step", "phase"}:
            if row[column]:
                name = f"{row['phase']}/{column}"
                found.setdefault(name, []).append(
                    (int(row["step"]), float(row[column]))
                )
    return found


def in_tensorboard(run: Path) -> tuple[Values, dict[str, Any]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    events = EventAccumulator(
        str(run / "tensorboard"), size_guidance={"scalars": 0}
    ).Reload()
    values = {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(
        content
    ).session_start_info.hparams
    return values, {key: getattr(v, v.WhichOneof("kind")) for key, v in start.items()}


def in_mlflow(run: Path) -> tuple[Values, dict[str, Any]]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run.parent}/mlflow.db")
    [experiment] = [e for e in client.search_experiments() if e.name == "seedbed"]
    # one, however often it was resumed
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == run.name
    assert found.info.status == "FINISHED"
    values = {
        name: [
            (m.step, m.value)
            for m in client.get_metric_history(found.info.run_id, name)
        ]
        for name in found.data.metrics
    }
    return values, found.data.params


def in_wandb(run: Path) -> tuple[Values, dict[str, Any]]:
    """Return values and settings of the newest file, whose upload replaces the
    others'."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # waits for the writing process, if this one started it
    files = sorted((run / "wandb").glob("offline-run-*/run-*.wandb"))
    # one run, however often it was resumed
    assert len({file.name for file in files}) == 1
    values: Values = {}
    settings: dict[str, Any] = {}
    # a LevelDB log, after W&B's header
    data = files[-1].read_bytes()
    position = 7
    assert len(data) < 32768, "a log of several blocks, at whose ends records are split"
    while position < len(data):
        _, length, _ = struct.unpack_from("<IHB", data, position)
        entry = Record.FromString(data[position + 7 : position + 7 + length])
        position += 7 + length
        for item in entry.run.config.update:
            settings[item.key] = json.loads(item.value_json)
        row = {
            item.key or item.nested_key[0]: item.value_json
            for item in entry.history.item
        }
        for name in row:
            if not name.startswith("_"):
                step = int(row["_step"])
                values.setdefault(name, []).append((step, float(json.loads(row[name]))))
    return values, record.flatten(settings)


READERS = {"tensorboard": in_tensorboard, "mlflow": in_mlflow, "wandb": in_wandb}


@pytest.mark.skipif(not INSTALLED, reason="needs a logger's library")
def test_libraries_read_back_what_the_record_holds_after_a_kill(
    quick_run: Path, tmp_path: Path
) -> None:
    """After SIGKILL and a resume, each log holds every value once, in one run, and the
    settings. No bit of the run changes. Negative control: one changed value."""
    run = tmp_path / "run"
    settings = (
        *QUICK,
        "trainer.checkpoint_every_steps=5",
        *words(tmp_path, *INSTALLED),
    )
    process = begin("train.py", f"hydra.run.dir={run}", *settings, "data.num_workers=2")
    until((run / "checkpoints" / "last.pt").exists, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert record.read_summary(run)["status"] == "running"
    done = command("scripts/resume.py", str(run))
    assert done.returncode == 0, done.stderr
    assert differences(quick_run, run) == []
    for library in INSTALLED:
        values, parameters = READERS[library](run)
        expected = in_record(run)
        if library == "tensorboard":  # it keeps float32
            for rows in expected.values():
                rows[:] = [(step, float(np.float32(value))) for step, value in rows]
        assert values == expected
        expected["train/loss"][3] = (4, expected["train/loss"][3][1] + 1e-6)
        assert values != expected  # negative control
        assert not [key for key in parameters if key.startswith("determinism.env.")]
        for key in ("seed", "data.batch_size", "optimizer.lr", "determinism.name"):
            asked = OmegaConf.select(record.read_config(run), key)
            assert str(asked) == str(parameters[key]) or float(asked) == parameters[key]


def test_trackers_get_the_settings_without_the_variables_of_a_preset() -> None:
    """Those would be some sixty parameters. Negative control: its other settings."""
    settings = {
        "seed": 0,
        "determinism": {"name": "strict", "env": {"OMP_DYNAMIC": "FALSE"}},
    }
    assert loggers.shown(settings) == {"seed": 0, "determinism": {"name": "strict"}}
    assert "env" in settings["determinism"], "the run's own"


@pytest.mark.parametrize("library", INSTALLED)
def test_a_figure_reaches_each_library(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged as an image under its name and step."""
    monkeypatch.chdir(tmp_path)  # MLflow creates its artifact folder here
    path = tmp_path / "confusion_3.png"
    Figure(figsize=(1, 1)).savefig(path)
    settings: Any = OmegaConf.to_container(
        compose(*words(tmp_path, library)), resolve=True
    )
    opened = loggers.Loggers(Run(tmp_path, settings), print)
    opened.note([{"step": 3, "phase": "validation", "loss": "0.5"}])
    opened.call("log_figure", "validation/confusion", 3, path)
    opened.call("close", True)
    if library == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import (
            EventAccumulator,
        )

        events = EventAccumulator(str(tmp_path / "tensorboard"), {"images": 0}).Reload()
        assert [each.step for each in events.Images("validation/confusion")] == [3]
    else:
        pattern = {"mlflow": "mlruns/**/*.png", "wandb": "wandb/offline-*/**/*.png"}[
            library
        ]
        [found] = tmp_path.glob(pattern)
        assert found.name.startswith("confusion")


class Drawing:
    """A logger that seeds and draws from all global generators; the call named `fails`
    raises."""

    def __init__(self, run: Run, fails: str = "") -> None:
        self.log = self.save = self.close = self.draw
        self.draw()
        if fails == "open":
            self.fail()
        setattr(self, fails, self.fail)

    def draw(self, *_: object) -> None:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        random.random(), np.random.rand(), torch.rand(3)

    def fail(self, *_: object) -> None:
        raise RuntimeError("the store is full\nof things")


class Writing:
    """A logger that writes all its values to told.json in the run folder."""

    def __init__(self, run: Run) -> None:
        self.path = run.folder / "told.json"
        self.told: Values = {}
        for entry in run.history:
            self.log(entry)

    def log(self, entry: Entry) -> None:
        for name, value in entry.values.items():
            self.told.setdefault(name, []).append((entry.step, value))

    def save(self) -> None:
        pass

    def close(self, finished: bool) -> None:
        self.path.write_text(json.dumps([finished, self.told]))


DRAWING, WRITING = (
    f"tests.loggers.test_loggers.{name}" for name in ("Drawing", "Writing")
)
DROPOUT = "model.dropout=0.5"


@pytest.fixture
def quiet(this_process_trains: None, shared: Path) -> Path:
    return (
        made_once(shared / "quiet", lambda folder: work(begun(folder / "run", DROPOUT)))
        / "run"
    )


@pytest.mark.parametrize("fails", ["nowhere", "log", "close"])
def test_no_logger_changes_a_bit(quiet: Path, tmp_path: Path, fails: str) -> None:
    """One may draw random numbers, because the generators are seeded before each step;
    one that fails is dropped, with a single warning."""
    words = (f"+logger.ours._target_={DRAWING}", f"+logger.ours.fails={fails}")
    run = begun(tmp_path / "run", DROPOUT, *words)
    assert work(run) == 0
    assert differences(quiet, run) == []
    text = (run / "train.log").read_text()
    warning = "logger.ours failed: RuntimeError: the store is full of"
    assert text.count(warning) == (fails != "nowhere")
    assert record.read_summary(run)["status"] == "finished"


@pytest.mark.usefixtures("this_process_trains")
def test_a_logger_that_does_not_open_stops_the_run_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user may still be watching before the first step. A replay opens no
    loggers."""
    words = (f"+logger.ours._target_={DRAWING}", "+logger.ours.fails=open")
    run = begun(tmp_path / "run", *words)
    assert work(run) == 2
    error = "error: logger.ours: it could not start (RuntimeError: the store is full"
    assert error in capsys.readouterr().err
    assert record.read_metrics(run) == []
    assert "logger" not in verify.trusted_config(run, ["tests"]).plain


@pytest.mark.usefixtures("this_process_trains")
def test_a_resumed_run_may_have_other_loggers(tmp_path: Path) -> None:
    """Loggers are not part of the experiment: a strict run resumes, and the new logger
    gets all values. Loggers of an interrupted run are not told that it finished."""
    run = stopped(tmp_path / "run", 9, f"+logger.ours._target_={WRITING}")
    assert json.loads((run / "told.json").read_text())[0] is False
    assert work(run, settings={"logger": {"new": {"_target_": WRITING}}}) == 0
    finished, told = json.loads((run / "told.json").read_text())
    assert finished
    assert {
        name: [tuple(row) for row in rows] for name, rows in told.items()
    } == in_record(run)


@pytest.mark.long
@pytest.mark.skipif("mlflow" not in INSTALLED, reason="MLflow is not installed")
def test_jobs_that_create_one_database_at_once_succeed(tmp_path: Path) -> None:
    """Of several processes that create MLflow's tables, all but one failed."""
    sets = "determinism.threads=1", "trainer.max_steps=2"
    chosen = words(tmp_path, "mlflow")
    runs = [tmp_path / name for name in ("a", "b", "c")]
    jobs = [begin("train.py", f"hydra.run.dir={run}", *sets, *chosen) for run in runs]
    for job in jobs:
        _, stderr = job.communicate(timeout=300)
        assert job.returncode == 0, stderr
    assert len({(run / "mlflow_run_id").read_text() for run in runs}) == 3


@pytest.mark.skipif("mlflow" not in INSTALLED, reason="MLflow is not installed")
def test_an_exported_model_is_an_artifact_of_the_runs_mlflow_run(
    tmp_path: Path,
) -> None:
    """The artifact has the bytes of the file. Negative control: a record whose
    configuration was edited, whose address is another's."""
    from mlflow import MlflowClient

    run = tmp_path / "run"
    words_of_run = (*QUICK, *words(tmp_path, "mlflow"))
    assert command("train.py", f"hydra.run.dir={run}", *words_of_run).returncode == 0
    out = tmp_path / "model.pt2"
    sent = command("scripts/export.py", str(run), "--out", str(out), "--mlflow")
    assert sent.returncode == 0, sent.stderr
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    run_id = (run / "mlflow_run_id").read_text().strip()
    stored = client.download_artifacts(run_id, "model", str(tmp_path))
    assert sorted(path.name for path in Path(stored).iterdir()) == [
        "model.pt2",
        "model.pt2.json",
    ]
    assert (Path(stored) / "model.pt2").read_bytes() == out.read_bytes()
    (run / "config.mark").unlink()
    other = tmp_path / "other.pt2"
    refused = command("scripts/export.py", str(run), "--out", str(other), "--mlflow")
    assert refused.returncode == 2
    assert "--online" in refused.stderr
    assert not other.exists()


def test_a_run_that_was_not_logged_has_no_mlflow_run(
    quick_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model.pt2"
    words_of_export = (str(quick_run), "--out", str(out), "--mlflow")
    refused = command("scripts/export.py", *words_of_export)
    assert refused.returncode == 2
    assert "--mlflow: expected a run that was logged by logger=mlflow" in refused.stderr
    assert not out.exists()
