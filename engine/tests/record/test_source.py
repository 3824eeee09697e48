"""Commit and patch are the code that ran, or the record names what they lack."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from seedbed import project
from seedbed.compare import checkout
from seedbed.record import blobs, code, source
from seedbed.record.origin import Origin, changes

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")


def git(root: Path, *arguments: str) -> str:
    """Run git as the user, whose environment and configuration count."""
    words = ["git", "-C", str(root), *IDENTITY, *arguments]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def commit(root: Path) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "change")
    return git(root, "rev-parse", "HEAD")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give git a user whose configuration is a file of this test."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def root(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with a package, as the project's checkout."""
    root = tmp_path / "checkout"
    (root / "src" / "mine").mkdir(parents=True)
    (root / "src" / "mine" / "model.py").write_text("".join(f"line_{i} = 1\n" for i in range(30)))
    (root / "src" / "mine" / "old.py").write_text("old = 1\n")
    (root / "pyproject.toml").write_text("")
    git(root, "init", "-q")
    commit(root)
    monkeypatch.setattr(project, "root", lambda: root)
    return root


def edit(root: Path) -> None:
    """Change a file in the middle, remove one, add one."""
    path = root / "src" / "mine" / "model.py"
    path.write_text(path.read_text().replace("line_15 = 1", "line_15 = 2"))
    (root / "src" / "mine" / "old.py").unlink()
    (root / "src" / "mine" / "new.py").write_text("new = 1\n")


def contents(root: Path) -> dict[bytes, bytes]:
    """Return what is in the files and links of a folder, without git's own."""
    found = {}
    for folder, folders, names in os.walk(os.fsencode(root)):
        folders[:] = [name for name in folders if name != b".git"]
        for name in names:
            path = os.path.join(folder, name)
            is_link = os.path.islink(path)
            key = os.path.relpath(path, os.fsencode(root))
            if name != b".git":
                found[key] = os.readlink(path) if is_link else Path(os.fsdecode(path)).read_bytes()
    return found


def restored(root: Path, run: Path) -> dict[bytes, bytes]:
    """Return the code that the record of a checkout brings back."""
    state, patch = source.snapshot(root)
    run.mkdir(exist_ok=True)
    (run / "source.patch").write_bytes(patch)
    with checkout.checkout(run, str(state["commit"])) as tree:
        return contents(tree)


def origin(root: Path) -> Origin:
    state, patch = source.snapshot(root)
    return Origin({}, {"git": state}, blobs.patched_files(patch))


def changed(before: Origin, now: Origin) -> dict[str, bool]:
    return {change.key: change.alters_bits for change in changes(before, now)}


CONFIGURATIONS = [
    ("diff.context", "0"),
    ("diff.interHunkContext", "9"),
    ("diff.noprefix", "true"),
    ("diff.mnemonicPrefix", "true"),
    ("diff.external", "false"),
    ("diff.py.textconv", "wc -l"),
    ("diff.suppressBlankEmpty", "true"),
    ("diff.renames", "copies"),
    ("color.ui", "always"),
    ("core.autocrlf", "true"),
    ("core.autocrlf", "input"),
    ("core.safecrlf", "true"),
    ("core.quotepath", "false"),
    ("core.fsmonitor", "false;"),
    ("core.hooksPath", "/nonexistent"),
    ("core.ignoreStat", "true"),
    ("apply.whitespace", "fix"),
    ("apply.ignoreWhitespace", "change"),
]


@pytest.mark.parametrize(("name", "value"), CONFIGURATIONS)
def test_the_patch_applies_whatever_git_is_configured_to(
    name: str, value: str, root: Path, home: Path, tmp_path: Path
) -> None:
    """The user's settings change neither what is found nor how it is written."""
    (home / "attributes").write_text("*.py diff=py\n*.txt -text\n")
    git(root, "config", "--global", "core.attributesFile", str(home / "attributes"))
    edit(root)
    (root / "src" / "mine" / "space.py").write_text("a = 1  \n\n\n\tb\n")
    expected = contents(root)
    plain = source.snapshot(root)
    git(root, "config", "--global", name, value)
    assert source.snapshot(root) == plain
    assert {k: v.replace(b"\r\n", b"\n") for k, v in restored(root, tmp_path / "run").items()} == (
        expected
    )


@pytest.mark.parametrize(
    "name", ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"]
)
def test_variables_that_name_another_repository_are_dropped(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a git hook sets them; the commit is the checkout's."""
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    git(other, "init", "-q")
    (other / "file").write_text("x")
    commit(other)
    edit(root)
    plain, expected = source.snapshot(root), contents(root)
    places = {"GIT_INDEX_FILE": ".git/index", "GIT_WORK_TREE": ".", "GIT_NAMESPACE": "x"}
    monkeypatch.setenv(name, str(other / places.get(name, ".git")))
    assert source.snapshot(root) == plain
    assert restored(root, tmp_path / "run") == expected


NAMES = [b"a b/y", b'quo"te', b"new\nline", b"na\xc3\xafve", b"not\xffutf8", b"tab\there", b"-x",
         b":(top)y", b"back\\slash", b" lead", b"*"]  # fmt: skip


def test_any_name_and_content_is_recorded(root: Path, tmp_path: Path) -> None:
    """Names with blanks, quotes, newlines and other bytes; binary files, links, modes."""
    for name in NAMES:
        path = os.path.join(os.fsencode(root), b"src", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(bytes(range(256)) + name)
    (root / "link").symlink_to("src/mine")
    (root / "src" / "mine" / "old.py").chmod(0o755)
    expected = contents(root)
    assert restored(root, tmp_path / "run") == expected
    found = blobs.patched_files(source.snapshot(root)[1])
    assert {"src/new\\nline", "src/naïve", "src/not\\udcffutf8", "src/a b/y", "link"} <= set(found)
    assert len(found) == len(NAMES) + 1
    before = origin(root)
    commit(root)
    assert list(changed(before, origin(root))) == ["git.commit"], "committing changes no code"


def test_a_file_that_git_refuses_is_named_and_the_rest_recorded(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that git never takes; alone it makes the checkout dirty, too."""
    (root / "src" / ".GIT").mkdir()
    (root / "src" / ".GIT" / "hidden.py").write_text("a = 1\n")
    edit(root)
    monkeypatch.setattr(source._Copy, "untracked", lambda _: ["src/.GIT/hidden.py"])
    state, patch = source.snapshot(root)
    assert list(state["lacks"]) == ["src/.GIT/hidden.py"]
    assert set(blobs.patched_files(patch)) == {"src/mine/model.py", "src/mine/old.py"}
    git(root, "checkout", "-q", ".")
    state, patch = source.snapshot(root)
    assert (state["dirty"], patch) == (True, b"")
    assert "src/.GIT/hidden.py" in (code.warning(state["lacks"]) or "")


def test_a_required_filter_that_is_not_installed_hides_nothing(root: Path, tmp_path: Path) -> None:
    """Its files are recorded as they are, among the others."""
    (root / ".gitattributes").write_text("*.bin filter=absent\n")
    (root / "tracked.bin").write_text("before")
    commit(root)
    git(root, "config", "filter.absent.clean", "no-such-program")
    git(root, "config", "filter.absent.required", "true")
    (root / "tracked.bin").write_text("after")
    (root / "new.bin").write_text("new")
    edit(root)
    state, _ = source.snapshot(root)
    assert (state["dirty"], state["lacks"]) == (True, {})
    assert restored(root, tmp_path / "run") == contents(root)


@pytest.mark.parametrize("commits", [0, 1])
def test_code_of_a_nested_repository_is_recorded(commits: int, root: Path, tmp_path: Path) -> None:
    """Committed there or not; negative control: what it ignores is not."""
    nested = root / "src" / "nested"
    nested.mkdir()
    git(nested, "init", "-q")
    (nested / "committed.py").write_text("a = 1\n")
    (nested / ".gitignore").write_text("ignored\n")
    if commits:
        commit(nested)
    (nested / "loose.py").write_text("b = 1\n")
    edit(root)
    assert source.snapshot(root)[0]["lacks"] == {}
    expected = contents(root)
    (nested / "ignored").write_text("c")
    assert restored(root, tmp_path / "run") == expected
    before = origin(root)
    (nested / "loose.py").write_text("b = 2\n")
    assert changed(before, origin(root)) == {"src/nested/loose.py": True}


def test_uncommitted_code_of_a_submodule_is_named(root: Path, tmp_path: Path) -> None:
    """Its commit is recorded; what is not committed in it is in no record, which says so."""
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "file.py").write_text("a = 1\n")
    commit(other)
    git(root, "submodule", "--quiet", "add", str(other), "src/sub")
    commit(root)
    clean, patch = source.snapshot(root)
    assert (clean["dirty"], clean["lacks"], patch) == (False, {}, b"")
    (root / "src" / "sub" / "file.py").write_text("a = 2\n")
    state, _ = source.snapshot(root)
    assert list(state["lacks"]) == ["src/sub"]
    assert state["dirty"]
    before = origin(root)
    commit(root / "src" / "sub")
    assert changed(before, origin(root))["src/sub"]


def test_flags_of_the_index_hide_no_change(root: Path, tmp_path: Path) -> None:
    """assume-unchanged and skip-worktree; what a sparse checkout left out is no change."""
    git(root, "update-index", "--assume-unchanged", "src/mine/model.py")
    git(root, "update-index", "--skip-worktree", "src/mine/old.py", "pyproject.toml")
    (root / "pyproject.toml").unlink()
    assert source.snapshot(root) == (source.snapshot(root)[0] | {"dirty": False}, b"")
    (root / "src" / "mine" / "model.py").write_text("hidden = 1\n")
    (root / "src" / "mine" / "old.py").write_text("hidden = 2\n")
    found = restored(root, tmp_path / "run")
    assert found.pop(b"pyproject.toml") == b""
    assert found == contents(root)
    assert git(root, "ls-files", "-v", "src").split("\n")[0].startswith("h"), "the index changed"


RUN_FILES = {"config.yaml": "seed: 0\n", "metrics.csv": "", "checkpoints/last.pt": "x"}


@pytest.mark.parametrize("mark", [".lock", "summary.json"])
@pytest.mark.parametrize("place", ["out", "src/mine/out", "results/a/b"])
def test_run_folders_are_never_code(mark: str, place: str, root: Path) -> None:
    """Wherever they are; negative control: a folder with a config.yaml of its own is code."""
    edit(root)
    before = source.snapshot(root)
    for name, text in (RUN_FILES | {mark: "{}"}).items():
        path = root / place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert source.snapshot(root) == before
    (root / place / mark).unlink()
    assert f"{place}/config.yaml" in blobs.patched_files(source.snapshot(root)[1])


def test_a_committed_run_folder_is_no_code_either(root: Path) -> None:
    """It may change, and be removed."""
    for name in ("config.yaml", "summary.json", "metrics.csv"):
        (root / "results" / "a").mkdir(parents=True, exist_ok=True)
        (root / "results" / "a" / name).write_text("{}")
    commit(root)
    before = origin(root)
    (root / "results" / "a" / "metrics.csv").write_text("1\n")
    assert changed(before, origin(root)) == {}
    for name in ("config.yaml", "summary.json", "metrics.csv"):
        (root / "results" / "a" / name).unlink()
    assert changed(before, origin(root)) == {}


def test_large_files_are_named_not_copied(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data beside the code makes no patch of its size; among the code, its digest is known."""
    for place in ("data.bin", "src/mine/table.bin"):
        with open(root / place, "wb") as file:
            file.truncate(source.MAX_UNTRACKED_BYTES + 1)
    state, patch = source.snapshot(root)
    assert len(patch) < 1000
    assert set(state["lacks"]) == {"data.bin", "src/mine/table.bin"}
    assert state["dirty"]
    before = origin(root)
    for place in ("data.bin", "src/mine/table.bin"):
        with open(root / place, "r+b") as file:
            file.write(b"1")
    assert changed(before, origin(root)) == {"git.lacks.src/mine/table.bin": True}
    with open(root / "data.bin", "ab") as file:
        file.write(b"1")
    assert changed(before, origin(root))["git.lacks.data.bin"] is False

    monkeypatch.setattr(source, "MAX_PATCHED_BYTES", 300)
    for number in range(100):
        (root / f"image_{number}").write_bytes(b"." * 50)
    edit(root)
    state, patch = source.snapshot(root)
    assert "src/mine/new.py" in blobs.patched_files(patch), "code comes before data"
    assert len(state["lacks"]) < 10


def test_a_checkout_without_a_repository_is_recorded_whole(root: Path, tmp_path: Path) -> None:
    """An archive of the code, also where it lies below a repository that ignores it."""
    edit(root)
    expected = contents(root)
    for parent in (False, True):
        if parent:
            git(tmp_path, "init", "-q")
            (tmp_path / ".gitignore").write_text("*\n")
        else:
            (root / ".git").rename(tmp_path / "away")
        state, _ = source.snapshot(root)
        assert state == {"commit": None, "dirty": True, "lacks": {}}
        assert restored(root, tmp_path / "run") == expected
        before = origin(root)
        (root / "src" / "mine" / "new.py").write_text("new = 2\n")
        assert changed(before, origin(root)) == {"src/mine/new.py": True}
        (root / "src" / "mine" / "new.py").write_text("new = 1\n")


def test_before_the_first_commit_the_patch_is_the_code(tmp_path: Path, root: Path) -> None:
    """What is staged and what is not."""
    (root / ".git").rename(tmp_path / "away")
    git(root, "init", "-q")
    git(root, "add", "src")
    edit(root)
    assert source.snapshot(root)[0] == {"commit": None, "dirty": True, "lacks": {}}
    assert restored(root, tmp_path / "run") == contents(root)


def test_without_git_the_record_says_what_it_lacks(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither clean nor dirty is claimed."""
    monkeypatch.setenv("PATH", "/nonexistent")
    state, patch = source.snapshot(root)
    assert (state["commit"], state["dirty"], patch) == (None, None, b"")
    assert "git is not installed" in (code.warning(state["lacks"]) or "")


def linked_worktree(root: Path, tmp_path: Path) -> Path:
    git(tmp_path, "clone", "-q", "--bare", str(root), "bare")
    git(tmp_path / "bare", "worktree", "add", "-q", str(tmp_path / "tree"))
    return tmp_path / "tree"


def shallow_clone(root: Path, tmp_path: Path) -> Path:
    (root / "more").write_text("")
    commit(root)
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{root}", "tree")
    return tmp_path / "tree"


def folder_of_another(root: Path, tmp_path: Path) -> Path:
    """Return the project as a folder of a larger repository."""
    large = tmp_path / "large"
    large.mkdir()
    (root / ".git").rename(tmp_path / "away")
    root.rename(large / "project")
    (large / "beside").write_text("1")
    git(large, "init", "-q")
    commit(large)
    return large / "project"


@pytest.mark.parametrize("make", [linked_worktree, shallow_clone, folder_of_another])
def test_other_checkouts_are_recorded_as_well(
    make: Callable[[Path, Path], Path], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worktree of a bare repository, a shallow clone, a folder of a larger repository."""
    tree = make(root, tmp_path)
    monkeypatch.setattr(project, "root", lambda: tree)
    clean, patch = source.snapshot(tree)
    assert (clean["dirty"], patch) == (False, b"")
    before = origin(tree)
    edit(tree)
    assert restored(tree, tmp_path / "run") == contents(tree)
    names = ("model.py", "new.py", "old.py")
    assert changed(before, origin(tree)) == {f"src/mine/{name}": True for name in names}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_checkout_of_another_owner_is_recorded(root: Path, tmp_path: Path) -> None:
    """git would refuse it, though its code is running already."""
    edit(root)
    expected = source.snapshot(root)
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, 12345, 12345, follow_symlinks=False)
    failed = subprocess.run(["git", "-C", str(root), "status"], capture_output=True, check=False)
    assert failed.returncode, "negative control: git refuses"
    assert source.snapshot(root) == expected


def test_what_schedulers_write_is_no_code(root: Path) -> None:
    """The output of a shell or a cluster may grow in the checkout."""
    (root / "nohup.out").write_text("1\n")
    before = origin(root)
    (root / "nohup.out").write_text("1\n2\n")
    assert changed(before, origin(root)) == {"nohup.out": False}
