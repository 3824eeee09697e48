"""Portable: whatever CPU this is, it has the golden fingerprints of the repository."""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from seedbed import determinism, launch, record
from tests.determinism.test_determinism import preset
from tests.golden import runs
from tests.once import made_once
from tests.running import TEMPLATE, in_turn

on_x86_64 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason=f"portable promises bits on x86-64 CPUs; this is {platform.machine()}",
)
of_this_torch = pytest.mark.skipif(
    runs.release(metadata.version("torch")) not in record.read_json(runs.GOLDEN),
    reason=f"no golden fingerprints of torch {metadata.version('torch')} in the file",
)
# No bit depends on it: threads that wait sleep, because tests share the machine.
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.fixture(scope="module")
def trained(shared: Path) -> Path:
    """Train every model, and one with another seed; return what holds the run of each."""

    def train(place: Path) -> None:
        of_threads: dict[int, list[Path]] = {}  # those of one environment, one after another
        cases = {name: (name,) for name in runs.EXPERIMENTS} | {"other seed": ("rnn", "seed=1")}
        for name, words in cases.items():
            config = runs.configuration(*words)
            launch.create_run_folder(place / name, config)
            of_threads.setdefault(config.determinism.threads, []).append(place / name)
        for folders in of_threads.values():
            in_turn(folders)

    return made_once(shared / "golden", train)


def fingerprint_rows(
    model: str, folder: Path, *overrides: str, cores: set[int] | None = None
) -> Any:
    """Train a few steps in a process of its own, on some cores; return the fingerprints."""
    config = runs.configuration(model, *overrides)
    launch.create_run_folder(folder, config)
    done = subprocess.run(
        launch.worker_command(config, folder),
        env=launch.training_environment(config) | PATIENT,
        preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return runs.fingerprint_rows(folder)


@on_x86_64
@of_this_torch
@pytest.mark.parametrize("model", runs.EXPERIMENTS)
def test_this_cpu_has_the_golden_fingerprints(model: str, trained: Path) -> None:
    """Every stage of every step is what it was on the CPU that the file was made on."""
    golden = runs.golden(metadata.version("torch"))[model]
    difference = runs.first_difference(runs.fingerprint_rows(trained / model), golden)
    assert difference == "", (
        f"{model} differs at {difference} from tests/golden/portable.json; if the change was "
        f"meant to change results, run {runs.RENEW}"
    )


@on_x86_64
@of_this_torch
def test_another_seed_is_another_fingerprints(trained: Path) -> None:
    """Twin: the golden fingerprints can be missed, from the first step on."""
    golden = runs.golden(metadata.version("torch"))["rnn"]
    other = runs.fingerprint_rows(trained / "other seed")
    assert runs.first_difference(other, golden) == "step 1, sample_ids"


@pytest.mark.long
@on_x86_64
@of_this_torch
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux to take cores away")
@pytest.mark.parametrize("model", ["cnn", "gpt", "gan"])
def test_a_machine_with_one_core_has_the_golden_fingerprints(model: str, tmp_path: Path) -> None:
    """The number of threads belongs to the preset, not to the machine."""
    core = min(os.sched_getaffinity(0))
    golden = runs.golden(metadata.version("torch"))[model]
    assert runs.first_difference(fingerprint_rows(model, tmp_path, cores={core}), golden) == ""


def test_the_pinned_torch_has_golden_fingerprints() -> None:
    """What `make install` installs is never one of those that are skipped above."""
    pins = (TEMPLATE / "requirements.txt").read_text().splitlines()
    (torch,) = (pin.removeprefix("torch==") for pin in pins if pin.startswith("torch=="))
    assert set(runs.golden(torch)) == set(runs.EXPERIMENTS)


def test_a_renewal_keeps_the_fingerprints_of_other_versions(tmp_path: Path) -> None:
    """What is written for one version is read for it, and for its other builds."""
    path = tmp_path / "golden.json"
    old, new = [{"step": "1", "loss": "aa"}], [{"step": "1", "loss": "bb"}]
    runs.write_golden("2.14.0", {"cnn": old}, path)
    runs.write_golden("2.15.0+cu132", {"cnn": new}, path)
    assert runs.golden("2.14.0+cpu", path) == {"cnn": old}
    assert runs.golden("2.15.0", path) == {"cnn": new}


REPORT = """
import json, sys
import torch
from seedbed import determinism
preset = json.loads(sys.argv[1])
determinism.apply(preset)
torch.nn.Conv2d(16, 32, 3)(torch.ones(64, 16, 28, 28))
print(json.dumps(determinism.differences(preset)))
"""


def report(environment: dict[str, str]) -> tuple[str, list[str]]:
    """Return what oneDNN says of its instruction set, and what is not as portable asks."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT, json.dumps(preset("portable"))],
        cwd=TEMPLATE,
        env=environment | {"ONEDNN_VERBOSE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    return next(line for line in lines if ",cpu,isa:" in line), json.loads(lines[-1])


@on_x86_64
def test_every_library_reports_its_pin() -> None:
    """PyTorch, MKL and oneDNN say themselves that they keep to what was asked."""
    pinned = determinism.environment_variables(preset("portable"), {"PATH": "/usr/bin:/bin"})
    onednn, differences = report(pinned)
    assert onednn.endswith(",isa:Intel AVX")
    assert differences == []


@on_x86_64
def test_a_library_that_is_not_pinned_is_found() -> None:
    """Twin: without the pins PyTorch and MKL report something else, and a run would stop."""
    pinned = determinism.environment_variables(preset("portable"), {"PATH": "/usr/bin:/bin"})
    loose = {k: v for k, v in pinned.items() if not k.startswith(("ATEN", "MKL_CBWR", "ONEDNN"))}
    _, lines = report(loose)
    assert any(line.startswith("determinism.mkl_branch: expected COMPATIBLE") for line in lines)
    assert any(line.startswith("ATEN_CPU_CAPABILITY: expected default") for line in lines)


def operations(environment: dict[str, str]) -> Any:
    """Return hashes of what operations and optimizers return, by name."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.emulated.operations"],
        cwd=TEMPLATE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(done.stdout)


@on_x86_64
@pytest.mark.long
@pytest.mark.processor
def test_without_pytorchs_pin_attention_and_gans_have_other_bits() -> None:
    """Negative control: the kernels of a processor with AVX2 compute otherwise than portable's."""
    pinned = launch.training_environment(runs.configuration("gpt"))
    here, there = operations(pinned), operations(pinned | {"ATEN_CPU_CAPABILITY": "avx2"})
    differing = {name for name, value in here.items() if value != there[name]}
    assert {"attention, causal", "softmax", "layer_norm"} <= differing
    assert "embedding" not in differing  # which computes nothing
