"""The table of predictions: test_predictions.csv, and that of `evaluate.py
--predictions`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seedbed.pipeline.tensors import tensors_of
from seedbed.record import text
from seedbed.training.state import Evaluation

# of a sample's predictions, and in test_predictions.csv of its probabilities
MOST = 100


def rows_of(values: Tensor | None, count: int) -> Tensor | None:
    """Return the predictions of a batch as rows, (B, K); None if a sample has too
    many."""
    if values is None or values.numel() > count * MOST:  # such as those of all pixels
        return None
    return values.reshape(count, -1)


def targets_of(targets: Any, count: int, width: int) -> Tensor:
    """Return the targets of a batch as rows, (B, `width`); of other widths the first,
    (B, 1).

    They are NaN if no tensor has a number for each sample.
    """
    for tensor in tensors_of(targets):
        if tensor.numel() and tensor.dim() and len(tensor) == count:
            rows = tensor.reshape(count, -1)
            return rows if rows.shape[1] == width else rows[:, :1]
    return torch.full((count, 1), torch.nan)


def probabilities_of(task: Any, outputs: Any, most: int) -> Tensor | None:
    """Return a task's probabilities of a batch as rows, (B, C); None if it has none or
    too many."""
    is_table = isinstance(outputs, Tensor) and outputs.dim() <= 2
    if not is_table or outputs[:1].numel() > most or not hasattr(task, "probabilities"):
        return None
    probabilities: Tensor = task.probabilities(outputs.float())
    return probabilities.reshape(len(outputs), -1)


def table(result: Evaluation, dataset: Any) -> str:
    """Return the CSV of predictions: a row for each sample.

    The columns are `sample_id`, `target`, `prediction`, `name` if the data set has
    names, and `probability_N` for each class if the task has `probabilities`;
    `target_N` and `prediction_N` if a sample has several.
    """
    count = len(result.targets)
    columns: dict[str, Sequence[Any]] = {"sample_id": range(count)}
    columns |= columns_of("target", result.targets)
    columns |= columns_of("prediction", result.predictions)
    if names := names_of(dataset):
        columns["name"] = names[:count]  # the evaluation may be cut
    columns |= columns_of("probability", result.probabilities)
    cells = zip(*columns.values(), strict=True)
    return text.as_csv(
        [*columns], (dict(zip(columns, row, strict=True)) for row in cells)
    )


def columns_of(name: str, rows: Tensor | None) -> Mapping[str, list[float]]:
    """Return rows of numbers, (N, K), as columns by name, which has a number if K >
    1."""
    if rows is None:
        return {}
    columns = rows.T.tolist()
    if len(columns) == 1:
        return {name: columns[0]}
    return {f"{name}_{number}": column for number, column in enumerate(columns)}


def names_of(dataset: Any) -> list[str] | None:
    """Return the names of samples: `names` of the data set, or the files of
    torchvision's folders.

    A part (`seedbed.datasets`, torch's `Subset`) has those of the whole. A list of
    another length names something else.
    """
    names: Any = getattr(dataset, "names", None)
    if names is None and hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        names_of_whole = names_of(dataset.dataset)
        return names_of_whole and [
            names_of_whole[int(index)] for index in dataset.indices
        ]
    pairs = getattr(dataset, "samples", None)
    if (
        names is None
        and isinstance(pairs, list)
        and pairs
        and isinstance(pairs[0], tuple)
    ):
        names = [file for file, *_ in pairs]
    is_sized = hasattr(names, "__len__") and hasattr(dataset, "__len__")
    return [*map(str, names)] if is_sized and len(names) == len(dataset) else None
