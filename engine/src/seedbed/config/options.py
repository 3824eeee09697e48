"""Shared parts of the command lines in scripts/: help, options, output files."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from seedbed import record
from seedbed.errors import InputError, printable

_COMMON = {
    "--json": "print one JSON document instead",
    "--explain": (
        "replay the first step that differs, and name the first operation that does"
    ),
    "--restore-code": "replay with the code.zip of the record, which runs its code",
    "--trust": (
        "a class, a package with all that it defines, or an environment variable "
        "(determinism.env.NAME), that is not as files of configs/ say"
    ),
    "--online": "open addresses that a record names: mirrors, downloads",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose help begins with the command's docstring."""

    def __init__(self, description: str | None) -> None:
        super().__init__(
            description=description,
            epilog="exit status: 0 success; 1 runs differ or failed; 2 usage error",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see --help")

    def add(self, *names: str, **how: Any) -> "Parser":
        self.add_argument(*names, **how)
        return self

    def add_common(self, *names: str) -> "Parser":
        for name in names:
            how: dict[str, Any] = {"action": "store_true"}
            if name == "--trust":
                how = {"action": "append", "default": [], "metavar": "NAME"}
            self.add_argument(name, help=_COMMON[name], **how)
        return self

    def add_for_checkpoints(self) -> "Parser":
        """Add what all commands take that use the saved weights of a run."""
        kept = (
            "best, last, or the step of one that was kept (trainer.keep_best,"
            " keep_checkpoint_...)"
        )
        self.add("--checkpoint", metavar="NAME", default="best", help=kept)
        allow = "exit with status 0 although code or data changed since the record"
        self.add("--allow-changed", action="store_true", help=allow)
        return self.add_common("--json", "--trust", "--online", "--restore-code")


def output(name: str) -> Path:
    """Return an output path; raise InputError unless it is in an existing folder
    outside runs."""
    out = Path(name).resolve()
    if out.is_dir() or not out.parent.is_dir() or any(map(record.is_run, out.parents)):
        raise InputError(
            f"{name}: expected a file in an existing folder outside runs, got another"
        )
    return out


def write(out: Path, content: str | bytes) -> None:
    try:
        record.write_atomically(out, content)
    except OSError as error:
        raise InputError(
            f"{out}: expected a writable file, got {error.strerror}"
        ) from None


def show(lines: Iterable[str]) -> None:
    """Print lines as they come, with control characters escaped: records may be
    untrusted."""
    for line in lines:
        print(printable(line), flush=True)
