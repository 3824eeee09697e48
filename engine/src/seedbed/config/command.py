"""A command line of Hydra's: run folders with names of their own, errors of one line."""

import os
import secrets
import sys
from collections.abc import Callable

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException

from seedbed.config import hydra_errors, launchers
from seedbed.errors import InputError

_at_end: list[Callable[[bool], bool]] = []


def at_end(work: Callable[[bool], bool]) -> None:
    """Have something done when the command ends, however it does.

    Args:
        work: is given whether an exception ended the command; returns whether jobs failed.
    """
    _at_end.append(work)


def run(main: Callable[[], object]) -> int:
    """Run Hydra's main function for this command line; return the exit status.

    Raises:
        InputError: Hydra or a launcher cannot do what is asked for; in one line.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us instead of being printed
    sys.argv[1:] = name_uniquely(sys.argv[1:])
    try:
        try:
            main()
        finally:
            ended_early = sys.exception() is not None
            jobs_failed = any(work(ended_early) for work in _at_end)
    except Exception as error:
        explained = explain(error)
        if explained is not None:
            raise explained from error
        if not launchers.ends_a_search(error):
            raise
        jobs_failed = True  # the last one
    return 1 if jobs_failed else 0


def name_uniquely(arguments: list[str]) -> list[str]:
    """Return a command line with the part of the run folder's name that no other run has.

    It is an override, and not a resolver, because launchers compose the configuration again in
    other processes and on other machines. Options come first: Hydra's parser wants the overrides
    together, wherever people put them.
    """
    overrides = [w for w in arguments if not w.startswith("-") and ("=" in w or w[:1] == "~")]
    options = [argument for argument in arguments if argument not in overrides]
    # Quoted, because 58e12345 would be read as a number: infinity, in every such name.
    unique = f"+hydra.job.env_set.SEEDBED_RUN='{secrets.token_hex(4)}'"
    return [*options, *overrides, unique, *name_by_what_varies(overrides)]


def name_by_what_varies(overrides: list[str]) -> list[str]:
    """Return the override that keeps what is the same in all jobs out of their folders' names."""
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except OverrideParseException:
        return []  # Hydra will explain what is wrong with it
    hydra_errors.refuse(parsed)
    fixed = sorted({each.key_or_group for each in parsed if not each.is_sweep_override()})
    return [f"hydra.job.config.override_dirname.exclude_keys=[{','.join(fixed)}]"] if fixed else []


def explain(error: Exception) -> InputError | None:
    """Return in one line what Hydra or a launcher could not do; None if it was neither."""
    if isinstance(error, hydra_errors.COMPOSITION_ERRORS):
        return hydra_errors.explain(error)
    explained = launchers.explain(error)
    if (
        explained is None
        and hydra_errors.is_of_hydra(error)
        and isinstance(error, ValueError | AssertionError)
    ):
        return hydra_errors.explain(error)
    if explained is None and isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return InputError(  # from Hydra, which makes the folders
            f"hydra.run.dir: expected a folder that can be written, got {error.strerror} for "
            f"{error.filename}; choose another, or free space"
        )
    return explained
