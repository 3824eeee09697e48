"""How each tool of the comparison trains.

A tool trains in a folder and returns what identifies the final weights; a change says what is
otherwise than in the first run.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seedbed import project, record

BASELINES = Path(__file__).parent / "baselines"
LEARNING_RATE = 0.0012345  # looked for in the files of a run
LIMIT_SECONDS = 300
# What may change; the first run has these.
FIRST: Mapping[str, Any] = {
    "seed": 1, "workers": 0, "processes": 1, "validate": True, "draws": False,
    "refused": False, "signal": None, "resume": False, "grace": 0,
    "learning_rate": LEARNING_RATE,
}  # fmt: skip
# Trains in a folder under FIRST with changes; returns what was printed, and whether it finished.
Train = Callable[[Path, Mapping[str, Any]], tuple[bool, str]]


@dataclass(frozen=True)
class Tool:
    """Something to train with.

    Attributes:
        train: trains in a folder.
        weights: returns what identifies the final weights of a finished run.
        finished: returns whether a run came to its end.
        code: the checkout whose commit a record should name.
        before_processes: what a run on one process needs to be compared with one on several.
    """

    name: str
    train: Train
    weights: Callable[[Path], str]
    finished: Callable[[Path], bool]
    code: Path
    before_processes: Mapping[str, Any]


def tools(template: Path | None) -> list[Tool]:
    """Return what can be tried: the Hydra template only where a clone of it is given."""
    root = project.root()
    found = [Tool("Seedbed", _seedbed, _fingerprint, _is_finished, root, {"shards": 2})]

    def add(name: str, package: str, train: Train, code: Path = root) -> None:
        if importlib.util.find_spec(package) is not None:
            found.append(Tool(name, train, _digest, _has_digest, code, {}))

    add("Lightning", "lightning", _script("tried_lightning.py"))
    if template is not None:
        folder = template.resolve()
        add("lightning-hydra-template", "lightning", _hydra_template(folder), folder)
    add("transformers Trainer", "transformers", _script("tried_trainer.py", True))
    add("loop with accelerate", "accelerate", _script("tried_accelerate.py", True))
    return found


def _run(command: Sequence[str]) -> tuple[bool, str]:
    paths = [str(BASELINES), str(project.root() / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)),
             "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
             # The template's checkpoints hold more than weights: since 2.6 PyTorch asks for this.
             "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )  # fmt: skip
    return done.returncode == 0, done.stdout + done.stderr


def _script(name: str, torchrun: bool = False) -> Train:
    def train(folder: Path, change: Mapping[str, Any]) -> tuple[bool, str]:
        settings = {**FIRST, **change, "out": str(folder)}
        folder.mkdir(parents=True, exist_ok=True)
        start = [sys.executable]
        if torchrun and settings["processes"] > 1:
            start += ["-m", "torch.distributed.run", "--standalone"]
            start += [f"--nproc-per-node={settings['processes']}"]
        return _run([*start, str(BASELINES / name), json.dumps(settings)])

    return train


def _hydra_template(template: Path) -> Train:
    def train(folder: Path, change: Mapping[str, Any]) -> tuple[bool, str]:
        settings = {**FIRST, **change, "out": str(folder)}
        folder.mkdir(parents=True, exist_ok=True)
        return _run([sys.executable, str(template / "src" / "train.py"), *_words(folder, settings)])

    return train


def _words(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """Return the template's overrides: our network and data, as its README shows for one's own."""
    network = "Refused" if settings["refused"] else "Net"
    told = ",".join(
        f"{name}:{'null' if value is None else value}"
        for name, value in settings.items()
        if name in ("draws", "signal", "resume", "grace")
    )
    processes = settings["processes"]
    words = [
        f"seed={settings['seed']}", "~data", "+data._target_=tried_lightning.Data",
        f"+data.workers={settings['workers']}", "~model.net",
        f"+model.net._target_=digits.{network}",
        f"model.optimizer.lr={LEARNING_RATE}", "model.scheduler=null", "trainer=cpu",
        "trainer.deterministic=true", "trainer.max_epochs=3", "test=false", "logger=csv",
        f"trainer.check_val_every_n_epoch={1 if settings['validate'] else 3}",
        f"trainer.devices={processes}", f"+trainer.strategy={'ddp' if processes > 1 else 'auto'}",
        "callbacks.model_checkpoint.every_n_train_steps=10",
        "callbacks.model_checkpoint.monitor=null", f"hydra.run.dir={folder}",
        "+callbacks.after_step._target_=tried_lightning.AfterStep",
        f"+callbacks.after_step.settings={{out:{folder},{told}}}",
        "+callbacks.stopped._target_=lightning.pytorch.callbacks.OnExceptionCheckpoint",
        f"+callbacks.stopped.dirpath={folder}/checkpoints",
    ]  # fmt: skip
    if settings["resume"]:
        saved = folder / "checkpoints"
        names = [name for name in ("on_exception", "last") if (saved / f"{name}.ckpt").exists()]
        words.append(f"ckpt_path={saved / names[0]}.ckpt")
    return words


def _seedbed(folder: Path, change: Mapping[str, Any]) -> tuple[bool, str]:
    settings = {**FIRST, **change}
    words = [
        f"seed={settings['seed']}", f"data.num_workers={settings['workers']}",
        f"trainer.processes={settings['processes']}", f"trainer.shards={settings.get('shards', 1)}",
        f"trainer.validate_every_epochs={1 if settings['validate'] else 0}",
        "trainer.max_epochs=3", "data.batch_size=250",
        "trainer.checkpoint_every_steps=10", "trainer.device=cpu",
        "determinism.threads=1", "model.dropout=0.1", f"optimizer.lr={LEARNING_RATE}",
        "trusted_packages=[tried_seedbed,project,seedbed,torch]", "trainer.log_every_steps=1",
    ]  # fmt: skip
    if settings["draws"] or settings["signal"] is not None:
        number = "null" if settings["signal"] is None else int(settings["signal"])
        words += [
            "+logger.after_step._target_=tried_seedbed.AfterStep",
            f"+logger.after_step.draws={settings['draws']}", f"+logger.after_step.signal={number}",
        ]  # fmt: skip
    if settings["refused"]:
        words.append("model._target_=tried_seedbed.Refused")
    root = project.root()
    if settings["resume"]:
        script = str(root / "scripts" / "resume.py")
        return _run([sys.executable, script, str(folder), "logger=csv"])  # no signal again
    return _run([sys.executable, str(root / "train.py"), f"hydra.run.dir={folder}", *words])


def _fingerprint(folder: Path) -> str:
    return str(record.read_summary(folder)["fingerprints"]["weights"])


def _digest(folder: Path) -> str:
    return (folder / "weights.txt").read_text()


def _is_finished(folder: Path) -> bool:
    return bool(record.read_summary(folder)["status"] == "finished")


def _has_digest(folder: Path) -> bool:
    return (folder / "weights.txt").exists()
