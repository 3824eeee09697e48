"""An exported model has the outputs of the run's model, bit for bit, where nothing of ours is."""

import copy
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from seedbed.data.source import Source
from seedbed.errors import InputError
from seedbed.tools import exporting
from tests.running import ROOT, TEMPLATE, command, refusal, trained
from tests.tiny.data import Noisy
from tests.tools.conftest import contents

SCRIPT = "scripts/export.py"
# Builds the model by hand and gives it the checkpoint's weights.
EXPECTED = """
import sys, torch, yaml
from tiny.cnn import CNN
torch.set_num_threads(1)
run, inputs, out = sys.argv[1:]
settings = yaml.safe_load(open(f"{run}/config.yaml"))["model"]
model = CNN(*(settings[key] for key in ("input_shape", "outputs", "channels", "dropout"))).eval()
model.load_state_dict(torch.load(f"{run}/checkpoints/best.pt", weights_only=True)["model"])
torch.save(model(torch.load(inputs)), out)
"""
# Loads by the lines that the command printed; FOREIGN takes this project off the path first.
FOREIGN = """
import importlib.util, sys
ours = ({root!r} + "/src", {root!r} + "/engine")
sys.path[:] = [place for place in sys.path if not place.startswith(ours)]
assert importlib.util.find_spec("seedbed") is None and importlib.util.find_spec("tiny") is None
"""
LOADED = """
import sys, torch
torch.set_num_threads(1)
inputs = torch.load(sys.argv[1])
{lines}
torch.save(model(inputs), sys.argv[2])
"""


@pytest.fixture(scope="module")
def expected(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """Inputs that no data set has, and the model's outputs for them."""
    folder = tmp_path_factory.mktemp("expected")
    inputs, outputs = folder / "inputs.pt", folder / "outputs.pt"
    torch.save(torch.rand(37, 1, 8, 8, generator=torch.Generator().manual_seed(0)), inputs)
    done = command("-c", EXPECTED, str(run), str(inputs), str(outputs))
    assert done.returncode == 0, done.stderr
    return inputs, torch.load(outputs)


def exported(run: Path, *words: str) -> list[str]:
    """Export, and return the lines that were printed to load the model."""
    done = command(SCRIPT, str(run), *words)
    assert done.returncode == 0, done.stderr
    assert "the same bits as the model for 500 samples" in done.stdout
    lines = done.stdout.partition("To load it:")[2].strip().splitlines()
    assert len(lines) == 3
    return [line.strip() for line in lines]


def outputs(code: str, inputs: Path, folder: Path) -> torch.Tensor:
    out = folder / "outputs.pt"
    words = [sys.executable, "-c", code, str(inputs), str(out)]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: torch.Tensor = torch.load(out)
    return found


@pytest.mark.long
def test_a_program_needs_nothing_of_this_project(
    run: Path,
    before: Mapping[Path, bytes],
    expected: tuple[Path, torch.Tensor],
    tmp_path: Path,
) -> None:
    """Without Seedbed on the path, with another batch size than it was captured with, by the
    printed lines: the same bits. Control: other weights have others."""
    lines = exported(run, "--to", str(tmp_path / "model.pt2"))
    code = FOREIGN.format(root=str(TEMPLATE)) + LOADED.format(lines="\n".join(lines))
    assert torch.equal(outputs(code, expected[0], tmp_path), expected[1])
    assert contents(run) == before
    exported(run, "--to", str(tmp_path / "model.pt2"), "--checkpoint", "last", "--overwrite")
    assert not torch.equal(outputs(code, expected[0], tmp_path), expected[1])


@pytest.mark.long
def test_weights_and_yaml_build_the_model(
    run: Path, expected: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    """By the printed lines, in a process that finds the model's code."""
    lines = exported(run, "--state-dict", "--to", str(tmp_path / "weights.pt"))
    finds = f"import sys; sys.path.append({str(ROOT / 'src')!r})\n"
    code = finds + LOADED.format(lines="\n".join(lines))
    assert torch.equal(outputs(code, expected[0], tmp_path), expected[1])
    recipe = yaml.safe_load((tmp_path / "weights.yaml").read_text())
    assert recipe["_target_"] == "tiny.cnn.CNN"


@pytest.mark.long
def test_a_model_that_cannot_be_captured_is_refused(tmp_path: Path) -> None:
    """In one line that says what can be exported instead, and nothing is written."""
    (tmp_path / "odd.py").write_text(
        "import torch\n"
        "class Odd(torch.nn.Linear):\n"
        "    def __init__(self, **settings): super().__init__(2, 1)\n"
        "    def forward(self, x):\n"
        "        return super().forward(x).mean(1) * (1 if x.sum().item() > 0 else 2)\n"
    )
    path = {"PYTHONPATH": str(tmp_path)}
    words = ("model=lstm", "model._target_=odd.Odd")
    run = trained(tmp_path / "run", "data=adding", *words, environment=path)
    out = tmp_path / "odd.pt2"
    done = command(SCRIPT, str(run), "--trust", "odd", "--to", str(out), environment=path)
    assert "--state-dict" in refusal(done)
    assert not out.exists()


class Reshaping(nn.Linear):
    """Asks for the size of a batch in the way that `torch.export` keeps, or in the other."""

    def __init__(self, by_len: bool) -> None:
        super().__init__(8, 3)
        self.by_len = by_len

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).view(len(x) if self.by_len else x.shape[0], 3)


class Shifting(nn.Linear):
    """Draws in evaluation: from the global generators, or from one of its own as well."""

    def __init__(self, own: bool) -> None:
        super().__init__(8, 3)
        self.own = np.random.default_rng(0) if own else None

    def forward(self, x: Tensor) -> Tensor:
        shift = 0.0 if self.own is None else float(self.own.normal())
        return super().forward(x) + torch.rand(3) + shift


def test_why_bits_differ_is_said() -> None:
    """Of a model that draws, of one that another is taken for; a control that does neither."""
    source, plain = Source(Noisy(6), "validation", 0), nn.Linear(8, 3)
    both, why = "the model for 4 samples", exporting.PROGRAM_DIFFERS
    same, line = exporting.compare(plain, copy.deepcopy(plain), source, 4, why)
    assert (same, line) == (True, f"the same bits as {both}")
    seeded = Shifting(False)
    same, line = exporting.compare(seeded, copy.deepcopy(seeded), source, 4, why)
    assert same
    assert line.startswith(f"the same bits as {both}; it draws random numbers in evaluation")
    same, line = exporting.compare(Shifting(True), Shifting(True), source, 4, why)
    assert not same
    assert f"not the same bits as {both}: the model draws random numbers in evaluation" in line
    same, line = exporting.compare(plain, nn.Linear(8, 3), source, 4, why)
    assert not same
    assert f"not the same bits as {both}, by at most " in line
    assert "the program computes something else; export" in line


def test_a_program_that_takes_no_other_batch_is_not_written(tmp_path: Path) -> None:
    """In one line, with PyTorch's guard; control: the same model by x.shape[0]."""
    batch, out = torch.rand(7, 8), tmp_path / "model.pt2"
    with pytest.raises(InputError, match="fixes the size of a batch") as refused:
        exporting.save_program(Reshaping(by_len=True), batch[:2], batch, out)
    assert "size()[0] == 2" in str(refused.value)
    assert "write x.shape[0] instead of len(x), or export" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())
    model = Reshaping(by_len=False)
    program = exporting.save_program(model, batch[:2], batch, out)
    assert torch.equal(program(batch), model(batch))
    assert out.exists()


def test_inputs_of_several_shapes_are_not_blamed_on_the_batch(tmp_path: Path) -> None:
    """A program is captured for samples of one shape."""
    two, more = torch.rand(2, 5, 8), torch.rand(7, 6, 8)
    with pytest.raises(InputError, match=r"samples of one shape.*\(5, 8\).*\(6, 8\)"):
        exporting.save_program(nn.Linear(8, 3), two, more, tmp_path / "model.pt2")


def test_the_fast_path_of_attention_is_named(tmp_path: Path) -> None:
    """PyTorch's encoder takes it in evaluation, a program does not; the difference is small."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    source = Source(TensorDataset(torch.randn(64, 5, 8), torch.zeros(64)), "validation", 0)
    two, inputs = (exporting.inputs_of(source, samples) for samples in (2, 64))
    with torch.no_grad():
        program = exporting.save_program(model, two, inputs, tmp_path / "model.pt2")
        same, line = exporting.compare(model, program, source, 64, exporting.PROGRAM_DIFFERS)
    assert not same
    found = re.fullmatch(r"not the same bits .* 64 samples, by at most (\S+): (.*)", line)
    assert found
    assert float(found[1]) < 1e-4
    assert found[2] == exporting.FAST_PATH


def test_any_batch_size_is_said() -> None:
    assert exporting.described(torch.zeros(2, 48, 3)) == "float32 (B, 48, 3); B is any size"


def test_what_is_exported_leaves_no_file_that_git_sees(run: Path, tmp_path: Path) -> None:
    """By default in a folder that git ignores, which the command makes when it exports."""
    named = tmp_path / "named"
    named.symlink_to(run)
    refused = subprocess.run(
        [sys.executable, "-m", "seedbed", "export", str(named), "model.no=1"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert refused.returncode == 2, refused.stderr
    assert not (tmp_path / "exports").exists()
    done = subprocess.run(
        [sys.executable, "-m", "seedbed", "export", str(named), "--state-dict"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    files = sorted(path.name for path in (tmp_path / "exports").iterdir())
    assert files == [f"{run.name}.pt", f"{run.name}.yaml"]
    places = [f"exports/{file}" for file in files]
    ignored = subprocess.run(
        ["git", "check-ignore", *places, "a.pt", "a.pt2", "src/a.yaml"],
        cwd=TEMPLATE, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ignored.stdout.split() == [*places, "a.pt", "a.pt2"]


@pytest.mark.long
def test_weights_that_are_not_all_of_a_model_get_advice_of_their_own(tmp_path: Path) -> None:
    """A model with a value that state_dict() lacks: not told to export by --state-dict again."""
    (tmp_path / "odd.py").write_text(
        "import torch\n"
        "class Odd(torch.nn.Linear):\n"
        "    def __init__(self, **settings):\n"
        "        super().__init__(2, 1)\n"
        "        self.register_buffer('shift', torch.randn(1), persistent=False)\n"
        "    def forward(self, x): return (super().forward(x) + self.shift).mean(1)\n"
    )
    path = {"PYTHONPATH": str(tmp_path)}
    words = ("model=lstm", "model._target_=odd.Odd")
    run = trained(tmp_path / "run", "data=adding", *words, environment=path)
    words = ("--trust", "odd", "--state-dict", "--to", str(tmp_path / "odd.pt"))
    done = command(SCRIPT, str(run), *words, environment=path)
    assert done.returncode == 1, done.stderr
    assert "values that state_dict() lacks; register them as buffers" in done.stdout
    assert "by --state-dict" not in done.stdout


def test_invalid_requests_are_one_line(run: Path, tmp_path: Path) -> None:
    """Names that do not fit, and places in a record."""
    assert ".pt2" in refusal(command(SCRIPT, str(run), "--to", str(tmp_path / "model.onnx")))
    assert "outside run folders" in refusal(command(SCRIPT, str(run), "--to", str(run / "m.pt2")))
    assert "expected a run folder" in refusal(command(SCRIPT, str(tmp_path)))


def test_a_file_that_is_there_is_not_replaced_unasked(run: Path, tmp_path: Path) -> None:
    """Nor is the YAML beside weights; with --overwrite both are."""
    there = tmp_path / "m.yaml"
    there.write_text("mine")
    words = (SCRIPT, str(run), "--state-dict", "--to", str(tmp_path / "m.pt"))
    message = refusal(command(*words))
    assert f"expected a new file, got {there}" in message
    assert (there.read_text(), list(tmp_path.iterdir())) == ("mine", [there])
    done = command(*words, "--overwrite")
    assert done.returncode == 0, done.stderr
    assert "_target_" in there.read_text()
