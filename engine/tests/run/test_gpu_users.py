"""What a GPU's user expects: its name, its driver, a line when memory runs out, no
portable."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seedbed import assemble, environment, record
from seedbed.config.compose import configuration
from seedbed.errors import InputError, is_out_of_memory
from seedbed.methods import Supervised
from seedbed.pipeline import workers
from seedbed.run.run_logger import RunLogger, gpu_peak_memory_bytes
from seedbed.training import scaling
from seedbed.training.shards import Shards
from seedbed.training.state import Progress
from tests.run.runs import begun, of_method, work

CLOSED = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2)
"""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (CLOSED, "535.104.05"),
        (OPEN, "580.159.04"),
        (OPEN.replace("x86_64", "aarch64"), "580.159.04"),
        ("", None),
    ],
)
def test_the_driver_is_that_of_closed_and_open_kernel_modules(
    text: str, version: str | None
) -> None:
    assert environment.driver_version(text) == version


@pytest.mark.parametrize(
    ("device", "preset", "precision", "is_fast"),
    [
        # no TF32: cuDNN reorders the images in each layer
        ("cuda", "strict", "float32", False),
        ("cuda", "strict", "bfloat16", True),
        ("cuda", "fast", "float32", True),
        ("cpu", "strict", "float32", True),
    ],
)
def test_images_are_channels_last_where_convolutions_have_kernels_for_it(
    device: str, preset: str, precision: str, is_fast: bool
) -> None:
    words = f"determinism={preset}", f"trainer.precision={precision}"
    found = assemble.is_fast_channels_last(configuration(*words), torch.device(device))
    assert found is is_fast


def test_memory_is_pinned_only_for_copies_that_would_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of more than 64 KiB."""
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor + 1)
    small = torch.zeros(2**14)
    large = torch.zeros(2**14 + 1)
    assert workers._pinned(small) is small
    assert workers._pinned(large).sum() == len(large)


def test_packages_that_replace_cuda_kernels_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: those that are not installed have no entry."""

    def version(name: str) -> str:
        if name == "nvidia-cutlass-dsl":
            return "4.8.0"
        raise metadata.PackageNotFoundError

    gpu = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3",
        multi_processor_count=132,
        major=9,
        minor=0,
        total_memory=1,
    )
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    found = environment.describe(torch.device("cuda"))
    assert found["versions"]["nvidia-cutlass-dsl"] == "4.8.0"
    assert "helion" not in found["versions"]
    assert found["gpu"][0]["name"] == gpu.name


def test_the_header_says_which_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: on a CPU it has the number of threads, and no GPU is asked."""
    monkeypatch.setattr(
        torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3"
    )
    settings = configuration("seed=0")
    lines: list[str] = []

    def header(device: str) -> str:
        logger: Any = SimpleNamespace(
            _parts=SimpleNamespace(settings=settings, shards=Shards()),
            _training=SimpleNamespace(
                device=torch.device(device), model=nn.Linear(1, 1)
            ),
            _job=SimpleNamespace(starts_over=False),
            _plan=SimpleNamespace(total_steps=3),
            log=lines.append,
        )
        RunLogger._log_header(logger, Progress())
        return lines[-1]

    assert ", cuda:1 (NVIDIA H100 80GB HBM3), determinism=" in header("cuda:1")
    assert " cores), determinism=" in header("cpu")


def test_weights_are_looked_at_with_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each checkpoint. Frozen weights are not: a run may start with any."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    nn.init.constant_(model[1].bias, torch.nan)
    model[2].weight.requires_grad_(False).fill_(torch.inf)
    waits: list[Tensor] = []
    monkeypatch.setattr(
        Tensor, "__bool__", lambda _: pytest.fail("waits for one parameter")
    )
    read = Tensor.tolist
    monkeypatch.setattr(
        Tensor, "tolist", lambda tensor: waits.append(tensor) or read(tensor)
    )
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = scaling.are_finite(trained)
    assert [name for name, is_finite in found.items() if not is_finite] == ["1.bias"]
    assert len(waits) == 1
    assert len(found) == 5


@pytest.mark.parametrize(("asked", "got"), [("auto", "cpu"), ("cpu", "cpu")])
def test_portable_trains_on_the_cpu(asked: str, got: str) -> None:
    words = ("seed=0", "determinism=portable", f"trainer.device={asked}")
    settings = configuration(*words)
    assert settings.trainer.device == settings.plain["trainer"]["device"] == got


@pytest.mark.parametrize("key", ["trainer.device", "determinism.device"])
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_portable_refuses_a_gpu(key: str, device: str) -> None:
    """Negative control: strict takes it."""
    word = f"{key}={device}"
    with pytest.raises(
        InputError, match=f"^trainer.device: expected cpu under .* got {device};"
    ):
        configuration("seed=0", "determinism=portable", word)
    settings = configuration("seed=0", "determinism=strict", word)
    assert settings.trainer.device == device


class Large(Supervised):
    """Asks for a petabyte in the third step."""

    steps = 0

    def training_step(self, model: nn.Module, batch: Any, optimizer: str) -> Any:
        self.steps += 1
        if self.steps == 3:
            torch.empty(2**50)
        return super().training_step(model, batch, optimizer)


class LargeOnGPU(Large):
    """Fails as PyTorch does where a GPU is full."""

    def training_step(self, model: nn.Module, batch: Any, optimizer: str) -> Any:
        self.steps += 1
        if self.steps == 3:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total"
                " capacity of 79.18 GiB of which 1.06 GiB is free."
            )
        return Supervised.training_step(self, model, batch, optimizer)


@pytest.mark.usefixtures("this_process_trains")
@pytest.mark.parametrize(
    ("method", "wanted"),
    [("Large", "4503599627370496 bytes"), ("LargeOnGPU", "20.00 GiB")],
)
def test_where_memory_runs_out_a_line_says_what_to_lower(
    method: str, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 1, as for other failures of a run, and the record has the reason
    and steps."""
    folder = begun(tmp_path / "run", *of_method(method, module=__name__))
    assert work(folder) == 1
    summary = record.read_summary(folder)
    assert summary["status"] == "failed"
    assert capsys.readouterr().err == f"error: {summary['error']}\n"
    assert (
        summary["error"]
        == f"memory: out of memory (tried to allocate {wanted}); lower data.batch_size"
        " (in evaluations data.eval_batch_size), raise trainer.shards (the same"
        " batch in smaller slices), or set trainer.precision=bfloat16"
    )
    assert summary["steps"] == 2
    assert len(record.read_fingerprints(folder)) == 2


def test_other_errors_are_no_lack_of_memory() -> None:
    assert not is_out_of_memory(
        RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    )
    assert not is_out_of_memory(ValueError("out of memory"))


def test_the_summary_has_the_peak_of_a_gpus_memory(
    quick_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a run on a CPU has none."""
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 80 * 2**30)
    assert gpu_peak_memory_bytes(torch.device("cuda")) == 80 * 2**30
    assert gpu_peak_memory_bytes(torch.device("cpu")) is None
    assert record.read_summary(quick_run)["gpu_peak_memory_bytes"] is None


_SAVE = """
import resource, sys, torch
from pathlib import Path
from seedbed import record
from seedbed.training import checkpoint

tensors = {str(n): torch.ones(1_000_000) for n in range(100)}
state = {"format_version": record.FORMAT_VERSION, "model": tensors}
small = {"format_version": record.FORMAT_VERSION, "model": torch.ones(1)}
checkpoint.save(small, Path(sys.argv[1], "last.pt"))  # imports what it needs
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
checkpoint.save(state, Path(sys.argv[1], "last.pt"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.long
def test_saving_copies_no_state(tmp_path: Path) -> None:
    """100 million parameters (381 MiB) are saved in less than 40 MiB more than they
    take."""
    words = [sys.executable, "-c", _SAVE, str(tmp_path)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=120
    )
    assert (tmp_path / "last.pt").stat().st_size > 400_000_000
    assert int(done.stdout) < 40 * 1024
