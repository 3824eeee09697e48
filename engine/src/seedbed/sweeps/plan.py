"""sweep.json, the plan of a sweep: its command, and the overrides of each job.

A sweep is resumed by repeating its command; the plan ensures that it is the same sweep.
"""

import re
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, read_write

from seedbed import record
from seedbed.config import compose
from seedbed.errors import InputError, printable

_lock = ExitStack()  # held until the process that leads the sweep ends


def begin(folder: Path, hydra: DictConfig) -> None:
    """Lock a sweep for this process; write its plan, or raise InputError if the folder has another.

    New jobs are added to the plan: a sweep may get more seeds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _lock.enter_context(record.lock(folder, "sweep"))
    named, varied, jobs = _jobs(hydra)
    if record.is_sweep(folder):
        before = record.read_json(folder / record.SWEEP)
        planned = before["jobs"] if isinstance(before.get("jobs"), dict) else {}
        if before.get("varied") != varied or jobs | planned != jobs:
            raise InputError(
                f"hydra.sweep.dir: expected the jobs of the sweep in {folder}, got others; choose "
                f"another folder, or repeat its command: {command(folder)}"
            )
    words = [word for word in sys.argv[1:] if not re.match(r"\+*hydra\.sweep\.dir=", word)]
    record.write_json(folder / record.SWEEP, {"command": words, "varied": varied, "jobs": jobs})
    if named:
        with read_write(hydra):
            hydra.overrides.hydra.insert(0, compose.job_names(named))  # the user's win: they follow


def command(folder: Path) -> str:
    """Return the command that resumes a sweep, for a shell in the project's root."""
    words = record.read_json(folder / record.SWEEP).get("command")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(f"{folder / record.SWEEP}: expected the command of a sweep, got another")
    place = str(folder)
    if not re.fullmatch(r"[\w./-]+", place):  # quoted for Hydra as well
        place = "'" + place.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return printable(shlex.join(["python", "train.py", *words, f"hydra.sweep.dir={place}"]))


def planned(folder: Path) -> dict[str, list[str]]:
    """Return the varied overrides of each job, by number; {} if there is no plan."""
    plan = record.read_json(folder / record.SWEEP) if record.is_sweep(folder) else {}
    jobs, varied = plan.get("jobs"), plan.get("varied")
    if not isinstance(jobs, dict) or not isinstance(varied, list):
        return {}
    return {
        number: [word for word in map(str, job) if word.partition("=")[0] in varied]
        for number, job in jobs.items()
        if isinstance(job, list)
    }


def _jobs(hydra: DictConfig) -> tuple[list[str], list[str], dict[str, list[str]]]:
    """Return the keys that name folders, what must not change, and each job's overrides."""
    params = [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]
    typed = [*params, *hydra.overrides.task]
    parsed = OverridesParser.create().parse_overrides(typed)
    swept = {each.key_or_group: str(each.input_line) for each in parsed if each.is_sweep_override()}
    # A value with a slash would lead to another folder.
    named = [key for key, word in sorted(swept.items()) if "/" not in word.partition("=")[2]]
    if not hydra.sweeper._target_.endswith(".BasicSweeper"):
        return named, sorted(typed), {}  # other sweepers choose jobs as they go
    [batch] = BasicSweeper.split_arguments(parsed, None)
    return named, sorted(swept), {str(n): sorted(job) for n, job in enumerate(batch)}
