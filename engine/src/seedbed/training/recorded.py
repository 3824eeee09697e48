"""Whether the weights of a checkpoint are those that fingerprints.csv has of their step."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seedbed import fingerprint, record
from seedbed.errors import InputError
from seedbed.record import Row, untrusted
from seedbed.training import checkpoint

_MANY_ELEMENTS = 1 << 24


def require_recorded(run: Path, path: Path, state: Mapping[str, Any], model: nn.Module) -> None:
    """Raise InputError if the weights that a model got from a checkpoint are not the record's.

    Args:
        run: the record's folder; without fingerprints of the checkpoint's step, nothing is known.
        path: the file that the checkpoint `state` was read from.
    """
    rows = record.read_fingerprints(run) if (run / "fingerprints.csv").is_file() else []
    tensors = list(model.parameters()), list(model.buffers())
    if wanted := _differing(_row_of(state, rows), state, *tensors):
        raise InputError(
            f"{path}: expected {wanted}, got others: the file is of another run, or was altered; "
            "take it from a copy of this run, or train again"
        )


def compare_checkpoints(run: Path, replay: Path, last_step: int) -> tuple[list[str], list[str]]:
    """Compare the checkpoints of a record with its fingerprints, without building its model.

    Args:
        replay: the folder of its replay, whose last.pt names the parameters.
        last_step: the last step that was replayed.

    Returns:
        A line for each checkpoint with other weights, and the names of those not compared.
    """
    files = [f"checkpoints/{name}" for name in (checkpoint.BEST, *record.LAST_CHECKPOINTS)]
    files = [name for name in files if (run / name).exists()]
    rows = record.read_fingerprints(run) if files and (run / "fingerprints.csv").is_file() else []
    if not rows:
        return [], files
    last = checkpoint.load(replay / "checkpoints" / checkpoint.LAST)
    if not last["requires_grad"].keys() <= last["model"].keys():  # a module renames them
        return [], files
    lines, skipped = list[str](), list[str]()
    for name in files:
        try:
            untrusted.require_no_way_out(run)
            state = checkpoint.load(run / name)
            most = max((run / name).stat().st_size, _MANY_ELEMENTS)
            with checkpoint.fitting(run / name):
                row = _row_of(state, rows)
                parameters = [state["model"][key] for key in last["requires_grad"]]
                buffers = {id(each): each for each in state["buffers"].values() if each is not None}
                tensors = [*parameters, *buffers.values()]
                if sum(each.numel() for each in tensors) > most:
                    raise ValueError("tensors that are larger than their file")
                wanted = _differing(row, state, parameters, list(buffers.values()))
        except InputError as error:
            lines.append(str(error))
            continue
        if wanted:
            lines.append(f"{name}: expected {wanted}, got others")
        elif row is None or int(row["step"]) > last_step:
            skipped.append(name)
    return lines, skipped


def _row_of(state: Mapping[str, Any], rows: Iterable[Row]) -> Row | None:
    """Return the fingerprints of a checkpoint's step, if there are any."""
    step = state["step"] if "step" in state else checkpoint.progress_of(state).step
    return next((row for row in rows if row["step"] == str(step)), None)


def _differing(
    row: Row | None,
    state: Mapping[str, Any],
    parameters: Sequence[Tensor],
    buffers: Sequence[Tensor],
) -> str | None:
    """Return the stage whose recorded fingerprint a checkpoint's tensors do not have."""
    if row is None:
        return None
    stages = {"weights": parameters}
    if state["buffers"].keys() <= state["model"].keys():  # an evaluation may change the others
        stages["buffers"] = buffers
    for stage, tensors in stages.items():
        found = int(fingerprint.of_tensors(tensors))
        if row[stage] != (fingerprint.text(found) if found else ""):
            return f"the {stage} of step {row['step']} in fingerprints.csv"
    return None
