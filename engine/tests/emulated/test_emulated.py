"""Under portable, processors emulated by qemu-user have the fingerprints of this
one."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from seedbed import launch
from tests.determinism.test_determinism import applied
from tests.golden import runs
from tests.running import TEMPLATE, printed

pytestmark = pytest.mark.emulated

# Intel and AMD, with AVX2 and with AVX only: all variants, since the emulator has no
# AVX-512.
CPUS = {
    "Haswell": "Intel, AVX2 and FMA",
    "EPYC-Rome": "AMD, AVX2 and FMA",
    "SandyBridge": "Intel, AVX",
    "Opteron_G5": "AMD, AVX and FMA4",
}
# Waiting threads sleep, because emulated ones would keep all cores busy; no bit depends
# on it.
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}


def emulator(cpu: str) -> list[str]:
    """Return the start of a command that runs a program on an emulated CPU."""
    program = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if program is None:
        pytest.fail(
            "qemu-x86_64: expected the emulator, got none; run apt-get install"
            " qemu-user"
        )
    return [program, "-cpu", cpu]


def train_on(
    prefix: list[str], folder: Path, *words: str
) -> dict[str, runs.FingerprintRows]:
    """Train every model in forks of a process that `prefix` starts; return
    fingerprints."""
    folders = {model: folder / model for model in runs.EXPERIMENTS}
    for model, run in folders.items():
        config = runs.configuration(
            model, *words, "trainer.device=cpu", "determinism.threads=2"
        )  # one process trains them all: one environment
        launch.create_run_folder(run, config)
    environment = launch.training_environment(config) | PATIENT
    # an emulated CPU takes longer to import PyTorch than to train
    done = subprocess.run(
        [*prefix, *launch.worker_command("train_several")],
        cwd=TEMPLATE,
        env=environment,
        input="\n".join(json.dumps([str(run)]) for run in folders.values()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {model: runs.fingerprint_rows(run) for model, run in folders.items()}


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> dict[str, runs.FingerprintRows]:
    """Return the fingerprints of this processor under portable."""
    return train_on([], tmp_path_factory.mktemp("native"), "determinism=portable")


@pytest.mark.parametrize("cpu", CPUS)
def test_an_emulated_cpu_has_the_fingerprints_of_this_one(
    cpu: str, native: dict[str, runs.FingerprintRows], tmp_path: Path
) -> None:
    """Every stage of every step of every model is the same under portable."""
    emulated = train_on(emulator(cpu), tmp_path, "determinism=portable")
    seen = json.loads((tmp_path / "cnn" / "environment.json").read_text())
    assert seen["flags"]["mkl_branch"] == "COMPATIBLE"
    for model, fingerprint_rows in native.items():
        assert len(fingerprint_rows) == 4
        assert emulated[model] == fingerprint_rows


def test_without_the_pins_another_processor_has_other_bits(tmp_path: Path) -> None:
    """Negative control: under strict, each model differs between this processor and a
    Westmere."""
    here = train_on([], tmp_path / "native", "determinism=strict")
    there = train_on(emulator("Westmere"), tmp_path / "emulated", "determinism=strict")
    for model in runs.EXPERIMENTS:
        assert here[model][0] != there[model][0]


@pytest.mark.parametrize(
    ("cpu", "has_avx"), [("Westmere", False), ("SandyBridge", True)]
)
def test_a_processor_without_avx_is_refused(cpu: str, has_avx: bool) -> None:
    """oneDNN would silently use other kernels there."""
    config = runs.configuration("rnn")
    preset = config.plain["determinism"]
    environment = launch.training_environment(config)
    [(_, found)] = applied(preset, environment, prefix=emulator(cpu))
    assert found == (
        [] if has_avx else ["determinism.avx: expected True, got False in force"]
    )


def arithmetic(prefix: list[str], environment: dict[str, str]) -> Any:
    """Return hashes of the results of Python's and NumPy's functions, by name."""
    words = ("-m", "tests.emulated.arithmetic")
    return json.loads(*printed(*words, environment=environment, prefix=prefix))


@pytest.mark.parametrize("cpu", CPUS)
def test_python_and_numpy_compute_alike(cpu: str) -> None:
    """Data sets and schedules may therefore use `math` and NumPy under portable."""
    pinned = launch.training_environment(runs.configuration("rnn"))
    assert arithmetic(emulator(cpu), pinned) == arithmetic([], pinned)


def test_without_the_pins_python_and_numpy_compute_otherwise() -> None:
    """Negative control: a Westmere has no FMA, which changes results of both."""
    environment = dict(os.environ)
    here = arithmetic([], environment)
    there = arithmetic(emulator("Westmere"), environment)
    differing = {name for name, value in here.items() if value != there[name]}
    assert {"math.exp", "exp float64", "matmul float32"} <= differing
