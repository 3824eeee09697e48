"""A model in a file that needs nothing of the project, and computes what the run has
recorded."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import seedbed
from seedbed.datasets import SPLITS
from seedbed.pipeline.source import Batch
from seedbed.record import files
from tests import tiny
from tests.made_up_runs import contents
from tests.running import command, refusal, trained

SCRIPT = "scripts/export.py"
LOADED = """
import sys, torch
if sys.argv[1].endswith(".pt2"):
    model = torch.export.load(sys.argv[1]).module()
else:
    model = torch.jit.load(sys.argv[1])
images = torch.load(sys.argv[2])
torch.save([model(images), model(images[:1])], sys.argv[3])
assert not {"seedbed", "tiny", "tests"} & {*sys.modules}
"""
PACKAGES = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "safetensors": ("safetensors",),
}


@pytest.mark.parametrize(
    ("name", "ending"), [("torch.export", "pt2"), ("torchscript", "pt")]
)
def test_a_file_has_the_outputs_of_the_model_in_any_process(
    quick_run: Path, tmp_path: Path, name: str, ending: str
) -> None:
    """For any number of samples, without the project; the JSON says what it is."""
    before = contents(quick_run)
    out = tmp_path / f"model.{ending}"
    done = command(SCRIPT, str(quick_run), "--format", name, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert contents(quick_run) == before
    images = torch.stack([seedbed.data(quick_run)[index][0] for index in range(5)])
    torch.save(images, tmp_path / "images.pt")
    words = [
        sys.executable,
        "-c",
        LOADED,
        *map(str, (out, tmp_path / "images.pt", tmp_path / "o")),
    ]
    subprocess.run(words, cwd=tmp_path, env={}, check=True)
    loaded = torch.load(tmp_path / "o")
    model = seedbed.load(quick_run)
    with torch.no_grad():
        for found, given in zip(loaded, (images, images[:1]), strict=True):
            torch.testing.assert_close(found, model(given))
    said = json.loads(out.with_name(f"{out.name}.json").read_text())
    assert said["sha256"] == files.of_file(out)
    assert (
        said["weights_sha256"]
        == seedbed.read(quick_run).summary["weights_sha256"]["best"]
    )
    assert said["inputs"][0] == {
        "name": "",
        "dtype": "float32",
        "shape": ["batch", *images.shape[1:]],
    }
    assert said["batch"] == "any"
    assert said["checked"]["predictions_that_differ"] == 0


def test_other_predictions_than_the_runs_are_not_exported(
    quick_run: Path, tmp_path: Path
) -> None:
    """Negative control of the comparison: one recorded prediction is another."""
    run = Path(shutil.copytree(quick_run, tmp_path / "run"))
    path = run / "test_predictions.csv"
    head, first, *rest = path.read_text().splitlines(keepends=True)
    cells = first.split(",")
    cells[2] = str(1 - min(int(cells[2]), 1))
    path.write_text("".join([head, ",".join(cells), *rest]))
    done = command(SCRIPT, str(run), "--out", str(tmp_path / "model.pt2"))
    assert done.returncode == 1
    assert "not written: its outputs are not the run's" in done.stderr
    assert not [*tmp_path.glob("model*"), *tmp_path.glob(".seedbed*")]


@pytest.mark.parametrize("name", PACKAGES)
def test_other_formats_need_their_packages(
    quick_run: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "model"
    done = command(SCRIPT, str(quick_run), "--format", name, "--out", str(out))
    if not all(map(find_spec, PACKAGES[name])):
        assert f"--format: {name} needs packages: pip install" in refusal(done)
        return
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "model.json").read_text())["checked"]["close"]


NAMED = tiny.overrides(
    model={
        "name": "by_name",
        "_target_": "tests.tiny.models.ByName",
        "outputs": tiny.CLASSES,
    },
    data=tiny.DATA
    | {
        split: tiny.DATA[split] | {"_target_": "tests.tiny.data.Named"}
        for split in SPLITS
    },
)


@pytest.mark.parametrize("name", ["torch.export", "torchscript", *PACKAGES])
def test_inputs_that_have_names_are_exported(tmp_path: Path, name: str) -> None:
    """Each tensor goes where the model reads it, in every format."""
    run = trained(tmp_path / "run", *NAMED)
    out = tmp_path / "model"
    done = command(SCRIPT, str(run), "--format", name, "--out", str(out))
    if not all(map(find_spec, PACKAGES.get(name, ()))):
        assert f"--format: {name} needs packages: pip install" in refusal(done)
        return
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "model.json").read_text())
    assert said["checked"]["close"]
    assert {each["name"] for each in said["inputs"]} == {"['others']", "['first']"}


def batch(samples: int) -> Batch:
    inputs = torch.linspace(1.0, 2.0, 8 * samples).view(samples, 8)
    return Batch(torch.arange(samples).numpy(), inputs, torch.zeros(samples))


def test_a_size_that_a_trace_has_fixed_is_not_any() -> None:
    """A constant of another size raises nothing and gives other outputs. Negative
    control: a mean that PyTorch takes."""
    from seedbed.tools.export import batch_size

    def fixed(inputs: torch.Tensor) -> torch.Tensor:
        return inputs - inputs.sum() / 64

    def mean(inputs: torch.Tensor) -> torch.Tensor:
        return inputs - inputs.sum() / len(inputs)

    assert batch_size(mean, fixed, batch(64)) == 64
    assert batch_size(mean, mean, batch(64)) == "any"
    assert batch_size(mean, mean, batch(1)) == "any"


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_small_outputs_are_compared_as_large_ones(scale: float) -> None:
    from seedbed.tools.export import difference

    def model(inputs: torch.Tensor) -> torch.Tensor:
        return (inputs - 1.5) * scale

    def other(inputs: torch.Tensor) -> torch.Tensor:
        return model(inputs) * 0.02

    def rounded(inputs: torch.Tensor) -> torch.Tensor:
        return model(inputs) + scale * 1e-5

    assert not difference(model, other, [batch(4)])["close"]
    assert difference(model, rounded, [batch(4)])["close"]


def test_classes_are_compared_exactly() -> None:
    """However many there are. Negative control: numbers that round in another way."""
    from types import SimpleNamespace

    from seedbed.tools.export import differing_predictions

    def count(predictions: torch.Tensor, recorded: float) -> int:
        step = SimpleNamespace(
            predict_step=lambda _model, _batch: {"predictions": predictions}
        )
        training: Any = SimpleNamespace(method=step)
        found = differing_predictions(training, Any, [batch(1)], [[recorded]])
        return int(found["predictions_that_differ"])

    assert count(torch.tensor([5000]), 5000) == 0
    assert count(torch.tensor([5000]), 5001) == 1
    assert count(torch.tensor([0.5]), 0.5 + 1e-6) == 0
    assert count(torch.tensor([1e-5]), 2e-5) == 1
