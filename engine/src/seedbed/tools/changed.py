"""What changed since a run was recorded, by its environment.json: code and data, a line each."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.utils._pytree import tree_leaves

from seedbed import record
from seedbed.config import Settings
from seedbed.record import Origin, code, files, text, untrusted


def since(run: Path, settings: Settings, training_set: Callable[[], Any]) -> Iterator[str]:
    """Yield a line on changed code, and one on changed data, if there are such.

    What the settings replace on purpose, such as another data set, is not a change.

    Args:
        settings: those of the run, possibly with overrides.
        training_set: builds the training set, whose digest may be recorded.
    """
    path = run / "environment.json"
    recorded = record.read_json(path) if path.is_file() else {}
    of = Origin(untrusted.read_dict(run), recorded, run)
    if names := code.changed_here(of):
        yield f"code has changed since the record: {code.some(names)}"
    texts = [
        {str(x).rstrip("/") for x in tree_leaves(each)} for each in (of.settings, settings.plain)
    ]
    then: Any = recorded.get("files_sha256") or {}
    changed = files.changed(
        {
            path: value
            for path, value in then.items()
            if texts[0]
            & texts[1]
            & {path, path.removesuffix(" (times)"), *map(str, Path(path).parents)}
        }
    )
    if recorded.get("data_sha256") and of.settings["data"]["train"] == settings.data.train:
        built = getattr(training_set(), "sha256", None)
        if json.loads(text.as_json({"": built}))[""] != recorded["data_sha256"]:
            changed.append("data.train")
    if changed:
        yield f"data have changed since the record: {code.some(changed)}"
