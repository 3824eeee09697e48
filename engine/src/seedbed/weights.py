"""Weights in files: initial ones for a model, and whether a checkpoint's are the
recorded ones."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import fingerprint, record
from seedbed.errors import InputError, one_line
from seedbed.record import chain, untrusted
from seedbed.training import checkpoint, digests
from seedbed.training.state import TrainingState, matching

__all__ = ["Loaded"]

# Whether the weights of a checkpoint replace those of a model that is being built.
_are_replaced = ContextVar("are_replaced", default=False)
# where training programs keep the weights
_INSIDE = ("state_dict", "model", "model_state_dict")


class Loaded:
    """Loads the weights of a file into a model: `model._target_:
    seedbed.weights.Loaded`.

    The file's SHA-256 is part of the record, like that of every file that `model`
    names. Where a checkpoint of the run is restored afterwards, as by `seedbed.load`,
    the file is not needed.

    Args:
        file: a Seedbed checkpoint, such as best.pt; a `state_dict` of `torch.save`,
            alone or as `state_dict`, `model` or `model_state_dict` in a dictionary; or
            a .safetensors file.
        skip: patterns (`head.*`) of weights and buffers that keep their initial values.
        prefix: beginning of the names in the file that is left out, such as `module.`;
            weights without it are not read.
    """

    def __new__(  # type: ignore[misc]
        cls, model: nn.Module, file: str, skip: Sequence[str] = (), prefix: str = ""
    ) -> nn.Module:
        if _are_replaced.get():
            return model
        built = model.state_dict()
        read = _without_prefix(_read(Path(file)), prefix, file)
        skipped = matching("model.skip", (*built, *read), tuple(skip))
        chosen = {name: value for name, value in read.items() if name not in skipped}
        try:
            model.load_state_dict(
                chosen | {name: built[name] for name in skipped & built.keys()}
            )
        except RuntimeError as error:
            raise InputError(
                f"model.file: expected the weights of {type(model).__name__}, got"
                f" {file} ({one_line(error)}); leave out what differs by model.skip"
            ) from None
        return model


@contextmanager
def of_a_checkpoint() -> Iterator[None]:
    """Let models that are built inside not read their initial weights, which will be
    replaced."""
    before = _are_replaced.set(True)
    try:
        yield
    finally:
        _are_replaced.reset(before)


def _read(path: Path) -> dict[str, Tensor]:
    """Return the weights and buffers in a file, by name; nothing in it is executed."""
    if path.suffix == ".safetensors" and find_spec("safetensors") is None:
        raise InputError(f"model.file: {path} needs a package: pip install safetensors")
    try:
        if path.suffix == ".safetensors":
            safetensors: Any = import_module("safetensors.torch")  # an optional package
            return dict(safetensors.load_file(path))
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
        state = checkpoint.load(path)["model"] if "format_version" in state else state
        inside = next(
            (state[key] for key in _INSIDE if isinstance(state.get(key), Mapping)),
            state,
        )
        if not all(isinstance(value, Tensor) for value in inside.values()):
            raise TypeError(f"it holds {', '.join(map(str, state))}"[:200])
    except Exception as error:  # a file may fail in any way
        raise InputError(
            f"model.file: expected a file with tensors by name, got {path}"
            f" ({one_line(error)})"
        ) from None
    return dict(inside)


def _without_prefix(
    read: Mapping[str, Tensor], prefix: str, file: str
) -> dict[str, Tensor]:
    named = {
        name.removeprefix(prefix): x
        for name, x in read.items()
        if name.startswith(prefix)
    }
    if not named:
        raise InputError(
            f"model.prefix: expected the beginning of names in {file}, got {prefix};"
            f" the first is {next(iter(read), 'missing')}"
        )
    return named


def require_recorded(
    run: Path, path: Path, state: Mapping[str, Any], training: TrainingState
) -> bool:
    """Return whether a record has hashes of the weights that a model got from its
    checkpoint.

    Raises InputError if they are not the record's: by the SHA-256 in summary.json, and
    by the fingerprints of their step. `path` is the checkpoint's.
    """
    summary = record.read_summary(run) if record.is_run(run) else {}
    if path.name == checkpoint.BEST:
        _require_best_step(path, state, summary)
    is_known = require_same_bytes(run, path, state)
    # A method may swap in other weights for evaluations, such as averages; best.pt has
    # those.
    if state.get("swapped") and training.overrides("on_evaluation_start"):
        return is_known
    rows = record.read_fingerprints(run) if (run / "fingerprints.csv").is_file() else []
    row = next((row for row in rows if row["step"] == str(step_of(state))), None)
    stages = {
        "weights": training.model.parameters(),
        "buffers": training.model.buffers(),
    }
    # an evaluation may change the others
    if not state["buffers"].keys() <= state["model"].keys():
        del stages["buffers"]
    for stage, tensors in stages.items() if row else ():
        hashed = int(fingerprint.of_tensors(tensors))
        if row and row[stage] != fingerprint.cell(hashed):
            raise InputError(
                f"{path}: expected the {stage} of step {row['step']} in"
                " fingerprints.csv, got others: it is of another run, or was altered;"
                " take it from a copy, or train again"
            )
    return is_known or row is not None


def _require_best_step(
    path: Path, state: Mapping[str, Any], summary: Mapping[str, Any]
) -> None:
    """Raise InputError unless best.pt has the weights of the record's best step."""
    best_step = summary.get("best_step")
    if best_step == 0:  # see `restore.without_best`
        raise InputError(
            f"{path}: expected the best weights by {summary.get('metric_name')}, got"
            " those of before another value was monitored; resume the run, or take the"
            " last ones"
        )
    if best_step not in (None, step_of(state)):
        raise InputError(
            f"{path}: expected the weights of step {best_step}, the best one of the"
            f" record, got those of step {step_of(state)}; take it from a copy, or"
            " train again"
        )


def require_same_bytes(run: Path, path: Path, state: Mapping[str, Any]) -> bool:
    """Return whether summary.json has the SHA-256 of the weights in a checkpoint.

    Raises InputError if it is that of others. `last` and `best` are compared if they
    are of the summary's steps: after a kill, the summary is older.
    """
    summary = record.read_summary(run) if record.is_run(run) else {}
    known = summary.get(digests.WEIGHTS)
    recorded = known.get(path.stem) if isinstance(known, Mapping) else None
    steps = {
        checkpoint.LAST: summary.get("steps"),
        checkpoint.BEST: summary.get("best_step"),
    }
    is_older = steps.get(path.name, step_of(state)) != step_of(state)
    if recorded is None or is_older:
        return False
    if digests.of_weights(state) != recorded:
        raise InputError(
            f"{path}: expected the weights of step {step_of(state)} whose SHA-256 is in"
            " summary.json, got others: it is of another run, or was altered; take it"
            " from a copy, or train again"
        )
    return True


def step_of(state: Mapping[str, Any]) -> int:
    """Return the step of the weights in best.pt or another checkpoint."""
    return int(state["step"] if "step" in state else checkpoint.progress_of(state).step)


def unlike_record(run: Path, steps: Iterable[int]) -> Iterator[str]:
    """Yield a line for each kept checkpoint of some steps that is damaged, or not the
    one in the chain and tables of its record."""
    rows = chain.checkpoints(run)
    paths = record.kept_checkpoints(run)
    for step in steps:
        name = f"checkpoints/{paths[step].name}"
        try:
            untrusted.reject_external_links(run)
            state = checkpoint.load(paths[step])
            with checkpoint.fitting(paths[step]):
                digests_of_record = rows[step]["weights"], rows[step]["state"]
                digests_of_file = digests.of_weights(state), _digest_of(state)
                if step_of(state) != step or digests_of_file != digests_of_record:
                    yield f"{name}: other state than in {chain.FILE}"
                elif not _has_fingerprint(run, step, state):
                    yield f"{name}: other weights than in fingerprints.csv"
        except InputError as error:
            yield str(error)


def _has_fingerprint(run: Path, step: int, state: Mapping[str, Any]) -> bool:
    """Return whether the weights in a checkpoint have the recorded fingerprint, if
    there is one that can be computed without the model."""
    names = state.get("requires_grad", ())
    path = run / "fingerprints.csv"
    if not path.is_file() or not all(name in state["model"] for name in names):
        return True
    rows = record.read_fingerprints(run)
    row = next((row for row in rows if row["step"] == str(step)), None)
    hashed = int(fingerprint.of_tensors(state["model"][name] for name in names))
    return row is None or row["weights"] == fingerprint.cell(hashed)


def compare_checkpoints(
    run: Path, replay: Path, after: int = 0, last: int | None = None
) -> tuple[list[str], list[str]]:
    """Compare all bits in a record's checkpoints with those in the replay's, and with
    the record.

    Return a line for each checkpoint with others, and the names of those not compared
    with the replay, which has none of that step. Of those that were kept, the ones of
    the steps from `after` to `last` are compared.
    """
    lines = list[str]()
    skipped = list[str]()
    new_best = max(record.new_best_steps(record.read_summary(run)), default=0)
    kept = [
        path.name
        for step, path in record.kept_checkpoints(run).items()
        if last is None or after <= step <= last
    ]
    for name in (checkpoint.BEST, *record.LAST_CHECKPOINTS, *kept):
        path, other = (each / "checkpoints" / name for each in (run, replay))
        if not path.exists():
            continue
        try:
            untrusted.reject_external_links(run)
            state = checkpoint.load(path)
            with checkpoint.fitting(path):
                step = step_of(state)
                digest = _digest_of(state)
                require_same_bytes(run, path, state)
            replayed = checkpoint.load(other) if other.exists() else {}
            if not replayed or step_of(replayed) != step:
                skipped.append(f"checkpoints/{name}")
            elif difference := _unlike_replay(state, replayed, digest, step < new_best):
                lines.append(f"checkpoints/{name}: {difference}")
            is_chained = name != checkpoint.BEST and (
                name in kept or name == checkpoint.LAST
            )
            row = chain.checkpoints(run).get(step) if is_chained else None
            if row and row["state"] != digest:
                lines.append(f"checkpoints/{name}: other state than in {chain.FILE}")
        except InputError as error:
            lines.append(str(error))
    return lines, skipped


def _unlike_replay(
    state: Mapping[str, Any],
    replayed: Mapping[str, Any],
    digest: str,  # of the state
    is_before_new_best: bool,
) -> str:
    """Return what of a checkpoint differs from the replay's of the same step; empty if
    nothing does."""
    if is_before_new_best:  # their best values are by other metrics
        is_other = _without_best(replayed) != _without_best(state)
    elif _epoch_sums(replayed) != _epoch_sums(state):
        return "other means of its epoch than in the replay"
    else:
        is_other = _digest_of(replayed) != digest or _other_best(state, replayed)
    return "other state than in the replay" if is_other else ""


def _other_best(state: Mapping[str, Any], replayed: Mapping[str, Any]) -> bool:
    """Return whether two checkpoints name other best weights; earlier versions named
    none."""
    named = {checkpoint.progress_of(each).best_sha256 for each in (state, replayed)}
    return None not in named and len(named) > 1


def _without_best(state: Mapping[str, Any]) -> str:
    """Return the digest of a checkpoint without what is the best so far."""
    progress = state["progress"]
    kept = {key: value for key, value in progress.items() if not _is_of_the_best(key)}
    return _digest_of({**state, "progress": kept})


def _is_of_the_best(key: str) -> bool:
    return key.startswith("best") or key in ("monitor", "validations_without_gain")


def _epoch_sums(state: Mapping[str, Any]) -> str:
    """Return the sums of logged values in an unfinished epoch, which a state's digest
    leaves out."""
    return repr(state.get("epoch_sums"))


def _digest_of(state: Mapping[str, Any]) -> str:
    return digests.of_training(state, digests.of_weights(state))
