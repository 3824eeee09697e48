"""Evaluation of a run, with overrides from the command line, in a separate process."""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import config, launch, offline, record
from seedbed.config import compose
from seedbed.launch import resume
from seedbed.launch.process import run_passing_signals
from seedbed.record import untrusted


def settings_of(run: Path, overrides: Sequence[str], trust: Sequence[str] = ()) -> DictConfig:
    """Return a run's configuration with overrides, for one process and without loggers.

    Args:
        overrides: `data=NAME` for another data set of configs/data, and `key=value`.
        trust: names that the run may use, in addition to those in configs/.

    Raises:
        InputError: the folder is not a run, its configuration names something untrusted, or an
            override is invalid.
    """
    record.require_run(run)
    untrusted.require_no_way_out(run)
    settings = record.read_config(run)
    settings.pop("logger", None)
    config.check(settings)
    others = []
    for each in overrides:
        if each.startswith("data="):  # first: other overrides may change its keys
            settings.data = compose.compose(each).data
        else:
            others.append(each)
    settings = config.Request(resume.parse(others, settings, free="data")).applied_to(settings)
    settings.trainer.processes = 1
    settings = config.resolve(settings)
    config.require_trusted(settings, run, trust)
    config.check(settings)
    return settings


def start(settings: DictConfig, request: Mapping[str, Any], online: bool) -> tuple[int, Any]:
    """Evaluate in a new process, with the preset's environment variables as in training.

    Returns its exit status and its answer; None if it failed and has printed an error.
    """
    environment = launch.training_environment(settings) | offline.variables(online)
    with tempfile.TemporaryDirectory(prefix="seedbed-") as folder:
        OmegaConf.save(settings, Path(folder, "config.yaml"))
        command = [sys.executable, "-m", "seedbed.tools.evaluation", folder, json.dumps(request)]
        status = run_passing_signals(command, environment)
        answer = Path(folder, "answer.json")
        return status, json.loads(answer.read_text()) if answer.exists() else None
