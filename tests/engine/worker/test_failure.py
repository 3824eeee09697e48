"""A failure in a user's code is shown by its file and line, without what the engine did before."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

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


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_sets_error_is_named_by_its_line_in_whatever_process(workers: int) -> None:
    """The same in the training process and in a loader worker, also of several lines."""
    loader = DataLoader(
        Broken(), num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    found = failure.of(raised(lambda: next(iter(loader))))
    place = f"{__file__}:{line_of('data')}, in __getitem__"
    assert (found.place, found.reason) == (place, f"LookupError: {MESSAGE}")
    assert "dataloader.py" in found.traceback
    assert "dataloader.py" not in found.own
    assert found.own.endswith(f"{found.reason}\n")


def test_a_models_error_is_named_by_its_line_and_not_by_torchs() -> None:
    """What torch did below it is shown, what called it is not."""
    found = failure.of(raised(lambda: nn.Sequential(Model())(torch.zeros(2, 2))))
    assert found.place == f"{__file__}:{line_of('model')}, in forward"
    assert "_call_impl" in found.traceback
    assert "_call_impl" not in found.own


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
