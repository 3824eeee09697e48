"""Make this checkout your project: python scripts/new.py NAME

It renames src/project and removes the examples.

All changes are staged, none committed: `git diff --cached --stat` shows them, `git
commit` keeps them, `git reset --hard` undoes them.
"""

import importlib.util
import keyword
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from upgrade import rename_package

from seedbed.config.options import Parser
from seedbed.errors import InputError, exit_on_errors

ROOT = Path(__file__).resolve().parents[1]
# Files about Seedbed itself; folders with examples; stems of the files that remain in
# these.
OURS = (
    ".ci",
    ".github/ISSUE_TEMPLATE",
    ".github/workflows/engine.yml",
    "CONTRIBUTING.md",
    "scripts/new.py",
)
GROUPS = (
    "src/project",
    "tests",
    "configs/data",
    "configs/model",
    "configs/method",
    "configs/experiment",
)
# What SLIM=1 installs from the git address: folders, and the distributions in them.
PACKAGES = {"engine": "seedbed", "kernels": "torch-deterministic-kernels"}
LEFT = {"__init__", "points", "dense", "supervised", "test_promise", "test_smoke"}
EXPERIMENT = """\
# @package _global_
# An experiment sets several keys at once: python train.py experiment=points
defaults:
  - override /data: points
  - override /model: dense

trainer:
  max_epochs: 4
"""
README = """# {name}

Training runs are reproducible bit for bit: [engine/README.md]({engine}) says what
that promises.

```bash
make train      # the default configuration, configs/config.yaml
make test       # tests every YAML file of configs/: twice, with workers, resumed
make upgrade    # a newer engine: git remote add seedbed URL && git fetch seedbed

python train.py seed=0 hydra.run.dir=runs/a       # train
python scripts/resume.py runs/a                   # resume it if it was stopped
python scripts/compare.py runs/a runs/b           # first step and stage that differ
python scripts/verify.py runs/a                   # retrain from the record
python train.py -m seed=0,1,2 hydra.sweep.dir=sweeps/a    # a sweep, with a report
python scripts/runs.py                            # a table of runs
python scripts/evaluate.py runs/a                 # its test set again
python scripts/predict.py runs/a --out predictions.csv    # a prediction for each row
```

`src/{name}/` has models and data sets, `configs/` a YAML file for each; `make help`
lists the rest. A program of your own goes into `src/{name}/`, and runs as
`python -m {name}.plot runs/a`: `seedbed.load` and `seedbed.read` give it models and
records ([what a project may import](docs/public.md)). `docs/` is about Seedbed and
its examples: begin with
[your code](docs/your-code.md).
"""


def main() -> int:
    parser = Parser(__doc__).add("name", help="of the package, such as waves")
    parser.add("--keep", action="store_true", help="keep the examples")
    text = "take engine/ and kernels/ out: requirements.in then names their git address"
    parser.add("--slim", action="store_true", help=text)
    arguments = parser.parse_args()
    name = arguments.name
    engine = "engine/README.md"
    rules = ["new"]
    require_possible(name)
    if arguments.slim:
        engine = url_of(git("remote", "get-url", "origin").strip())
        tag = (
            git("tag", "--points-at", "HEAD").split()
            or git("rev-parse", "HEAD").split()
        )
        # pip installs it from there
        for path in ("requirements.in", "requirements.txt"):
            for folder, package in PACKAGES.items():
                line = f"{package} @ git+{engine}@{tag[0]}#subdirectory={folder}"
                edit(path, rf"^-e (file:)?\./{folder}.*", line)
        git("rm", "-rq", *PACKAGES)
        rules += ["test-engine", "upgrade"]
    for rule in rules:
        edit("Makefile", rf"^\.PHONY: {rule}\b.*\n.*\n(\t.*\n)+\n", "")
    commit = git("rev-parse", "--short", "HEAD").strip()
    git("rm", "-rq", "--ignore-unmatch", *OURS)
    if not arguments.keep:
        files = git("ls-files", *GROUPS).splitlines()
        git("rm", "-q", *(path for path in files if Path(path).stem not in LEFT))
        edit("configs/config.yaml", r"data: mnist5k", "data: points")
        edit("configs/config.yaml", r"model: cnn", "model: dense")
        example = ROOT / "configs/experiment/points.yaml"
        example.parent.mkdir(parents=True, exist_ok=True)
        example.write_text(EXPERIMENT)
    rename(name)
    readme = README.format(name=name, engine=engine)
    if arguments.slim:
        readme = re.sub("make upgrade.*\n", "", readme)
    (ROOT / "README.md").write_text(readme)
    git("add", "--all")
    uninstall()
    if (ROOT / "runs").is_dir():  # their configurations name classes of src/project
        print(f"runs/: what is there resumes in a checkout of {commit} only")
    print(
        f"src/{name}/, configs/ and tests/ are yours; next: make install, make test,"
        " git commit"
    )
    return 0


def require_possible(name: str) -> None:
    """Raise InputError unless `name` is valid and unused, src/project exists and git is
    clean."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise InputError(
            f"NAME: expected a package's name, got {name!r}; try make new NAME=waves"
        )
    if importlib.util.find_spec(name) is not None or (ROOT / name).exists():
        raise InputError(
            f"NAME: expected a new name, got {name}, which is there; choose another"
        )
    if not (ROOT / "src/project").is_dir():
        raise InputError(
            "NAME: expected src/project to rename, got none; it has its name already"
        )
    if changed := git("status", "--porcelain").splitlines():
        raise InputError(
            f"checkout: expected no uncommitted changes, got {changed[0][3:]}; commit"
        )


def url_of(address: str) -> str:
    """Convert a git remote's address to a URL with a host, as requirements files need
    it."""
    if address.startswith("/"):
        return f"file://localhost{address}"
    if "://" not in address:  # git@host:owner/name
        return f"ssh://{address.replace(':', '/', 1)}"
    return address.replace("file:///", "file://localhost/", 1)


def rename(name: str) -> None:
    """Rename the package, and replace its old name in all files that mention it."""
    git("mv", "src/project", f"src/{name}")
    places = (f"src/{name}/*.py", "tests/*.py", "configs/*.yaml")
    for path in git("ls-files", *places).splitlines():
        edit(
            path,
            r"\bproject(?=\.(data|models|methods)\b)|(?<=^\"\"\")project(?=\.\"\"\")",
            name,
        )
        edit(path, r"(?<=src/)project\b", name)
    edit("pyproject.toml", r'"project"', f'"{name}"')
    rename_package()
    for words in (
        ["check", "--quiet", "--select", "I", "--fix"],
        ["format", "--quiet"],
    ):
        # The new name can change the order of imports and the length of lines.
        subprocess.run([sys.executable, "-m", "ruff", *words], cwd=ROOT, check=False)


def uninstall() -> None:
    """Uninstall the package under its old name; the next `make` installs it under its
    new one."""
    try:
        installed = metadata.distribution("project").read_text("direct_url.json") or ""
    except metadata.PackageNotFoundError:
        return
    if f'"{ROOT.as_uri()}"' in installed:
        subprocess.run(
            [sys.executable, "-m", "pip", "uninstall", "-qy", "project"], check=False
        )
        (ROOT / ".venv/installed").unlink(missing_ok=True)


def edit(path: str, pattern: str, replacement: str) -> None:
    """Replace every match of a pattern in a file."""
    file = ROOT / path
    file.write_text(
        re.sub(pattern, lambda _: replacement, file.read_text(), flags=re.MULTILINE)
    )


def git(*arguments: str) -> str:
    command = ["git", *arguments]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        reason = " ".join(str(getattr(error, "stderr", error)).split())
        raise InputError(
            f"git {arguments[0]}: expected success, got {reason}"
        ) from None
    return done.stdout


if __name__ == "__main__":
    with exit_on_errors():
        sys.exit(main())
