"""Checkpoints: saving never risks the last good one, damage is detected, no code is
run.

Values, dtypes, memory order and Python types are restored as they were captured.
"""

import copy
import hashlib
import inspect
import io
import itertools
import math
import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from seedbed import record
from seedbed.errors import InputError
from seedbed.methods import Supervised
from seedbed.training import checkpoint, digests, evaluate, optimizers
from seedbed.training.optimizers import optimizer_tensors
from seedbed.training.state import Progress, TrainingState
from tests.odd_optimizers import AllKinds
from tests.run.cases import CLASSES, FEATURES, Case
from tests.test_fingerprint import of
from tests.training.steps import STEPS, run

FLAGS = (
    "amsgrad",
    "centered",
    "decoupled_weight_decay",
    "foreach",
    "fused",
    "nesterov",
)


def state(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    weights = torch.randn(20, generator=generator)
    return {
        "format_version": record.FORMAT_VERSION,
        "progress": {"step": step, "best_metric": None},
        "model": {
            "weights": weights,
            "half": weights.bfloat16(),
            "steps": torch.tensor(step),
        },
    }


def step_of(found: dict[str, Any] | None) -> int:
    assert found is not None
    step = found["progress"]["step"]
    assert torch.equal(found["model"]["weights"], state(step)["model"]["weights"])
    return int(step)


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    """NaN payloads, negative zeros and integers included; `torch.load` can read the
    file, too."""
    odd = torch.tensor(
        [0x7FC00001, -0x80000000, 0x7F800000 - 2**32 + 2**31], dtype=torch.int32
    )
    path = tmp_path / "last.pt"
    saved = state(3) | {"odd": odd.view(torch.float32)}
    checkpoint.save(saved, path)
    assert path.read_bytes() == made_up(saved), (
        "files that are made up below are like it"
    )
    for found in (checkpoint.load(path), torch.load(path, weights_only=True)):
        assert torch.equal(found["odd"].view(torch.int32), odd)
        assert found["model"]["half"].dtype is torch.bfloat16
        assert step_of(found) == 3


@given(place=st.integers(min_value=0), flip=st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_a_file_that_was_changed_or_cut_off_is_noticed(place: int, flip: int) -> None:
    """Any changed byte and any truncation is detected. Negative control: the unchanged
    file."""
    saved = made_up(state(1))
    damaged = bytearray(saved)
    place = place % len(saved)
    damaged[place] ^= flip
    assert bool(refused(bytes(damaged))) == (flip != 0)
    assert refused(saved[:place])


def refused(content: bytes) -> str:
    """Return the message with which `load` refuses a file's content; empty if it
    loads."""
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        file.write(content)
        file.flush()
        try:
            checkpoint.load(Path(file.name))
        except InputError as error:
            return str(error)
    return ""


def test_other_best_weights_than_the_run_knows_of_are_refused(tmp_path: Path) -> None:
    """Negative control: those of the expected step load; on exit the last ones are
    restored."""
    model = nn.Linear(1, 1)
    training = TrainingState(model, {}, Supervised(), torch.device("cpu"))
    best = Progress(4, best_step=4, best_metric=0.5)
    captured = checkpoint.capture(training, best)
    captured[digests.WEIGHTS] = digests.of_weights(captured)
    evaluate.note_best(training, best, captured)
    evaluate.save_best(tmp_path, training, best, captured)
    before = model.weight.item()
    nn.init.constant_(model.weight, 7)
    with checkpoint.best_weights(tmp_path, best, training):
        assert model.weight.item() == before
    assert model.weight.item() == 7
    assert captured["progress"]["best_sha256"] == best.best_sha256
    others = {
        "the best weights, of step 8": replace(best, best_step=8),
        "the weights of step 4 whose SHA-256 is in last.pt": replace(
            best, best_sha256="0" * 64
        ),
    }
    for message, progress in others.items():
        refused = pytest.raises(InputError, match=rf"best\.pt: expected {message}")
        with refused, checkpoint.best_weights(tmp_path, progress, training):
            pass
    with checkpoint.best_weights(tmp_path, replace(best, best_sha256=None), training):
        pass  # of an earlier version


class Huge:
    """An object that a few bytes make as large as they say."""

    def __reduce__(self) -> tuple[Any, ...]:
        return bytearray, (LARGE,)


def test_what_takes_more_memory_than_its_file_is_refused() -> None:
    """Before it does. Negative control: the same archive, stored."""
    assert "got bytearray" in refused(made_up(state(1) | {"buffers": {"a": Huge()}}))
    nest: list[Any] = [torch.zeros(1)]
    for _ in range(60):
        nest = [nest, nest]
    assert "entries, got more" in refused(made_up(state(1) | {"buffers": {"a": nest}}))
    body = io.BytesIO()
    torch.save(state(1) | {"buffers": {"zeros": torch.zeros(10**6)}}, body)
    found = []
    for how in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        packed = io.BytesIO()
        with (
            zipfile.ZipFile(body) as before,
            zipfile.ZipFile(packed, "w", how) as after,
        ):
            for name in before.namelist():
                after.writestr(name, before.read(name))
        found.append(refused(with_comment(packed.getvalue())))
    assert "expected stored entries" in found[0]
    assert not found[1]


LARGE = 10**11  # numbers: no machine has the memory
TOO_LARGE: dict[str, Callable[[], Tensor]] = {
    "expanded": lambda: torch.zeros(1).expand(LARGE),
    "strided": lambda: torch.zeros(8).as_strided((LARGE, 8), (0, 1)),
    "sparse": lambda: torch.sparse_coo_tensor(
        torch.zeros(1, 0).long(), torch.zeros(0), (LARGE,)
    ),
    "meta": lambda: torch.zeros(LARGE, device="meta"),
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_tensors_larger_than_what_is_stored_are_refused(kind: str) -> None:
    """Before they take memory. Negative control: small tensors of these kinds, but for
    views."""
    tensor = TOO_LARGE[kind]()
    content = made_up(state(1) | {"buffers": {"large": tensor}})
    assert len(content) < 10_000
    assert "expected tensors that are stored whole" in refused(content)
    assert not refused(
        made_up(state(1) | {"buffers": {"small": torch.eye(3).to_sparse()}})
    )


def test_expanded_buffers_are_written_whole_and_restored_as_the_model_has_them(
    tmp_path: Path,
) -> None:
    """Bits and memory order are the same. Negative control: other rows are not made
    equal."""
    model = nn.Linear(1, 1)
    rows = torch.tensor([0.0, -0.0, math.nan]).expand(4, 3)
    model.register_buffer("rows", rows, persistent=False)
    saved = {"format_version": record.FORMAT_VERSION, **checkpoint.capture_model(model)}
    digest = digests.of_weights(saved)
    checkpoint.save(saved, tmp_path / "last.pt")
    found = checkpoint.load(tmp_path / "last.pt")
    assert digests.of_weights(found) == digest
    assert found["model"]._metadata == saved["model"]._metadata
    model.register_buffer("rows", torch.ones(3).expand(4, 3), persistent=False)
    checkpoint.restore_model(model, found)
    assert model.rows.stride() == (0, 1)
    assert digests.of_weights(checkpoint.capture_model(model)) == digest
    found["buffers"]["rows"] = torch.tensor([[0.0] * 3, [-0.0] * 3])[[0, 1, 0, 1]]
    model.register_buffer("rows", torch.ones(3).expand(4, 3), persistent=False)
    checkpoint.restore_model(model, found)
    assert torch.equal(model.rows.signbit(), found["buffers"]["rows"].signbit())


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def made_up(value: object) -> bytes:
    """Serialize a value to a file with the comment of Seedbed's checkpoints."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return with_comment(buffer.getvalue())


def with_comment(archive: bytes) -> bytes:
    """Return a zip archive with the comment of Seedbed's checkpoints."""
    body = archive[:-2] + checkpoint._COMMENT_BYTES.to_bytes(2, "little")
    return body + checkpoint._PREFIX + hashlib.sha256(body).hexdigest().encode()


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    """This holds for a bare pickle and for a checkpoint with the right checksum."""
    target = tmp_path / "created"
    assert refused(pickle.dumps(Malicious(target)))
    assert "expected tensors and numbers" in refused(
        made_up({"format_version": record.FORMAT_VERSION, "model": Malicious(target)})
    )
    assert not target.exists()


def test_foreign_files_are_refused() -> None:
    """A checkpoint of another program, one of another format, and a missing file."""
    buffer = io.BytesIO()
    torch.save(state(1), buffer)
    assert "damaged or foreign" in refused(buffer.getvalue())
    assert f"format {record.FORMAT_VERSION}" in refused(made_up({"format_version": 1}))
    with pytest.raises(InputError, match="expected a checkpoint, got "):
        checkpoint.load(Path("none.pt"))


class Killed(BaseException):
    """A simulated SIGKILL, after which no `except` or `finally` may change a file."""


def killed(
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    action: Callable[[Path], object],
    folder: Path,
) -> list[str]:
    """Run an action that dies at disk call `number`, from 0; return the call's name, if
    reached."""
    calls: list[str] = []

    def deadly(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) > number:
                raise Killed
            return original(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for module, name in (
            (os, "replace"),
            (os, "fsync"),
            (os, "open"),
            (Path, "unlink"),
        ):
            patch.setattr(module, name, deadly(name, getattr(module, name)))
        try:
            action(folder)
        except Killed:
            return [calls[number]]
    return []


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, which matters in a power cut but not after a kill; this saves
    seconds."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def save(step: int, folder: Path) -> None:
    checkpoint.save(state(step), folder / "last.pt")


@pytest.mark.usefixtures("no_fsync")
def test_a_kill_at_any_point_of_saving_leaves_a_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest good one is the old or the new one, also if the next save is killed,
    too."""
    pairs = 0
    for first, second in itertools.product(range(10), range(10)):
        folder = tmp_path / f"{first}_{second}"
        folder.mkdir()
        save(1, folder)
        save(2, folder)
        before = killed(monkeypatch, first, partial(save, 3), folder)
        found = step_of(checkpoint.load_newest(folder)[0])
        assert found in (2, 3), before
        after = killed(monkeypatch, second, partial(save, 4), folder)
        assert step_of(checkpoint.load_newest(folder)[0]) in (found, 4), (before, after)
        pairs += bool(before and after)
    assert pairs > 30, "it was not killed where it matters"


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize("discards", [True, False])
def test_a_damaged_checkpoint_does_not_push_out_the_good_one(
    discards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill while it is replaced or the next one is saved leaves a good one. Negative
    control: if it is not replaced, one kill leaves none."""

    def resume_run(folder: Path) -> None:
        found, problems = checkpoint.load_newest(folder)
        if problems and found is not None and discards:
            checkpoint.save(found, folder / "last.pt", keep_previous=False)
        save(3, folder)

    lost = []
    for point in range(20):
        folder = tmp_path / str(point)
        folder.mkdir()
        save(1, folder)
        save(2, folder)
        (folder / "last.pt").write_bytes(b"damaged")
        call = killed(monkeypatch, point, resume_run, folder)
        try:
            assert step_of(checkpoint.load_newest(folder)[0]) in (1, 3)
        except InputError:
            lost += call
    assert lost == ([] if discards else ["replace"])


def usable() -> Iterator[Any]:
    """Yield PyTorch's optimizers in all variants, except SparseAdam, which needs sparse
    gradients, and LBFGS, which takes no column-major weights (test_methods.py trains
    with it)."""
    for name in sorted(set(torch.optim.__all__) - {"Optimizer", "SparseAdam", "LBFGS"}):
        each = getattr(torch.optim, name)
        if not isinstance(each, type):
            continue
        arguments = inspect.signature(each).parameters
        always = {"momentum": 0.9} if "momentum" in arguments else {}
        for flag in ("", *FLAGS):
            if not flag or flag in arguments:
                options = always | ({flag: True} if flag else {})
                yield pytest.param(
                    partial(each, **options), id=f"{name} {flag}".strip()
                )


class Matrices(nn.Module):
    """Two linear layers; the weight of the first is column-major."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 5, bias=False, dtype=dtype)
        self.last = nn.Linear(5, CLASSES, bias=False, dtype=dtype)
        self.first.weight.data = self.first.weight.data.t().contiguous().t()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.to(self.last.weight.dtype)).tanh()).float()


def facts(value: Any) -> Any:
    """Return types, bits and memory order of a nested value, to compare it with
    another."""
    if isinstance(value, Tensor):
        bits = value.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
        return type(value), value.dtype, value.shape, value.stride(), bits
    if isinstance(value, dict):
        return type(value), [(key, facts(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [facts(item) for item in value]
    return type(value), repr(value)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str
)
@pytest.mark.parametrize("build", [*usable(), AllKinds])
def test_every_optimizer_goes_on_as_if_never_stopped(
    build: Any, dtype: torch.dtype
) -> None:
    """PyTorch's in every variant; one with master weights, counts, nested and named
    state."""
    case = Case(model=partial(Matrices, dtype), optimizer=build)
    whole = run(case)
    resumed = run(case, saved=whole.saved[3])
    assert len(resumed.rows) == STEPS - 3
    assert resumed.rows.items() <= whole.rows.items()
    ends = [facts(checkpoint.decode(found.saved[STEPS])) for found in (whole, resumed)]
    assert ends[0] == ends[1] != facts(checkpoint.decode(whole.saved[3]))


def test_state_stays_on_the_cpu_where_it_was_and_moves_where_the_run_moved() -> None:
    """The device `meta` replaces a GPU, whose parameters have a table on the CPU."""
    there, here = (nn.Parameter(torch.zeros(2, device="meta")) for _ in range(2))
    optimizer = torch.optim.SGD([there])
    fresh = torch.optim.SGD([here])
    optimizer.state[there] |= {
        "table": torch.ones(3),
        "moment": torch.zeros(2, device="meta"),
    }
    captured = optimizers.capture_optimizer(optimizer)
    optimizers.restore_optimizer(fresh, captured)
    assert fresh.state[here]["table"].device.type == "cpu"
    assert fresh.state[here]["moment"].device.type == "meta"
    optimizers.restore_optimizer(fresh, captured | {"devices": ["cpu"]})
    assert fresh.state[here]["table"].device.type == "meta"


@pytest.mark.parametrize("named", [False, True])
def test_all_of_an_optimizers_state_is_seen(named: bool) -> None:
    """Numbers, booleans, strings, tensors and nested containers, in order, change the
    hash."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight])

    def seen(entry: Any) -> int:
        optimizer.state["own" if named else weight] = {"entry": entry}  # type: ignore[index]
        return of(*optimizer_tensors(optimizer))

    entries = [
        *(
            1,
            2,
            1.0,
            -0.0,
            0.0,
            True,
            "warm",
            b"warm",
            2**80,
            [1, 2],
            [2, 1],
            {"a": 3},
            {"a": [4]},
        ),
        *(torch.ones(2), [torch.zeros(2), 1], {"a": (torch.zeros(3), 1)}),
    ]
    found = [seen(entry) for entry in entries]
    assert len(set(found)) == len(entries)
    assert found == [seen(copy.deepcopy(entry)) for entry in entries]
