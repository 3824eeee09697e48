"""A project imports what docs/public.md names; the lint rule and the pages say the
same."""

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import seedbed
from tests import pages
from tests.running import TEMPLATE

PACKAGE = Path(seedbed.__file__).parent
ROW = re.compile(r"^\| `(seedbed[\w.]*)` \| (.*?) \|", re.MULTILINE)
PUBLIC = {
    module: re.findall(r"`(\w+)`", names)
    for module, names in ROW.findall((TEMPLATE / "docs/public.md").read_text())
}
# Of the template's configuration, what the engine's own keys build; users do not write
# it.
BUILT_BY_THE_ENGINE = {"seedbed.sweeps.job.SweepFolder"}
# Integrations need packages that are not installed here: their names are read, not
# imported.
INTEGRATIONS = "seedbed.integrations."


def modules() -> set[str]:
    """Return the engine's modules and packages, but for those of packages."""
    paths = [
        path for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()
    ]
    return {f"seedbed.{path.stem}" for path in paths if not path.stem.startswith("__")}


def imported(code: str) -> set[str]:
    """Return the names of the engine that code imports, dotted."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.partition(".")[0] == "seedbed"}


def is_public(name: str) -> bool:
    """Return whether a dotted name is a public module, or one of its names."""
    module, _, last = name.rpartition(".")
    return name in PUBLIC or last in PUBLIC.get(module, ())


def code() -> Iterator[tuple[str, str]]:
    """Yield the Python code that a project has or is shown, and where it stands."""
    for folder in ("src", "tests"):
        for path in sorted((TEMPLATE / folder).rglob("*.py")):
            yield str(path.relative_to(TEMPLATE)), path.read_text()
    for path in sorted((TEMPLATE / "docs").rglob("*.md")):
        for block in pages.blocks(path.read_text(), "python"):
            yield str(path.relative_to(TEMPLATE)), block


def test_the_page_lists_what_each_module_declares() -> None:
    for module, names in PUBLIC.items():
        if module.startswith(INTEGRATIONS):
            continue
        declared = getattr(importlib.import_module(module), "__all__", None)
        if module in ("seedbed.errors", "seedbed.offline", "seedbed.project"):
            assert declared is None  # most of it is the engine's own
            assert all(hasattr(importlib.import_module(module), name) for name in names)
        else:
            assert names == declared


def test_the_lint_rule_refuses_every_other_module() -> None:
    rules = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["tool"]["ruff"][
        "lint"
    ]
    banned = set(rules["flake8-tidy-imports"]["banned-api"])
    packages = {module.rpartition(".")[0] for module in PUBLIC}
    assert banned == {name for name in modules() - packages if not is_public(name)}
    assert "seedbed.record" in banned


def test_project_and_pages_import_public_names_only() -> None:
    private = {
        (place, name)
        for place, text in code()
        for name in imported(text)
        if not is_public(name)
    }
    assert private == set()


@pytest.mark.parametrize(
    "text", ["from seedbed import record", "import seedbed.config.compose"]
)
def test_private_names_are_found(text: str) -> None:
    """Negative control."""
    assert not any(is_public(name) for name in imported(text))


def test_configurations_name_public_classes_only() -> None:
    targets = {
        target
        for path in (TEMPLATE / "configs").rglob("*.yaml")
        for target in re.findall(r"_target_: (seedbed\.[\w.]+)", path.read_text())
    }
    loggers = {name for name in targets if name.startswith("seedbed.loggers.")}
    assert len(loggers) == 3  # a file each, which docs/loggers.md describes
    assert {
        name for name in targets - loggers if not is_public(name)
    } == BUILT_BY_THE_ENGINE
