"""Run git independently of the user's environment and configuration."""

import os
import re
import subprocess
from pathlib import Path

# Settings of users that would change what git finds, writes or runs for us.
_OPTIONS = {
    "apply.ignoreWhitespace": "no",
    "core.attributesFile": os.devnull,
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.ignoreStat": "false",
    "core.safecrlf": "false",
}


def run(
    root: Path, *arguments: str, variables: dict[str, str] | None = None, stdin: bytes = b""
) -> bytes | None:
    """Return what a git command prints in a folder; None if it fails or git is not installed."""
    try:
        done = call(root, *arguments, variables=variables, stdin=stdin)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def call(
    root: Path, *arguments: str, variables: dict[str, str] | None = None, stdin: bytes = b""
) -> "subprocess.CompletedProcess[bytes]":
    """Run a git command in a folder.

    Raises:
        OSError: git is not installed.
    """
    # The code of this very checkout is running, so its owner is trusted already.
    options = {**_OPTIONS, "safe.directory": str(root)}
    words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    return subprocess.run(
        ["git", "-C", str(root), *words, *arguments],
        capture_output=True,
        check=False,
        input=stdin,
        env=environment() | (variables or {}),
    )


def environment() -> dict[str, str]:
    """Return the environment variables for git: none that name another repository or settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    ours = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_LITERAL_PATHSPECS": "1"}
    return kept | ours | {"LC_ALL": "C"}


def optional_filters(root: Path) -> list[str]:
    """Return options under which a file whose filter fails is taken as it is."""
    required = run(root, "config", "-z", "--name-only", "--get-regexp", r"^filter\..*\.required$")
    names = [os.fsdecode(name) for name in (required or b"").split(b"\0") if name]
    return [word for name in names for word in ("-c", f"{name}=false")]


def names(listing: bytes | None) -> list[str]:
    """Return the file names of a list with `-z`."""
    return [os.fsdecode(name) for name in (listing or b"").split(b"\0") if name]


def printable(name: str) -> str:
    """Return a file's name as a record holds it: on one line, in any encoding."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


def sections(patch: bytes) -> list[tuple[str, bytes]]:
    """Return (path, section) of each file of a patch that `git diff --no-renames` made."""
    found = []
    for section in (b"\n" + patch).split(b"\ndiff --git ")[1:]:
        line = section.partition(b"\n")[0]
        side = line[: (len(line) - 1) // 2]  # a/PATH b/PATH, with the same path twice
        path = _unquoted(side[1:-1]) if side.startswith(b'"') else side
        found.append((printable(os.fsdecode(path[2:])), section))
    return found


_ESCAPES = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t",
            b"v": b"\v", b"\\": b"\\", b'"': b'"'}  # fmt: skip


def _unquoted(text: bytes) -> bytes:
    return re.sub(
        rb'\\([0-3][0-7]{2}|[abfnrtv"\\])',
        lambda found: _ESCAPES.get(found[1]) or bytes([int(found[1], 8)]),
        text,
    )
