"""Files of code that only callbacks and loggers use, which change no bit of a run."""

import ast
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath

from seedbed.record import files
from seedbed.record.code import ELSEWHERE, Origin, read_here

_SECTIONS = ("callbacks", "logger")
# A file with one of these words may import modules by names that it computes.
_DYNAMIC = {"importlib", "import_module", "__import__", "pkgutil", "runpy", "exec"}
# For each file of the project's code, the files that have its module's name in them.
_Mentions = Mapping[str, Collection[str]]


def observing(names: Iterable[str], *origins: Origin) -> set[str]:
    """Return the files in code.zip, of these, that are of callbacks or loggers alone,
    in each of the runs: they have such a class, or are named in a file of one.

    So neither another section of the settings nor another file of the project's code
    may have the module's name in it, in whatever meaning, or import by names that it
    computes. And the file may import none that training uses, which it could change: an
    edit of what others may use counts.
    """
    remaining = {name for name in names if not name.startswith(f"{ELSEWHERE}/")}
    used = set[str]()
    for origin in origins if remaining else ():
        texts = _project_texts(origin)
        mentions = _mentions(texts, remaining)
        observers = _reached(origin, texts, mentions)
        of_others = _words_of_others(origin)
        used |= observers
        # One that a run has not imported may not be named in it, either.
        remaining = {
            name
            for name in remaining
            if name in observers
            or not (name in texts or mentions[name] or _module(name) in of_others)
        }
    return remaining & used


def _reached(
    origin: Origin, texts: Mapping[str, str | None], mentions: _Mentions
) -> set[str]:
    """Return the files that callbacks and loggers reach, and nothing else names."""
    sections = {key: origin.settings.get(key) for key in _SECTIONS}
    targets = {text.rpartition(".")[0] for text in files.texts(sections)}
    of_others = _words_of_others(origin)
    imports = {file: _imports(text) for file, text in texts.items()}
    remaining = {file for file in texts if _module(file) not in of_others}
    while True:
        reached = {file for file in remaining if _import_path(file) in targets}
        size = -1
        while size != len(reached):
            size = len(reached)
            reached |= {f for f in remaining if not reached.isdisjoint(mentions[f])}
        of_training = {_module(file) for file in texts if file not in reached}
        kept = {
            file
            for file in reached
            if reached.issuperset(mentions[file])
            and (names := imports[file]) is not None
            and names.isdisjoint(of_training)
        }
        if kept == remaining:
            return kept
        remaining = kept


def _project_texts(origin: Origin) -> Mapping[str, str | None]:
    """Return the project's files that a run imported; None for one that is nowhere."""
    texts: dict[str, str | None] = {}
    for file in origin.imported:
        if not file.startswith(f"{ELSEWHERE}/"):
            content = origin.files.get(file)
            if content is None:
                content = read_here(file)
            texts[file] = None if content is None else content.decode(errors="replace")
    return texts


def _mentions(texts: Mapping[str, str | None], names: Collection[str]) -> _Mentions:
    words = {
        file: None if text is None or _DYNAMIC & (known := _words(text)) else known
        for file, text in texts.items()
    }
    return {
        file: {
            other
            for other, names in words.items()
            if other != file and (names is None or _module(file) in names)
        }
        for file in {*texts, *names}
    }


def _imports(text: str | None) -> set[str] | None:
    """Return the parts of the names of modules that a file imports; None if they cannot
    be known."""
    if text is None or _DYNAMIC & _words(text):
        return None
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError, RecursionError):
        return None
    names = [
        each.name
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names
    ]
    names += [
        node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module
    ]
    return {part for name in names for part in name.split(".")}


def _words_of_others(origin: Origin) -> Collection[str]:
    """Return the words in settings of other sections than those of observers."""
    others = {k: v for k, v in origin.settings.items() if k not in _SECTIONS}
    return {word for text in files.texts(others) for word in _words(text)}


def _words(text: str) -> set[str]:
    # NFKC: as Python reads names
    return set(re.findall(r"\w+", unicodedata.normalize("NFKC", text)))


def _module(file: str) -> str:
    return PurePosixPath(file).stem


def _import_path(file: str) -> str:
    return file.removeprefix("src/").removesuffix(".py").replace("/", ".")
