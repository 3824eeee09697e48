"""Names in a configuration that a module or a class does not have.

Classes are looked for without importing anything, so a wrong name is refused before there is a run
folder, and without waiting for PyTorch. What is made while a module is imported cannot be seen; the
training process finds those when it imports.
"""

import ast
import difflib
import inspect
import re
import sys
from collections.abc import Container, Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed.errors import InputError
from seedbed.names import flatten

# A module that has one of these may define names that its text does not show.
_HIDES = re.compile(r"import \*|\b(__getattr__|__path__|globals|setattr|exec|sys\.modules)\b")


def require_defined(config: DictConfig) -> None:
    """Raise InputError for a `_target_` whose module can be read, and does not define it."""
    for key, target in flatten(OmegaConf.to_container(config)).items():
        if key.rpartition(".")[2] != "_target_":
            continue
        module, _, name = str(target).rpartition(".")
        file = source_of(module) if module else None
        names = defined(file) if file else None
        if not module or (names is not None and name not in names and source_of(str(target))):
            raise InputError(
                f"{key}: expected a class, got {target}, which is a module; name a class in it, "
                f"such as {target}.{_a_class(source_of(str(target)))}"
            )
        if names is not None and name not in names and not _is_module(file, name):
            close = difflib.get_close_matches(name, names, n=1)
            raise InputError(
                f"{key}: expected a class of {file}, got {target}; "
                + (f"did you mean {close[0]}" if close else "check its spelling")
            )


def require_installed(config: DictConfig, root: Path) -> None:
    """Raise InputError for a `_target_` of a package that is neither installed nor below `root`."""
    for key, target in flatten(OmegaConf.to_container(config)).items():
        package = str(target).partition(".")[0]
        if key.rpartition(".")[2] == "_target_" and not _is_there(package, root):
            raise InputError(
                f"{key}: expected a class of an installed package, got {target}; install "
                f"{package}, or correct the name"
            )


def _is_there(package: str, root: Path) -> bool:
    try:
        return find_spec(package) is not None or bool(PathFinder.find_spec(package, [str(root)]))
    except (ImportError, ValueError):  # a module that was made: it is there
        return package in sys.modules


def require_known(
    signature: inspect.Signature, target: Any, key: str, arguments: Iterable[str]
) -> None:
    """Raise InputError for a name that is no argument, maybe a typo of a required one."""
    takes = signature.parameters
    if any(one.kind is one.VAR_KEYWORD for one in takes.values()):
        return
    for name in arguments:
        if name not in takes:
            close = difflib.get_close_matches(name, takes, n=1)
            raise InputError(
                f"{key}.{name}: expected an argument of {target.__name__} ({', '.join(takes)}), "
                f"got another; {f'did you mean {close[0]}' if close else 'leave it out'}"
            )


def require_given(
    signature: inspect.Signature, target: Any, key: str, count: int, arguments: Container[str]
) -> None:
    """Raise InputError for arguments without a default that are not given.

    Args:
        count: how many are given by position.
    """
    lacking = [
        one.name
        for one in list(signature.parameters.values())[count:]
        if one.default is one.empty
        and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        and one.name not in arguments
    ]
    if lacking:
        raise InputError(
            f"{key}: expected the arguments of {target.__name__}, got no {', no '.join(lacking)}; "
            f"add a line to its YAML file, or say +{key}.{lacking[0]}=VALUE"
        )


def _a_class(file: Path | None) -> str:
    """Return the name of the first class that a module defines, or what to put in its place."""
    lacking = "MODULE.CLASS" if file is None or file.name == "__init__.py" else "CLASS"
    nodes = _tree(file.read_bytes(), file).body if file else []
    return next((node.name for node in nodes if isinstance(node, ast.ClassDef)), lacking)


def _tree(code: bytes, file: Path) -> ast.Module:
    try:
        return ast.parse(code)
    except SyntaxError as error:
        raise InputError(
            f"{file}:{error.lineno}: expected Python, got a {type(error).__name__} ({error.msg}); "
            "correct it"
        ) from None


def source_of(module: str) -> Path | None:
    """Return the Python file of a module; None if it cannot be told without importing it."""
    package, *inner = module.split(".")
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    file = Path(spec.origin)
    for name in inner:
        below = file.parent / name
        file = below / "__init__.py" if below.is_dir() else below.with_suffix(".py")
    return file if file.is_file() else None


def defined(file: Path) -> set[str] | None:
    """Return the names that a module defines or imports; None if its text does not show all.

    Raises:
        InputError: it cannot be compiled.
    """
    try:
        text = file.read_bytes()
        tree = _tree(text, file)
    except (OSError, ValueError, RecursionError):
        return None
    return None if _HIDES.search(text.decode(errors="replace")) else set(_names(tree))


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (one.asname or one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        else:
            yield from _names(node)


def _is_module(file: Any, name: str) -> bool:
    """Return whether a name is a module of the package whose `__init__.py` is given."""
    return file.name == "__init__.py" and any(file.parent.glob(f"{name}*"))
