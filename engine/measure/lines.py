"""Count the lines of each room of the engine, and of the tests and the docs, beside their budgets.

usage: python measure/lines.py

A room that is over its budget may not grow: OVER holds its lines, and whoever makes it smaller
lowers the number. `make -C engine lint` runs this.

exit status: 0 all are within their budgets or have not grown, 1 one has
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "engine/src/seedbed"
# At most so many lines, blank ones and docstrings included.
BUDGETS = {
    "single files": 850,
    "config": 650,
    "launch, worker": 1520,
    "training": 1500,
    "data": 850,
    "record": 700,
    "determinism": 330,
    "operations": 250,
    "distributed, loggers": 570,
    "compare": 750,
    "explain, probe": 970,
    "sweeps": 700,
    "recorder, integrations": 770,
    "tools": 230,
    "cli": 400,
}
# Rooms over their budget, and how many lines they have.
OVER: dict[str, int] = {
    "single files": 1528,
    "config": 942,
    "launch, worker": 2411,
    "training": 2134,
    "data": 1062,
    "record": 1081,
    "tools": 248,
    "engine": 14011,
    "engine/tests": 15607,
    "engine/measure": 1139,
}
TEMPLATE = ["train.py", "scripts", "configs", "src", "tests", "Makefile", "pyproject.toml"]
OTHERS = {
    "template": (2500, TEMPLATE),
    "engine/tests": (12000, ["engine/tests/*.py"]),
    "engine/measure": (1000, ["engine/measure/*.py"]),
}


def main() -> int:
    """Print the table; return the exit status."""
    rows = [(room, count(*places_of(room)), budget) for room, budget in BUDGETS.items()]
    rows.append(("engine", sum(row[1] for row in rows), 11000))
    rows += [(name, count(*places), budget) for name, (budget, places) in OTHERS.items()]
    listed = re.findall(r"`((?:\.\./|src/)[\w/]+\.(?:py|yaml))`", text("engine/README.md"))
    to_read = sum(len((ROOT / "engine" / path).read_text().splitlines()) for path in listed)
    words = sum(len(text(path).split()) for path in tracked("*.md") if "CHANGELOG" not in path)
    rows.append(("words of docs", words, 15000))
    grown = False
    for name, lines, budget in rows:
        mark = "" if lines <= budget else "  over"
        if lines > max(budget, OVER.get(name, 0)):
            mark, grown = f"  TOO MANY: at most {max(budget, OVER.get(name, 0)):,}", True
        print(f"{lines:7,} of {budget:6,}  {name}{mark}")
    print(f"{to_read:7,} of  4,000  to trust the bits of a run (README.md)")
    return int(grown)


def places_of(room: str) -> list[str]:
    """Return where the files of a room are, as patterns of git."""
    if room == "single files":
        return [f":(glob){SOURCE}/*.py"]
    return [f"{SOURCE}/{name}/*.py" for name in room.split(", ")]


def count(*places: str) -> int:
    """Return the lines of the tracked text files at some places."""
    return sum(len(text(path).splitlines()) for path in tracked(*places))


def tracked(*places: str) -> list[str]:
    """Return the files that git tracks at some places."""
    words = ["git", "ls-files", "--", *places]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def text(path: str) -> str:
    """Return the text of a file; of one that was deleted, none."""
    file = ROOT / path
    return file.read_text() if file.is_file() else ""


if __name__ == "__main__":
    sys.exit(main())
