"""Let docs/ name the package of pyproject.toml instead of `project`; called by make upgrade."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# As in src/project, `_target_: project.data.x` and --trust project.
NAMED = re.compile(r"(?<=src/)project\b|\bproject(?=\.[a-z])|(?<=--trust )project\b")


def main() -> None:
    name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
    for path in sorted((ROOT / "docs").rglob("*.md")):
        path.write_text(NAMED.sub(name, path.read_text()))


if __name__ == "__main__":
    main()
