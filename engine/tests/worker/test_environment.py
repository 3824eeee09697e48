"""What a record says of what a run read and ran on: files, distributions, the processor."""

import hashlib
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from seedbed import fingerprint
from seedbed.errors import InputError
from seedbed.worker import environment, summary


def test_every_file_that_an_argument_names_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nested, in lists, by relative path; negative control: not those of other sections."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("a.pt", "b.pt", "c.txt", "d", "folder/e", "folder/f"):
        Path(name).write_text(name)
    settings: dict[str, Any] = {
        "model": {"name": "cnn", "_target_": "m.D", "weights": "a.pt", "parts": [{"x": "b.pt"}]},
        "data": {"train": {"vocabulary": "c.txt", "root": "folder"}, "task": {"name": "cnn"}},
        "optimizer": {"lr": 0.1, "long": "x" * 5000, "none": None, "zero": "a\0b"},
        "trainer": {"device": "d"},
        "files": ["folder"],
    }
    found = environment.file_digests(settings)
    assert set(found) == {"a.pt", "b.pt", "c.txt", "folder/e", "folder/f"}
    assert found["a.pt"] == hashlib.sha256(b"a.pt").hexdigest()
    with pytest.raises(InputError, match=r"^files: expected a file or a folder with files, got no"):
        environment.file_digests({"files": ["nothing"]})


def test_versions_of_what_classes_come_from_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a class that is named, and of what one's own modules import; negative control: not of
    others."""
    (tmp_path / "mine.py").write_text("import os\nimport mlxtend\nfrom sklearn import clone\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("mine", "tqdm", "joblib"):
        __import__(name)
    expected = {name: version(name) for name in ("tqdm", "mlxtend", "scikit-learn")}
    settings = {"model": {"_target_": "tqdm.tqdm"}, "data": {"train": {"root": "joblib"}}}
    found = environment.more_versions(settings)
    assert found.items() >= expected.items()
    assert "joblib" not in found
    monkeypatch.delitem(sys.modules, "mine")
    found = environment.more_versions({"model": {"_target_": "torch.nn.Linear"}})
    assert not {"tqdm", "mlxtend"} & found.keys()


def test_a_failed_gpu_has_no_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first error is the one to tell of; negative control: any other error is not hidden."""

    def fail(error: Exception) -> None:
        def raises(_tensors: object) -> None:
            raise error

        monkeypatch.setattr(fingerprint, "of_tensors", raises)

    fail(torch.AcceleratorError("device-side assert triggered"))
    assert summary.hash_of([]) is None
    fail(RuntimeError("a defect"))
    with pytest.raises(RuntimeError, match="a defect"):
        summary.hash_of([])


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
