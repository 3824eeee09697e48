"""An error in a user's code ends in its traceback, without the engine's frames before it."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from seedbed import fingerprint, record
from seedbed.record import terminal
from seedbed.worker import failure
from tests import tiny
from tests.running import QUICK, train, trained


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        raise LookupError("of several\nlines")


class Model(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, torch.zeros(3, 3))


def raised(call: Callable[[], Any]) -> Exception:
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
def test_a_data_sets_error_ends_in_its_line_in_whatever_process(workers: int) -> None:
    context = "fork" if workers else None
    loader = DataLoader(Broken(), num_workers=workers, multiprocessing_context=context)
    error = raised(lambda: first_batch(loader))
    shown = failure.of_users_code(error)
    assert shown.startswith("Traceback (most recent call last):\n")
    assert shown.endswith("LookupError: of several\nlines\n")
    assert shown.rindex(f'File "{__file__}"') > shown.rfind("torch/utils/data")
    assert "lines" in failure.reason(error)


def test_what_called_the_users_code_is_left_out() -> None:
    """What PyTorch did below it is shown."""
    shown = failure.of_users_code(raised(lambda: nn.Sequential(Model())(torch.zeros(2, 2))))
    assert __file__ in shown.splitlines()[1]
    assert "_call_impl" not in shown
    assert failure.of_users_code(raised(lambda: nn.Linear(2, 2)(torch.zeros(3)))) == ""


def test_an_error_of_the_engine_keeps_its_whole_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Negative control: nothing of it is the user's. train.log always has all of it."""
    broken: Any = [3]
    inside = raised(lambda: fingerprint.of_tensors(broken))
    users = raised(lambda: nn.Sequential(Model())(torch.zeros(2, 2)))
    for error, is_whole in ((inside, True), (users, False)):
        with terminal.tee_output(tmp_path / "train.log"):
            failure.show(error)
        shown = capsys.readouterr().err
        assert (tmp_path / "train.log").read_text().endswith(shown.partition("\n")[2])
        assert ((tmp_path / "train.log").read_text() == shown) is is_whole


def test_a_message_that_cannot_be_made_hides_nothing_else() -> None:
    """An exception of the user's own may fail when it is printed."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    with pytest.raises(Mute) as caught:
        raise Mute
    assert failure.reason(caught.value).startswith("Mute: ")
    assert __file__ in failure.of_users_code(caught.value)


BROKEN = """
    from tests.tiny import data, models

    class Constructor(models.Dense):
        def __init__(self, **arguments):
            super().__init__(**arguments)
            self.nothing

    class Forward(models.Dense):
        def forward(self, x):
            return x + missing

    class Samples(data.Noisy):
        def __getitem__(self, index):
            return {}["nothing"]
"""
PLACES = {
    "model._target_=broken.Constructor": "self.nothing",
    "model._target_=broken.Forward": "return x + missing",
    "data.train._target_=broken.Samples": 'return {}["nothing"]',
}


@pytest.mark.parametrize("override", PLACES)
def test_a_run_that_fails_in_the_users_code(override: str, tmp_path: Path) -> None:
    """Traceback, status 1, a record that says failed; mended, it runs in the same folder."""
    module, run = tmp_path / "broken.py", tmp_path / "run"
    module.write_text(textwrap.dedent(BROKEN))
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(tiny.__file__).parents[2]}"}
    words = (*tiny.OVERRIDES, *QUICK, "trainer.max_steps=2", override)
    done = train(run, *words, environment=environment)
    assert done.returncode == 1
    first, *_ = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert f'"{module}"' in first
    assert PLACES[override] in done.stderr
    summary = record.read_summary(run)
    assert summary["status"] == "failed"
    assert summary["error"] in done.stderr
    assert "seedbed/worker" in (run / "train.log").read_text()
    assert "seedbed/worker" not in done.stderr
    trained(run, *words[:-1], environment=environment)
    assert record.read_summary(run)["status"] == "finished"
