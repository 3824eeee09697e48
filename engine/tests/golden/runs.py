"""Golden fingerprints of the first steps of each model, the same on all x86-64 CPUs
with AVX.

`determinism=portable` pins the choices that libraries make by processor. As a proof,
every CPU must reproduce a file of fingerprints in the repository. Another release of a
library may sum in another order, so the file has the fingerprints of each version of
PyTorch.

usage: python -m tests.golden.runs && make test-emulated

This renews those of the installed PyTorch, after a new version or a change that was
meant to change results. `make test-emulated` then shows whether other processors agree.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from unittest.mock import patch

from seedbed import project, record, testing
from seedbed.config import Settings, compose
from seedbed.datasets import SPLITS
from tests import tiny
from tests.running import ENGINE, TEMPLATE

GOLDEN = Path(__file__).with_name("portable.json")
# Without the build tag: wheels for CPU and CUDA have the same CPU kernels.
TORCH = metadata.version("torch").partition("+")[0]

# The shipped experiments, shortened, and two GANs. Few samples are evaluated, as only
# steps have fingerprints. All draw in training, the CNN, RNN and LSTM only with
# model.dropout above 0.
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
            {"name": "gan", "_target_": "tests.tiny.gan.Networks", "dropout": 0.1},
            tiny.DATA
            | {split: {"_target_": "tests.tiny.gan.Images"} for split in SPLITS},
        ),
        *("~method", "+method={name:gan,_target_:tests.tiny.gan.GAN}"),
    ),
    "wgan": (
        *tiny.overrides(
            {"name": "wgan", "_target_": "tests.tiny.methods.Players", "dropout": 0.1}
        ),
        *("~method", "+method={name:wgan,_target_:tests.tiny.methods.WassersteinGAN}"),
    ),
}
SHORT = ("determinism=portable", "seed=0", "trainer.max_steps=4")

FingerprintRows = list[dict[str, str]]


def configuration(model: str, *overrides: str) -> Settings:
    """Return the resolved configuration of a short run; later overrides win."""
    with patch.dict(os.environ, {project.PROJECT: str(TEMPLATE)}):  # it has the models
        return compose.configuration(*EXPERIMENTS[model], *SHORT, *overrides)


def train(
    place: Path, configurations: Mapping[str, Settings]
) -> dict[str, FingerprintRows]:
    """Train into PLACE/NAME; return the fingerprints of each."""
    runs = [(place / name, settings) for name, settings in configurations.items()]
    # One environment per number of threads. Waiting threads sleep, which changes no
    # bit.
    with patch.dict(os.environ, OMP_WAIT_POLICY="PASSIVE"):
        for threads in {settings.determinism.threads for _, settings in runs}:
            testing.train(
                [run for run in runs if run[1].determinism.threads == threads]
            )
    for folder, _ in runs:
        summary = record.read_summary(folder)
        assert summary["status"] == "finished", f"{folder}: {summary['error']}"
    return {folder.name: fingerprint_rows(folder) for folder, _ in runs}


def fingerprint_rows(folder: Path) -> FingerprintRows:
    """Return a run's fingerprints without the stages that the model does not have."""
    rows = record.read_fingerprints(folder)
    return [{stage: value for stage, value in row.items() if value} for row in rows]


def renew() -> None:
    """Train each model, and write its fingerprints to the file."""
    os.environ["PYTHONPATH"] = str(ENGINE)  # training processes import tests.tiny
    with tempfile.TemporaryDirectory(prefix="seedbed-golden-") as folder:
        after = train(Path(folder), {name: configuration(name) for name in EXPERIMENTS})
    versions = record.read_json(GOLDEN)
    for name, rows in after.items():
        is_new = rows != versions.get(TORCH, {}).get(name)
        print(f"{name}: {'new' if is_new else 'as it was'}")
    text = json.dumps(dict(sorted({**versions, TORCH: after}.items())), indent=1)
    record.write_atomically(GOLDEN, f"{text}\n")
    print(f"{GOLDEN}: torch {TORCH}")


if __name__ == "__main__":
    renew()
