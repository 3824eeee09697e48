"""The rows of the table of guarantees, and the ways of training that they need."""

import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seedbed import project, record
from seedbed.errors import InputError

# Trains with overrides in a folder that does not exist yet; returns the run folder.
Train = Callable[[Path, Sequence[str]], Path]


@dataclass(frozen=True)
class Row:
    """Something that changes: in the configuration, or in the way of training."""

    change: str
    overrides: tuple[str, ...] = ()
    train: Train | None = None  # None: `python train.py`


@dataclass(frozen=True)
class Part:
    """Rows that are compared with the same unmodified runs."""

    title: str
    overrides: tuple[str, ...]
    rows: tuple[Row, ...]
    is_promised: bool = True  # that all cells are `same`


# Three epochs of 20 steps, so that validation, checkpoints and epochs all come and go.
_SHORT = ("trainer.max_epochs=3", "trainer.checkpoint_every_steps=20")
_SEQUENCES = (*_SHORT, "data.train.samples=1280", "data.length=50", "model.dropout=0.1")
EXPERIMENTS = {
    "CNN": (*_SHORT, "data.batch_size=200", "model.dropout=0.1"),
    "RNN": ("experiment=adding_rnn", *_SEQUENCES),
    "LSTM": ("experiment=adding_lstm", *_SEQUENCES),
}
# A module that is imported before anything else, and draws from what it should leave alone.
_UNRELATED = """
import random, numpy, torch
random.random(), numpy.random.rand(3), torch.rand(5)
"""


def plainly(
    folder: Path,
    overrides: Sequence[str],
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Path:
    """Train with `python train.py`."""
    done = subprocess.run(
        _command(folder, overrides),
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise InputError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return folder


def elsewhere(folder: Path, overrides: Sequence[str]) -> Path:
    """Train into a folder with another kind of name, started from yet another folder."""
    folder.mkdir(parents=True)
    return plainly(folder / "with a space, ünd more", overrides, cwd=folder)


def on_a_terminal(folder: Path, overrides: Sequence[str]) -> Path:
    """Train on a pseudo-terminal, where there is a progress bar."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    process = subprocess.Popen(_command(folder, overrides), stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # how Linux says that the other end was closed
        pass
    finally:
        os.close(ours)
        process.wait()
    if b"%|" not in shown:
        raise InputError("terminal: expected a progress bar, got none")
    return folder


def after_an_unrelated_import(folder: Path, overrides: Sequence[str]) -> Path:
    """Train in an interpreter that imported and drew before anything of Seedbed was loaded."""
    site = folder.with_name(f"{folder.name}_site")
    site.mkdir(parents=True)
    (site / "sitecustomize.py").write_text(_UNRELATED)
    return plainly(folder, overrides, {"PYTHONPATH": str(site)})


def beside_a_load(folder: Path, overrides: Sequence[str]) -> Path:
    """Train while every core has two other processes to serve."""
    with _busy(2 * (os.cpu_count() or 1)):
        return plainly(folder, overrides)


def in_a_sweep(
    folder: Path, overrides: Sequence[str], seeds: str = "1,0", words: Sequence[str] = ()
) -> Path:
    """Train a sweep over seeds; return the run with seed 0."""
    command = [sys.executable, str(_script("train.py")), "-m", f"seed={seeds}", *overrides, *words]
    done = subprocess.run(
        [*command, f"hydra.sweep.dir={folder}"], capture_output=True, text=True, check=False
    )
    runs = [path for path in folder.glob("*") if record.is_run(path)]
    found = [run for run in runs if record.read_summary(run)["seed"] == 0]
    if done.returncode or len(runs) != len(seeds.split(",")):
        raise InputError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return found[0]


def interrupted(
    folder: Path,
    overrides: Sequence[str],
    number: signal.Signals = signal.SIGTERM,
    changed: Sequence[str] = (),
) -> Path:
    """Send a signal to a run soon after its first checkpoint, in step 7, then resume it."""
    settings = [*overrides, "trainer.checkpoint_every_steps=7"]
    process = subprocess.Popen(
        _command(folder, settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that a signal reaches its training process and workers
    )
    while process.poll() is None and not (folder / "checkpoints" / "last.pt").exists():
        time.sleep(0.002)
    if process.poll() is None:
        os.killpg(process.pid, number)
    process.wait()
    if record.read_summary(folder)["status"] == "finished":
        raise InputError("interruption: expected a run that was stopped, got one that finished")
    command = [sys.executable, str(_script("scripts/resume.py")), str(folder), *changed]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return folder


def _command(folder: Path, overrides: Sequence[str]) -> list[str]:
    train = str(_script("train.py"))
    return [sys.executable, train, *overrides, f"hydra.run.dir='{folder}'"]


def _script(name: str) -> Path:
    return project.root() / name


@contextmanager
def _busy(count: int) -> Iterator[None]:
    words = [sys.executable, "-c", "while True: sum(i * i for i in range(10**5))"]
    processes = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _workers(count: int, *more: str) -> tuple[str, ...]:
    return (f"data.num_workers={count}", *more)


MAY_CHANGE = (
    Row("nothing: the same command again"),
    Row("1 loader worker instead of none", _workers(1)),
    Row("2 loader workers", _workers(2)),
    Row("5 loader workers", _workers(5)),
    Row("2 loader workers, new ones each epoch", _workers(2, "data.persistent_workers=false")),
    Row("2 loader workers started by spawn", _workers(2, "data.start_method=spawn")),
    Row("2 loader workers started by forkserver", _workers(2, "data.start_method=forkserver")),
    Row("8 batches prefetched by each of 2 workers", _workers(2, "data.prefetch_factor=8")),
    Row("validation every 3 epochs instead of every one", ("trainer.validate_every_epochs=3",)),
    Row("validation only at the end", ("trainer.validate_every_epochs=0",)),
    Row("logging every step", ("trainer.log_every_steps=1",)),
    Row("no logging", ("trainer.log_every_steps=0",)),
    Row("fingerprints every 7 steps", ("fingerprint.every_steps=7",)),
    Row("checkpoints every 7 steps", ("trainer.checkpoint_every_steps=7",)),
    Row("a terminal with a progress bar", train=on_a_terminal),
    Row("another hash seed outside", train=partial(plainly, environment={"PYTHONHASHSEED": "42"})),
    Row("another hash seed in training", ("determinism.env.PYTHONHASHSEED=42",)),
    Row("another run folder, another current folder", train=elsewhere),
    Row("first in a sweep (Hydra's basic launcher)", train=partial(in_a_sweep, seeds="0,1")),
    Row("second in a sweep", train=partial(in_a_sweep, seeds="1,0")),
    Row(
        "two at a time in a sweep (joblib launcher)",
        train=partial(in_a_sweep, words=("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")),
    ),
    Row("interrupted by SIGTERM, resumed", train=interrupted),
    Row("killed by SIGKILL, resumed", train=partial(interrupted, number=signal.SIGKILL)),
    Row(
        "killed with 2 loader workers, resumed with 3",
        _workers(2),
        partial(interrupted, number=signal.SIGKILL, changed=_workers(3)),
    ),
    Row("an unrelated module imported, which draws", train=after_an_unrelated_import),
    Row("two busy processes per core beside it", train=beside_a_load),
)


def _on(count: int) -> tuple[str, ...]:
    return (f"trainer.processes={count}",)


def _elastic(first: int, then: int, number: signal.Signals = signal.SIGTERM) -> Row:
    how = "killed by SIGKILL" if number == signal.SIGKILL else "interrupted by SIGTERM"
    train = partial(interrupted, number=number, changed=_on(then))
    return Row(f"{how} on {first}, resumed on {then}", _on(first), train)


# Beside the run on 1 process, with as many shards. One thread each: 4 processes on 2 cores.
# SIGKILL of one of several is measured by tests/end_to_end/kill_ranks.py.
FOUR_SHARDS = (
    Row("2 processes", _on(2)),
    Row("4 processes", _on(4)),
    _elastic(4, 1),
    _elastic(4, 2),
    _elastic(1, 4),
)
TWO_SHARDS = (Row("2 processes", _on(2)), _elastic(2, 1), _elastic(1, 2, signal.SIGKILL))

CHANGES_BITS = (
    Row("another seed", ("seed=1",)),
    Row("another seed for the order alone", ("seeds.order=1",)),
    Row("another batch size", ("data.batch_size=80",)),
    Row("another batch size in evaluation", ("data.eval_batch_size=100",)),
    Row("1 thread", ("determinism.threads=1",)),
    Row("2 threads", ("determinism.threads=2",)),
    Row("4 threads", ("determinism.threads=4",)),
    Row(
        "PyTorch's kernels without AVX-512 (ATEN_CPU_CAPABILITY=avx2)",
        ("determinism.env.ATEN_CPU_CAPABILITY=avx2",),
    ),
    Row(
        "PyTorch's kernels without AVX (ATEN_CPU_CAPABILITY=default)",
        ("determinism.env.ATEN_CPU_CAPABILITY=default",),
    ),
    Row(
        "oneDNN's kernels without AVX-512 (ONEDNN_MAX_CPU_ISA=AVX2)",
        ("determinism.env.ONEDNN_MAX_CPU_ISA=AVX2",),
    ),
    Row("determinism=seeded instead of strict", ("determinism=seeded",)),
    Row("determinism=fast instead of strict", ("determinism=fast",)),
    Row("bfloat16 instead of float32", ("trainer.precision=bfloat16",)),
)


_ONE_THREAD = "determinism.threads=1"
PARTS = (
    Part("On one process", (), MAY_CHANGE),
    Part("On several processes, trainer.shards=4", (_ONE_THREAD, "trainer.shards=4"), FOUR_SHARDS),
    Part("On several processes, trainer.shards=2", (_ONE_THREAD, "trainer.shards=2"), TWO_SHARDS),
    Part("What belongs to the experiment, and may change bits", (), CHANGES_BITS, False),
)
