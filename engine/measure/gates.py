"""The gates of a GPU: what must not change a bit, tried with real processes and
operations."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import ways
from programs import BASELINES

from seedbed import launch, record
from seedbed.config import compose
from seedbed.errors import InputError
from seedbed.names import STAGES

SAME = "same"
PROCESSES = {"cuda": 8, "cpu": 2}
STEPS = {"cuda": 200, "cpu": 30}
REPETITIONS = {"cuda": 12, "cpu": 2}  # of each operation
AT_A_TIME = 16
MODELS = {
    "CNN": ("model.dropout=0.2",),
    "GPT": ("experiment=char_gpt", "model.dropout=0.1", "method.prompts=[]"),
}
TINY = {"CNN": ("data.batch_size=16",), "GPT": ("model.width=32", "data.batch_size=16")}
# How each run differs from the first one.
WAYS: Mapping[str, Sequence[str]] = {
    "2 loader workers": ("data.num_workers=2",),
    "started and resumed once before it begins": ("trainer.rehearse_resume=true",),
    "each 20th step taken twice": ("trainer.replay_every_steps=20",),
    "killed by SIGKILL, resumed": ("trainer.checkpoint_every_steps=3",),
    "sharded by FSDP2, on one process": ("trainer.sharding=full",),
    "another dropout seed: must differ": ("seeds.dropout=1",),
}
# The learning rate is 0, so the weights are the initial ones.
FROZEN = ("optimizer.lr=0", "trainer.max_steps=2", "fingerprint.every_steps=1")
FAST = ("determinism=fast", "fingerprint.every_steps=1")


class Run(NamedTuple):
    """A run to train."""

    folder: Path
    overrides: Sequence[str]
    is_killed: bool = False  # and resumed, after its first checkpoint


def tables(device: str, folder: Path) -> dict[str, Callable[[float], str]]:
    """Return the functions that make the tables, by title; each takes the time to end
    at."""
    place = folder / "gates"
    return {
        "Gates": partial(gates, device, place),
        "Operations": partial(operations, device, folder / "operations.jsonl"),
    }


def runs_of(device: str, model: str, place: Path) -> dict[str, Run]:
    """Return the runs of a model by name; the first one is what others are compared
    with."""
    words = (
        *MODELS[model],
        *(TINY[model] if device == "cpu" else ()),
        *(f"trainer.max_steps={STEPS[device]}", f"trainer.device={device}"),
        *("determinism.threads=2", "trainer.rehearse_resume=false"),
        *("trainer.validate_every_epochs=0", "data.eval_batch_size=500"),
    )
    more: dict[str, Sequence[str]] = {
        str(number): () for number in range(PROCESSES[device])
    }
    more |= {**WAYS, "fast": FAST, "fast again": FAST}
    more |= {"frozen": FROZEN, "frozen on the CPU": (*FROZEN, "trainer.device=cpu")}
    found = {}
    for name, changes in more.items():
        is_killed = name.startswith("killed")
        found[name] = Run(place / model / name, (*words, *changes), is_killed)
    return found


def gates(device: str, place: Path, until: float) -> str:
    """Train all runs beside each other; return a Markdown table of comparisons."""
    runs = {model: runs_of(device, model, place) for model in MODELS}
    configured = []
    for run in (run for each in runs.values() for run in each.values()):
        settings = compose.configuration(*run.overrides)
        launch.create_run_folder(run.folder, settings)
        environment = launch.training_environment(settings)
        # with NCCL on a GPU, as a rank of several has it
        if settings.trainer.sharding == "full":
            environment |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
            environment |= {launch.STORE: f"{run.folder}.store"}
        configured.append((run, environment))
    cores = min(AT_A_TIME, 2 * (os.cpu_count() or 1))
    errors: dict[Path, str] = {}

    def work(run: Run, environment: Mapping[str, str]) -> None:
        try:
            train(run, environment, until)
        except InputError as error:
            errors[run.folder] = f"failed: {error}"

    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(work, *zip(*configured, strict=True)))
    columns = [results(device, each, errors) for each in runs.values()]
    lines = [f"| | {' | '.join(runs)} |", "| --- " * (len(runs) + 1) + "|"]
    for name in columns[0]:
        lines.append(f"| {name} | {' | '.join(each[name] for each in columns)} |")
    return "\n".join(lines)


def train(run: Run, environment: Mapping[str, str], until: float) -> None:
    """Train a run; raise InputError with its last line if it fails or takes too
    long."""
    command = launch.training_command(run.folder)
    how = {"env": dict(environment), "cwd": ways.ROOT}
    if run.is_killed:
        last = run.folder / "checkpoints" / "last.pt"
        with ways.started(command, **how) as process:
            while (
                process.poll() is None
                and not last.exists()
                and time.monotonic() < until
            ):
                time.sleep(0.002)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if record.read_summary(run.folder)["status"] == "finished":
            raise InputError("expected a run that was killed, got one that finished")
    try:
        ways.finish(command, timeout=max(until - time.monotonic(), 1), **how)
    except subprocess.TimeoutExpired as error:
        raise InputError("expected the run to end in time, got none") from error


def results(
    device: str, runs: Mapping[str, Run], errors: Mapping[Path, str]
) -> dict[str, str]:
    """Return the results of a model's runs by the names of rows."""
    first = runs["0"]

    def compared(name: str, other: Run = first, stages: Sequence[str] = STAGES) -> str:
        for run in (other, runs[name]):
            if run.folder in errors:
                return errors[run.folder]
        return difference(other.folder, runs[name].folder, stages)

    alike = [compared(str(number)) for number in range(1, PROCESSES[device])]
    unlike = next((each for each in alike if each != SAME), SAME)
    found = {
        f"{PROCESSES[device]} processes beside each other, {STEPS[device]} steps": (
            unlike
        )
    }
    found |= {name: compared(name) for name in WAYS}
    *_, control = WAYS
    found[control] = "failed: same" if found[control] == SAME else found[control]
    stages = ("sample_ids", "batch", "weights")
    on_cpu = compared("frozen", runs["frozen on the CPU"], stages)
    found["initial weights, order and batches, on the CPU"] = on_cpu
    found["`fast`, the same command twice (nothing is promised)"] = compared(
        "fast again", runs["fast"]
    )
    return found


def difference(a: Path, b: Path, stages: Sequence[str]) -> str:
    """Return the first step and stage in which two runs differ, or `same`."""
    rows_a, rows_b = record.read_fingerprints(a), record.read_fingerprints(b)
    for row_a, row_b in zip(rows_a, rows_b, strict=False):
        for stage in stages:
            if row_a[stage] != row_b[stage]:
                return f"step {row_a['step']}, {stage.replace('_', ' ')}"
    return SAME if len(rows_a) == len(rows_b) > 0 else "failed: other numbers of steps"


def operations(device: str, out: Path, until: float) -> str:
    """Repeat operations; return a summary, also of those that were tried before the
    time ended."""
    words = [
        sys.executable,
        str(BASELINES / "operations.py"),
        device,
        str(REPETITIONS[device]),
    ]
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    with (
        open(out, "w") as file,
        ways.started(words, env=environment, stdout=file) as process,
    ):
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
    found: dict[tuple[str, str], list[str]] = {}  # names by preset and kind of result
    *whole, _ = out.read_text().split("\n")
    for preset, name, result in map(json.loads, whole):
        kind, _, what = result.partition(": ")
        if preset == "strict" and kind.endswith("results"):
            kind = f"failed: {kind}"
        found.setdefault((preset, kind), []).append(
            f"{name} ({what})" if what else name
        )
    lines = [f"{REPETITIONS[device]} repetitions of each, forward and backward.", ""]
    for (preset, kind), names in found.items():
        lines.append(f"- `{preset}`, {kind} ({len(names)}): {', '.join(names)}")
    return "\n".join(lines) if found else "failed: no operation was tried"
