"""Use of a run's weights, with overrides from the command line, in a separate
process."""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seedbed import config, launch, offline, project, record, signals
from seedbed.config import Settings, compose, interpolations
from seedbed.errors import InputError, one_line, printable
from seedbed.launch import run_passing_signals
from seedbed.record import Origin, code, untrusted
from seedbed.record.code import Tree, code_of
from seedbed.tools import recorded_code

_ANSWER = "answer.json"


def settings_of(
    run: Path,
    overrides: Sequence[str],
    trust: Sequence[str] = (),
    origin: Origin | None = None,
    tree: Tree | None = None,
) -> Settings:
    """Return a run's settings with overrides, for one process and without loggers.

    Overrides are `data=NAME`, for another data set of configs/data, and `key=value`.
    The classes of the run may be those that configs/ or `trust` names, or a recorded
    `tree` defines, which is that of `origin`. Raises InputError if the folder is not a
    run, names something else, or if an override is invalid.
    """
    record.require_run(run)
    untrusted.reject_external_links(run)
    settings = record.read_config(run)
    settings.pop("logger", None)
    config.check(settings)
    recorded = settings
    templates = interpolations.read(run)
    others = [each for each in overrides if not each.startswith("data=")]
    is_other_data = len(others) < len(overrides)
    if is_other_data:  # first: other overrides may change its keys
        chosen = [each for each in overrides if each.startswith("data=")]
        settings = OmegaConf.create({**recorded, "data": compose.compose(*chosen).data})
        templates = {
            key: text for key, text in templates.items() if not key.startswith("data.")
        }
    typed = launch.parse_overrides(others, settings, "data")
    values = interpolations.reached(typed, settings, templates)
    settings = config.resolve(config.Request(values).applied_to(settings))
    settings.trainer.processes = 1
    # the user's own
    variables = [key for key in typed if key.startswith("determinism.env.")]
    is_recorded = tree is not None and tree.is_recorded
    packages = recorded_code.packages(origin) if origin and is_recorded else []
    import_folders = (
        [tree.root / folder for folder in code.PLACES] if tree and is_recorded else []
    )
    config.require_trusted(
        settings, run, [*trust, *variables, *packages], import_folders
    )
    return config.check(settings)


def origin_of(run: Path) -> Origin:
    """Return settings, environment and code of a run folder."""
    record.require_run(run)
    path = run / "environment.json"
    environment = record.read_environment(run) if path.is_file() else {}
    return Origin(untrusted.read_dict(run), environment, run)


def answered(path: Path, arguments: argparse.Namespace, task: str) -> tuple[int, Any]:
    """Do a task of `seedbed.worker` on a run, a folder or a zip, as a command asks.

    See `start`.
    """
    with record.run_folder(path) as run:
        origin = origin_of(run)
        with code_of(origin, arguments.restore_code) as tree:
            settings = settings_of(
                run, arguments.overrides, arguments.trust, origin, tree
            )
            asked = {**vars(arguments), "run": run.absolute()}
            online = config.may_connect(run, arguments.online)
            return start(settings, asked, online, tree, task)


def start(
    settings: Settings,
    request: Mapping[str, Any],
    online: bool,
    tree: Tree,
    task: str,
) -> tuple[int, Any]:
    """Do a task of `seedbed.worker` in a new process, with the preset's environment
    variables as in training.

    `request` has the arguments of the command, such as evaluate.py. Returns the exit
    status, and the answer: values, or `error` if the request was invalid; None if the
    process failed otherwise. It prints its errors.
    """
    environment = launch.training_environment(settings) | offline.variables(online)
    # The project, to which paths of data are relative, remains this one.
    environment |= {k: v for k, v in tree.variables.items() if k != project.PROJECT}
    with tempfile.TemporaryDirectory(prefix="seedbed-") as folder:
        OmegaConf.save(OmegaConf.create(settings.plain), Path(folder, "config.yaml"))
        asked = json.dumps(request, default=str)
        command = launch.worker_command(task, folder, asked)
        status = run_passing_signals(command, environment)
        answer = Path(folder, _ANSWER)
        return status, json.loads(answer.read_text()) if answer.exists() else None


def end(asked: Mapping[str, Any], lines: Sequence[str]) -> int:
    """Print lines on what has changed since the record; return the exit status of the
    process."""
    for line in lines:
        said = "note" if asked["allow_changed"] else "warning"
        print(f"{said}: {printable(line)}", file=sys.stderr, flush=True)
    return 1 if lines and not asked["allow_changed"] else 0


def write_answer(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the answer of the process that `start` has started in a folder."""
    (folder / _ANSWER).write_text(json.dumps(values))


@contextmanager
def received(arguments: Sequence[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the folder and the request that `start` has passed to this process.

    An error is answered before it is raised; one of the user's code names its line.
    """
    folder = Path(arguments[0])
    signals.release()  # `start` held them back
    offline.enforce()
    try:
        yield folder, json.loads(arguments[1])
    except InputError as error:
        write_answer(folder, {"error": str(error)})
        raise
    except (Exception, SystemExit) as error:
        advice = project.where_to_look(error).rstrip()
        error.add_note(advice)
        write_answer(folder, {"error": f"{one_line(error)}; {advice}".rstrip("; ")})
        raise
