"""Files of code that only callbacks and loggers use, which change no bit of a run."""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from seedbed.record.code import ELSEWHERE, Origin, read_here

_SECTIONS = ("callbacks", "logger")
# For each file of the project's code, the files that have its module's name in them.
_Mentions = Mapping[str, Collection[str]]


def is_observing(name: str, *origins: Origin) -> bool:
    """Return whether a file in code.zip is of callbacks or loggers alone, in each of
    the runs: it has such a class, or is named in a file of one.

    So neither another section of the settings nor another file of the project's code
    may have the module's name in it, in whatever meaning: an edit of what others may
    use counts.
    """
    if name.startswith(f"{ELSEWHERE}/"):
        return False
    is_used = False
    for origin in origins:
        mentions = _mentions(origin, name)
        observing = _observing(origin, mentions)
        if name in observing:
            is_used = True
        elif mentions[name] or _module(name) in _words_of_others(origin):
            return False
    return is_used


def _observing(origin: Origin, mentions: _Mentions) -> Collection[str]:
    """Return the files that callbacks and loggers reach, and nothing else names."""
    sections = {key: origin.settings.get(key) for key in _SECTIONS}
    targets = {text.rpartition(".")[0] for text in _texts(sections)}
    of_others = _words_of_others(origin)
    remaining = {file for file in mentions if _module(file) not in of_others}
    while True:
        reached = {file for file in remaining if _import_path(file) in targets}
        size = -1
        while size != len(reached):
            size = len(reached)
            reached |= {f for f in remaining if not reached.isdisjoint(mentions[f])}
        kept = {file for file in reached if reached.issuperset(mentions[file])}
        if kept == remaining:
            return kept
        remaining = kept


def _mentions(origin: Origin, name: str) -> _Mentions:
    words: dict[str, Collection[str] | None] = {}
    for file in origin.imported:
        if not file.startswith(f"{ELSEWHERE}/"):
            content = origin.files.get(file)
            if content is None:
                content = read_here(file)
            # None: it cannot be read, and may name any
            text = None if content is None else content.decode(errors="replace")
            words[file] = None if text is None else _words(text)
    files = {*words, name}
    return {
        file: {
            other
            for other, names in words.items()
            if other != file and (names is None or _module(file) in names)
        }
        for file in files
    }


def _words_of_others(origin: Origin) -> Collection[str]:
    """Return the words in settings of other sections than those of observers."""
    others = {k: v for k, v in origin.settings.items() if k not in _SECTIONS}
    return {word for text in _texts(others) for word in _words(text)}


def _words(text: str) -> Collection[str]:
    return set(re.findall(r"\w+", text))


def _module(file: str) -> str:
    return PurePosixPath(file).stem


def _import_path(file: str) -> str:
    return file.removeprefix("src/").removesuffix(".py").replace("/", ".")


def _texts(tree: Any) -> Iterator[str]:
    """Yield all texts in nested mappings and lists: some are names of classes or
    functions."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list):
        for value in tree:
            yield from _texts(value)
    elif isinstance(tree, str):
        yield tree
