"""Measure what sharding costs and saves, for docs/measured.md.

usage: python engine/measure/sharding.py [key=value ...]

For 2 and 4 processes on the CPU, trains some steps of a larger experiment=char_gpt,
with changes, without sharding, sharded with sums in a tree, and sharded with FSDP2's
own reduce-scatter, taking turns. Prints the median seconds of a step, and the megabytes
of parameters, gradients and optimizer states that each rank holds after it.

exit status: 0 measured, 2 invalid overrides
"""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from typing import Any

import torch

from seedbed import assemble, dtensors, launch
from seedbed.config.compose import configuration
from seedbed.distributed.rendezvous import find
from seedbed.errors import exit_on_errors
from seedbed.launch import STORE
from seedbed.training.optimizers import optimizer_tensors
from seedbed.training.shards import Shards
from seedbed.training.state import Progress
from seedbed.training.step import train_step

STEPS, ROUNDS, TIMEOUT_SECONDS = 6, 3, 300
DEFAULTS = (
    *("experiment=char_gpt", "model.width=256", "model.layers=6", "data.batch_size=32"),
    *("determinism.threads=1", "optimizer.fused=false", "trainer.shards=4"),
)
WAYS = {
    "not sharded": ("trainer.sharding=none",),
    "sharded, tree": ("trainer.sharding=full",),
    "sharded, FSDP2's reduce-scatter": (
        "trainer.sharding=full",
        "trainer.reduce=allreduce",
    ),
}


def main() -> int:
    words = (*DEFAULTS, *sys.argv[1:])
    environment = launch.training_environment(configuration(*words))
    if environment != dict(os.environ):
        os.execve(sys.executable, sys.orig_argv, environment)
    for count in (2, 4):
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        sizes: dict[str, list[list[float]]] = {}
        for _ in range(ROUNDS):
            for way, more in WAYS.items():
                found = in_processes(
                    count, (*words, *more, f"trainer.processes={count}")
                )
                taken[way].append(max(seconds for seconds, _ in found))
                sizes[way] = [size for _, size in found]
        print(
            f"\n{count} processes: seconds of a step; MB of parameters, gradients,"
            " states by rank"
        )
        for way, seconds in taken.items():
            shown = "; ".join(
                ", ".join(f"{size:.2f}" for size in rank) for rank in sizes[way]
            )
            print(f"{way}: {statistics.median(seconds):.3f} s; {shown}")
    return 0


def in_processes(count: int, words: tuple[str, ...]) -> list[tuple[float, list[float]]]:
    """Return the seconds of a step and the sizes of each rank."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place:
        store, results = f"{place}/store", context.SimpleQueue()
        every = [(rank, count, store, words, results) for rank in range(count)]
        processes = [context.Process(target=measure, args=each) for each in every]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode:
                raise SystemExit(f"a process ended with status {process.exitcode}")
        return [found for _, found in sorted(results.get() for _ in processes)]


def measure(
    rank: int, count: int, store: str, words: tuple[str, ...], results: Any
) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), STORE: store}
    settings = configuration(*words)
    assemble.prepare_backends(settings)
    processes, device = find(TIMEOUT_SECONDS), torch.device("cpu")
    processes.meet(device)
    trainer = settings.trainer
    how = trainer.reduce == "tree", trainer.sharding == "full"
    shards = Shards(trainer.shards, lambda: False, processes, *how)
    parts = assemble.build_parts(settings, device, shards)
    training, seconds = parts.training, list[float]()
    batches = parts.training_batches(Progress())
    shards.begin(training, 0)
    for step in range(1, STEPS + 1):
        slices = [next(batches) for _ in shards.mine]
        began = time.perf_counter()
        train_step(training, slices, step, shards, False, None)
        seconds.append(time.perf_counter() - began)
    parameters = list(training.model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    held = parameters, gradients, optimizer_tensors(*training.optimizers.values())
    sizes = [
        sum(dtensors.local(each).nbytes for each in tensors) / 1e6 for tensors in held
    ]
    results.put((rank, (statistics.median(seconds[1:]), sizes)))
    shards.gather(lambda: None)


if __name__ == "__main__":
    with exit_on_errors():
        sys.exit(main())
