"""For projects' tests: train short runs in ways that must not change a bit, and compare
them.

A run takes half a second: each is forked from a process that has imported everything,
under the preset's environment variables. That process is the task `train_several` of
`seedbed.worker`; it reads the arguments of its task `train` from standard input, one
JSON list per line.
"""

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from seedbed import compare, config, launch, offline, record
from seedbed.config import Request, Settings
from seedbed.config.compose import compose, configuration
from seedbed.datasets import Fold
from seedbed.errors import InputError, exit_on_errors
from seedbed.names import SPLITS

__all__ = [
    "compose",
    "configuration",
    "difference",
    "error_of",
    "lacks_files",
    "short",
    "train",
    "train_in_ways",
]

# steps, samples; at two steps an epoch, a validation precedes the stop
STOP_AFTER = 3
BATCH = 8
SHORT = (
    *(
        "determinism=strict",
        "determinism.threads=1",
        "trainer.device=cpu",
        "trainer.processes=1",
    ),
    *(
        "trainer.shards=1",
        "trainer.accumulate=1",
        "trainer.compile=false",
        "logger=csv",
    ),
    *(
        "trainer.max_steps=4",
        "trainer.limit_train_batches=null",
        "trainer.validate_every_steps=0",
    ),
    *("trainer.log_every_steps=1", "trainer.validate_every_epochs=1"),
    *("trainer.checkpoint_every_steps=0", f"data.batch_size={BATCH}"),
    f"data.eval_batch_size={BATCH}",
)
# The configuration changes of each way to train.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "first": {},
    "again": {},
    "two_workers": {"data.num_workers": 2},
    "resumed": {},
    "other_seed": {"seed": 1},
}


class Few(Fold):
    """The first samples of a data set."""

    def __init__(self, dataset: Any, samples: int) -> None:
        self.dataset = dataset
        self.indices = np.arange(min(samples, len(dataset)))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the data set, such as those that statistics are made
        from."""
        # not before `__init__`, as in a copy
        if name == "dataset" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


def short(composed: DictConfig, changes: Mapping[str, Any]) -> Settings:
    """Apply changes to a configuration composed with SHORT, and use only a few
    samples."""
    settings = config.check(config.resolve(Request(dict(changes)).applied_to(composed)))
    data = settings.plain["data"]
    samples = 2 * BATCH
    if data.get("streams"):  # iterable data sets, which have no indices
        data |= {"streams": 2, "samples_per_epoch": samples}
    for split in SPLITS if not data.get("streams") else ():
        if spec := settings.data.spec(split):
            data[split] = {
                "_target_": f"{__name__}.Few",
                "dataset": spec,
                "samples": samples,
            }
    if not data.get("streams"):
        data["dataset"] = None
    return config.check(OmegaConf.create(settings.plain))


def train(
    runs: Sequence[tuple[Path, Settings]], stopped: Sequence[tuple[Path, Settings]] = ()
) -> None:
    """Train configurations in their folders; `stopped` ones are resumed after step
    STOP_AFTER."""
    for folder, settings in (*stopped, *runs):
        launch.create_run_folder(folder, settings)
    request = json.dumps(asdict(Request(last_step=STOP_AFTER)))
    arguments = [[str(folder), request] for folder, _ in stopped]
    arguments += [[str(folder)] for folder, _ in (*runs, *stopped)]
    environment = launch.training_environment(
        (*runs, *stopped)[0][1]
    ) | offline.variables(False)
    command = launch.worker_command("train_several")
    lines = "\n".join(map(json.dumps, arguments))
    subprocess.run(command, input=lines, env=environment, text=True, check=True)


def train_ways(runs: Mapping[str, Sequence[tuple[Path, Settings]]]) -> None:
    # the repetition, in a process with other addresses
    with ThreadPoolExecutor(2) as pool:
        future = pool.submit(
            train, [*runs["first"], *runs["two_workers"], *runs["other_seed"]]
        )
        train(runs["again"], stopped=runs["resumed"])
        future.result()


def train_in_ways(commands: Iterable[tuple[str, ...]], place: Path) -> dict[Any, Any]:
    """Train a short run of each command line in each way, in PLACE/NUMBER/WAY.

    Return by command line its folder, PLACE/NUMBER, or the InputError that it raised.
    """
    results: dict[Any, Any] = {}
    runs: dict[str, list[tuple[Path, Settings]]] = {way: [] for way in WAYS}
    for number, words in enumerate(dict.fromkeys(commands)):
        folder = results[words] = place / str(number)
        try:
            composed = compose(*SHORT, *words)
            for way, changes in WAYS.items():
                runs[way].append((folder / way, short(composed, changes)))
        except InputError as error:
            results[words] = error
    if runs["first"]:
        train_ways(runs)
    return results


def error_of(run: Path) -> str | None:
    """Return the error that a run ended with, in a line; None if it finished."""
    error: str | None = record.read_summary(run)["error"]
    return error


def lacks_files(error: str) -> bool:
    """Return whether a run's error says that files are missing which it may not
    download."""
    return offline.ADVICE in error


def difference(a: Path, b: Path) -> str | None:
    """Return the first step and stage in which two runs differ, or why one failed; else
    None."""
    for folder in (a, b):
        summary = record.read_summary(folder)
        if summary["status"] != "finished":
            return f"{folder} {summary['status']}: {summary['error']}"
    first = compare.compare(compare.read(a), compare.read(b)).difference
    return None if first is None else f"step {first.step}: {first.stage}"


def work(_: Sequence[str]) -> int:
    """Run a training process, forked from this one, for each line of standard input."""
    import matplotlib.backends.backend_agg  # noqa: F401  each run would import it

    from seedbed.run import experiment, process  # noqa: F401

    def train_one(arguments: list[str]) -> None:
        with exit_on_errors():
            sys.exit(process.run(arguments))

    for arguments in map(json.loads, sys.stdin.read().splitlines()):
        child = multiprocessing.get_context("fork").Process(
            target=train_one, args=(arguments,)
        )
        child.start()
        child.join()
    return 0
