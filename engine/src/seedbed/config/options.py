"""What the command lines of scripts/ have in common: help, options, files that they write."""

import argparse
from pathlib import Path
from typing import Any, NoReturn

from seedbed import record
from seedbed.errors import InputError


class Parser(argparse.ArgumentParser):
    """A command line whose help is the command's docstring, which explains every option."""

    def __init__(self, help_text: str | None) -> None:
        super().__init__(allow_abbrev=False)
        self._help = help_text or ""

    def format_help(self) -> str:
        """Return the docstring."""
        return self._help

    def error(self, message: str) -> NoReturn:
        """Raise InputError for a command line that cannot be read."""
        raise InputError(f"{message}; see --help")

    def add(self, *names: str, **how: Any) -> "Parser":
        """Add an argument or an option; return the parser."""
        self.add_argument(*names, **how)
        return self

    def add_flags(self, *names: str) -> "Parser":
        """Add options without a value; return the parser."""
        for name in names:
            self.add_argument(name, action="store_true")
        return self

    def add_trust(self) -> "Parser":
        """Add --trust NAME and --online: what a record may do beyond what this checkout does."""
        return self.add("--trust", action="append", default=[]).add_flags("--online")


def output(name: str) -> Path:
    """Return an argument as a file that may be written: in a folder that is there, and no run's."""
    out = Path(name).resolve()
    run = next(filter(record.is_begun, out.parents), None)
    if run is not None:
        raise InputError(f"{name}: expected a file outside run folders, got one in {run}")
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(f"{name}: expected a file in a folder that is there, got none; create it")
    return out


def write(out: Path, content: str) -> None:
    """Write such a file, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    try:
        record.write_atomically(out, content)
    except OSError as error:
        raise InputError(
            f"{out}: expected a file that can be written, got {error.strerror}; name another"
        ) from None
