"""Predictions of a run's model for new samples, which need no targets:
`seedbed.predict`.

`predict.py` starts the task `predict` of `seedbed.worker`.
"""

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from seedbed import assemble, config, offline, project, record, rng
from seedbed.assemble import sources, statistics
from seedbed.config import Settings
from seedbed.errors import InputError, is_out_of_memory, one_line
from seedbed.operations import explained
from seedbed.pipeline.source import Batch, Source
from seedbed.pipeline.tensors import map_tensors, tensors_of
from seedbed.tools import request, tables
from seedbed.tools.weights import in_project, of_checkpoint, training_of
from seedbed.training.evaluate import evaluating, joined_batches, require_mapping
from seedbed.training.predictions import columns_of, names_of, probabilities_of
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import seed_draws, to_device


class Predictions(NamedTuple):
    """What a model computes for the samples of a data set, on the CPU and in their
    order.

    `outputs` are those of `Method.predict_step`, concatenated; a list with one item per
    batch where they cannot be. `predictions` (N, ...) are the task's: class numbers, or
    the outputs of a regression. `probabilities` (N, C) are the task's, or None.
    """

    outputs: Any
    predictions: Tensor | None
    probabilities: Tensor | None


def predict(
    run: str | Path,
    dataset: Any,
    checkpoint: str | int = "best",
    trust: Sequence[str] = (),
    num_workers: int = 0,
    online: bool = False,
) -> Predictions:
    """Return what a run's model computes for the samples of a data set, on the CPU.

    The samples are collated as the run's are, in batches of `data.eval_batch_size`, and
    computed in the run's precision. Preprocessing is the data set's: for the run's own,
    take `seedbed.data`, or `predict.py`. For the bits of `predict.py`, call
    `seedbed.apply_preset` first. The global generators are left unchanged.

    Args:
        dataset: samples that are inputs alone, or pairs (input, target), whose targets
            do not matter: a data set, map-style or iterable, or a list. Two values are
            inputs if the model was trained on pairs of inputs.
        checkpoint, trust, online: as for `seedbed.load`.
        num_workers: how many loader workers load the samples.

    Raises:
        InputError: as `seedbed.load`, or the samples are not such as the model takes.
    """
    training, settings, lines = training_of(run, checkpoint, trust, "here", online)
    with record.run_folder(Path(run).absolute()) as folder:
        inputs = inputs_of(folder)
    for line in lines:
        warnings.warn(line, stacklevel=2)
    settings.data.num_workers = num_workers
    offline_block = offline.refusing(
        not config.may_connect(Path(run).absolute(), online)
    )
    with rng.restored(), in_project(), offline_block:
        source = source_of(settings, dataset, "test", inputs)
        return predictions_of(settings, training, source)


def predict_as_requested(arguments: Sequence[str]) -> int:
    """Predict as requested, and write the table; write what was predicted to
    answer.json."""
    with request.received(arguments) as (folder, asked):
        settings = config.check(record.read_config(folder))
        assemble.prepare_backends(settings)
        out = Path(asked["out"])
        run = Path(asked["run"])
        tables.require_format(out)
        settings = statistics.of_record(settings, run)
        split = "validation" if settings.data.spec("test") is None else "test"
        with blaming_samples("the data set"):
            dataset = sources.build_dataset(settings, split)
        source = source_of(settings, dataset, split, inputs_of(run))
        path = record.checkpoint_path(run, asked["checkpoint"])
        training, _, step, lines = of_checkpoint(
            settings, path, None, asked["restore_code"]
        )
        result = predictions_of(settings, training, source)
        names = names_of(dataset)
        tables.write(out, table_of(result, names))
        answer = {
            "checkpoint": asked["checkpoint"],
            "step": step,
            "data": settings.data.name,
            "samples": len(source),
            "device": str(training.device),
            "precision": settings.trainer.precision,
            "out": str(out),
        }
        request.write_answer(folder, answer)
        return request.end(asked, lines)


def inputs_of(run: Path) -> int | None:
    """Return of how many inputs a sample of a run is a tuple; None if of one, or
    unknown."""
    count = record.read_summary(run).get("inputs")
    return count if isinstance(count, int) else None


def source_of(
    settings: Settings, dataset: Any, split: str, inputs: int | None
) -> Source:
    """Return samples with or without targets as a function of positions to batches."""
    has_rows = hasattr(dataset, "__getitem__") or hasattr(dataset, "fetch")
    is_iterable = isinstance(dataset, IterableDataset) or not has_rows
    is_collated = settings.data.collate is not None
    if is_iterable and hasattr(dataset, "__next__"):
        raise InputError(
            "dataset: expected samples that can be read again, got"
            f" {type(dataset).__name__}, which is read once; make a list of it"
        )
    kind = PairedStream if is_iterable else Paired
    paired = kind(dataset, is_collated, inputs)
    return sources.as_source(settings, paired, split, split)


def predictions_of(
    settings: Settings, training: TrainingState, source: Source
) -> Predictions:
    """Return what a model computes for all samples; raise InputError if one does not
    fit it."""
    batches = sources.evaluation_batches(settings, source, Shards(), training.device)
    parts = list(_parts(training, batches))
    outputs, predictions, probabilities = zip(*parts, strict=True)
    result = Predictions(
        joined_batches(outputs), _whole(predictions), _whole(probabilities)
    )
    # The class of largest output is a number even where the outputs are none.
    for values in result:
        if isinstance(values, Tensor) and (bad := _first_nan(values)) is not None:
            raise InputError(
                "samples: expected inputs for which the model computes numbers, got"
                f" NaN for sample {bad}; look for missing values in its inputs"
            )
    return result


@torch.no_grad()
def _parts(
    training: TrainingState, batches: Iterable[Batch]
) -> Iterator[tuple[Any, Tensor | None, Tensor | None]]:
    """Yield outputs, predictions and probabilities of each batch, on the CPU."""
    task = training.method.task
    with (
        evaluating(training.model, may_change=not training.strict),
        explained(training.model),
    ):
        for batch in batches:
            shapes = ", ".join(map(_shown, tensors_of(batch.inputs)))
            batch = to_device(batch, training, are_targets_used=False)
            # some models draw in evaluation mode
            seed_draws(training, 0, int(batch.ids[0]))
            with blaming_samples(f"inputs {shapes}"), training.autocasting():
                returned = training.method.predict_step(training.model, batch)
            values = require_mapping(training, "predict_step", returned)
            outputs = values["outputs"]
            predictions = values.get("predictions")
            probabilities = values.get("probabilities")
            if probabilities is None:
                probabilities = probabilities_of(task, outputs, sys.maxsize)
            # The model may reuse its memory.
            yield map_tensors(
                lambda x: x.detach().cpu().clone(),
                (outputs, predictions, probabilities),
            )


def table_of(
    result: Predictions, names: Sequence[str] | None
) -> Mapping[str, Sequence[Any]]:
    """Return the columns of the table: sample_id, prediction, name and
    probability_N."""
    if result.predictions is None:
        raise InputError("method: expected predictions from predict_step, got none")
    count = len(result.predictions)
    rows = result.predictions.reshape(count, -1)
    columns: dict[str, Sequence[Any]] = {"sample_id": range(count)}
    columns |= columns_of("prediction", rows)
    if names:
        columns["name"] = names
    columns |= columns_of("probability", result.probabilities)
    return columns


@contextmanager
def blaming_samples(cause: str) -> Iterator[None]:
    """Raise InputError for an exception: the run's code worked, so the samples are
    others."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        line = project.line_of(error)
        raise InputError(
            f"samples: expected such as the run's, got {cause} with {one_line(error)}"
            f"{f' (in your code: {line})' if line else ''}"
        ) from error


class Paired(Dataset[Any]):
    """The samples of a map-style data set as pairs, of which the target may be 0."""

    def __init__(self, dataset: Any, is_collated: bool, inputs: int | None) -> None:
        self.dataset = dataset
        self.is_collated = is_collated  # by a function of the user's
        self.inputs = inputs  # of how many the run's samples are tuples, if of several

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        with blaming_samples(f"sample {index}"):
            return pair(self.dataset[index], 0, self.is_collated, self.inputs)

    @property
    def fetch(self) -> Callable[[Any, Any], Any]:
        """The loader of whole batches, if the data set has one."""
        # AttributeError if missing, so that hasattr is False here, too
        load = self.dataset.fetch

        def fetched(ids: Any, draws: Any) -> Any:
            with blaming_samples(f"samples from {ids[0]}"):
                none = torch.zeros(len(ids), dtype=torch.int64)
                return pair(load(ids, draws), none, False, self.inputs)

        return fetched


class PairedStream(IterableDataset[Any]):
    """The samples of an iterable data set as pairs, of which the target may be 0."""

    def __init__(self, dataset: Any, is_collated: bool, inputs: int | None) -> None:
        self.dataset = dataset
        self.is_collated = is_collated  # by a function of the user's
        self.inputs = inputs  # of how many the run's samples are tuples, if of several

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self.dataset)
        while True:
            with blaming_samples("a sample"):
                try:
                    sample = next(samples)
                except StopIteration:
                    return
            yield pair(sample, 0, self.is_collated, self.inputs)


def pair(sample: Any, target: Any, is_collated: bool, inputs: int | None) -> Any:
    """Return a sample as (input, target), with `target` where it has none.

    Two values are (input, target), unless the run's inputs are two: then the first is a
    pair itself if there is a target. One value in a tuple, as `TensorDataset(inputs)`
    has it, is the input. What a function of the user's takes apart stays as
    it is: dictionaries, triples.
    """
    is_sequence = isinstance(sample, tuple | list)
    if is_sequence and len(sample) == 1 and inputs != 1 and not is_collated:
        return sample[0], target
    is_pair = is_sequence and len(sample) == 2
    if is_pair and inputs == 2 and not is_collated:
        is_pair = isinstance(sample[0], tuple | list)
    if is_pair:
        return (sample[0], target) if sample[1] is None else sample
    if is_collated and (is_sequence or isinstance(sample, Mapping)):
        return sample
    return sample, target


def _whole(parts: Sequence[Tensor | None]) -> Tensor | None:
    return (
        None
        if parts[0] is None
        else torch.cat([part for part in parts if part is not None])
    )


def _first_nan(values: Tensor) -> int | None:
    bad = values.reshape(len(values), math.prod(values.shape[1:])).isnan().any(dim=1)
    return int(bad.nonzero()[0]) if bad.any() else None


def _shown(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
