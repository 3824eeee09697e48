"""The ways in which a program could make a claim hold that does not: each is refused.

Each test has its honest twin: the same records before the cheat, with which the claim
holds.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from seedbed import record
from seedbed.claims import lock as locks
from seedbed.claims.lock import Lock
from seedbed.record import chain, code, verified
from tests.claims import made_up
from tests.claims.made_up import BASE, CODE, better, report, train, write_chain
from tests.made_up_runs import edit_summary
from tests.running import refusal

WORST = 5  # the seed with the smallest gain
Cheat = Callable[[Lock, Path], None]


def run_of(lock: Lock, name: str, seed: int) -> Path:
    return made_up.runs(lock) / name / f"{seed}_seed={seed}"


def again(lock: Lock, folder: Path, **how: Any) -> None:
    """Write the run of the worst seed anew, with a better value and something else."""
    shutil.rmtree(folder)
    train(lock, "high", WORST, 0.999, place=folder, **how)


def test_an_honest_claim_holds(lock: Lock) -> None:
    found = report(lock.claim.path, 0)
    assert (found["holds"], found["verdict"], found["refused"]) == (True, "better", [])
    [compared] = found["comparisons"]
    assert (compared["cautions"], compared["not_comparable"]) == ([], [])
    assert [change["key"] for change in compared["differs"]] == ["optimizer.lr"]


def hide(lock: Lock, folder: Path) -> None:
    shutil.rmtree(folder)


def rename_the_claim(lock: Lock, folder: Path) -> None:
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace(f"claim: {lock.digest}", "claim: null"))
    write_chain(folder)


def exchange(lock: Lock, folder: Path) -> None:
    """Take a seed that was chosen afterwards for the worst one."""
    shutil.rmtree(folder)
    for name, value in (("base", 0.9), ("high", 0.99)):
        changes = {"seed": 9, **{f"seeds.{s}": 9 for s in ("init", "order")}}
        place = made_up.runs(lock) / name / "6_seed=9"
        train(lock, name, WORST, value, place=place, changes=changes)


def add(lock: Lock, folder: Path) -> None:
    seeds = {f"seeds.{it}": 9 for it in ("init", "order", "augment", "dropout", "data")}
    for name, value in (("base", 0.9), ("high", 0.99)):
        changes = {"seed": 9, **seeds}
        place = made_up.runs(lock) / name / "6_seed=9"
        train(lock, name, WORST, value, place=place, changes=changes)


def train_longer(lock: Lock, folder: Path) -> None:
    again(lock, folder, changes={"trainer.max_steps": 80}, steps=80)


def resume_longer(lock: Lock, folder: Path) -> None:
    """Edit the settings back, but not the steps and the chain."""
    again(lock, folder, steps=80)
    plan = json.loads((folder / chain.PLAN).read_text())
    plan["segments"]["last_step"] = 40
    written = chain.Chain(folder, plan, 0)
    written.append(80, "a" * 64, "b" * 64)
    written.close()


def split_otherwise(lock: Lock, folder: Path) -> None:
    again(lock, folder, changes={"seeds.split": 7})


def smooth(lock: Lock, folder: Path) -> None:
    again(lock, folder, changes={"data.task.label_smoothing": 0.0})


def call_back(lock: Lock, folder: Path) -> None:
    again(lock, folder, changes={"callbacks.mine": {"_target_": "mine.Better"}})


def train_fast(lock: Lock, folder: Path) -> None:
    again(lock, folder, changes={"determinism.on_nondeterministic": "allow"})


def use_other_code(lock: Lock, folder: Path) -> None:
    again(lock, folder, environment={"imported_files": {CODE: "b" * 64}})


def add_code(lock: Lock, folder: Path) -> None:
    files = {CODE: lock.variants["high"].code[CODE], "src/json.py": "b" * 64}
    again(lock, folder, environment={"imported_files": files})


def use_code_elsewhere(lock: Lock, folder: Path) -> None:
    """Also the run of another seed imports it, in another version."""
    own = lock.variants["high"].code[CODE]
    for seed, digest in ((4, "a" * 64), (WORST, "b" * 64)):
        path = run_of(lock, "high", seed)
        files = {CODE: own, "elsewhere/mine.py": digest}
        shutil.rmtree(path)
        train(lock, "high", seed, 0.99, environment={"imported_files": files})


def import_code_in_one_run(lock: Lock, folder: Path) -> None:
    """As a sitecustomize.py does that PYTHONPATH names for some runs."""
    own = lock.variants["high"].code[CODE]
    files = {CODE: own, "elsewhere/sitecustomize.py": "a" * 64}
    again(lock, folder, environment={"imported_files": files})


def add_a_folder_of_code(lock: Lock, folder: Path) -> None:
    files = {CODE: lock.variants["high"].code[CODE], "lib/net.py": "b" * 64}
    again(lock, folder, environment={"imported_files": files})


def record_no_code(lock: Lock, folder: Path) -> None:
    again(lock, folder, environment={"imported_files": {}})


def use_other_data(lock: Lock, folder: Path) -> None:
    again(lock, folder, environment={"data_sha256": {"images": "ff00"}})


def record_no_data(lock: Lock, folder: Path) -> None:
    again(lock, folder, environment={"data_sha256": {}})


def use_other_files(lock: Lock, folder: Path) -> None:
    for seed, digest in ((4, "a" * 64), (WORST, "b" * 64)):
        path = run_of(lock, "high", seed)
        shutil.rmtree(path)
        environment = {"files_sha256": {"words.txt": digest}}
        train(lock, "high", seed, 0.99, environment=environment)


def claim_later(lock: Lock, folder: Path) -> None:
    """Resume a run that began without the claim, with it."""
    plan = json.loads((folder / chain.PLAN).read_text()) | {"claim": None}
    written = chain.Chain(folder, plan, 0)
    written.append(40, "a" * 64, "b" * 64)
    written.close()
    changes = {"claim": [None, lock.digest]}
    edit_summary(folder, resumes=[{"step": 20, "changes": changes}])


def resume_with_changes(lock: Lock, folder: Path) -> None:
    edit_summary(folder, resumes=[{"step": 20, "can_alter_bits": ["optimizer.lr"]}])


def change_and_undo(lock: Lock, folder: Path) -> None:
    """Callbacks change no bit of the weights, but may change a validation value."""
    changes = {"callbacks.mine._target_": [None, "mine.Better"]}
    undone = {"callbacks.mine._target_": ["mine.Better", None]}
    resumes = [{"step": 20, "changes": changes}, {"step": 30, "changes": undone}]
    edit_summary(folder, resumes=resumes)


def copy_another_seed(lock: Lock, folder: Path) -> None:
    other = record.read_summary(run_of(lock, "high", 4))
    again(lock, folder, fingerprints=other["fingerprints"])


def relabel_another_seed(lock: Lock, folder: Path) -> None:
    edit_summary(folder, seed=4)


def take_other_weights(lock: Lock, folder: Path) -> None:
    """Those of step 40 had the value that one wants, those of step 20 were the
    best."""
    path = folder / "metrics.csv"
    header, *rows = path.read_text().splitlines()
    columns = header.split(",")
    early = dict.fromkeys(columns, "")
    early |= {"step": "20", "phase": "validation", "accuracy": "0.9999"}
    lines = [header, ",".join(early[name] for name in columns), *rows]
    path.write_text("".join(f"{line}\n" for line in lines))


def fail_and_train_again(lock: Lock, folder: Path) -> None:
    place = made_up.runs(lock) / "again"
    bits = {"weights": "0"}
    train(lock, "high", WORST, float("nan"), place=place, fingerprints=bits)


def edit_the_plan(lock: Lock, folder: Path) -> None:
    path = folder / chain.PLAN
    path.write_text(path.read_text().replace('"every_steps": 0', '"every_steps": 5'))


def edit_a_result(lock: Lock, folder: Path) -> None:
    edit_summary(folder, metrics={"validation_accuracy": 0.999, "test_accuracy": 0.5})


def train_until_it_is_better(lock: Lock, folder: Path) -> None:
    place = made_up.runs(lock) / "again"
    train(lock, "high", WORST, 0.999, place=place, fingerprints={"weights": "0"})


def fail_the_replay(lock: Lock, folder: Path) -> None:
    verified.note(folder, reproduced=False)


def minimise(lock: Lock, folder: Path) -> None:
    for path in made_up.runs(lock).glob("*/*"):
        edit_summary(path, higher_is_better=False)


@pytest.mark.parametrize(
    ("cheat", "line"),
    [
        (hide, "high: expected finished runs of seeds 5, got none"),
        (rename_the_claim, "high: expected finished runs of seeds 5, got none"),
        (exchange, "seed: expected one of the claim, got 9: it was added"),
        (add, "seed: expected one of the claim, got 9: it was added"),
        (train_longer, "trainer.max_steps: expected 40 of the claim, got 80 (high)"),
        (resume_longer, "steps: expected 40 of its plan, got 80"),
        (split_otherwise, "seeds.split: expected 0 of the claim, got 7"),
        (smooth, "data.task.label_smoothing: expected 0.1 of the claim, got 0.0"),
        (call_back, 'callbacks.mine._target_: expected null of the claim, got "mine'),
        (train_fast, "determinism.on_nondeterministic: expected"),
        (use_other_code, f"{CODE}: expected the file of the claim"),
        (add_code, "src/json.py: expected a file of the claim, got one that was added"),
        (use_code_elsewhere, "elsewhere/mine.py: expected the file that"),
        (import_code_in_one_run, "sitecustomize.py: expected the file that"),
        (add_a_folder_of_code, "lib/net.py: expected a file of the claim, got one"),
        (record_no_code, "environment.json: expected digests of the code, got none"),
        (use_other_data, "data_sha256.images: expected the data of"),
        (record_no_data, "data_sha256.images: expected the digest of the data, got"),
        (use_other_files, "files_sha256.words.txt: expected the data of"),
        (claim_later, "plan.json: expected the digest of the claim, got none"),
        (resume_with_changes, "was resumed at step 20 with other optimizer.lr"),
        (change_and_undo, "was resumed at step 20 with other callbacks.mine._target_"),
        (copy_another_seed, "expected weights of its own seed, got those of"),
        (relabel_another_seed, "summary.json: seed: expected 5, got 4"),
        (take_other_weights, "tested_step: expected 20 by metrics.csv, got 40"),
        (fail_and_train_again, "which has the same seed, got others"),
        (edit_the_plan, "chain.csv: its first row is not that of plan.json"),
        (edit_a_result, "summary.json: metrics.validation_accuracy is 0.999, but 0.9"),
        (train_until_it_is_better, "which has the same seed, got others"),
        (fail_the_replay, "scripts/verify.py did not reproduce it"),
        (minimise, "direction: expected maximize of validation_accuracy, got runs"),
    ],
)
def test_a_cheat_is_refused(
    cheat: Cheat,
    line: str,
    lock: Lock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With status 2, named, and without a verdict or a value. Negative control: the
    records before."""
    monkeypatch.setattr(verified, "_path", lambda run: tmp_path / f"{run.name}.json")
    assert report(lock.claim.path, 0)["holds"]
    cheat(lock, run_of(lock, "high", WORST))
    found = report(lock.claim.path, 2)
    assert any(line in each for each in found["refused"]), found["refused"]
    assert (found["holds"], found["verdict"]) == (None, "undecided")
    assert found["comparisons"] == []
    text = made_up.called("check", lock.claim.path)
    assert f"refused: {found['refused'][0]}\n" in text.stdout
    assert text.stdout.endswith(
        "no verdict: records contradict the claim, or are missing\n"
    )
    assert "expected the runs of the claim" in refusal(text)


def test_a_fixed_claim_is_not_decided_early(tmp_path: Path) -> None:
    """Four of six seeds are clearly better. Negative control: all six."""
    lock = made_up.fixed(tmp_path / "claim")
    made_up.train_all(lock, base=BASE[:4], high=better()[:4])
    found = report(lock.claim.path, 2)
    assert [line.partition(":")[0] for line in found["refused"]] == ["base", "high"]
    assert all("seeds 4, 5, got none" in line for line in found["refused"])
    assert found["comparisons"] == []
    for name, values in (("base", BASE), ("high", better())):
        for seed in (4, 5):
            train(lock, name, seed, values[seed])
    assert report(lock.claim.path, 0)["holds"]


EDITS: dict[str, Any] = {
    "metric": "validation_loss",
    "direction": "minimize",
    "rule": "sequential",
    "seeds": [0, 1, 2, 3, 4],
    "alpha": 0.2,
    "smallest_difference": 0.0,
    "settings": ["trainer.max_steps=40"],
    "variants": {"base": ["optimizer.lr=0.01"], "high": []},
}


@pytest.mark.parametrize("key", EDITS)
def test_an_edited_claim_is_refused(key: str, lock: Lock) -> None:
    """With the key. Negative control: the same content, written in another way."""
    path = lock.claim.path
    whole = yaml.safe_load(path.read_text())
    path.write_text(f"# another comment\n{json.dumps(whole, indent=4)}\n")
    assert report(path, 0)["holds"]
    changed = {**whole, key: EDITS[key]}
    if key == "direction":
        changed["metric"] = "validation_accuracy"
    if key == "metric":
        changed["direction"] = "minimize"
    path.write_text(yaml.safe_dump(changed))
    for action in ("check", "status"):
        line = refusal(made_up.called(action, path))
        assert f"{path}: {key}: expected " in line
        assert "as the claim has fixed, got" in line


def test_an_edited_lock_is_refused(lock: Lock) -> None:
    """By its digest; with another digest, no run counts. Negative control: the lock in
    another layout."""
    place = lock.claim.path.with_name("claim.lock.json")
    entries = json.loads(place.read_text())
    place.write_text(json.dumps(entries))
    assert report(lock.claim.path, 0)["holds"]
    entries["fixed"]["variants"]["high"]["settings"]["trainer.max_steps"] = 80
    place.write_text(json.dumps(entries))
    line = refusal(made_up.called("check", lock.claim.path))
    assert "expected the content of which it has the digest, got an edited one" in line


def test_new_can_be_repeated_after_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of the lock, which leaves the code as it was. Negative control:
    other code."""
    lock = made_up.fixed(tmp_path / "claim")
    state = ({"commit": "f" * 40, "dirty": False}, b"")
    monkeypatch.setattr(code, "git_state", lambda _root: state)
    own = lock.variants["high"].code
    for digest, status in ((own[CODE], 0), ("b" * 64, 2)):
        here = {**own, CODE: digest}
        monkeypatch.setattr(code, "digests_of_project", lambda *_, it=here, **__: it)
        done = made_up.called("new", lock.claim.path)
        assert (done.returncode, lock.digest in done.stdout) == (status, status == 0)


def test_a_claim_that_is_written_after_the_runs_has_none(lock: Lock) -> None:
    """Another metric is chosen, and fixed anew. `new` does not replace a lock.
    Negative control: `new` of the same claim, again."""
    path = lock.claim.path
    assert made_up.called("new", path).returncode == 0
    changes = {"metric": "validation_loss", "direction": "minimize"}
    made_up.write_claim(path.parent, **changes)
    assert "as the claim has fixed" in refusal(made_up.called("new", path))
    path.with_name("claim.lock.json").unlink()
    assert made_up.called("new", path).returncode == 0
    found = report(path, 2)
    assert [row["state"] for row in found["runs"]] == ["missing"] * 12
    assert sum("has not the digest of the claim" in it for it in found["notes"]) == 12


def test_a_lock_that_is_written_by_hand_is_refused(tmp_path: Path) -> None:
    """With other settings than the claim composes, and a digest that fits. Negative
    control: the lock of `new`."""
    path = made_up.fixed(tmp_path / "claim").claim.path
    place = path.with_name("claim.lock.json")
    for rate, status in ((None, 0), (1e-9, 2)):
        entries = json.loads(place.read_text())
        if rate is not None:
            entries["fixed"]["variants"]["base"]["settings"]["optimizer.lr"] = rate
        content = json.dumps(entries["fixed"], sort_keys=True, separators=(",", ":"))
        entries["digest"] = code.sha256(content.encode())
        place.write_text(json.dumps(entries))
        lock = locks.read(path)
        made_up.train_all(lock, base=BASE[:6], high=better()[:6])
        found = report(path, status)
        lines = [line for line in found["refused"] if "as the claim composes" in line]
        assert bool(lines) == (status == 2)
        shutil.rmtree(made_up.runs(lock))


def test_other_data_are_refused_however_they_are_loaded(tmp_path: Path) -> None:
    """One variant takes other batches. Negative control: the same data."""
    variants = {"base": [], "high": ["data.batch_size=16", "optimizer.lr=0.01"]}
    lock = made_up.fixed(tmp_path / "claim", variants=variants)
    made_up.train_all(lock, base=BASE[:6], high=better()[:6])
    assert report(lock.claim.path, 0)["holds"]
    for seed in lock.seeds:
        folder = run_of(lock, "high", seed)
        shutil.rmtree(folder)
        others = {"data_sha256": {"images": "ff00"}}
        train(lock, "high", seed, 0.999, place=folder, environment=others)
    found = report(lock.claim.path, 2)
    assert any("expected the data of" in line for line in found["refused"])


EQUAL = "optimizer.lr=1"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"settings": ["+callbacks.x={_target_: os.system}"]}, "got os.system"),
        ({"settings": ["+determinism.env.LD_PRELOAD=/tmp/x.so"]}, "LD_PRELOAD"),
        ({"settings": ["model=3"]}, "model"),
        ({"variants": {"a": [], "b": [EQUAL], "c": [EQUAL]}}, "than b, got the same"),
        ({"rule": "sequential", "seeds": [0, 1, 2, 3]}, "seeds: expected"),
    ],
)
def test_new_refuses_what_it_should_not_print(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    """Its commands would run classes that no file of configs/ names, or could never
    decide. Negative control: a claim without the change."""
    path = made_up.write_claim(tmp_path, **changes)
    assert line in refusal(made_up.called("new", path))
    assert not path.with_name("claim.lock.json").exists()
    assert made_up.called("new", made_up.write_claim(tmp_path)).returncode == 0


def test_values_beyond_all_bounds_decide_nothing(tmp_path: Path) -> None:
    lock = made_up.fixed(tmp_path / "claim")
    made_up.train_all(
        lock,
        base=[1.7e308, -1.7e308, 1e308, 0, 1, 2],
        high=[-1.7e308, 1.7e308, 0, 1e308, 3, 4],
    )
    for action, status in (("check", 1), ("status", 0)):
        assert made_up.called(action, lock.claim.path).returncode == status
