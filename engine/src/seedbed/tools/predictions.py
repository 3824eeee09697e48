"""The table of `evaluate.py --predictions`: names, targets, predictions and probabilities."""

from typing import Any

import torch
from torch import Tensor

from seedbed.errors import InputError
from seedbed.record import text
from seedbed.training.state import Evaluation


def table(result: Evaluation, dataset: Any, task: Any) -> str:
    """Return a CSV with a row per sample; `result.seen` has the outputs.

    The columns `name`, if the data set has names, and `probability_N`, for each class, if the task
    has `probabilities`, follow those of test_predictions.csv.
    """
    if result.predictions is None:
        raise InputError("--predictions: expected a method that returns them, got another")
    pairs = zip(result.targets.tolist(), result.predictions.tolist(), strict=True)
    rows: list[dict[str, Any]] = [
        {"sample_id": sample, "target": target, "prediction": prediction}
        for sample, (target, prediction) in enumerate(pairs)
    ]
    for row, name in zip(rows, names_of(dataset) or [], strict=False):  # the evaluation may be cut
        row["name"] = name
    outputs = result.seen.outputs if result.seen else None
    if isinstance(outputs, Tensor) and hasattr(task, "probabilities"):
        with torch.no_grad():
            probabilities = task.probabilities(outputs.float()).tolist()
        for row, values in zip(rows, probabilities, strict=True):
            row |= {f"probability_{number}": value for number, value in enumerate(values)}
    return text.as_csv([*rows[0]], rows)


def names_of(dataset: Any) -> list[str] | None:
    """Return the names of samples: `names` of the data set, or the files of torchvision's folders.

    A part (`seedbed.data.part`, torch's `Subset`) has those of the whole.
    """
    if hasattr(dataset, "names"):
        return [*map(str, dataset.names)]
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        whole = names_of(dataset.dataset)
        return whole and [whole[int(index)] for index in dataset.indices]
    pairs = getattr(dataset, "samples", None)
    if isinstance(pairs, list) and pairs and isinstance(pairs[0], tuple):
        return [str(file) for file, *_ in pairs]
    return None
