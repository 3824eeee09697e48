"""The page of measured figures: each program replaces its own section of it."""

import datetime
import re
import sys
from pathlib import Path

from seedbed import compare, project, record
from seedbed.errors import InputError


def write_section(name: str, tables: list[str], of: compare.Record) -> None:
    """Replace what stands between `<!-- NAME -->` and `<!-- end of NAME -->` in docs/measured.md.

    Args:
        tables: Markdown, each with its title.
        of: a run that was measured, for machine and versions.

    Raises:
        InputError: the page does not have these two lines once.
    """
    page = project.root() / "docs" / "measured.md"
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    old = page.read_text()
    if old.count(start) != 1 or old.count(end) != 1:
        raise InputError(f"{page}: expected the lines {start.strip()} and {end.strip()}")
    command = " ".join(["python", f"engine/measure/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    measured = f"`{command}`, {datetime.date.today().isoformat()}, {machine(of)}."
    text = "\n\n".join([measured, *tables])
    between = re.compile(f"{re.escape(start)}.*{re.escape(end)}", re.DOTALL)
    page.write_text(between.sub(lambda _: f"{start}{text}\n{end}", old))
    print(page)


def machine(of: compare.Record) -> str:
    """Return what a run ran on, in a few words."""
    found = record.flatten(of.origin.environment)
    gpu = f"{found['gpu.0.name']}, " if "gpu.0.name" in found else ""
    return (
        f"{gpu}{found['cpu.model']} ({found['cpu.cores']} cores, {found['cpu.capability']}, "
        f"{found['cpu.threads']} threads in use), {found['platform']}, "
        f"Python {found['versions.python']}, torch {found['versions.torch']}"
    )
