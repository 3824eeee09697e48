"""A model as it is built: the operations that give it its weights, and where its parts are made."""

import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn
from torch.nn.modules import module as registration

from seedbed.operations.place import locate, names_of
from seedbed.operations.trace import Event, Tracer

BUILD = "construction"


@dataclass
class Construction:
    """What was noted while a model was built."""

    _events: list[Event] = field(default_factory=list)
    _modules: dict[int, nn.Module] = field(default_factory=dict)  # held: ids are not used again
    _lines: dict[int, list[str]] = field(default_factory=dict)

    def events(self, model: nn.Module) -> Iterator[Event]:
        """Yield the operations, with the paths of the modules that they are of."""
        names = names_of(model)
        for event in self._events:
            module = names.get(int(event.place.module or 0), "")
            yield replace(event, place=replace(event.place, module=module, phase=BUILD))

    def lines(self, model: nn.Module) -> dict[str, list[str]]:
        """Return `file:line` of the code that made each module, by its path."""
        found = {name: self._lines.get(number, []) for number, name in names_of(model).items()}
        return {name: list(dict.fromkeys(lines)) for name, lines in found.items() if lines}

    def _note(self, module: nn.Module, _name: str, part: Any) -> None:
        made = part if isinstance(part, nn.Module) else module
        frames = reversed(list(traceback.walk_stack(sys._getframe(1))))
        line = locate(frames, None).line
        self._modules[id(made)] = made
        self._lines.setdefault(id(made), []).extend([line] if line else [])


@contextmanager
def watched() -> Iterator[Construction]:
    """Note the models that are built meanwhile."""
    found = Construction()
    register = (
        registration.register_module_parameter_registration_hook,
        registration.register_module_buffer_registration_hook,
        registration.register_module_module_registration_hook,
    )
    tracer = Tracer(None, (), stops=False)
    with ExitStack() as stack:
        for each in register:
            stack.callback(each(found._note).remove)
        with tracer:
            yield found
    found._events += tracer.events


def class_lines(objects: Mapping[str, object]) -> dict[str, list[str]]:
    """Return `file:line` of the class of each object, by the same names; none without source."""
    found = {}
    for name, value in objects.items():
        try:
            file, line = inspect.getsourcefile(type(value)), inspect.getsourcelines(type(value))[1]
        except (OSError, TypeError):
            continue
        found[name] = [f"{file}:{line}"]
    return found
