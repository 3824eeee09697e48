"""Caches that the build of data sets makes from random draws, and later builds read.

A file that a build writes after it has drawn from the global generators is noted with the seed in
`.seedbed/caches.jsonl` of the project. A class that draws from generators of its own is not seen.
"""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from seedbed import project, rng
from seedbed.record import files

_MOST_BYTES = 256 << 20  # of a file that is hashed
_READ, _WRITTEN, _MADE = range(3)  # made: written after random numbers were drawn
_opened: dict[str, int] = {}  # what builds in this process did with each file
_began: list[int] = []  # the state of the generators when the build in progress began
_listen = cache(sys.addaudithook)  # a hook cannot be removed, so it is added once


@contextmanager
def noticed() -> Iterator[None]:
    """Note the files of the project and of Hugging Face's caches that a build opens."""
    _listen(_audit)
    save: Any = torch.save

    def noted(obj: Any, f: Any, *args: Any, **options: Any) -> None:
        _note(f, True)  # torch opens it without Python, so there is no event
        save(obj, f, *args, **options)

    _began.append(rng.state())
    torch.save = noted
    try:
        yield
        with suppress(OSError):  # files that Arrow or NumPy have mapped, without an event
            for line in Path("/proc/self/maps").read_text().splitlines():
                _note(line.split(maxsplit=5)[-1], False)
    finally:
        torch.save = save
        _began.pop()


def check(seed: int) -> tuple[dict[str, str], list[str]]:
    """Note the caches that builds made with a seed; return digests, and warnings of other seeds."""
    registry = project.root() / ".seedbed" / "caches.jsonl"
    seeds: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    with suppress(OSError, ValueError, TypeError):
        for path, digest, of in map(json.loads, registry.read_text().splitlines()):
            seeds[path][digest].add(of)
    digests, lines, new = {}, [], ""
    for path, done in sorted(_opened.items()):
        size = os.path.getsize(path) if os.path.isfile(path) else 0
        if not size or done == _WRITTEN or (done == _READ and path not in seeds):
            continue
        is_small = size <= _MOST_BYTES  # else it would take seconds at every start
        digest = files.of_file(path) if is_small else f"{size} bytes of {os.path.getmtime(path)}"
        digests[path], others = digest, seeds[path][digest]
        if done == _MADE and seed not in others:
            new += json.dumps([path, digest, seed]) + "\n"
        elif others and seed not in others:
            lines.append(
                f"warning: data: {path} was made with seeds.data={min(others)}, and is read with "
                f"{seed}; delete it, or put the seed into its name"
            )
    try:
        if new:
            registry.parent.mkdir(exist_ok=True)
            with registry.open("a") as file:
                file.write(new)
    except OSError as error:
        lines.append(f"{registry}: seeds of caches are not noted: {error.strerror}")
    return digests, lines


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _began and event == "open":
        _note(args[0], bool(args[2] & (os.O_WRONLY | os.O_RDWR)))
    elif _began and event == "os.rename":
        _note(args[1], True)


def _note(path: Any, writes: bool) -> None:
    if not isinstance(path, str | bytes | os.PathLike):
        return
    name = os.path.abspath(os.fsdecode(path))
    caches = os.path.expanduser(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    is_ours = name.startswith((f"{project.root()}/", f"{caches}/"))
    if is_ours and "__pycache__" not in name and not project.is_installed(name):
        done = _READ if not writes else _WRITTEN if rng.state() == _began[-1] else _MADE
        _opened[name] = max(done, _opened.get(name, _READ))
