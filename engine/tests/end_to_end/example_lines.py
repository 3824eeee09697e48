"""Count the lines of docs/examples beside those that Lightning takes for the same.

usage: python -m tests.end_to_end.example_lines

Prints the table of docs/examples/README.md. Blank lines, comments and docstrings do not count; YAML
and each command `python train.py` do. To the programs in docs/examples/lightning come the classes
and functions that they import from the files of the pages, and the module of a plain classifier
(digits_cnn.py) where they build on it. What comes from the project, and common.py, which has the
trainer and the loaders of the digits, count for neither.
"""

import ast

from tests.end_to_end import example_pages
from tests.end_to_end.example_pages import FOLDER, count_lines

LIGHTNING, CLASSIFIER = FOLDER / "lightning", "digits_cnn.py"
# Each row of the table: what it is, its page, the programs in Lightning.
ROWS = [
    ("VAE: named parts of a loss", "vae", ["vae"]),
    ("GAN, WGAN-GP: several optimizers and updates", "gan", ["gan", "wgan_gp"]),
    ("language model", "language-model", ["language_model"]),
    (
        "SimCLR, BYOL, MoCo, VQ-VAE",
        "self-supervised",
        ["simclr", "byol", "moco", "vq_vae"],
    ),
    ("diffusion with averaged weights", "diffusion", ["diffusion"]),
    ("fine-tuning: groups, freezing, schedule", "fine-tuning", ["fine_tuning"]),
    ("metrics of a whole set", "metrics", ["metrics"]),
    ("samplers and cross-validation", "samplers", ["samplers"]),
    ("streams", "streams", ["streams"]),
    ("callbacks", "callbacks", ["callbacks"]),
    ("LBFGS, compile, bfloat16, lazy, other libraries", "anything", ["anything"]),
]


def table() -> list[str]:
    """Return the table's lines."""
    head = ["| example | Seedbed | Lightning |", "| --- | --- | --- |"]
    rows = [f"| [{name}]({page}.md) | {a} | {b} |" for name, page, a, b in counts()]
    return head + rows


def counts() -> list[tuple[str, str, int, int]]:
    """Return of each row its name, its page, our lines and those with Lightning."""
    examples = example_pages.read()
    defined = _definitions(examples)
    found = []
    for name, page, programs in ROWS:
        ours = [each for each in examples.values() if each.name.startswith(f"{page}: ")]
        mine = sum(example.lines + len(example.commands) for example in ours)
        found.append((name, page, mine, _with_lightning(programs, defined)))
    return found


def _definitions(examples: dict[str, example_pages.Example]) -> dict[tuple[str, str], int]:
    """Return the lines of each class and function that may be imported, by module and name."""
    files = {path: text for each in examples.values() for path, text in each.files.items()}
    files[CLASSIFIER] = (LIGHTNING / CLASSIFIER).read_text()
    found = {}
    for path, text in files.items():
        if not path.endswith(".py"):
            continue
        module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                source = ast.get_source_segment(text, node) or ""
                found[module, node.name] = count_lines(path, source)
    return found


def _with_lightning(programs: list[str], defined: dict[tuple[str, str], int]) -> int:
    """Return the lines of programs, and of what they import from the pages."""
    lines, imported = 0, set()
    for program in programs:
        text = (LIGHTNING / f"{program}.py").read_text()
        lines += count_lines("program.py", text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                imported |= {(node.module or "", alias.name) for alias in node.names}
    return lines + sum(count for key, count in defined.items() if key in imported)


if __name__ == "__main__":
    print(*table(), sep="\n")
