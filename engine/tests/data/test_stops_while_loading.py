"""A stop signal while samples are read, for data sets that take other samples if
reading one fails.

Ctrl-C reaches the programs that a data set starts, such as a decoder, too.
"""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from seedbed import record
from tests import tiny
from tests.end_to_end.live import resumed
from tests.running import QUICK, command
from tests.tiny.data import Noisy

STOPS = "STOPS_ONCE"  # an environment variable: a file that says that it has stopped


class Substituting(Noisy):
    """Noisy samples, and zeros for sample 7 while the run is stopped."""

    def __init__(
        self, samples: int, how: str, statistics: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(samples)
        self.how = how
        self.mean = 0.0 if statistics is None else statistics["mean"]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        point, label = super().__getitem__(index)
        if index == 7 and self.is_stopped():
            return torch.zeros(tiny.FEATURES), label
        return point - self.mean, label

    def is_stopped(self) -> bool:
        """Stop the run once; return whether that could have disturbed the sample."""
        file = os.environ.get(STOPS)
        if file is None or Path(file).exists():
            return False
        Path(file).touch()
        time.sleep(0.5)  # until the training process waits for the batch
        try:
            is_worker = get_worker_info() is not None
            os.kill(os.getppid() if is_worker else os.getpid(), signal.SIGTERM)
            time.sleep(600 if self.how == "hangs" else 0.1)
        except BaseException:
            return self.how == "hangs"
        return True


def mean(dataset: Substituting) -> Mapping[str, float]:
    return {"mean": sum(float(dataset[i][0].sum()) for i in range(len(dataset)))}


def words_of(how: str, workers: int, processes: int) -> tuple[str, ...]:
    train: dict[str, Any] = {
        "_target_": f"{__name__}.Substituting",
        "samples": 48,
        "how": how,
    }
    data = tiny.DATA | {"num_workers": workers, "train": train}
    if how == "statistics":
        train["statistics"] = None
        data["statistics"] = {"_target_": f"{__name__}.mean"}
    return (
        *QUICK,
        *tiny.overrides(tiny.DENSE, data),
        # nothing but training, or statistics, reads the sample
        *("trainer.rehearse_resume=false", "data.compare_splits=false"),
        *("trainer.shards=2", f"trainer.processes={processes}"),
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "workers", "processes"),
    [
        ("fails", 0, 1),
        ("fails", 1, 1),
        ("hangs", 0, 1),
        ("fails", 0, 2),
        ("fails", 1, 2),
        ("statistics", 0, 1),
    ],
)
def test_what_was_read_during_a_stop_signal_is_not_used(
    how: str,
    workers: int,
    processes: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The resumed run has the bits of one that was never stopped.

    Also if the sample hangs, so that an exception has to end it, which it handles.
    """
    words = words_of(how, workers, processes)
    with monkeypatch.context() as patched:
        patched.setenv(STOPS, str(tmp_path / "stops"))
        stopped = command("train.py", f"hydra.run.dir={tmp_path / 'stopped'}", *words)
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    assert (tmp_path / "stops").exists()
    assert resumed(tmp_path / "stopped")
    done = command("train.py", f"hydra.run.dir={tmp_path / 'whole'}", *words)
    assert done.returncode == 0, done.stderr
    one, other = (
        record.read_summary(tmp_path / name)["fingerprints"]
        for name in ("stopped", "whole")
    )
    assert one == other
