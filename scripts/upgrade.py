"""Stage another version of the engine: python scripts/upgrade.py FROM PATH...

Below the given paths, files of the version that this checkout has are replaced by those
of FROM, a commit of Seedbed. Files that you added there stay, and files that you
deleted are not added again. docs/ names the package of pyproject.toml. `git commit`
keeps the result; `git merge --abort` undoes it.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# As in src/project, `_target_: project.data.x` and --trust project.
NAMED = re.compile(r"(?<=src/)project\b|\bproject(?=\.[a-z])|(?<=--trust )project\b")
SHOWN = 8  # files in a list


def main() -> int:
    """Stage the upgrade; return the exit status."""
    source, *paths = sys.argv[1:]
    if git("status", "--porcelain", "--untracked-files=no"):
        return refuse(
            "checkout: expected no uncommitted changes; commit them, or git stash"
        )
    try:
        new_commit = git(
            "rev-parse", "--verify", "--quiet", f"{source}^{{commit}}"
        ).strip()
        old_commit = git("merge-base", "HEAD", new_commit).strip()
    except subprocess.CalledProcessError:
        return refuse(
            "FROM: expected a branch of Seedbed that shares history with this"
            f" checkout, got {source}; git remote add seedbed URL && git fetch seedbed"
        )
    if old_commit == new_commit:
        print(f"nothing to upgrade: this checkout has the engine of {source}")
        return 0
    old = files_of(old_commit, paths)
    new = files_of(new_commit, paths)
    mine = files_of("HEAD", paths)
    added = mine.keys() - old.keys()
    if both := sorted(name for name in added & new.keys() if mine[name] != new[name]):
        return refuse(
            f"{', '.join(both[:SHOWN])}: a file of yours, which {source} has, too;"
            " rename yours, then upgrade"
        )
    untracked = git("ls-files", "--others", "--", *paths).splitlines()
    if both := sorted(new.keys() & set(untracked)):
        return refuse(
            f"{', '.join(both[:SHOWN])}: {source} would overwrite it; move it"
        )
    deleted = old.keys() - mine.keys()
    git("merge", "--quiet", "-s", "ours", "--no-commit", new_commit)
    if gone := sorted((old.keys() & mine.keys()) - new.keys()):
        git("rm", "--quiet", "--force", "--", *gone)
    git("checkout", new_commit, "--", *sorted(new.keys() - deleted))
    rename_package()
    git("add", "docs")
    edited = sorted(
        name for name in old.keys() & mine.keys() if is_edited(old, mine, name)
    )
    report("your edits were replaced in", edited)
    report("your files stay", sorted(added - new.keys()))
    print(f"staged the engine of {source}: make install test, then git commit")
    return 0


def refuse(line: str) -> int:
    print(f"error: {line}", file=sys.stderr)
    return 2


def git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def files_of(commit: str, paths: list[str]) -> dict[str, str]:
    """Return the files of a commit below some paths, with their blobs."""
    listed = git("ls-tree", "-r", "-z", "--full-tree", commit, "--", *paths)
    entries = [entry.partition("\t") for entry in listed.split("\0") if entry]
    return {name: about.split()[2] for about, _, name in entries}


def is_edited(old: dict[str, str], mine: dict[str, str], name: str) -> bool:
    """Return whether a file was edited here; the names of the package in docs/ do not
    count."""
    if old[name] == mine[name]:
        return False
    package = package_name()
    before = git("cat-file", "blob", old[name])
    return not name.startswith("docs/") or NAMED.sub(package, before) != git(
        "show", mine[name]
    )


def report(title: str, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        print(f"{title}: {', '.join(names[:SHOWN])}{more}")


def package_name() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["name"])


def rename_package() -> None:
    """Let docs/ name the package of pyproject.toml instead of `project`."""
    name = package_name()
    for path in sorted((ROOT / "docs").rglob("*.md")):
        path.write_text(NAMED.sub(name, path.read_text()))


if __name__ == "__main__":
    sys.exit(main())
