"""The code to replay a run with: this checkout, or a record's code.zip, extracted temporarily."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from seedbed import project
from seedbed.errors import InputError
from seedbed.record import Origin, archive, code


@dataclass(frozen=True)
class Tree:
    """Code that training processes import."""

    root: Path  # of the project
    variables: dict[str, str] = field(default_factory=dict)  # environment variables to import it
    is_recorded: bool = True  # extracted from a record, not this checkout

    @property
    def places(self) -> list[Path]:
        """Where code that was extracted from a record is imported from; [] for this checkout."""
        return [self.root / place for place in code.PLACES] if self.is_recorded else []


def here() -> Tree:
    return Tree(project.root(), is_recorded=False)


@contextmanager
def code_of(of: Origin, wanted: bool) -> Iterator[Tree]:
    """Yield the code to replay a run with: its code.zip if `wanted`, else this checkout."""
    if not wanted:
        yield here()
        return
    if of.archive is None:
        raise InputError(
            f"{of.folder}: expected {code.ARCHIVE}, got none; replay without --restore-code"
        )
    if (name := of.unlike_archive()) is not None:
        raise InputError(
            f"{of.archive}: expected the files in imported_files of environment.json, got another "
            f"{name}; replay with code that you have: without --restore-code"
        )
    with TemporaryDirectory(prefix="seedbed-code-") as folder:
        root = Path(folder).resolve()
        archive.extract(of.archive, root)
        path = os.pathsep.join(str(root / place) for place in code.PLACES)
        yield Tree(root, {code.PATH: path, "PYTHONSAFEPATH": "1", project.PROJECT: str(root)})
