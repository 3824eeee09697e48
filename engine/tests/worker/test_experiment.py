"""What a record says of what a run ran on, and of one whose device has failed."""

from pathlib import Path

import pytest
import torch

import seedbed
from seedbed import fingerprint
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


CPUINFO = "model\t\t: {model}\nmodel name\t: Intel(R) Xeon(R) Processor\nstepping\t: {stepping}\n\n"


def test_processors_that_share_a_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By family, model, stepping and cache, on Arm too; control: the same processor."""

    def of(text: str) -> dict[str, str | None]:
        (tmp_path / "cpuinfo").write_text(text)
        return environment.processor(tmp_path / "cpuinfo")

    found = [of(CPUINFO.format(model=model, stepping=stepping))
             for model, stepping in ((85, 4), (85, 7), (106, 6), (85, 4))]  # fmt: skip
    assert found[0]["model"] == "Intel(R) Xeon(R) Processor"
    assert found[0] == found[3] != found[1] != found[2] != found[0]
    assert of("CPU part\t: 0xd40\n") != of("CPU part\t: 0xd4f\n")
    first = environment.cpu()
    features = {"avx2": True, "amx_int8": True, "l2_cache_size": 1}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    second = environment.cpu()
    assert (second["features"], second["l2_bytes"]) == ("amx_int8 avx2", 1)
    assert first != second
