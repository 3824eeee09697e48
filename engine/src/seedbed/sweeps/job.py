"""A sweep from its start to its report, and each of its jobs.

A sweep is resumed by repeating its command: each job is started, resumed if its run has
begun, or skipped if it has finished. sweep.json, its plan, has the command and the
overrides of each job.
"""

import os
import re
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from seedbed import launch, project, record, signals
from seedbed.config import Settings, compose
from seedbed.errors import LABEL, InputError, print_error, printable, some
from seedbed.launch import folders
from seedbed.record import code, text
from seedbed.sweeps import plan

_SWEEP = "SEEDBED_SWEEP"  # environment variable: id of the process that leads
_lock = ExitStack()  # held until the process that leads the sweep ends


def start(settings: Settings, folder: Path, templates: Mapping[str, str] = {}) -> int:
    """Train in a job's folder, in a new process unless it has finished; return the exit
    status."""
    in_parallel = is_in_parallel()
    launcher = os.getppid()
    os.environ.setdefault(folders.SUBMISSION, "")  # a cluster may pass no variables on
    try:
        require_same_trial(folder)
        if is_begun := folders.is_begun(folder):
            folders.rerun_overrides(settings, folder, "hydra.sweep.dir")
    except InputError as error:  # a sweep of two settings helps nobody
        raise SystemExit(print_error(error)) from None
    status = 0
    if not (is_begun and folders.is_finished(folder)):
        folders.require_submitted(
            folder, {**composed_files(), **imported_files(folder)}
        )
        status = launch.start(settings, folder, templates)
    try:
        require_direction(folder, HydraConfig.get().sweeper)
    except InputError as error:  # it would choose the worst settings
        raise SystemExit(print_error(error)) from None
    if (
        in_parallel
        and status in signals.INTERRUPTED
        and "SUBMITIT_EXECUTOR" in os.environ
    ):
        return pass_on(status)
    if in_parallel and os.getppid() != launcher:
        os._exit(status)  # the sweep has ended: no queued job may start
    return status


def is_in_parallel() -> bool:
    """Return whether a launcher has started this process for a job of a sweep."""
    return os.environ.get(_SWEEP) != str(os.getpid())


def prepare(folder: Path) -> None:
    """Set the variables of a job that runs beside others."""
    if is_in_parallel():
        # They share the terminal and the cores; that waiting threads sleep changes no
        # bit.
        os.environ.setdefault("TQDM_DISABLE", "1")
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ[LABEL] = f"[{folder.name}] "


def require_same_trial(folder: Path) -> None:
    """Raise InputError if a repeated sweeper suggests another trial of a number than
    before.

    Hydra's own sweeper is left out: `begin` compares all its jobs with those of the
    plan.
    """
    hydra = HydraConfig.get()
    number, named, _ = folder.name.partition("_")
    # or named by the user
    if is_planned(hydra) or not named or number != str(hydra.job.num):
        return
    begun = folder.parent.glob(f"{number}_*/config.yaml")
    for other in (path.parent.name for path in begun if path.parent != folder):
        launch.discard_if_empty(folder)
        raise InputError(
            f"hydra.sweeper: expected trial {number} to be {other} as before, got"
            f" {folder.name}; set hydra.sweeper.sampler.seed, or choose another"
            " hydra.sweep.dir"
        )


def require_direction(folder: Path, sweeper: Any) -> None:
    """Raise InputError if a sweeper optimises the objective of a finished job in the
    wrong direction.

    Only sweepers that have a `direction` are checked; that of Optuna minimises unless
    it is told otherwise.
    """
    asked = sweeper.get("direction")
    if asked is None or launch.objective(folder) is None:
        return
    summary = record.read_summary(folder)
    monitor = record.Monitor(summary["metric_name"], summary["higher_is_better"])
    objective = summary["objective"]["name"]
    expected = monitor.direction_of(objective)
    several = asked if OmegaConf.is_list(asked) else [asked]
    directions = [getattr(one, "name", str(one)) for one in several]
    if expected is not None and directions != [expected]:
        raise InputError(
            f"hydra.sweeper.direction: expected {expected}, of {objective}, got"
            f" {', '.join(directions)}; set hydra.sweeper.direction={expected}"
        )


def is_planned(hydra: Any) -> bool:  # Hydra's own section
    """Return whether all jobs are known at the start: other sweepers choose them as
    they go."""
    return bool(hydra.sweeper._target_.endswith(".BasicSweeper"))


def pass_on(status: int) -> int:
    """Pass the signal that interrupted a job on to submitit; return the job's exit
    status.

    At a time limit, submitit requeues the job and ends the process, unless its retries
    are used up.
    """
    handler = signal.getsignal(status - 128)
    if callable(handler) and handler is not signal.default_int_handler:
        try:
            handler(status - 128, None)
        # submitit has printed why; the sweep goes on, as after a failed job
        except Exception:
            return 1
    return status


def composed_files() -> dict[str, str]:
    """Return the SHA-256 of each YAML file of which Hydra has composed this job, by its
    name."""
    job = HydraConfig.get()
    loader = GlobalHydra.instance().config_loader()
    overrides = [*job.overrides.hydra, *job.overrides.task]
    used = loader.compute_defaults_list(
        job.job.config_name, overrides, RunMode.MULTIRUN
    ).defaults
    paths = (project.configs() / f"{each.config_path}.yaml" for each in used)
    files = {
        path.relative_to(project.root()).as_posix(): path
        for path in paths
        if path.is_file()
    }
    return {name: code.sha256(path.read_bytes()) for name, path in files.items()}


def imported_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that a begun job has imported, as the file is
    now.

    Slurm may requeue a job after edits, without the sweep's command.
    """
    path = folder / "environment.json"
    names = (
        record.read_environment(folder).get("imported_files") or {}
        if path.is_file()
        else {}
    )
    contents = {name: code.read_here(name) for name in names}
    return {
        name: code.sha256(content)
        for name, content in contents.items()
        if content is not None
    }


def describe_finished(folder: Path) -> None:
    """Print how many jobs of a sweep are skipped, and what changed since they ran."""
    finished = []
    for run in record.runs_below(folder):
        with suppress(InputError):  # a damaged record: its job will name it
            finished += [run] if folders.is_finished(run) else []
    if finished:
        several = (
            "jobs were finished before and are"
            if finished[1:]
            else "job was finished and is"
        )
        print(f"{len(finished)} {several} skipped", flush=True)
        if changed := folders.changed_since(*finished):
            have = "they" if finished[1:] else "it"
            line = (
                f"warning: code or data have changed since {have} ran: {some(changed)}"
            )
            print(printable(line), file=sys.stderr, flush=True)


class SweepFolder(Callback):
    """Hydra callback that checks and locks a sweep's folder, and reports on it however
    it ends."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Write or check the sweep's plan; exit on errors, as Hydra only warns of
        exceptions."""
        folder = Path(config.hydra.sweep.dir)
        try:
            begin(folder, config.hydra)
            describe_finished(folder)
            os.environ[_SWEEP] = str(os.getpid())
            message = f"interrupted\nresume it: {command(folder)}\n"
            for number in signals.handled_signals():
                signal.signal(number, partial(_end, message))
        except InputError as error:
            raise SystemExit(print_error(error)) from None
        except OSError as error:
            line = (
                "hydra.sweep.dir: expected a folder that can be written, got"
                f" {error.strerror}"
            )
            raise SystemExit(
                print_error(InputError(f"{line} for {error.filename}"))
            ) from None
        compose.at_end.append(partial(report_sweep, folder))


def begin(folder: Path, hydra: DictConfig) -> None:
    """Lock a sweep for this process; write its plan, or raise InputError if the folder
    has another.

    New jobs are added to the plan, after those that it has: a sweep may get more seeds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _lock.enter_context(record.lock(folder, "sweep"))
    named, varied, asked_jobs = _jobs(hydra)
    before = record.read_json(folder / record.SWEEP) if record.is_sweep(folder) else {}
    planned = plan.read_plan(folder) or plan.Plan()
    jobs = in_order_of_plan(asked_jobs, planned.jobs)
    if jobs is None or (before and before.get("varied") != varied):
        raise InputError(
            f"hydra.sweep.dir: expected the jobs of the sweep in {folder}, and maybe"
            " more, got others; choose another folder, or repeat its command:"
            f" {command(folder)}"
        )
    if jobs != asked_jobs:
        _start_in_order(jobs)
    words = [
        word for word in sys.argv[1:] if not re.match(r"\+*hydra\.sweep\.dir=", word)
    ]
    files = code.digests_of_project()
    # Jobs of this command that wait in a cluster's queue compare with this list,
    # whatever command is given meanwhile.
    key = os.environ[folders.SUBMISSION] = code.sha256(repr(files).encode())[:16]
    submissions = before.get("submissions")
    earlier = (
        {n: submissions[n] for n in submissions if n != key}
        if isinstance(submissions, dict)
        else {}
    )
    numbered = {str(number): sorted(job) for number, job in enumerate(jobs)}
    asked = {"command": words, "varied": varied, "jobs": numbered}
    plan.begin(folder, {**asked, "submissions": earlier | {key: files}})
    if named:
        with read_write(hydra):
            # the user's win: they follow
            hydra.overrides.hydra.insert(0, compose.job_names(named))


def in_order_of_plan(
    asked: Sequence[list[str]], planned: Mapping[str, Sequence[str]]
) -> list[list[str]] | None:
    """Return the jobs of a command, those of the plan first, each at its number there;
    None if the command lacks one.

    Hydra numbers the combinations of values: a value that is added to any key but the
    first would change the numbers of jobs that exist.
    """
    by_overrides = {tuple(sorted(job)): job for job in asked}
    known = [tuple(planned.get(str(number), ())) for number in range(len(planned))]
    left = Counter(known)
    new = []
    for job in asked:
        key = tuple(sorted(job))
        if left[key] > 0:
            left[key] -= 1
        else:
            new.append(job)
    return None if left.total() else [*(by_overrides[key] for key in known), *new]


def _start_in_order(jobs: list[list[str]]) -> None:
    """Have Hydra's own sweeper start these jobs in this order, which numbers them."""

    def split(overrides: object, max_batch_size: int | None) -> list[list[list[str]]]:
        return [*BasicSweeper.split_overrides_to_chunks(jobs, max_batch_size)]

    BasicSweeper.split_arguments = staticmethod(split)  # type: ignore[method-assign]


def command(folder: Path) -> str:
    """Return the command that resumes a sweep, for a shell in the project's root."""
    words = record.read_json(folder / record.SWEEP).get("command")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(
            f"{folder / record.SWEEP}: expected the command of a sweep, got another"
        )
    folder_word = f"hydra.sweep.dir={text.quoted(folder)}"
    return printable(shlex.join(["python", "train.py", *words, folder_word]))


def _jobs(hydra: DictConfig) -> tuple[list[str], list[str], list[list[str]]]:
    """Return the keys that name folders, what must not change, and each job's
    overrides."""
    params = [
        f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()
    ]
    typed = [*params, *hydra.overrides.task]
    parsed = OverridesParser.create().parse_overrides(typed)
    swept = {
        override.key_or_group: str(override.input_line)
        for override in parsed
        if override.is_sweep_override()
    }
    # A value with a slash would lead to another folder.
    named = [
        key for key, word in sorted(swept.items()) if "/" not in word.partition("=")[2]
    ]
    if not is_planned(hydra):
        return named, sorted(typed), []
    [batch] = BasicSweeper.split_arguments(parsed, None)
    return named, sorted(swept), batch


def report_sweep(folder: Path, ended_early: bool) -> bool:
    """Print the report on a sweep that this process led; return whether runs are left
    out."""
    from seedbed.sweeps import groups, report, show  # pandas and SciPy: a second

    left_out = False
    if any(folder.glob("*/config.yaml")) or not ended_early:
        sweep = groups.read(folder)
        show.write(sweep)
        made = report.make(sweep)
        made["notes"] += report.note_looks([sweep], final=False)
        print(f"\n{show.describe(made)}\n\n{folder}", flush=True)
        left_out = bool(made["left_out"])
    if ended_early or left_out:
        print(f"resume it: {command(folder)}", flush=True)
    return left_out


def _end(message: str, number: int, _frame: object) -> None:
    """End the sweep at once; its parallel jobs notice that, save a checkpoint, and end
    as well."""
    with suppress(OSError):  # print is not reentrant
        os.write(1, message.encode())
    os._exit(128 + number)
