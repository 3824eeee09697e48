"""Values that were made from others, `root: ${data.root}/images`: an override reaches
them all.

config.yaml is resolved, so interpolations.json beside it keeps how values were made. It
belongs to a record, which may be untrusted: values are copied and put into texts,
nothing else is evaluated.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed.config import Request, resolve
from seedbed.config.build import entries
from seedbed.errors import InputError
from seedbed.record import untrusted

FILE = "interpolations.json"
_REFERENCE = re.compile(r"\$\{(\.*)([\w-]+(?:\.[\w-]+|\[[\w-]+\])*)\}")
# in all
_MOST_ENTRIES = 2000
_MOST_CHARACTERS = 1 << 17
# of a value
_MOST_PASSES = 16
_MOST_LETTERS = 4096


def templates_of(composed: DictConfig) -> dict[str, str]:
    """Return the unresolved text of each value that refers to others, with absolute
    references.

    A text may also call a resolver, as in `${twice:${data.samples}}`; it is not
    evaluated again.
    """
    texts = ((key, x) for key, _, x in entries(OmegaConf.to_container(composed)))
    return {
        key: _REFERENCE.sub(partial(_absolute, key.split(".")), text)
        for key, text in texts
        if isinstance(text, str) and _REFERENCE.search(text)
    }


def _absolute(path: list[str], match: re.Match[str]) -> str:
    dots, name = match.groups()
    above = path[: len(path) - len(dots)] if dots else []
    return f"${{{'.'.join([*above, name.replace('[', '.').replace(']', '')])}}}"


def circle(composed: DictConfig) -> list[str]:
    """Return the keys of values that refer to each other in a circle, from one back to
    itself.

    The list is empty if there is none.
    """
    references = {
        key: [match[2] for match in _REFERENCE.finditer(text)]
        for key, text in templates_of(composed).items()
    }

    def walk(path: list[str]) -> list[str]:
        for name in references.get(path[-1], ()):
            if name in path:
                return [*path[path.index(name) :], name]
            if cycle := walk([*path, name]):
                return cycle
        return []

    return next(filter(None, (walk([key]) for key in references)), [])


def read(folder: Path) -> dict[str, str]:
    """Return the templates of a run, {} if it has none; raise InputError for what is
    not one."""
    path = folder / FILE
    templates = untrusted.read_json(path) if path.is_file() else {}
    try:
        require_valid(templates)
    except ValueError as error:
        raise InputError(
            f"{path}: expected texts with references by key, got {error}"
        ) from None
    return templates


def require_valid(templates: Mapping[str, Any]) -> None:
    """Raise ValueError for what is not one, and for more than a record can hold."""
    for key, text in templates.items():
        is_template = isinstance(text, str) and _REFERENCE.search(text)
        if not is_template or not re.fullmatch(r"[\w.-]+", key):
            raise ValueError(f"{key!r:.80}")
    if (
        len(templates) > _MOST_ENTRIES
        or sum(map(len, templates.values())) > _MOST_CHARACTERS
    ):
        raise ValueError(f"more than {_MOST_ENTRIES:,} references, or long texts")


def reached(
    values: Mapping[str, Any], recorded: DictConfig, templates: Mapping[str, str]
) -> dict[str, Any]:
    """Return overrides, and new values of what was made from the keys that they change.

    A key in `values`, the overrides, is not made from its template. Raises InputError
    if a value cannot be made again, since a resolver made it or it was set by itself.
    """
    if not values:
        return {}
    before = _by_key(recorded)
    derived = dict[str, Any]()
    others = {key: text for key, text in templates.items() if key not in values}
    references = {
        match[2] for text in others.values() for match in _REFERENCE.finditer(text)
    }
    for _ in range(_MOST_PASSES):
        after = _by_key(Request({**derived, **values}).applied_to(recorded))
        # As texts: NaN equals NaN, 1.0 is not 1.
        changed = {
            key for key in references if repr(before.get(key)) != repr(after.get(key))
        }
        new = {
            key: _made(key, text, before, after)
            for key, text in others.items()
            if any(match[2] in changed for match in _REFERENCE.finditer(text))
        }
        if repr(new) == repr(derived):
            return {**derived, **{key: after.get(key) for key in values}}
        derived = new
    raise InputError(
        f"{FILE}: expected values that are made from others, got one made from itself"
    )


def _by_key(settings: DictConfig) -> dict[str, Any]:
    """Return all values and sections by dotted key."""
    return {key: x for key, _, x in entries(OmegaConf.to_container(resolve(settings)))}


def _made(
    key: str, text: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Any:
    """Return the value of a key by its template."""
    is_plain = "$" not in _REFERENCE.sub("", text) and "\\" not in text
    value_before, value_after = (
        _filled(text, values) if is_plain else None for values in (before, after)
    )
    # It may have been set by itself since, or a resolver made it.
    if not is_plain or str(value_before) != str(before.get(key)):
        raise InputError(
            f"{key}: expected a new value too, as it was {text}; add {key}=VALUE"
        )
    if len(str(value_after)) > _MOST_LETTERS or "${" in str(value_after):
        raise InputError(
            f"{key}: expected a short value by {text}, got another; add {key}=VALUE"
        )
    return value_after


def _filled(text: str, values: Mapping[str, Any]) -> Any:
    """Return a template with the values of its references, cut if they are too long."""
    if only_reference := _REFERENCE.fullmatch(text):
        return values.get(only_reference[2])
    return _REFERENCE.sub(lambda m: str(values.get(m[2]))[: _MOST_LETTERS + 1], text)
