"""A failure in a user's code is shown by its file and line, without what the engine did before."""

import os
import runpy
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

from seedbed import fingerprint
from seedbed.record import terminal
from seedbed.worker import failure

MESSAGE = "of several\nlines\n\n  and more: x"


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        raise LookupError(MESSAGE)  # data


class Model(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, torch.zeros(3, 3))  # model


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def raised(call: Any) -> Exception:
    """Return what a call raises, without the frames of this file, as if the engine had called."""
    try:
        call()
    except Exception as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename == __file__:
            frame = frame.tb_next
        return error.with_traceback(frame)
    raise AssertionError("nothing was raised")


def first_batch(loader: DataLoader[Any]) -> Any:
    """Load it, and end the workers (their exit is slow where garbage collection ends them)."""
    batches: Any = iter(loader)
    try:
        return next(batches)
    finally:
        if loader.num_workers:
            batches._shutdown_workers()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_sets_error_is_named_by_its_line_in_whatever_process(workers: int) -> None:
    """The same in the training process and in a loader worker, also of several lines."""
    loader = DataLoader(
        Broken(), num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    found = failure.of(raised(lambda: first_batch(loader)))
    place = f"{__file__}:{line_of('data')}, in __getitem__"
    assert (found.place, found.reason) == (place, f"LookupError: {MESSAGE}")
    assert "dataloader.py" in found.traceback
    assert "dataloader.py" not in found.own
    assert found.own.endswith(f"{found.reason}\n")


class Unequal(Dataset[torch.Tensor]):
    """Samples that no batch can be made of: of unequal shapes, or of no tensors."""

    def __init__(self, sample: Callable[[int], Any]) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


def stack_in_own_code(samples: list[Any]) -> Any:
    return default_collate(samples)  # own collate


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("sample", [lambda index: torch.zeros(2 + index), lambda index: object()])
def test_samples_that_torch_cannot_stack_are_said_to_be_that(
    sample: Callable[[int], Any], workers: int
) -> None:
    """The frames are all of torch's; where the user's own function stacks them, that is named."""
    how: Any = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    loader = DataLoader(Unequal(sample), 2, **how)
    found = failure.of(raised(lambda: first_batch(loader)))
    assert found.line.startswith("data: expected samples of tensors, arrays or numbers, all of the")
    assert (found.own, "\n" in found.reason) == ("", False)
    assert "collate_fn_map" in found.traceback
    with pytest.raises((RuntimeError, TypeError)) as caught:
        first_batch(loader)
    assert failure.of(caught.value).place.startswith(f"{__file__}:"), "the loop's line"
    own = DataLoader(Unequal(sample), 2, collate_fn=stack_in_own_code, **how)
    found = failure.of(raised(lambda: first_batch(own)))
    assert found.place == f"{__file__}:{line_of('own collate')}, in stack_in_own_code"
    assert "expected samples" not in found.reason


def test_a_models_error_is_named_by_its_line_and_not_by_torchs() -> None:
    """What torch did below it is shown, what called it is not."""
    found = failure.of(raised(lambda: nn.Sequential(Model())(torch.zeros(2, 2))))
    assert found.place == f"{__file__}:{line_of('model')}, in forward"
    assert "_call_impl" in found.traceback
    assert "_call_impl" not in found.own


def by_a_line_in_a_message() -> None:
    raise RuntimeError('outer\n  File "/etc/x.py", line 3, in nothing\nend')  # by a line


def by_a_traceback_in_a_message() -> None:
    try:
        raise ValueError("inner")
    except ValueError:
        text = traceback.format_exc()
    raise RuntimeError(f"sample 3 is broken:\n{text}")  # by a traceback


def by_another_error() -> None:
    try:
        raise ValueError("inner")
    except ValueError as error:
        raise RuntimeError("outer") from error  # by another error


def without_end() -> None:
    without_end()  # without end


class Raising(Dataset[int]):
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        self.call()
        return 0


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            by_a_line_in_a_message,
            'RuntimeError: outer\n  File "/etc/x.py", line 3, in nothing\nend',
        ),
        (by_a_traceback_in_a_message, "RuntimeError: sample 3 is broken:\nTraceback (most"),
        (by_another_error, "RuntimeError: outer"),
        (without_end, "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_whatever_a_message_holds_the_error_is_that_which_was_raised(
    call: Callable[[], None], reason: str, workers: int
) -> None:
    """Its message may have lines of tracebacks, and another error may have led to it."""
    loader = DataLoader(
        Raising(call), num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    found = failure.of(raised(lambda: first_batch(loader)))
    name = call.__name__
    assert (
        found.place
        == f"{__file__}:{line_of(name.replace('_in_a_message', '').replace('_', ' '))}, in {name}"
    )
    assert found.reason.startswith(reason)
    assert ("ValueError: inner" in found.own) == (call not in (by_a_line_in_a_message, without_end))
    assert (
        "_worker_loop" not in found.own.partition("RuntimeError: outer")[0].rpartition("cause")[2]
    )


def test_a_loader_worker_that_was_killed_is_no_failure_of_the_line_that_ran_then() -> None:
    """PyTorch raises it from a signal handler, wherever the training process is."""
    loader = DataLoader(
        Raising(lambda: os.kill(os.getpid(), signal.SIGKILL)),
        num_workers=1,
        multiprocessing_context="fork",
    )

    def wait_in_own_code() -> None:
        iterator = iter(loader)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.01)
        next(iterator)

    with pytest.raises(RuntimeError) as caught:
        wait_in_own_code()
    found = failure.of(caught.value)
    assert "is killed by signal" in found.reason
    assert (found.place, found.own) == ("", found.traceback)


def test_a_file_that_cannot_be_compiled_is_named(tmp_path: Path) -> None:
    """And not the line that imports it."""
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(SyntaxError) as caught:
        runpy.run_path(str(tmp_path / "broken.py"))
    found = failure.of(caught.value)
    assert found.place == f"{tmp_path / 'broken.py'}:2"


def test_a_message_that_cannot_be_made_hides_nothing_else() -> None:
    """An exception of the user's own may fail when it is printed."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    def fail() -> None:
        raise Mute  # mute

    with pytest.raises(Mute) as caught:
        fail()
    found = failure.of(caught.value)
    assert found.place == f"{__file__}:{line_of('mute')}, in fail"
    assert found.reason == "Mute: (its message cannot be shown: KeyError)"


def test_an_error_of_the_engine_keeps_its_whole_traceback() -> None:
    """Negative control: nothing of it is the user's."""
    broken: Any = [3]
    found = failure.of(raised(lambda: fingerprint.of_tensors(broken)))
    assert (found.place, found.own) == ("", found.traceback)
    assert "fingerprint.py" in found.own


def test_the_log_has_the_whole_traceback_and_both_end_in_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = failure.Failure("KeyError: 'a'\nb", "mine.py:3, in f", "engine\nmine\n", "mine\n")
    with terminal.tee_output(tmp_path / "train.log"):
        failure.show(found)
    end = "error: mine.py:3, in f: KeyError: 'a'\n"
    assert (tmp_path / "train.log").read_text() == f"engine\nmine\n{end}"
    assert capsys.readouterr().err == f"mine\n{end}"
    failure.show(found)
    assert capsys.readouterr().err == f"engine\nmine\n{end}", "without a log"
