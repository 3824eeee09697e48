"""The operations that give a model its weights, noted while it is built."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn
from torch.nn.modules import module as registration

from seedbed.operations.place import names_of
from seedbed.operations.trace import Event, Tracer

BUILD = "construction"


@dataclass
class Construction:
    """What was noted while a model was built."""

    _events: list[Event] = field(default_factory=list)
    _modules: dict[int, nn.Module] = field(default_factory=dict)  # held: ids are not used again

    def events(self, model: nn.Module) -> Iterator[Event]:
        """Yield the operations, with the paths of the modules that they are of."""
        names = names_of(model)
        for event in self._events:
            module = names.get(int(event.place.module or 0), "")
            yield replace(event, place=replace(event.place, module=module, phase=BUILD))

    def _note(self, module: nn.Module, _name: str, part: Any) -> None:
        for made in (module, part):
            if isinstance(made, nn.Module):
                self._modules[id(made)] = made


@contextmanager
def watched() -> Iterator[Construction]:
    """Note the models that are built meanwhile."""
    found, tracer = Construction(), Tracer(None, (), stops=False)
    with ExitStack() as stack:
        for register in (
            registration.register_module_parameter_registration_hook,
            registration.register_module_buffer_registration_hook,
            registration.register_module_module_registration_hook,
        ):
            stack.callback(register(found._note).remove)
        with tracer:
            yield found
    found._events += tracer.events
