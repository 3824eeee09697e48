"""`make new` makes a project that passes lint and its tests; its engine can be
upgraded."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from seedbed import project
from tests import pages, running
from tests.running import TEMPLATE, refusal

pytestmark = pytest.mark.long
IDENTITY = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a"}
IDENTITY |= {"GIT_COMMITTER_EMAIL": "a", "GIT_CONFIG_GLOBAL": os.devnull}


ENGINE = ("engine", "docs", "scripts", "train.py")
UPGRADE = (sys.executable, "scripts/upgrade.py", "upstream", *ENGINE)


def run(
    root: Path, *words: str, status: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command in a checkout, as its own project and with its own code."""
    places = os.pathsep.join(
        str(root / place) for place in ("engine/src", "kernels/src", "src")
    )
    variables = {**os.environ, **IDENTITY, "PYTHONPATH": places}
    del variables[project.PROJECT]  # that of the engine's tests
    # else make prints the folders that it enters
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        variables.pop(name, None)
    return running.run(root, *words, env=variables, status=status)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a git repository of this checkout's files in their present state."""
    root = tmp_path / "checkout"
    root.mkdir()
    listed = run(
        TEMPLATE, "git", "ls-files", "--cached", "--others", "--exclude-standard"
    ).stdout
    names = [name for name in listed.splitlines() if os.path.lexists(TEMPLATE / name)]
    run(TEMPLATE, "cp", "--parents", "--no-dereference", *names, str(root))
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "as it is now")):
        run(root, "git", *words)
    return root


@pytest.mark.parametrize("keep", [[], ["--keep"]])
def test_a_new_project_lints_and_keeps_the_promise(
    checkout: Path, keep: list[str]
) -> None:
    """With and without the examples; no file names the old package, and `git reset`
    undoes it all. A bad YAML file fails only its own test cases, which name it."""
    run(checkout, sys.executable, "scripts/new.py", "waves", *keep)
    assert (checkout / "src/waves/models/gpt.py").exists() is bool(keep)
    pattern = r"\bproject\.(data|models|methods)\b|\"project\""
    places = (":!engine", ":!kernels", ":!scripts/upgrade.py")
    assert (
        run(checkout, "git", "grep", "-lE", pattern, "--", *places, status=1).stdout
        == ""
    )
    for tool in (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]):
        run(checkout, sys.executable, "-m", *tool)
    bad = checkout / "configs/method/bad.yaml"
    if not keep:
        bad.write_text(
            "name: bad\n_target_: seedbed.methods.Supervised\noutput: ${data.x}\n"
        )
    done = run(
        checkout,
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "tests/test_promise.py",
        status=None,
    )
    failed = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED", "ERROR"))
    ]
    assert len(failed) == (0 if keep else 4), done.stdout
    assert all("[method=bad" in line for line in failed)
    assert keep or "16 passed" in done.stdout
    bad.unlink(missing_ok=True)
    run(checkout, "git", "reset", "-q", "--hard")
    assert run(checkout, "git", "status", "--porcelain").stdout == ""


# What pages name: overrides, files, modules, and the files that a YAML file extends.
OVERRIDE = re.compile(
    r"(?<![\w./])(data|model|method|experiment|optimizer|schedule|determinism|logger"
    r"|debug|hparams_search)=([a-z][\w,]*)"
)
FILE = re.compile(r"(?<![\w/])(?:configs|src|scripts)/\w[\w/]*\.(?:py|yaml)\b")
MODULE = re.compile(r"\bgrove\.(?:data|models|methods)\.\w+")
EXTENDED = re.compile(r"^defaults: \[(\w+), _self_\]", re.MULTILINE)
SHARED = ("docs/your-code.md", "docs/examples/README.md")  # whose files others use


def gone(root: Path, page: str, text: str) -> set[str]:
    """Return what a page of the project `grove` names that neither it nor the pages
    have.

    Not of printed lines, and not the names that lightning-hydra-template has.
    """
    text = re.sub(r"^```text\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    if page == "docs/coming-from-lightning.md":
        text = re.sub(r"^\| [^|]*\|", "", text, flags=re.MULTILINE)
    texts = (text, *((root / shared).read_text() for shared in SHARED))
    there = {str(path.relative_to(root)) for path in root.rglob("*.*")}
    there = there.union(*(pages.files(each) for each in texts))
    names = {Path(path).stem for path in there if path.endswith(".yaml")}
    named = {file: file for file in FILE.findall(text)}
    for group, values in OVERRIDE.findall(text):
        for value in {*values.split(",")} - {"", "null"}:
            named[f"{group}={value}"] = f"configs/{group}/{value}.yaml"
    for module in MODULE.findall(text):
        named[module] = f"src/{module.replace('.', '/')}.py"
    found = {name for name, file in named.items() if file not in there}
    return found | {*EXTENDED.findall(text)} - names


def test_pages_name_what_a_new_project_has(checkout: Path) -> None:
    """Every configuration and file that pages name is there, or shown by a page.

    Negative control: examples that are removed are found.
    """
    run(checkout, sys.executable, "scripts/new.py", "grove")
    removed = "data=mnist5k,points experiment=char_gpt src/grove/models/cnn.py"
    removed += " grove.models.cnn.CNN\ndefaults: [mnist5k, _self_]"
    assert len(gone(checkout, "docs/data.md", removed)) == 5
    found = {}
    for path in (checkout / "README.md", *sorted((checkout / "docs").rglob("*.md"))):
        page = str(path.relative_to(checkout))
        # the page of measurements says what Seedbed's own examples took
        missing = gone(checkout, page, path.read_text())
        if missing and page != "docs/measured.md":
            found[page] = missing
    assert found == {}


@pytest.fixture
def upgradable(checkout: Path) -> Path:
    """Make a project with files of its own below the engine's paths, and a next version
    to take."""
    run(checkout, "git", "branch", "upstream")
    run(checkout, sys.executable, "scripts/new.py", "waves")
    for name in ("scripts/mine.py", "configs/trainer/short.yaml", "docs/mine.md"):
        (checkout / name).write_text("# mine\n")
    run(checkout, "git", "rm", "-qf", "docs/examples/gan.md")
    run(checkout, "git", "add", "-A")
    run(checkout, "git", "commit", "-qm", "my project")
    run(checkout, "git", "checkout", "-q", "upstream")
    for name in (
        "README.md",
        "engine/src/seedbed/names.py",
        "src/project/models/cnn.py",
    ):
        with open(checkout / name, "a") as file:
            file.write("# next version\n")
    (checkout / "scripts/added.py").write_text("# added\n")
    run(checkout, "git", "add", "scripts/added.py")
    run(checkout, "git", "rm", "-q", "engine/LICENSE")
    run(checkout, "git", "commit", "-qam", "next version")
    run(checkout, "git", "checkout", "-q", "-")
    return checkout


def test_the_engine_is_upgraded_without_conflicts(upgradable: Path) -> None:
    """Both sides have changed, also the same files. Negative control: a plain merge
    conflicts.

    What the project added below the engine's paths stays, and what it deleted stays
    away.
    """
    assert "CONFLICT" in run(upgradable, "git", "merge", "upstream", status=1).stdout
    run(upgradable, "git", "merge", "--abort")
    said = run(upgradable, "make", "upgrade", "FROM=upstream").stdout
    assert (
        "your files stay: configs/trainer/short.yaml, docs/mine.md, scripts/mine.py\n"
        in said
    )
    assert "Already up to date" not in said
    run(upgradable, "git", "commit", "-qm", "upgrade")
    assert run(upgradable, "git", "diff", "upstream", "--", "engine").stdout == ""
    for name in ("scripts/mine.py", "configs/trainer/short.yaml", "docs/mine.md"):
        assert (upgradable / name).read_text() == "# mine\n"
    assert (upgradable / "scripts/added.py").exists()
    assert not (upgradable / "docs/examples/gan.md").exists()
    assert (upgradable / "README.md").read_text().startswith("# waves")
    assert not (upgradable / "src/waves/models/cnn.py").exists()
    named = r"src/project\b|\bproject\.[a-z]|--trust project"
    assert (
        run(upgradable, "git", "grep", "-lE", named, "--", "docs", status=1).stdout
        == ""
    )
    assert "_target_: waves." in (upgradable / "docs/your-code.md").read_text()
    again = run(upgradable, "make", "upgrade", "FROM=upstream").stdout
    assert again.startswith("nothing to upgrade: ")


def test_an_upgrade_overwrites_no_file_of_the_project(upgradable: Path) -> None:
    """It is refused in one line, and nothing changes; edits of the engine's files are
    named."""
    (upgradable / "scripts/added.py").write_text("# mine, of the same name\n")
    line = refusal(run(upgradable, *UPGRADE, status=2))
    assert line == "scripts/added.py: upstream would overwrite it; move it"
    run(upgradable, "git", "add", "-A")
    line = refusal(run(upgradable, *UPGRADE, status=2))
    assert line.startswith("checkout: expected no uncommitted changes")
    run(upgradable, "git", "commit", "-qm", "a file of mine")
    line = refusal(run(upgradable, *UPGRADE, status=2))
    assert line.startswith("scripts/added.py: a file of yours, which upstream has, too")
    assert run(upgradable, "git", "status", "--porcelain").stdout == ""
    run(upgradable, "git", "mv", "scripts/added.py", "scripts/mine_too.py")
    with open(upgradable / "train.py", "a") as file:
        file.write("# an edit\n")
    run(upgradable, "git", "commit", "-qam", "renamed")
    assert "your edits were replaced in: train.py\n" in run(upgradable, *UPGRADE).stdout
    unknown = refusal(run(upgradable, *UPGRADE[:2], "nowhere", "scripts", status=2))
    assert unknown.startswith(("checkout:", "FROM:"))


def test_a_slim_project_names_the_engine_by_its_git_address(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL has a scheme and a host: pip refuses the requirement
    `git+file:///disk/a.git`."""
    monkeypatch.syspath_prepend(TEMPLATE / "scripts")  # as Python does for a script
    url_of = runpy.run_path(str(TEMPLATE / "scripts/new.py"))["url_of"]
    for remote in ("git@host:me/a.git", "/disk/a.git", "file:///disk/a.git"):
        assert all([urlsplit(url_of(remote)).scheme, urlsplit(url_of(remote)).hostname])
    run(checkout, "git", "remote", "add", "origin", "https://example.org/seedbed.git")
    run(checkout, "git", "tag", "v9")
    run(checkout, sys.executable, "scripts/new.py", "waves", "--slim")
    url = "git+https://example.org/seedbed.git@v9"
    for name in ("requirements.in", "requirements.txt"):
        lines = (checkout / name).read_text().splitlines()
        assert f"seedbed @ {url}#subdirectory=engine" in lines
        assert f"torch-deterministic-kernels @ {url}#subdirectory=kernels" in lines
    assert not (checkout / "engine").exists()
    assert not (checkout / "kernels").exists()
    assert "engine" not in run(checkout, "make", "help").stdout.replace(
        "that the engine keeps", ""
    )


def test_an_impossible_name_is_refused(checkout: Path) -> None:
    """It is refused in one line, and no file changes; so are uncommitted changes."""
    for name in ("", "my-waves", "class", "json", "tests"):
        line = refusal(run(checkout, sys.executable, "scripts/new.py", name, status=2))
        assert line.startswith("NAME: expected a ")
    assert run(checkout, "git", "status", "--porcelain").stdout == ""
    (checkout / "notes.txt").write_text("mine")
    line = refusal(run(checkout, sys.executable, "scripts/new.py", "waves", status=2))
    assert line.startswith("checkout: expected no uncommitted changes")
