"""Runs of the zoo: each case once for each variant, many in one process."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import config, launch, record
from seedbed.config.compose import compose
from tests.running import ENGINE, TEMPLATE
from tests.zoo.catalogue import Case

STEPS, STOPPED_AFTER = 4, 3  # two steps an epoch: a validation lies before the stop
SHORT = (
    "optimizer=sgd",
    "optimizer.lr=0.01",
    "schedule=constant",
    "determinism=strict",
    "determinism.device=cpu",
    f"trainer.max_steps={STEPS}",
    "trainer.log_every_steps=1",
    "trainer.checkpoint_every_steps=0",
)
# The zoo's own modules, from any folder. Threads that wait sleep; it changes no bit.
ENVIRONMENT = {"PYTHONPATH": str(ENGINE), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Variant:
    """A way to train that must not change a bit."""

    name: str
    workers: int = 0
    backwards: bool = False
    stopped: bool = False
    seed: int = 0


FIRST = Variant("first")
AGAIN = Variant("again", backwards=True)
WORKERS = Variant("workers", workers=3)
RESUMED = Variant("resumed", stopped=True)
OTHER_SEED = Variant("other_seed", seed=1)


def folder_name(case: Case) -> str:
    """Return a file name for a case."""
    return case.name.replace("/", "-")


def base() -> DictConfig:
    """Return the configuration that all cases share, with the seed left open."""
    return compose(*SHORT)


def configuration(shared: DictConfig, case: Case, variant: Variant) -> DictConfig:
    """Return the resolved configuration of a case."""
    composed: dict[str, Any] = OmegaConf.to_container(shared)  # type: ignore[assignment]
    samples = {"_target_": "tests.zoo.parts.Samples", **case.samples}
    loading = {k: composed["data"][k] for k in ("persistent_workers", "prefetch_factor")}
    data = {
        **loading,
        "name": "zoo",
        "task": case.task,
        "batch_size": 4,
        "eval_batch_size": 4,
        "num_workers": variant.workers,
        "start_method": "fork",
        "train": samples | {"samples": 2 * STEPS},
        "validation": samples | {"samples": STEPS},
        "test": None,
        **({"collate": case.collate} if case.collate else {}),
    }
    model = {"name": folder_name(case), **case.model}
    composed |= {"data": data, "model": model, "seed": variant.seed}
    return config.resolve(OmegaConf.create(composed))  # the training process checks it


def train(cases: Sequence[Case], variants: Iterable[Variant], place: Path) -> None:
    """Train every case in every variant; two processes at a time, each on all cases in turn."""
    shared = base()

    def one(variant: Variant) -> None:
        settings = [configuration(shared, case, variant) for case in cases]
        folders = [place / variant.name / folder_name(case) for case in cases]
        for each, folder in zip(settings, folders, strict=True):
            launch.create_run_folder(folder, each)
        ordered = folders[::-1] if variant.backwards else folders
        if variant.stopped:
            in_turn(settings[0], ordered, "--stop-after", str(STOPPED_AFTER))
            ordered = [f for f in ordered if read(f)["status"] == "interrupted"]
        in_turn(settings[0], ordered)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, variants))


def in_turn(settings: DictConfig, folders: Sequence[Path], *arguments: str) -> None:
    """Train in folders, one after another, in a process that has its preset's environment."""
    if not folders:
        return
    os.makedirs(folders[0].parent, exist_ok=True)
    with open(folders[0].parent / "output.txt", "a") as output:
        subprocess.run(
            [sys.executable, "-m", "tests.train_in_turn", *arguments],
            cwd=TEMPLATE,
            env=launch.training_environment(settings) | ENVIRONMENT,
            input="\n".join(map(str, folders)),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )


def read(folder: Path) -> Mapping[str, Any]:
    """Return a run's summary."""
    return record.read_summary(folder)
