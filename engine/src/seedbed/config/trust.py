"""What a record may name: classes, keys and environment variables of this checkout's
YAML files.

A record may come from a stranger. A list of packages would be too permissive: it would
allow every constructor of torch, some of which generate code.
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import project
from seedbed.config.build import entries, project_files, targets_of
from seedbed.errors import InputError
from seedbed.record import mark

_ENV = "determinism.env."
_THREADS = "[1-9][0-9]{0,3}"
_ISA = (
    "(?i:all|default|sse41|avx|avx2(_vnni(_2)?)?|avx512_core(_vnni|_bf16|_fp16|_amx(_fp16)?)?"
    "|avx10_[12](_512)?(_amx(_fp16|_2)?)?)"
)
_HINTS = "(?i:no_hints|prefer_ymm)"
_FEATURES = r"[A-Z0-9_]+"
# What variables may have besides the values in configs/: a number, or a limit on
# instruction sets, which a preset takes from the environment of a new run. All of it is
# compared, never executed.
_VALUES = {
    "PYTHONHASHSEED": "[0-9]{1,10}",
    "OMP_NUM_THREADS": _THREADS,
    "MKL_NUM_THREADS": _THREADS,
    "OPENBLAS_NUM_THREADS": _THREADS,
    "ATEN_CPU_CAPABILITY": "default|avx2|avx512|sve|sve128|sve256|vsx|zvector",
    "ONEDNN_MAX_CPU_ISA": _ISA,
    "DNNL_MAX_CPU_ISA": _ISA,
    "ONEDNN_CPU_ISA_HINTS": _HINTS,
    "DNNL_CPU_ISA_HINTS": _HINTS,
    "MKL_CBWR": (
        r"(AUTO|COMPATIBLE|SSE[23]|SSSE3|SSE4_[12]|AVX2?|AVX512(_(MIC|E\d))*)(,STRICT)?"
    ),
    "MKL_ENABLE_INSTRUCTIONS": r"SSE4_2|AVX2?(_E\d)?|AVX512(_(MIC|E\d))*",
    "OPENBLAS_CORETYPE": r"[A-Za-z0-9_]+",
    "NPY_DISABLE_CPU_FEATURES": rf"{_FEATURES}([ ,]+{_FEATURES})*",
    "GLIBC_TUNABLES": rf"glibc\.cpu\.hwcaps=-?{_FEATURES}(,-?{_FEATURES})*",
}


def require_trusted(
    settings: DictConfig,
    run: Path,
    trust: Sequence[str] = (),
    folders: Sequence[Path] = (),
) -> None:
    """Raise InputError for a record that could run code not named in this checkout's
    YAML files.

    Those that this checkout has composed itself, known by their mark, may name any
    code. Of others, the classes and functions must be named there, and be what
    `_require_harmless` asks for. `trust` has more names of classes and functions, of
    packages with all that they define, and keys of environment variables; the run
    imports from `folders` before this project's.
    """
    if mark.is_own(run):
        return
    _require_harmless(settings, run, trust)
    named = [each for tree in project_files() for each in targets_of(tree)]
    # Records are read without their loggers, so these classes are not needed.
    known = {name for key, name in named if not key.startswith("logger.")}
    folders = [*folders, project.root() / "src", project.root(), *map(Path, sys.path)]
    for key, target in targets_of(OmegaConf.to_container(settings)):
        if target not in {*known, *trust} and not any(
            _defines(n, target, folders) for n in trust
        ):
            raise InputError(
                f"{run}: expected classes that a file of configs/ names, got {target}"
                f" ({key}) in the record; if you trust it: --trust {target}"
            )


def may_connect(run: Path, online: bool) -> bool:
    """Return whether what is built from a record may open addresses.

    One's own may, others only if the user says so: `online`.
    """
    return online or mark.is_own(run)


def _require_harmless(settings: DictConfig, run: Path, trust: Sequence[str]) -> None:
    """Raise InputError for keys and environment variables with which a record could run
    code.

    Keys must be plain names, since code is generated from some. An environment variable
    must have a value that a file of configs/ gives it, or one of `_VALUES`: some load
    libraries or Python modules. `trust` has keys of variables that may have any value.
    """
    given = dict[str, set[Any]]()
    for key, value in _variables(project_files()):
        given.setdefault(key, set()).add(None if value is None else str(value))
    recorded = OmegaConf.to_container(settings)
    for _, name, _ in entries(recorded):
        if not re.fullmatch(r"[\w.-]+", name):
            raise InputError(
                f"{run}: expected keys of letters, digits and _ in the record, got"
                f" {name!r}"
            )
    for key, value in _variables([recorded]):
        pattern = _VALUES.get(key.removeprefix(_ENV), "(?!)")  # which nothing matches
        is_known = key in given and (
            value is None
            or str(value) in given[key]
            or re.fullmatch(pattern, str(value))
        )
        if not is_known and key not in trust:
            got = "null" if value is None else repr(value)
            raise InputError(
                f"{run}: expected {key} as a file of configs/ sets it, got {got:.100}"
                f" in the record; if you trust it: --trust {key}"
            )


def _variables(trees: Any) -> Iterator[tuple[str, Any]]:
    """Yield key and value of each environment variable in settings."""
    for tree in trees:
        yield from ((key, x) for key, _, x in entries(tree) if key.startswith(_ENV))


def _defines(package: str, target: str, folders: Sequence[Path], most: int = 8) -> bool:
    """Return whether a package's own source defines a class or function; nothing is
    imported.

    One module may import it from another one of the package, `most` times. A name that
    it imports from elsewhere or assigns does not count: `from subprocess import run` in
    one of them would let a record run any program.
    """
    module, _, name = target.rpartition(".")
    if not f"{module}.".startswith(f"{package}.") or "/" in module or not most:
        return False
    file = _file_of(module, folders)
    try:
        body = ast.parse(file.read_bytes() if file else b"").body
    except (OSError, SyntaxError, ValueError):
        return False
    definitions = [
        node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)
    ]
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    bound = _bound_by([node for node in body if node not in definitions])
    if name in {node.name for node in definitions}:
        return name not in bound
    sources = [
        f"{_absolute(node, module, file)}.{alias.name}"
        for node in imports
        for alias in node.names
        if name == (alias.asname or alias.name)
    ]
    is_bound_once = bound.count(name) == len(sources) == 1
    return is_bound_once and _defines(package, sources[0], folders, most - 1)


def _file_of(module: str, folders: Sequence[Path]) -> Path | None:
    """Return the file of a module in the first folder that has it, or None."""
    stem = module.replace(".", "/")
    paths = [
        folder / f"{stem}{end}" for folder in folders for end in ("/__init__.py", ".py")
    ]
    return next((path for path in paths if path.is_file()), None)


def _bound_by(statements: Sequence[ast.stmt]) -> list[str | None]:
    """Return the names that anything in statements binds: by importing, assigning,
    defining or catching."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    bound = [
        getattr(node, "asname", None) or getattr(node, "name", None) for node in nodes
    ]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    return bound + [node.id for node in names if isinstance(node.ctx, ast.Store)]


def _absolute(node: ast.ImportFrom, module: str, file: Path | None) -> str:
    """Return the name of the module that `from ... import` in a module's file refers
    to."""
    is_package = file is not None and file.name == "__init__.py"
    above = module.split(".")[: len(module.split(".")) + is_package - node.level]
    return ".".join([*(above if node.level else ()), *filter(None, [node.module])])
