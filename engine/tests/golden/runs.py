"""Golden fingerprints: those of each model's first steps on every x86-64 CPU with AVX.

`determinism=portable` pins what the libraries would choose by the processor. The proof is a file of
fingerprints in the repository that every CPU must reproduce. A library's next release may add in
another order, so the file holds the fingerprints of each version of PyTorch.
"""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from seedbed import launch, record
from seedbed.config import compose
from seedbed.errors import InputError
from tests import tiny
from tests.running import TEMPLATE

GOLDEN = Path(__file__).with_name("portable.json")
RENEW = "python -m tests.golden.renew"

# The shipped experiments, cut short, and two GANs. Few samples are evaluated: the fingerprints are
# of the steps. All draw in training, the CNN, RNN and LSTM only with model.dropout above 0.
_LITTLE = ("data.validation.samples=64", "data.test.samples=64")
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "cnn": (),
    "rnn": ("experiment=adding_rnn", *_LITTLE),
    "lstm": ("experiment=adding_lstm", *_LITTLE),
    "gpt": (
        "experiment=char_gpt",
        *("model.width=32", "model.heads=2", "model.dropout=0.1", "data.batch_size=32"),
        "method.prompts=[]",
    ),
    "gan": (
        *tiny.overrides(
            {"name": "gan", "_target_": "tests.tiny.gan.Networks", "dropout": 0.1}, tiny.IMAGES
        ),
        *("~method", "+method={name:gan,_target_:tests.tiny.gan.GAN}"),
    ),
    "wgan": (
        *tiny.overrides({"name": "wgan", "_target_": "tests.tiny.methods.Players", "dropout": 0.1}),
        *("~method", "+method={name:wgan,_target_:tests.tiny.methods.WassersteinGAN}"),
    ),
}
SHORT = ("determinism=portable", "seed=0", "trainer.max_steps=4")

FingerprintRows = list[dict[str, str]]


def configuration(model: str, *overrides: str) -> DictConfig:
    """Return the resolved configuration of a short run; later overrides win."""
    folder = TEMPLATE / "configs"  # whose models these are
    return compose.configuration(*EXPERIMENTS[model], *SHORT, *overrides, folder=folder)


def train(model: str, folder: Path, *overrides: str) -> FingerprintRows:
    """Train a model for a few steps in a folder of its own; return its fingerprints."""
    if launch.start(configuration(model, *overrides), folder):
        summary = record.read_summary(folder)
        raise InputError(f"{model}: expected a run that finishes, got {summary['error']}; mend it")
    return fingerprint_rows(folder)


def fingerprint_rows(folder: Path) -> FingerprintRows:
    """Return a run's fingerprints without the stages that the model does not have."""
    rows = record.read_fingerprints(folder)
    return [{stage: value for stage, value in row.items() if value} for row in rows]


def golden(torch_version: str, path: Path = GOLDEN) -> dict[str, FingerprintRows]:
    """Return the fingerprints of each model for a version of PyTorch.

    Raises:
        InputError: the file has none for this version, and how to get one.
    """
    versions = record.read_json(path)
    found: dict[str, FingerprintRows] | None = versions.get(release(torch_version))
    if found is None:
        raise InputError(
            f"{path.name}: expected golden fingerprints of torch {release(torch_version)}, got "
            f"those of {', '.join(versions)}; to support this version, run {RENEW}, "
            "and `make test-emulated` before you commit them"
        )
    return found


def write_golden(
    torch_version: str, fingerprints: dict[str, FingerprintRows], path: Path = GOLDEN
) -> None:
    """Write the fingerprints of a version of PyTorch into the file; keep those of others."""
    versions: dict[str, Any] = record.read_json(path) if path.exists() else {}
    versions[release(torch_version)] = fingerprints
    record.write_atomically(path, json.dumps(dict(sorted(versions.items())), indent=1) + "\n")


def release(torch_version: str) -> str:
    """Return a version without its build: wheels for CPU and CUDA have the same CPU kernels."""
    return torch_version.partition("+")[0]


def first_difference(ours: FingerprintRows, theirs: FingerprintRows) -> str:
    """Name the first step and stage at which two fingerprints differ; nothing if they do not."""
    for mine, other in zip(ours, theirs, strict=False):
        for stage in record.FINGERPRINT_FIELDS:
            if mine.get(stage) != other.get(stage):
                return f"step {mine['step']}, {stage}"
    return "" if len(ours) == len(theirs) else f"{len(ours)} and {len(theirs)} steps"


def differing(ours: FingerprintRows, theirs: FingerprintRows) -> list[str]:
    """Return, for each step that differs, the step and the stages that do, in causal order."""
    found = []
    for mine, other in zip(ours, theirs, strict=True):
        stages = [s for s in record.FINGERPRINT_FIELDS if mine.get(s) != other.get(s)]
        if stages:
            found.append(f"step {mine['step']}: {', '.join(stages)}")
    return found
