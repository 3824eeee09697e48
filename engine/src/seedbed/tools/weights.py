"""The model of a run with saved weights, and the task `evaluate` of
`seedbed.worker`."""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn
from torch.utils._pytree import tree_leaves

from seedbed import (
    assemble,
    config,
    fingerprint,
    offline,
    project,
    record,
    rng,
    weights,
)
from seedbed.assemble import sources, statistics
from seedbed.config import options
from seedbed.errors import InputError, printable, some
from seedbed.names import SPLITS, flatten
from seedbed.pipeline.source import Source
from seedbed.record import code as code_files
from seedbed.record import files, text, untrusted
from seedbed.record.code import Tree
from seedbed.tools import recorded_code, request
from seedbed.training import checkpoint, evaluate, predictions
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState

_MOST_FILES = 5  # to be named


def load(
    run: str | Path,
    checkpoint: str | int = "best",
    trust: Sequence[str] = (),
    code: str = "here",
    precision: str = "float32",
    online: bool = False,
) -> nn.Module:
    """Return the model of a run with its weights, on the CPU and in evaluation mode.

    The run folder, or a zip of it, is enough: neither data nor files of initial weights
    are read. The current folder may be any, if the Python that runs is that of the
    project's .venv. The global generators are left unchanged. A warning names code and
    files that changed since the run was recorded.

    Args:
        checkpoint: `best`, `last`, or the step of one that was kept, as by
        trainer.keep_best.
        trust: names that the run may use, in addition to those in configs/.
        code: `here` builds the model with the code of this checkout, `record` with that
            in the run's code.zip, which is executed, and which this process imports
            from then on.
        precision: `float32`, or `recorded`: under torch.autocast if the run was, as in
            trainer.precision=bfloat16, so that it computes what the run has evaluated.
        online: open addresses while the model is built also if the run is not this
        checkout's own.

    Raises:
        InputError: the folder is not a run, names something untrusted, or has no such
            checkpoint, or one with other weights than those recorded; or this process
            has imported other modules of the same names.
    """
    if code not in ("here", "record") or precision not in ("float32", "recorded"):
        raise InputError(
            "load: expected code='here' or 'record' and precision='float32' or"
            f" 'recorded', got {code!r} and {precision!r}"
        )
    training, _, lines = training_of(run, checkpoint, trust, code, online)
    for line in lines:
        warnings.warn(line, stacklevel=2)
    if precision == "recorded" and training.autocast is not None:
        _run_under_autocast(training.model, training.autocast)
    return training.model.eval()


def training_of(
    run: str | Path,
    checkpoint: str | int,
    trust: Sequence[str],
    code: str,
    online: bool,
) -> tuple[TrainingState, config.Settings, list[str]]:
    """Return a run's training state, as `load`, its settings, and lines on what has
    changed.

    The settings have the statistics of the run.
    """
    overrides = ["trainer.device=cpu", "trainer.compile=false"]
    with record.run_folder(Path(run).absolute()) as folder:
        origin = request.origin_of(folder)
        tree = recorded_code.tree_of(origin) if code == "record" else Tree()
        settings = request.settings_of(folder, overrides, trust, origin, tree)
        recorded_code.use(origin, tree, settings.seeds.data)
        path = record.checkpoint_path(folder, str(checkpoint))
        offline_block = offline.refusing(not config.may_connect(folder, online))
        with rng.restored(), in_project(), offline_block:
            training, *_, lines = of_checkpoint(settings, path, None, tree.is_recorded)
            return training, statistics.of_record(settings, folder), lines


def _run_under_autocast(model: nn.Module, dtype: torch.dtype) -> None:
    """Let a model's forward pass run under autocast, on whatever device it is."""
    forward = model.forward

    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        device = next((each.device.type for each in model.parameters()), "cpu")
        with torch.autocast(device, dtype):
            return forward(*args, **kwargs)

    model.forward = under_autocast


@contextlib.contextmanager
def in_project() -> Iterator[None]:
    """Change to the project's folder; on exit, back to the current one, if there is
    one."""
    try:
        before = os.getcwd()
    except FileNotFoundError:
        before = None
    os.chdir(project.root())
    try:
        yield
    finally:
        if before is not None:
            os.chdir(before)


def data(
    run: str | Path,
    split: str = "test",
    trust: Sequence[str] = (),
    online: bool = False,
) -> Any:
    """Return the data set of a run: `train`, `validation` or `test`, with the parts of
    that run.

    Its paths in the project's folder are made absolute. The global generators are left
    unchanged. `trust` and `online` are as for `load`.

    Raises:
        InputError: as `load`, or the run has no such data set.
    """
    run = Path(run).absolute()
    settings = request.settings_of(run, (), trust)
    if split not in SPLITS or settings.data.spec(split) is None:
        raise InputError(f"split: expected a data set of {run}, got {split}")
    with_absolute_paths = OmegaConf.create(settings.plain)
    for key, name, value in config.entries(settings.plain["data"]):
        path = project.root() / str(value)
        is_path = isinstance(value, str) and (
            "/" in value or name in ("root", "path", "file")
        )
        if is_path and path.exists():
            OmegaConf.update(with_absolute_paths.data, key, str(path))
    offline_block = offline.refusing(not config.may_connect(run, online))
    with rng.restored(), in_project(), offline_block:
        settings = statistics.of_record(config.check(with_absolute_paths), run)
        with naming_missing_files(run):
            return sources.build_sources(settings, evaluating=True)[split].dataset


@contextlib.contextmanager
def naming_missing_files(run: Path) -> Iterator[None]:
    """Let errors of a run's data sets say which files are not here that it read."""
    try:
        yield
    except InputError as error:
        paths = _missing_files(run)
        if not paths:
            raise
        raise InputError(
            f"{error}; the run read {some(paths, _MOST_FILES)}, which"
            f" {'is' if len(paths) == 1 else 'are'} not here"
        ) from error


def _missing_files(run: Path) -> list[str]:
    try:
        recorded = record.read_environment(run).get("files_sha256")
    except InputError:  # the error of the data set is the one to show
        return []
    return [printable(f"{path:.200}") for path in files.missing(recorded)]


def evaluate_as_requested(arguments: Sequence[str]) -> int:
    """Evaluate as requested; write what was evaluated and its values to answer.json."""
    with request.received(arguments) as (folder, asked):
        split = asked["split"]
        settings = config.check(record.read_config(folder))
        assemble.prepare_backends(settings)
        path = record.checkpoint_path(Path(asked["run"]), asked["checkpoint"])
        training, source, step, lines = of_checkpoint(
            settings, path, split, asked["restore_code"]
        )
        assert source is not None  # of a split
        shards = Shards()
        trainer = settings.trainer
        most = {
            "validation": trainer.limit_validation_batches,
            "test": trainer.limit_test_batches,
        }
        batches = sources.evaluation_batches(
            settings, source, shards, training.device, most.get(split)
        )
        probabilities = sys.maxsize if asked["predictions"] else 0
        result = evaluate.evaluate(training, batches, shards, probabilities)
        row = {
            "checkpoint": asked["checkpoint"],
            "step": step,
            "split": split,
            "data": settings.data.name,
            "samples": len(result.targets),
            "device": str(training.device),
            "precision": trainer.precision,
            **{f"{split}_{name}": value for name, value in result.values.items()},
        }
        lines += other_samples(
            training, settings, Path(asked["run"]), split, result.samples_hash
        )
        if asked["predictions"]:
            if result.predictions is None:
                raise InputError(
                    "--predictions: expected a method that returns them, got another"
                )
            table = predictions.table(result, source.dataset)
            options.write(Path(asked["predictions"]), table)
        request.write_answer(folder, row)
        return request.end(asked, lines)


def other_samples(
    training: TrainingState,
    settings: config.Settings,
    run: Path,
    split: str,
    samples_hash: int,
) -> list[str]:
    """Return a line if the evaluated samples are not those that the run has evaluated.

    They are compared if nothing that was asked for makes them others, and the preset
    promises bits.
    """
    recorded = (record.read_summary(run).get("fingerprints") or {}).get(
        f"{split}_samples"
    )
    recorded_settings, asked_settings = (
        flatten(tree) for tree in (untrusted.read_dict(run), settings.plain)
    )
    keys = (
        "data.",
        "seeds.",
        f"trainer.limit_{split}_batches",
        "trainer.device",
        "trainer.precision",
    )
    is_asked = any(
        recorded_settings.get(k) != asked_settings.get(k)
        for k in recorded_settings | asked_settings
        if k.startswith(keys)
    )
    if recorded is None or is_asked or not training.strict:
        return []
    if recorded == fingerprint.text(samples_hash):
        return []
    return [
        f"the {split} samples are not those that the run evaluated: let a sample depend"
        " on its index and on seeded draws alone, and look for data that changed"
    ]


def of_checkpoint(
    settings: config.Settings,
    path: Path,
    split: str | None,
    code_is_recorded: bool = False,
) -> tuple[TrainingState, Source | None, int, list[str]]:
    """Return the training state with the weights of a checkpoint, samples of a split,
    and the step.

    The samples of the split are loaded as for evaluation, also those of the training
    split. Last come lines on what changed since the run was recorded. Raises InputError
    if there is no such checkpoint, or it belongs to another model or run.
    """
    run = path.parents[1]
    _require_checkpoint(path)  # before statistics, which the run then lacks as well
    filled = statistics.of_record(settings, run)
    with naming_missing_files(run):
        built = sources.build_sources(filled, evaluating=True) if split else {}
    device = assemble.choose_device(settings.trainer.device)
    state = checkpoint.load(path, device)
    with weights.of_a_checkpoint():
        training = assemble.build_training_state(filled, device, saved=state["model"])
    lines = list(_changes(run, settings, built.get("train"), code_is_recorded))
    try:
        with checkpoint.fitting(path):
            step = weights.step_of(state)
            checkpoint.restore_model(training.model, state)
    except InputError as error:
        raise InputError("; ".join([str(error), *lines])) from None
    try:
        is_compared = weights.require_recorded(run, path, state, training)
        if not is_compared and settings.fingerprint.every_steps:
            lines.append(
                f"the weights are not compared: {run} has no hash of those of step"
                f" {step}"
            )
    except InputError as error:
        if training.strict:
            raise
        # an evaluation may have changed the weights, which is allowed
        lines.append(str(error))
    with checkpoint.fitting(path):
        evaluate.restore(training, state)
    return training, built[split] if split else None, int(step), lines


def _require_checkpoint(path: Path) -> None:
    """Raise InputError if a run has no checkpoint of this path."""
    run = path.parents[1]
    if path.stem.startswith(record.KEPT) and not path.exists():
        kept = record.kept_checkpoints(run) | record.best_checkpoints(run)
        known = ", ".join(map(str, sorted(kept))) or "there is none"
        raise InputError(
            f"--checkpoint: expected best, last or a step that was kept ({known}), got "
            f"{path.stem.removeprefix(record.KEPT)}"
        )
    if not path.exists():
        raise InputError(
            f"{path}: expected a checkpoint, got none: the run has made no step that"
            " was saved, or its files are elsewhere"
        )


def _changes(
    run: Path,
    settings: config.Settings,
    training: Source | None,
    code_is_recorded: bool,
) -> Iterator[str]:
    """Yield a line on changed code, and one on changed data that overrides did not
    replace.

    Without the training samples, which were not needed, files that are not here count
    as unchanged.
    """
    origin = request.origin_of(run)
    names = [] if code_is_recorded else code_files.changed_here(origin)
    if names:
        yield f"code has changed since the record: {some(names)}"
    # Files that both configurations name, alone or in a folder.
    both = [
        {str(x).rstrip("/") for x in tree_leaves(x)}
        for x in (origin.settings, settings.plain)
    ]
    named = both[0] & both[1]
    known: dict[str, str] = {}
    for name, digest in (origin.environment.get("files_sha256") or {}).items():
        path = Path(name.removesuffix(files.TIMES))
        if named & {str(path), *map(str, path.parents)}:
            known[name] = digest
    changed = [each for each in files.changed(known) if training or Path(each).exists()]
    noted = origin.environment.get("data_sha256")
    recorded_data, asked_data = (
        [tree["data"].get(key) for key in ("dataset", "train")]
        for tree in (origin.settings, settings.plain)
    )
    if training and noted and recorded_data == asked_data:
        built = getattr(training.dataset, "sha256", None)
        if json.loads(text.as_json({"": built}))[""] != noted:
            changed.append("data.train")
    if changed:
        yield f"data have changed since the record: {some(changed)}"
