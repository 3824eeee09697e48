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
    # Files that both configurations name, alone or in a folder.
    both = [{str(x).rstrip("/") for x in tree_leaves(x)} for x in (of.settings, settings.plain)]
    named = both[0] & both[1]
    known: dict[str, str] = {}
    for path, digest in (recorded.get("files_sha256") or {}).items():
        place = Path(path.removesuffix(files.TIMES))
        if named & {str(place), *map(str, place.parents)}:
            known[path] = digest
    changed = files.changed(known)
    if recorded.get("data_sha256") and of.settings["data"]["train"] == settings.data.train:
        built = getattr(training_set(), "sha256", None)
        if json.loads(text.as_json({"": built}))[""] != recorded["data_sha256"]:
            changed.append("data.train")
    if changed:
        yield f"data have changed since the record: {code.some(changed)}"
