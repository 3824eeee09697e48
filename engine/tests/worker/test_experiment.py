"""What a record says of what a run ran on, and of one whose device has failed."""

from pathlib import Path

import pytest
import torch

import seedbed
from seedbed import determinism, fingerprint, project
from seedbed.record import blobs
from seedbed.worker import environment, experiment

GPU_LIBRARIES = {"cudnn", "nccl", "driver"}


def test_a_record_names_what_the_run_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU libraries are named for a run on a GPU: another driver is no other CPU run."""
    versions = dict.fromkeys(GPU_LIBRARIES, "1")
    monkeypatch.setattr(environment, "gpu_versions", lambda: versions)
    monkeypatch.setattr(environment, "gpu", lambda index: {"name": f"GPU {index}"})
    on_cpu = environment.describe(torch.device("cpu"))
    on_gpu = environment.describe(torch.device("cuda", 1))
    assert on_cpu["versions"]["seedbed"] == seedbed.__version__
    assert not GPU_LIBRARIES & set(on_cpu["versions"])
    assert on_cpu["gpu"] == []
    assert set(on_gpu["versions"]) - set(on_cpu["versions"]) == GPU_LIBRARIES
    assert on_gpu["gpu"] == [{"name": "GPU 1"}]


def test_data_with_a_digest_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file of the checkout whose SHA-256 is recorded; control: one that nothing names."""
    monkeypatch.setattr(project, "root", lambda: tmp_path)
    monkeypatch.setattr(blobs, "recorded_files", lambda *_: {})
    monkeypatch.chdir(tmp_path)
    git = {"commit": "0" * 40, "dirty": True, "lacks": {"data.bin": "9 bytes", "other.bin": "9"}}
    found = {"git": git, "versions": {}, "files_sha256": {"data.bin": "0" * 64}}
    completed = environment.complete(found, {}, None, b"")
    assert list(completed["git"]["lacks"]) == ["other.bin"]


def test_a_flag_that_a_variable_carries_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's flag is among the flags, and its variable not among the variables."""
    monkeypatch.setenv(determinism.INDUCTOR_VARIABLE, "1")
    monkeypatch.setenv("TORCH_LOGS", "negative control")
    assert set(environment.describe(torch.device("cpu"))["env"]) & {
        determinism.INDUCTOR_VARIABLE, "TORCH_LOGS"
    } == {"TORCH_LOGS"}  # fmt: skip


def test_a_failed_gpu_has_no_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first error is the one to tell of; negative control: any other error is not hidden."""

    def fail(error: Exception) -> None:
        def raises(_tensors: object) -> None:
            raise error

        monkeypatch.setattr(fingerprint, "of_tensors", raises)

    fail(torch.AcceleratorError("device-side assert triggered"))
    assert experiment.hash_of([]) is None
    fail(RuntimeError("a defect"))
    with pytest.raises(RuntimeError, match="a defect"):
        experiment.hash_of([])
