"""The model of a run in a file that needs nothing of the project.

`export.py` starts the task `export` of `seedbed.worker`. It sets none of
the flags of the run's preset: replaced operations would become part of the file.
"""

import copy
import csv
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from seedbed import config, record
from seedbed.assemble import sources, statistics
from seedbed.config import Settings
from seedbed.errors import InputError, one_line
from seedbed.loggers import mlflow
from seedbed.pipeline.source import Batch
from seedbed.record import files, text, untrusted
from seedbed.tools import request
from seedbed.tools.weights import naming_missing_files, of_checkpoint
from seedbed.training import checkpoint, digests
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import to_device

_MOST_BYTES = 1 << 30  # of test_predictions.csv
_BATCHES = 8  # of the test set, on which a file is checked
_RELATIVE = 1e-3  # tolerances: other libraries add in another order
_PACKAGES = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "safetensors": ("safetensors",),
}

Model = Callable[[Any], Any]


def export_as_requested(arguments: Sequence[str]) -> int:
    """Export as requested; write what was exported to answer.json."""
    with request.received(arguments) as (folder, asked):
        warnings.simplefilter("ignore")  # of exporters, about what they do
        require_packages(asked["format"])
        settings = config.check(record.read_config(folder))
        run = Path(asked["run"])
        out = Path(asked["out"])
        logged = (
            mlflow.require_logged(run, asked["online"]) if asked["mlflow"] else None
        )
        path = record.checkpoint_path(run, asked["checkpoint"])
        training, _, step, lines = of_checkpoint(
            settings, path, None, asked["restore_code"]
        )
        training.model.eval()
        filled = statistics.of_record(settings, run)
        with naming_missing_files(run):
            batches = [to_device(each, training) for each in batches_of(filled)]
        with tempfile.TemporaryDirectory(
            prefix=".seedbed-", dir=out.parent
        ) as temporary:
            file = Path(temporary, "model.pt2")  # torch.export wants this ending
            exported = written(training.model, batches[0].inputs, asked["format"], file)
            checked = difference(training.model, exported, batches)
            recorded = recorded_predictions(run, step, settings)
            if recorded is not None:
                checked |= differing_predictions(training, exported, batches, recorded)
            answer = {
                "file": str(out),
                "format": asked["format"],
                "sha256": files.of_file(file),
                "run": asked["run_name"],
                "checkpoint": asked["checkpoint"],
                "step": step,
                "weights_sha256": checkpoint.load(path).get(digests.WEIGHTS),
                "model": settings.model._target_,
                "inputs": described(batches[0].inputs),
                "statistics": statistics.of_inputs(settings, run, split_of(settings)),
                "outputs": described(outputs_of(training.model, batches[0])),
                "batch": batch_size(training.model, exported, batches[0]),
                "precision": "float32",
                "torch": torch.__version__,
                "checked": checked,
            }
            differs = not checked["close"] or checked.get("predictions_that_differ")
            if not differs:
                description = out.with_name(f"{out.name}.json")
                record.write_atomically(description, text.as_json(answer))
                os.replace(file, out)
                if logged:
                    mlflow.add_artifacts(logged, [out, description])
        request.write_answer(folder, answer)
        if differs:
            print(
                f"error: {out}: not written: its outputs are not the run's",
                file=sys.stderr,
            )
            return 1
        return request.end(asked, lines)


def require_packages(name: str) -> None:
    if missing := [each for each in _PACKAGES.get(name, ()) if find_spec(each) is None]:
        raise InputError(
            f"--format: {name} needs packages: pip install {' '.join(missing)}"
        )


def split_of(settings: Settings) -> str:
    return "validation" if settings.data.spec("test") is None else "test"


def batches_of(settings: Settings) -> Sequence[Batch]:
    """Return the first batches of the test set; without one, of the validation set."""
    split = split_of(settings)
    dataset = sources.build_dataset(settings, split)
    source = sources.as_source(settings, dataset, split, split)
    device = torch.device("cpu")
    return list(
        sources.evaluation_batches(settings, source, Shards(), device, _BATCHES)
    )


@torch.no_grad()
def outputs_of(model: Model, batch: Batch) -> Any:
    return model(tree_map(copy_of, batch.inputs))  # a model may change them


def copy_of(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


@torch.no_grad()
def written(model: nn.Module, inputs: Any, name: str, file: Path) -> Model:
    """Write a model to a file, and return what is read from it: a function of the
    inputs."""
    try:
        return _WRITERS[name](model, inputs, file)
    except Exception as error:  # exporters raise anything
        cause: BaseException = error
        while cause.__cause__ is not None:  # others wrap it into general advice
            cause = cause.__cause__
        raise InputError(
            f"--format: expected a model that {name} can express, got"
            f" {one_line(cause, 300)}; try another format, or change the line that it"
            " names"
        ) from error


def _torch_export(model: nn.Module, inputs: Any, file: Path) -> Model:
    program = torch.export.export(model, (inputs,), dynamic_shapes=_any_batch(inputs))
    torch.export.save(program, file)
    return torch.export.load(file).module()


def _torchscript(model: nn.Module, inputs: Any, file: Path) -> Model:
    trace: Any = torch.jit.trace
    traced = trace(model, (inputs,), strict=False, check_trace=False)
    torch.jit.save(traced, file)
    load: Any = torch.jit.load
    return load(file)  # type: ignore[no-any-return]


def _onnx(model: nn.Module, inputs: Any, file: Path) -> Model:
    program: Any = torch.onnx.export(
        model,
        (inputs, {}),  # else inputs that are a dictionary count as keyword arguments
        dynamo=True,
        dynamic_shapes=_any_batch(inputs),
        verbose=False,
    )
    program.save(file, external_data=False)
    structure = tree_flatten(model(inputs))[1]
    session = import_module("onnxruntime").InferenceSession(
        file, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]

    def run(given: Any) -> Any:
        arrays = (tensor.numpy() for tensor in tree_flatten(given)[0])
        outputs = session.run(None, dict(zip(names, arrays, strict=True)))
        return tree_unflatten([torch.from_numpy(each) for each in outputs], structure)

    return run


def _safetensors(model: nn.Module, inputs: Any, file: Path) -> Model:
    safetensors: Any = import_module("safetensors.torch")  # an optional package
    safetensors.save_model(model, file)
    empty = copy.deepcopy(model)
    for tensor in empty.state_dict().values():
        tensor.zero_()
    safetensors.load_model(empty, file)
    return empty


_WRITERS: dict[str, Callable[[nn.Module, Any, Path], Model]] = {
    "torch.export": _torch_export,
    "torchscript": _torchscript,
    "onnx": _onnx,
    "safetensors": _safetensors,
}


def _any_batch(inputs: Any) -> Any:
    """Return the dynamic shapes by which the exporter leaves the number of samples
    open."""
    auto = torch.export.Dim.AUTO
    return (
        tree_map(
            lambda x: {0: auto} if isinstance(x, Tensor) and x.dim() else None, inputs
        ),
    )


def difference(
    model: Model, exported: Model, batches: Sequence[Batch]
) -> dict[str, Any]:
    """Return the largest difference of outputs over some batches, and whether all are
    close."""
    largest = 0.0
    is_close = True
    for batch in batches:
        pairs = zip(
            tree_flatten(outputs_of(model, batch))[0],
            tree_flatten(outputs_of(exported, batch))[0],
            strict=True,
        )
        for a, b in pairs:
            if isinstance(a, Tensor):
                a = a.double()
                b = b.double()
                is_close = is_close and _are_close(a, b)
                largest = max(largest, float((a - b).nan_to_num(0).abs().max()))
    samples = sum(len(batch.ids) for batch in batches)
    return {"samples": samples, "largest_difference": largest, "close": is_close}


def _are_close(a: Tensor, b: Tensor) -> bool:
    """Compare outputs; what is next to zero counts by the size of the others."""
    return torch.allclose(a, b, _RELATIVE, _absolute(a), equal_nan=True)


def _absolute(values: Tensor) -> float:
    """Return the tolerance next to zero."""
    finite = values[values.isfinite()].abs()
    return _RELATIVE * (float(finite.max()) if finite.numel() else 1.0)


def recorded_predictions(
    run: Path, step: int, settings: Settings
) -> list[list[float]] | None:
    """Return the rows of test_predictions.csv, if they are of this step and of a
    float32 run."""
    summary = record.read_summary(run)
    path = run / "test_predictions.csv"
    if summary.get("tested_step") != step or not path.is_file():
        return None
    if settings.trainer.precision != "float32":
        return None
    content = untrusted.read_bytes(path, _MOST_BYTES).decode(errors="replace")
    rows = list(csv.DictReader(io.StringIO(content)))  # names may have commas
    names = (
        [name for name in rows[0] if name and name.startswith("prediction")]
        if rows
        else []
    )
    try:
        return [[float(row[name]) for name in names] for row in rows]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path}: expected numbers as predictions, got {one_line(error)}"
        ) from None


def differing_predictions(
    training: TrainingState,
    exported: Model,
    batches: Sequence[Batch],
    recorded: list[list[float]],
) -> dict[str, Any]:
    """Return how many predictions of the file are not those that the run recorded."""
    count = 0
    for batch in batches:
        try:
            values = training.method.predict_step(exported, batch)  # type: ignore[arg-type]
        except InputError:  # the method has none
            return {}
        predictions = values["predictions"]
        if int(batch.ids.max()) >= len(recorded):
            raise InputError(
                "test_predictions.csv: expected a row for each sample of the test set,"
                f" got {len(recorded)}; take the data of the run"
            )
        known = torch.tensor(
            [recorded[i] for i in batch.ids.tolist()], dtype=torch.float64
        )
        computed = predictions.detach().double().reshape(len(batch.ids), -1)
        is_same = computed == known
        if predictions.is_floating_point():  # else they are classes
            is_same |= torch.isclose(computed, known, _RELATIVE, _absolute(known))
        count += int((~is_same).any(dim=1).sum())
    return {"predictions_that_differ": count}


def batch_size(model: Model, exported: Model, batch: Batch) -> int | str:
    """Return `any` if a file has the model's outputs for smaller batches than that it
    was made with, too; else the size."""
    size = len(batch.ids)
    try:
        cuts = [_first_of(batch, count) for count in {1, max(1, size - 1)}]
        return "any" if difference(model, exported, cuts)["close"] else size
    except Exception:  # each format raises another
        return size


def _first_of(batch: Batch, count: int) -> Batch:
    return batch._replace(
        ids=batch.ids[:count],
        inputs=tree_map(
            lambda x: x[:count] if isinstance(x, Tensor) and x.dim() else x,
            batch.inputs,
        ),
    )


def described(value: Any) -> list[dict[str, Any]]:
    """Return dtype and shape of each tensor, by its path; the first dimension is the
    batch."""
    return [
        {
            "name": torch.utils._pytree.keystr(path),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": ["batch", *tensor.shape[1:]],
        }
        for path, tensor in torch.utils._pytree.tree_flatten_with_path(value)[0]
        if isinstance(tensor, Tensor)
    ]
