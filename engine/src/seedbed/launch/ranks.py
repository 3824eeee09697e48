"""Ranks that torchrun or srun has started: rank 0 composes the run, the others get it
from there.

torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
MASTER_PORT; for srun, `from_slurm` derives them
(https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES).
"""

import os
import re
import zlib
from collections.abc import Mapping

from seedbed.errors import InputError
from seedbed.launch import run_passing_signals, worker_command, world_size


def from_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables for a task of srun; {} for a single task, and outside
    of srun."""
    given = {
        name: environment.get(f"SLURM_{name}", "")
        for name in ("PROCID", "LOCALID", "NTASKS")
    }
    is_step = "SLURM_STEP_ID" in environment and all(map(str.isdecimal, given.values()))
    if "RANK" in environment or not is_step or int(given["NTASKS"]) == 1:
        return {}
    node = int(environment.get("SLURM_NODEID", "0"))
    counts: list[str] = []  # of tasks on each node, as in `2(x3),1`
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", given["NTASKS"]).split(
        ","
    ):
        count, _, times = part.partition("(x")
        counts += [count] * int(times.rstrip(")") or 1)
    nodes = environment.get("SLURM_STEP_NODELIST", "localhost")
    # of `node[01-04],other`
    first = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\](\S*?))?(?:,|$)", nodes)
    if first is None or node >= len(counts):
        raise InputError(
            f"SLURM_STEP_NODELIST: expected a list of nodes, got {nodes!r}"
        )
    # Of the step, as several may run side by side in one job.
    step = f"{environment.get('SLURM_JOB_ID', '0')}.{environment['SLURM_STEP_ID']}"
    port = 15000 + zlib.crc32(step.encode()) % 10000
    return {
        "RANK": given["PROCID"],
        "WORLD_SIZE": given["NTASKS"],
        "LOCAL_RANK": given["LOCALID"],
        "LOCAL_WORLD_SIZE": counts[node],
        "MASTER_ADDR": environment.get(
            "MASTER_ADDR", "".join(map(str, first.groups("")))
        ),
        "MASTER_PORT": environment.get("MASTER_PORT", str(port)),
    }


def join() -> int | None:
    """Return this process's rank; None if it is no rank of several.

    Raise InputError for a rank without the variables of the others.
    """
    os.environ.update(from_slurm(os.environ))
    if (count := world_size()) == 1:
        return None
    for name, end in (("RANK", count), ("LOCAL_RANK", count), ("MASTER_PORT", 1 << 16)):
        got = os.environ.get(name) or "none"
        if not got.isdecimal() or int(got) >= end:
            raise InputError(
                f"{name}: expected a number below {end:,}, as torchrun sets it, got"
                f" {got}"
            )
    if not os.environ.get("MASTER_ADDR"):
        raise InputError("MASTER_ADDR: expected a host, as torchrun sets it, got none")
    return int(os.environ["RANK"])


def follow() -> int:
    """Train as a rank other than 0, which tells what to do; return the exit status."""
    return run_passing_signals(worker_command("train"), os.environ, keeps_rank=True)
