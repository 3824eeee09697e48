"""Write docs/presets.md: the four presets side by side, from configs/determinism/.

usage: python engine/measure/presets.py

example:
    python engine/measure/presets.py && git diff docs/presets.md

exit status: 0 written, 2 a file cannot be read or written
"""

import argparse
import json
import sys
from pathlib import Path

from omegaconf import OmegaConf

from seedbed.errors import exit_status

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "presets.md"
PRESETS = ("strict", "seeded", "fast", "portable")
Settings = dict[str, str]

_PAGE = """\
# Presets

`determinism=` chooses one of four presets. `python engine/measure/presets.py` generates this page
from `configs/determinism/*.yaml`. Each setting has a comment in those files.

- Any setting can be overridden alone: `determinism.threads=4`, `determinism.env.OMP_DYNAMIC=TRUE`.
- `null` leaves the default of PyTorch. For a variable, `null` means that it must not be set.
- "the machine's" is a variable as it is, set or not, where the run starts. The run's `config.yaml`
  keeps it: a resume and `verify.py` set it again.
- An empty cell means that the preset does not mention the variable, which is passed on unchanged.
- What is in force is read back at the start and recorded in `environment.json`. `strict` and
  `portable` stop if it is not what the preset asks for.

What a preset promises and what it costs: the README,
[benchmarks](benchmarks.md), [portable](portable.md#what-it-costs).

## Settings that differ

{different}

## Settings that are equal in all four

{equal}
"""


def main() -> int:
    """Write the page."""
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    ).parse_args()
    PAGE.write_text(page(ROOT / "configs" / "determinism"))
    print(PAGE)
    return 0


def page(folder: Path) -> str:
    """Return the page for a folder of preset files, as Markdown."""
    presets = [settings(folder / f"{name}.yaml") for name in PRESETS]
    keys = list(dict.fromkeys(key for preset in presets for key in preset if key != "name"))
    rows = [[f"`{key}`", *(preset.get(key, "") for preset in presets)] for key in keys]
    different = [row for row in rows if len(set(row[1:])) > 1]
    equal = [row[:2] for row in rows if len(set(row[1:])) == 1]
    return _PAGE.format(
        different=table(["setting", *(f"`{name}`" for name in PRESETS)], different),
        equal=table(["setting", "value"], equal),
    )


def settings(path: Path) -> Settings:
    """Return a preset's settings by dotted key, in the order of the file, unresolved."""
    return dict(_leaves(OmegaConf.to_container(OmegaConf.load(path), resolve=False)))


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _leaves(value: object, key: str = "") -> list[tuple[str, str]]:
    if isinstance(value, str) and value.startswith("${oc.env:"):
        return [(key, "the machine's")]
    if not isinstance(value, dict):
        return [(key, f"`{value}`" if isinstance(value, str) else json.dumps(value))]
    prefix = f"{key}." if key else ""
    return [leaf for name, inner in value.items() for leaf in _leaves(inner, f"{prefix}{name}")]


if __name__ == "__main__":
    sys.exit(exit_status(main))
