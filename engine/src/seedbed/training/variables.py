"""Variables of the user's modules and classes: a process that resumes has them as they begin."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from seedbed import project


class Variables:
    """Variables of modules and classes, and caches of functions, as they were at a time.

    What is drawn once and kept there outlives the model that a rehearsal builds anew.
    """

    def __init__(self) -> None:
        self._noted = [(owner, _contents(owner)) for owner in _owners()]

    def restore(self) -> None:
        """Give all of them back what they were, plain containers their contents; empty caches."""
        for owner, before in self._noted:
            now = _contents(owner)
            for name in now.keys() - before.keys():
                delattr(owner, name)
            for name, (value, content) in before.items():
                if name not in now or now[name][0] is not value:
                    setattr(owner, name, value)
                if content is not None and _members(value) != _members(content):
                    value.clear()
                    (value.extend if isinstance(value, list) else value.update)(content)
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()


def _owners() -> Iterator[Any]:
    """Yield the user's modules, and the classes that they define."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        is_ours = module.__name__.partition(".")[0] == "seedbed"
        if file and not is_ours and not project.is_installed(file):
            yield module
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == module.__name__:
                    yield value


def _contents(owner: Any) -> dict[str, tuple[Any, Any]]:
    return {
        name: (value, value.copy() if type(value) in (dict, list, set) else None)
        for name, value in list(vars(owner).items())
        if not name.startswith(("__", "_abc_")) and not isinstance(value, ModuleType)
    }


def _members(container: Any) -> list[int]:
    values = container.values() if isinstance(container, dict) else ()
    return list(map(id, (*container, *values)))
