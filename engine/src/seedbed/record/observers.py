"""Files of code that only callbacks and loggers use, which change no bit of a run."""

import re
from collections.abc import Iterator
from typing import Any

from seedbed.record.code import ELSEWHERE, Origin, read_here

_SECTIONS = ("callbacks", "logger")


def is_observing(name: str, *origins: Origin) -> bool:
    """Return whether a file in code.zip is of callbacks or loggers alone, in each of
    the runs.

    So neither another section of the settings nor another file of the project's code
    may have the module's name in it, in whatever meaning: an edit of what others may
    use counts.
    """
    module = name.removeprefix("src/").removesuffix(".py").replace("/", ".")
    if module.startswith(ELSEWHERE):
        return False
    is_named = False
    word = re.compile(rf"\b{re.escape(module.rpartition('.')[2])}\b")
    for origin in origins:
        observers = {key: origin.settings.get(key) for key in _SECTIONS}
        targets = [each.rpartition(".")[0] for each in _targets(observers)]
        is_named = is_named or module in targets
        others = {
            key: value for key, value in origin.settings.items() if key not in _SECTIONS
        }
        if any(word.search(target) for target in _targets(others)):
            return False
        for other in origin.imported:
            of_observer = (
                other.removeprefix("src/").removesuffix(".py").replace("/", ".")
            )
            if other == name or other.startswith(ELSEWHERE) or of_observer in targets:
                continue
            content = origin.files.get(other) or read_here(other)
            if content is None or word.search(content.decode(errors="replace")):
                return False
    return is_named


def _targets(tree: Any) -> Iterator[str]:
    """Yield all texts in nested mappings and lists: some are names of classes or
    functions."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list):
        for value in tree:
            yield from _targets(value)
    elif isinstance(tree, str):
        yield tree
