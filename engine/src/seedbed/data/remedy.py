"""The remedy for data sets with generators of their own, which nothing seeds for each sample."""

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

_GENERATORS = ("numpy.Generator", "numpy.RandomState", "torch.Generator", "random.Random")
_MOST_OBJECTS, _MOST_ITEMS = 10_000, 100  # to look at; in each list or dictionary


def remedy_for(dataset: Any) -> str:
    """Return what to do about the first generator in a data set; empty if there is none."""
    queue: deque[tuple[str, Any]] = deque([("self", dataset)])
    seen = {id(dataset)}
    while queue and len(seen) < _MOST_OBJECTS:
        path, value = queue.popleft()
        kind = type(value)
        for method in ("set_random_seed", "set_random_state"):  # of albumentations, of MONAI
            if callable(getattr(kind, method, None)):
                seed = "int(rng.generator().integers(2**31))"
                return f"; in __getitem__, call {path}.{method}({seed})"
        if f"{kind.__module__.partition('.')[0]}.{kind.__name__}" in _GENERATORS:
            return f"; in __getitem__, draw from rng.generator() and not from {path}"
        named = {} if isinstance(value, type) else getattr(value, "__dict__", {})
        inside = [(f".{name}", each) for name, each in named.items()]
        if isinstance(value, Mapping):
            inside = [(f"[{key!r}]", each) for key, each in islice(value.items(), _MOST_ITEMS)]
        elif isinstance(value, list | tuple):
            inside = [(f"[{i}]", each) for i, each in enumerate(value[:_MOST_ITEMS])]
        for name, inner in inside:
            if id(inner) not in seen:
                seen.add(id(inner))
                queue.append((path + name, inner))
    return ""
