"""The programs that are measured: Seedbed under its presets, a bare loop, and baselines."""

import importlib.util
import json
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from project.data import mnist5k
from timing import STEPS, Program

from seedbed import launch, project
from seedbed.config import compose

_HERE = Path(__file__).parent
NO_STAGE = 10**9  # fingerprint.every_steps: only the last step has one


@dataclass(frozen=True)
class Workload:
    """What is trained, and for how many steps: more than anybody waits for, unless told."""

    name: str
    overrides: tuple[str, ...]
    steps: int = 10**7


CNN_64 = Workload("CNN, batch 64", ())
CNN_256 = Workload("CNN, batch 256", ("data.batch_size=256",))
LSTM = Workload("LSTM, batch 64", ("experiment=adding_lstm",))
# What a data set of one's own is: torchvision's MNIST, a sample at a time, with its transforms.
SAMPLES = "CNN, batch 64, torchvision's samples"
_TRANSFORMS = "torchvision.transforms"

BARE, BARE_CHANNELS_LAST = "bare loop", "bare loop, channels-last"
BARE_BFLOAT16 = "bare loop, channels-last, bfloat16"
PLAIN, PLAIN_SCRIPT = "plain PyTorch loop", "plain.py"
LIGHTNING, LIGHTNING_SCRIPT = "Lightning", "lightning_loop.py"
PRESETS = {
    "strict": ("determinism=strict",),
    "strict, no fingerprints": ("determinism=strict", f"fingerprint.every_steps={NO_STAGE}"),
    "seeded": ("determinism=seeded",),
    "seeded, no fingerprints": ("determinism=seeded", "fingerprint.every_steps=0"),
    "fast": ("determinism=fast",),
}
# The work of the bare loop, which augments nothing.
PLAIN_IMAGES = {
    f"{name}, no augmentation": (*PRESETS[name], "data.augment=null")
    for name in ("strict", "strict, no fingerprints", "fast")
}
BFLOAT16 = {  # autocast
    f"{name}, bfloat16": (*PRESETS[name], "trainer.precision=bfloat16")
    for name in ("strict", "fast")
}
WORKERS = {
    "strict, 2 workers": ("determinism=strict", "data.num_workers=2"),
    "fast, 2 workers": ("determinism=fast", "data.num_workers=2"),
}
SAMPLE_ROWS = {
    "strict": PRESETS["strict"],
    "strict, no fingerprints": PRESETS["strict, no fingerprints"],
    "strict, generators not seeded": ("determinism=strict", "determinism.seeding=false"),
    "fast": PRESETS["fast"],
    **WORKERS,
}
COMPILED = {
    "strict, compiled": ("determinism=strict", "trainer.compile=true"),
    "fast, compiled": ("determinism=fast", "trainer.compile=true"),
}
# What of strict can be given up, one thing at a time.
KNOBS = {
    "deterministic algorithms, and so filling": ("determinism.on_nondeterministic=allow",),
    "filling of uninitialized memory": ("determinism.fill_uninitialized_memory=false",),
    "mkldnn.deterministic": ("determinism.mkldnn.deterministic=false",),
    "seeding of the global generators": ("determinism.seeding=false",),
    "fingerprints but of each 100th step": ("fingerprint.every_steps=100",),
    "fingerprints": (f"fingerprint.every_steps={NO_STAGE}",),
    "channels-last": ("determinism.channels_last=false",),
    "the second thread": ("determinism.threads=1",),
}
# Of a GPU: without one they change nothing that could be measured.
GPU_KNOBS = ("cudnn.deterministic", "cudnn.benchmark", "TF32", "CUBLAS_WORKSPACE_CONFIG")


def samples(data: Path) -> Workload:
    """Return the CNN on the very data set, transforms and loading of baselines/plain.py."""
    shift = 2 / 28
    transforms = (
        f"{{_target_: {_TRANSFORMS}.RandomAffine, degrees: 10, translate: [{shift}, {shift}], "
        "interpolation: 2}",  # bilinear
        f"{{_target_: {_TRANSFORMS}.ToTensor}}",
        f"{{_target_: {_TRANSFORMS}.Normalize, mean: [0.1307], std: [0.3081]}}",
    )
    words = (
        "data.loading_threads=1",  # the default of data sets that are not Seedbed's
        *(f"~data.train.{key}" for key in ("split", "seed", "augment")),
        "data.train._target_=torchvision.datasets.MNIST",
        f"+data.train.root={data}",
        "+data.train.train=true",
        f"+data.train.transform._target_={_TRANSFORMS}.Compose",
        f"+data.train.transform.transforms=[{', '.join(transforms)}]",
    )
    return Workload(SAMPLES, words)


@cache
def configuration(*overrides: str) -> DictConfig:
    """Return the resolved configuration of overrides; later ones win."""
    return compose.configuration(*overrides)


def seedbed(name: str, workload: Workload, *overrides: str) -> Program:
    """Return Seedbed as a program: the training process that `train.py` starts."""
    # Its loop alone is measured: validations would fall into some of the steps.
    words = (
        *workload.overrides, f"trainer.max_steps={workload.steps}", "trainer.device=cpu",
        f"trainer.max_epochs={workload.steps}", "trainer.validate_every_epochs=0",
    )  # fmt: skip
    settings = configuration(*words, *overrides)

    def prepare(folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        run = folder / "run"
        launch.create_run_folder(run, settings)
        words = (str(_HERE / "benchmark_worker.py"), str(folder / STEPS), str(run))
        return (sys.executable, *words), launch.training_environment(settings)

    return Program(name, prepare)


def train_py(name: str, *overrides: str) -> Program:
    """Return the command that a person types."""

    def prepare(folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        script = str(project.root() / "train.py")
        words = ("trainer.device=cpu", f"hydra.run.dir={folder / 'run'}", *overrides)
        return (sys.executable, script, *words), os.environ

    return Program(name, prepare)


def bare(name: str, workload: Workload, data: Path, **more: Any) -> Program:
    """Return the bare loop; `channels_last=True` is as far as it goes."""
    return baseline(name, "bare.py", workload, data, **more)


def baseline(name: str, script: str, workload: Workload, data: Path, **more: Any) -> Program:
    """Return a program of baselines/ with a workload's model, optimizer, batches and threads."""
    return _with_settings(name, f"baselines/{script}", workload, data=str(data), **more)


def ceiling(workload: Workload) -> Program:
    """Return the program that says what the machine could do at best."""
    return _with_settings("machine", "ceiling.py", workload)


def _with_settings(name: str, script: str, workload: Workload, **more: Any) -> Program:
    settings = configuration(*workload.overrides, "trainer.device=cpu")
    arguments = {
        "workload": "cnn" if settings.data.kind == "image" else "lstm",
        "model": _arguments(settings.model),
        "optimizer": _arguments(settings.optimizer),
        "batch_size": settings.data.batch_size,
        "threads": settings.determinism.threads,
        "samples": settings.data.train.get("samples"),
        "seed": 0,
        "steps": workload.steps,
        "epochs": None,
        **more,
    }
    threads = str(settings.determinism.threads)

    def prepare(folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        text = json.dumps({**arguments, "out": str(folder)})
        return (sys.executable, str(_HERE / script), text), {
            **os.environ,
            "OMP_NUM_THREADS": threads,
        }

    return Program(name, prepare)


def baselines(workload: Workload, data: Path) -> list[Program]:
    """Return the baselines that can be run here."""
    chosen = [(PLAIN, PLAIN_SCRIPT, 0, True), (f"{PLAIN}, 2 workers", PLAIN_SCRIPT, 2, True)]
    if has_lightning():
        chosen += [
            (LIGHTNING, LIGHTNING_SCRIPT, 0, True),
            (f"{LIGHTNING}, 2 workers", LIGHTNING_SCRIPT, 2, True),
            (f"{LIGHTNING}, no progress bar", LIGHTNING_SCRIPT, 0, False),
        ]
    return [
        baseline(name, script, workload, data, workers=workers, progress_bar=bar)
        for name, script, workers, bar in chosen
    ]


def has_lightning() -> bool:
    """Return whether Lightning is installed."""
    return importlib.util.find_spec("lightning") is not None


def write_digits(folder: Path) -> Path:
    """Write mnist5k as the raw files that torchvision's MNIST reads; return their root."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images, labels = mnist5k.read(mnist5k.find())
    edge = mnist5k.TRAINING_SAMPLES
    for name, part in (("train", slice(edge)), ("t10k", slice(edge, None))):
        for kind, array in (("images-idx3", images[part]), ("labels-idx1", labels[part])):
            header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
            (raw / f"{name}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return folder


def _arguments(spec: DictConfig) -> dict[str, Any]:
    plain: dict[str, Any] = OmegaConf.to_container(spec)  # type: ignore[assignment]
    return {k: v for k, v in plain.items() if k not in ("_target_", "name", "accepts")}
