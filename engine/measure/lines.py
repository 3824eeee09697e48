"""Count the lines of each room of the engine, of tests and docs, against their budgets.

usage: python engine/measure/lines.py

A room (a group of packages) over its budget may not grow: OVER holds its number of lines, to be
lowered when it shrinks. `make -C engine lint` runs this.

exit status: 0 all are within their budgets or have not grown, 1 one has grown
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "engine/src/seedbed"
# Maximum numbers of lines, including blank lines and docstrings.
BUDGETS = {
    "single files": 850, "config": 650, "launch, worker": 1520, "training": 1500, "data": 850,
    "record": 700, "determinism": 330, "operations": 250, "distributed, loggers": 570,
    "compare": 750, "explain": 620, "probe": 350, "sweeps": 700, "recorder, integrations": 770,
    "tools": 230, "cli": 400,
}  # fmt: skip
# Rooms over their budget, and their numbers of lines.
OVER: dict[str, int] = {
    "single files": 1374,
    "config": 751,
    "launch, worker": 2079,
    "training": 1921,
    "record": 945,
    "engine": 12555,
}
TEMPLATE = ["train.py", "scripts", "configs", "src", "tests", "Makefile", "pyproject.toml"]


def main() -> int:
    """Print the table; return the exit status."""
    rows = []
    for room, budget in BUDGETS.items():
        places = [f"{SOURCE}/{name}/*.py" for name in room.split(", ")]
        if room == "single files":
            places = [f":(glob){SOURCE}/*.py"]
        rows.append((room, count(*places), budget))
    rows.append(("engine", sum(row[1] for row in rows), 11000))
    others = [row[1] for row in rows[list(BUDGETS).index("compare") : -1]]
    rows.append(("compare to cli, loading.py", sum(others, count(f"{SOURCE}/loading.py")), 3700))
    rows.append(("template", count(*TEMPLATE), 2500))
    rows.append(("tests, engine/tests", count("tests/*.py", "engine/tests/*.py"), 12000))
    rows.append(("engine/measure", count("engine/measure/*.py"), 1000))
    words = sum(len(text.split()) for text in texts("*.md", ":!*CHANGELOG*"))
    rows.append(("words of docs", words, 15000))
    grown = False
    for name, lines, budget in rows:
        mark, most = "" if lines <= budget else "  over", max(budget, OVER.get(name, 0))
        if lines > most:
            mark, grown = f"  TOO MANY: at most {most:,}", True
        print(f"{lines:7,} of {budget:6,}  {name}{mark}")
    readme = (ROOT / "engine/README.md").read_text()
    listed = re.findall(r"`((?:\.\./|src/)[\w/]+\.(?:py|yaml))`", readme)
    to_read = sum(len((ROOT / "engine" / path).read_text().splitlines()) for path in listed)
    print(f"{to_read:7,} of  4,000  to trust the bits of a run (README.md)")
    return int(grown)


def count(*places: str) -> int:
    return sum(len(text.splitlines()) for text in texts(*places))


def texts(*places: str) -> list[str]:
    """Return the text of each file that git tracks at some places, except deleted ones."""
    words = ["git", "ls-files", "--", *places]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    return [(ROOT / path).read_text() for path in listed if (ROOT / path).is_file()]


if __name__ == "__main__":
    sys.exit(main())
