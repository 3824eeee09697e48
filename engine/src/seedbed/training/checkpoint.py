"""Checkpoints: state is restored bit for bit, and there is always a good file on disk.

A checkpoint holds values, dtypes and memory order of the model's `state_dict` and all
its buffers, modules' modes, parameters' `requires_grad`, and the states of optimizers,
callbacks and the scaler.

Files are written by `torch.save`, with their SHA-256 in the comment at the end of the
zip archive; `torch.load(path, weights_only=True)` opens them anywhere. A file with
objects that this would not load is refused, never executed.
"""

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_map

from seedbed import dtensors, record
from seedbed.errors import InputError, is_out_of_memory, one_line
from seedbed.training import digests
from seedbed.training.model_state import capture_model as capture_model
from seedbed.training.model_state import restore_model as restore_model
from seedbed.training.optimizers import capture_optimizer, labelled, restore_optimizer
from seedbed.training.state import Progress, TrainingState

LAST, PREVIOUS = record.LAST_CHECKPOINTS
BEST = "best.pt"
_PREFIX = b"seedbed sha256 "
_COMMENT_BYTES = len(_PREFIX) + 64
_CPU = torch.device("cpu")
# A file of a few bytes may ask for any memory by tensors that are larger than what is
# stored.
_MOST_DENSE_BYTES = 1 << 31  # of a sparse tensor, which is hashed as a dense one
# Some hundred times what a model of 10,000 tensors and its optimizers have.
_MOST_ENTRIES = 10**7
_TOO_LARGE = (
    "expected tensors that are stored whole, and sparse ones of up to 2 GiB when dense,"
    " got a larger one"
)
_WITHOUT_BEST = (
    "to test the last ones, resume with trainer.test_weights=last --allow-changed"
)


def capture(
    training: TrainingState,
    progress: Progress,
    folder: Path | None = None,
    **notes: Any,
) -> dict[str, Any]:
    """Return a checkpoint of a run, with notes by key; its tensors are live ones, not
    copies.

    Those that processes share are gathered in rank 0, in files in `folder` if there is
    one.
    """
    model = training.model
    optimizers = training.optimizers
    ids_of_model = {id(parameter) for parameter in model.parameters()}
    for name, optimizer in optimizers.items():
        built = {id(parameter) for parameter in training.parameters_of[name].values()}
        given = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not given <= ids_of_model or given != built:
            raise InputError(
                "model: expected the parameters that its optimizers were built with,"
                " got others in a later step; create modules, parameters and groups"
                " before the first step"
            )
    scaler = training.scaler.state()
    state = {
        "format_version": record.FORMAT_VERSION,
        "progress": asdict(progress),
        **notes,
        **capture_model(model),
        "modes": {path: module.training for path, module in model.named_modules()},
        "options": training.options,
        **({"scaler": scaler} if scaler else {}),
        "without_gradient": [list(pair) for pair in training.without_gradient.items()],
        "requires_grad": {
            name: p.requires_grad for name, p in model.named_parameters()
        },
        **{
            name: capture_optimizer(each) for name, each in labelled(optimizers).items()
        },
        **training.callbacks.state(),
    }
    return _whole(state, folder) if training.sharding.is_sharded else state


def _whole(state: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return a checkpoint of whole tensors in rank 0, on the CPU; for all processes at
    once."""
    gathered: dict[str, Any] = dtensors.gathered(state, folder)
    gathered["model"]._metadata = state["model"]._metadata  # versions of modules
    for entry in gathered.values():
        if isinstance(entry, dict) and "devices" in entry:
            entry["devices"] = ["cpu"] * len(entry["devices"])
    return gathered


def restore(training: TrainingState, state: Mapping[str, Any]) -> Progress:
    """Restore model, optimizers and callbacks from a checkpoint; return its
    progress."""
    # Cached as built: restored parameters may be frozen.
    training.without_gradient = dict(
        state.get("without_gradient", training.without_gradient)
    )
    model = training.model
    restore_model(model, state)
    for path, mode in state.get("modes", {}).items():
        model.get_submodule(path).training = mode
    for name, needed in state.get("requires_grad", {}).items():
        model.get_parameter(name).requires_grad_(needed)
    for name, optimizer in labelled(training.optimizers).items():
        restore_optimizer(optimizer, state[name])
    if "scaler" in state:
        training.scaler.restore(state["scaler"])
    training.callbacks.restore(state)
    return progress_of(state)


@contextmanager
def fitting(name: object) -> Iterator[None]:
    """Raise InputError for errors that a checkpoint of another model or optimizer
    causes."""
    try:
        yield
    except torch.AcceleratorError:
        raise
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        raise InputError(
            f"{name}: expected state of this model and optimizer, got"
            f" {one_line(error)}; use the code and configuration that wrote it, create"
            " all parameters and modules when the model is built, and key optimizer"
            " state by parameters or strings"
        ) from error


def progress_of(state: Mapping[str, Any]) -> Progress:
    """Return the progress of a checkpoint; for an empty one, that of a new run."""
    progress = dict(state.get("progress", {}))
    monitor = progress.pop("monitor", None)
    return Progress(**progress, monitor=monitor and record.Monitor(**monitor))


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """Restore the state of a model on exit, bit for bit."""
    state = capture_model(model)
    if dtensors.first_of(state["model"].values()) is None:
        content = encode(state)  # in CPU memory: that of a GPU may be full
    else:  # only this process's rows
        copied = tree_map(
            lambda x: x.detach().clone() if isinstance(x, Tensor) else x, state
        )
        state = copied
        content = b""
    try:
        yield
    finally:
        restore_model(model, decode(content) if content else state)


@contextmanager
def best_weights(
    folder: Path, progress: Progress, training: TrainingState
) -> Iterator[None]:
    """Load the best weights of a run so far; on exit, restore the last ones."""
    state = load(folder / BEST, training.reads_to, training.sharding.is_sharded)
    if state.get("step") != progress.best_step:
        raise InputError(
            f"{folder / BEST}: expected the best weights, of step {progress.best_step},"
            f" got those of step {state.get('step')}; {_WITHOUT_BEST}"
        )
    require_best(folder / BEST, state, progress)
    with kept(training.model):
        restore_model(training.model, state)
        yield


def require_best(path: Path, state: Mapping[str, Any], progress: Progress) -> None:
    """Raise InputError if best.pt has other weights of its step than the run has saved.

    Those of another step are overwritten before they are used, or refused then.
    Checkpoints of earlier versions do not say which they were, nor do processes that
    wrote none.
    """
    is_known = (
        progress.best_sha256 is not None and state.get("step") == progress.best_step
    )
    if is_known and digests.of_weights(state) != progress.best_sha256:
        raise InputError(
            f"{path}: expected the weights of step {progress.best_step} whose SHA-256"
            f" is in {LAST}, got others: it is of another run, or was altered; take it"
            f" from a copy, or {_WITHOUT_BEST}"
        )


def save(state: dict[str, Any], path: Path, keep_previous: bool = True) -> None:
    """Write a checkpoint atomically (see `encode`): it is synced, then renamed into
    place.

    No copy of the state is made: of tensors on a GPU, one at a time is on the CPU. Only
    expanded tensors are written whole, since `load` refuses them. Any `last.pt` becomes
    `previous.pt` if it
    `keep_previous`: not if damaged or of the same step.
    """
    state = _without_expanded(state)
    if any(map(_is_too_large, tree_leaves(state))):
        raise InputError(f"checkpoints: {_TOO_LARGE}")
    temporary = path.with_name(f".{path.name}.new")
    try:
        with open(temporary, "w+b") as file:
            _write(state, file)
            # A zip archive ends with the length of its comment, 0 at first, in two
            # bytes.
            file.seek(-2, os.SEEK_END)
            file.write(_COMMENT_BYTES.to_bytes(2, "little"))
            file.seek(0)
            file.write(
                _PREFIX + hashlib.file_digest(file, "sha256").hexdigest().encode()
            )
            file.flush()
            os.fsync(file.fileno())
        if keep_previous and path.name == LAST and path.exists():
            os.replace(path, path.with_name(PREVIOUS))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    record.sync_folder(path.parent)


def _without_expanded(state: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint in which each tensor has the memory of its size."""
    if not any(map(_is_expanded, tree_leaves(state))):
        return state
    contiguous: dict[str, Any] = tree_map(
        lambda x: x.contiguous() if _is_expanded(x) else x, state
    )
    if hasattr(state.get("model"), "_metadata"):
        contiguous["model"]._metadata = state["model"]._metadata  # versions of modules
    return contiguous


def _is_expanded(leaf: Any) -> bool:
    """Return whether a leaf is a tensor of less memory than its size, as `expand` makes
    them."""
    if (
        not isinstance(leaf, Tensor)
        or leaf.layout is not torch.strided
        or leaf.is_nested
    ):
        return False
    return leaf.untyped_storage().nbytes() < leaf.numel() * leaf.element_size()


def _is_too_large(leaf: Any) -> bool:
    """Return whether a leaf of a checkpoint is a tensor that would take much more than
    its file."""
    if not isinstance(leaf, Tensor):
        return False
    is_sparse = leaf.layout is not torch.strided
    is_huge = is_sparse and leaf.numel() * leaf.element_size() > _MOST_DENSE_BYTES
    return _is_expanded(leaf) or is_huge or leaf.is_meta


def encode(state: dict[str, Any]) -> bytes:
    """Serialize a checkpoint; raise InputError that names an entry that cannot be
    loaded again."""
    buffer = io.BytesIO()
    _write(state, buffer)
    return buffer.getvalue()


def _write(state: dict[str, Any], file: BinaryIO) -> None:
    try:
        torch.save(state, file)
        _require_readable(file)
    except Exception as error:  # user-defined classes may raise anything
        if isinstance(error, OSError) or is_out_of_memory(error):
            raise
        for path, leaf in tree_flatten_with_path(state)[0]:
            try:
                torch.save(leaf, content := io.BytesIO())
                _require_readable(content)
            except Exception:
                name = ".".join(
                    str(getattr(key, "key", getattr(key, "idx", key))) for key in path
                )
                class_name = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
                raise InputError(
                    f"{name}: expected tensors, numbers, strings, or lists, tuples and"
                    f" dictionaries of them, got {class_name}, which a checkpoint"
                    " cannot restore"
                ) from None
        raise


def _require_readable(file: BinaryIO) -> None:
    """Raise an exception unless a checkpoint can be loaded."""
    try:
        file.seek(0)
        torch.load(file, map_location="meta", weights_only=True)  # reads no values
    except Exception:  # the meta device lacks some layouts, such as sparse ones
        file.seek(0)
        torch.load(file, map_location=_CPU, weights_only=True)


def decode(content: bytes, device: torch.device = _CPU) -> Any:
    """Deserialize a checkpoint; tensors that were not on a CPU are placed on
    `device`."""
    return _read(io.BytesIO(content), device)


def _read(source: BinaryIO | Path, device: torch.device) -> Any:

    def place(storage: Any, location: str) -> Any:
        where = location if location == "cpu" else str(device)
        return torch.serialization.default_restore_location(storage, where)  # type: ignore[no-untyped-call]

    is_mapped = isinstance(source, Path)
    return torch.load(source, map_location=place, mmap=is_mapped, weights_only=True)


def load(
    path: Path, device: torch.device = _CPU, mapped: bool = False
) -> dict[str, Any]:
    """Read a checkpoint file; raise InputError if it is not a good one.

    Args:
        mapped: whether tensors stay in the file until they are used, so that processes
            which need some rows of each do not all hold the whole.
    """
    try:
        with open(path, "rb") as file:
            _require_as_written(file, path)
            _require_plain_archive(file, path)
            file.seek(0)
            state: Any = _read(path if mapped else file, device)
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"{path}: expected a checkpoint, got {error.strerror}"
        ) from None
    except Exception as error:  # a crafted file may raise anything
        problem = one_line(error, 80)
        raise InputError(
            f"{path}: expected tensors and numbers, got {problem}"
        ) from None
    if _entries(state, {}) > _MOST_ENTRIES:
        raise InputError(
            f"{path}: expected at most {_MOST_ENTRIES:,} entries, got more"
        )
    if (
        not isinstance(state, dict)
        or state.get("format_version") != record.FORMAT_VERSION
    ):
        raise InputError(
            f"{path}: expected a checkpoint of format {record.FORMAT_VERSION}"
        )
    if any(map(_is_too_large, tree_leaves(state))):
        raise InputError(f"{path}: {_TOO_LARGE}")
    return state


def _entries(value: Any, known: dict[int, int]) -> int:
    """Return how many entries nested dictionaries and lists have, each as often as it
    is referred to: a few bytes may refer to one list in another many times."""
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) not in known:
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = sum(_entries(part, known) for part in parts)
    return known[id(value)]


def _require_as_written(file: BinaryIO, path: Path) -> None:
    """Raise InputError unless a file ends with the hash of what comes before."""
    left = os.fstat(file.fileno()).st_size - _COMMENT_BYTES
    digest = hashlib.sha256()
    while chunk := file.read(min(max(left, 0), 2**20)):
        digest.update(chunk)
        left -= len(chunk)
    comment = file.read()
    if not comment.startswith(_PREFIX):
        raise InputError(
            f"{path}: expected a checkpoint of Seedbed, got a damaged or foreign file"
        )
    if comment[len(_PREFIX) :] != digest.hexdigest().encode():
        raise InputError(
            f"{path}: expected the content that was written, got other bytes"
        )


def _require_plain_archive(file: BinaryIO, path: Path) -> None:
    """Raise InputError for an archive that takes more memory than its file is large.

    `torch.save` compresses nothing, and of what `torch.load` builds from a few bytes,
    only `bytearray(n)` has any size that they ask for.
    """
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            is_pickle = entry.filename.endswith("/data.pkl")
            if entry.compress_type != zipfile.ZIP_STORED:
                raise InputError(
                    f"{path}: expected stored entries, got compressed ones"
                )
            if is_pickle and b"bytearray\n" in archive.read(entry):
                raise InputError(f"{path}: expected tensors and numbers, got bytearray")


def load_newest(
    folder: Path, device: torch.device = _CPU, mapped: bool = False
) -> tuple[dict[str, Any] | None, list[str]]:
    """Load `last.pt`, else `previous.pt`, else None; also return the problems of
    `last.pt`."""
    problems: list[str] = []
    for path in (folder / LAST, folder / PREVIOUS):
        try:
            if path.exists():
                return load(path, device, mapped), problems
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError(
            f"{'; '.join(problems)}; start again with train.py or scripts/verify.py"
        )
    return None, problems
