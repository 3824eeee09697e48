"""A command line of Hydra's: run folders with names of their own, errors of one line."""

import os
import secrets
import sys
import traceback
from collections.abc import Callable

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException

from seedbed import project
from seedbed.config import compose
from seedbed.errors import InputError, one_line

_SEARCHED = "hydra.sweeper.params."  # and a key of the runs
# Called when the command ends, however it does: is told whether by an exception, returns whether
# jobs failed.
at_end: list[Callable[[bool], bool]] = []


def run(main: Callable[[], object]) -> int:
    """Run Hydra's main function for this command line; return the exit status."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us instead of being printed
    sys.argv[1:] = name_uniquely(sys.argv[1:])
    try:
        try:
            main()
        finally:
            ended_early = sys.exception() is not None
            jobs_failed = any(work(ended_early) for work in at_end)
    except Exception as error:
        if explained := explain(error):
            raise explained from error
        raise
    return 1 if jobs_failed else 0


def name_uniquely(arguments: list[str]) -> list[str]:
    """Return a command line with what names the folders of its runs.

    These are overrides, and not resolvers, because launchers compose the configuration again in
    other processes and on other machines. Options come first: Hydra's parser wants the overrides
    together, wherever people put them.
    """
    overrides = [w for w in arguments if not w.startswith("-") and ("=" in w or w[:1] == "~")]
    options = [argument for argument in arguments if argument not in overrides]
    # Quoted, because 58e12345 would be read as a number: infinity, in every such name.
    unique = f"+hydra.job.env_set.SEEDBED_RUN='{secrets.token_hex(4)}'"
    return [*options, *overrides, unique, *name_jobs(overrides)]


def name_jobs(overrides: list[str]) -> list[str]:
    """Return the override that names the jobs of a sweep by what varies: `0_seed=0,model=lstm`."""
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except OverrideParseException:
        return []  # Hydra will explain what is wrong with it
    cells: dict[str, str] = {}  # by key, where each job looks up its value
    for one in parsed:
        key = one.key_or_group.removeprefix(_SEARCHED)
        if key == "hydra.sweep.subdir":
            return []  # they have names
        if one.is_sweep_override() or key != one.key_or_group:
            is_group = (project.configs() / key).is_dir()
            cells[key] = f"hydra.runtime.choices.{key}" if is_group else key
    names = ",".join(f"{key}=${{{place}}}" for key, place in cells.items())
    return [f"hydra.sweep.subdir='${{hydra.job.num}}_{names}'"] if names else []


def explain(error: Exception) -> InputError | None:
    """Return in one line what Hydra could not do; None if it was not Hydra that raised."""
    if isinstance(error, compose.ERRORS):
        return compose.explain(error)
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return InputError(  # from Hydra, which makes the folders
            f"hydra.run.dir: expected a folder that can be written, got {error.strerror} for "
            f"{error.filename}"
        )
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    module = str(frame.f_globals.get("__name__"))
    # Hydra raises a job's own failure once more in `return_value`.
    if module.startswith("hydra.") and frame.f_code.co_name != "return_value":
        return InputError(f"overrides: expected what Hydra can do, got {one_line(error)}")
    return None
