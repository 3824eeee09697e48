"""Claims on made-up records: their rules, failures, status and what is listed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seedbed import project
from seedbed.claims import lock as locks
from seedbed.claims.lock import Lock
from seedbed.record import code, verified
from tests.claims import made_up
from tests.claims.made_up import BASE, CODE, better, report, train, train_all
from tests.made_up_runs import contents, edit_summary, write_results

CLEAR = [0.02 + 0.001 * number for number in (0, 1, -1, 0, 1, -1, 0, 1)]


def run_of(lock: Lock, name: str, seed: int) -> Path:
    return made_up.runs(lock) / name / f"{lock.seeds.index(seed)}_seed={seed}"


def test_new_fixes_the_claim_and_prints_its_commands(tmp_path: Path) -> None:
    """The digest is that of the content, wherever it is. Negative control: another
    claim has another one."""
    path = made_up.write_claim(tmp_path)
    done = made_up.called("new", path)
    assert (done.returncode, done.stderr) == (0, "")
    entries = json.loads((tmp_path / "claim.lock.json").read_text())
    canonical = json.dumps(entries["fixed"], sort_keys=True, separators=(",", ":"))
    digest = code.sha256(canonical.encode())
    assert entries["digest"] == digest
    high = entries["fixed"]["variants"]["high"]
    assert high["commit"] == made_up.COMMIT
    assert high["settings"]["optimizer.lr"] == 0.01
    assert high["seeds"]["seed"] == high["seeds"]["seeds.init"] == "seed"
    assert high["seeds"]["seeds.split"] == high["seeds"]["data.train.seed"] == 0
    files = entries["fixed"]["code"][made_up.COMMIT]
    here = (project.root() / CODE).read_bytes()
    assert files[CODE] == code.sha256(here)
    assert "elsewhere/seedbed/rng.py" in files
    assert (
        f"  python train.py -m seed=0,1,2,3,4,5 trainer.max_steps=40"
        f" determinism.threads=1 optimizer.lr=0.01 claim={digest}"
        f" hydra.sweep.dir=sweeps/claim-{digest[:12]}/high\n"
    ) in done.stdout
    others = [
        made_up.fixed(tmp_path / name, **changes).digest
        for name, changes in (("same", {}), ("other", {"alpha": 0.01}))
    ]
    assert (others[0] == digest, others[1] == digest) == (True, False)


@pytest.mark.parametrize("rule", ["fixed", "sequential"])
def test_drawn_seeds_are_those_of_the_commands(rule: str, tmp_path: Path) -> None:
    lock = made_up.fixed(tmp_path / "claim", seeds=6, rule=rule)
    train_all(
        lock, base=BASE[:6], high=[x + y for x, y in zip(BASE, CLEAR, strict=True)][:6]
    )
    assert report(lock.claim.path, 0)["seeds"] == [*lock.seeds]
    printed = made_up.called("new", lock.claim.path).stdout
    assert printed.count(f"seed={','.join(map(str, lock.seeds))} ") == 2


def test_a_sequential_claim_stops_at_its_first_verdict(tmp_path: Path) -> None:
    """Before it, it is undecided; later seeds change nothing, also if they are taken
    away. Negative control: a seed before it may not be left out."""
    lock = made_up.fixed(tmp_path / "claim", rule="sequential", seeds=[*range(8)])
    path = lock.claim.path
    assert report(path, 1)["verdict"] == "undecided"
    high = better(CLEAR)
    found = []
    for seed in range(8):
        train(lock, "base", seed, BASE[seed])
        train(lock, "high", seed, high[seed])
        [compared] = report(path, None)["comparisons"]
        found.append(compared["verdict"])
    first = found.index("better")
    assert 2 < first < 7
    assert found == ["undecided"] * first + ["better"] * (8 - first)
    [last] = report(path, 0)["comparisons"]
    assert (last["decided_by"], last["difference"]["n"]) == ("sequential", first + 1)
    shutil.rmtree(run_of(lock, "high", 7))
    assert report(path, 0)["comparisons"][0]["difference"] == last["difference"]
    shutil.rmtree(run_of(lock, "high", 2))
    [line] = report(path, 2)["refused"]
    assert line.startswith("high: expected finished runs of seeds 2, got none: later")


def test_a_difference_must_matter(tmp_path: Path) -> None:
    """It is clear, but smaller than what matters: undecided, and named. Negative
    control: if each difference matters."""
    gain = (0.001, 0.0012, 0.0008, 0.001, 0.0011, 0.0009)
    for smallest, status in ((0.002, 1), (0.0, 0)):
        folder = tmp_path / str(status)
        lock = made_up.fixed(folder, smallest_difference=smallest)
        train_all(lock, base=BASE, high=better(gain))
        found = report(lock.claim.path, status)
        assert found["verdict"] == ("undecided" if status else "better")
        text = made_up.called("check", lock.claim.path).stdout
        assert ("no difference that matters" in text) is bool(status)
        assert ("the claim is undecided\n" in text) is bool(status)


def test_a_worse_variant_does_not_hold(tmp_path: Path) -> None:
    """One of two variants is worse: the claim is that both are better. Negative
    control: both are."""
    variants = {"base": [], "b": ["optimizer.lr=0.01"], "c": ["optimizer.lr=0.02"]}
    worse = [x - 2 * y for x, y in zip(BASE, made_up.GAIN, strict=True)]
    for values, status in ((worse, 1), (better(), 0)):
        lock = made_up.fixed(tmp_path / str(status), variants=variants)
        train_all(lock, base=BASE, b=better(), c=values)
        found = report(lock.claim.path, status)
        assert [each["confidence"] for each in found["comparisons"]] == [0.975] * 2
        assert found["comparisons"][1]["verdict"] == ("worse" if status else "better")
        text = made_up.called("check", lock.claim.path).stdout
        assert ("the claim does not hold\n" in text) is bool(status)
        assert ("the claim holds\n" in text) is not bool(status)


def test_a_failed_run_leaves_a_claim_undecided(lock: Lock) -> None:
    """It is a result, as is a value that is not finite: with it, nothing can be hidden.
    Negative control: a run that was interrupted is missing."""
    run = run_of(lock, "high", 5)
    edit_summary(run, status="failed", error="loss: not finite")
    found = report(lock.claim.path, 1)
    [compared] = found["comparisons"]
    assert compared["not_comparable"] == ["seed 5 of high failed loss: not finite"]
    edit_summary(run, status="finished", error=None)
    write_results(run, {"validation_accuracy": float("nan"), "test_accuracy": 0.5})
    found = report(lock.claim.path, 1)
    [compared] = found["comparisons"]
    line = "seed 5 of high has no finite validation_accuracy"
    assert compared["not_comparable"] == [line]
    edit_summary(run, status="interrupted")
    assert "seeds 5, got none" in report(lock.claim.path, 2)["refused"][0]


def test_runs_that_are_not_verified_are_listed(
    lock: Lock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the command that verifies each. Negative control: verified ones are not."""
    names = {}
    monkeypatch.setattr(verified, "of", lambda run: names.get(run.name))
    text = made_up.called("check", lock.claim.path).stdout
    assert "not verified: 12 of 12 runs\n" in text
    assert f"  python scripts/verify.py {run_of(lock, 'high', 5)}\n" in text
    names |= {path.name: "yes" for path in (run_of(lock, "base", n) for n in range(5))}
    text = made_up.called("check", lock.claim.path).stdout
    assert "not verified: 2 of 12 runs\n" in text
    rows = report(lock.claim.path, 0)["runs"]
    assert [row["verified"] for row in rows] == (["yes"] * 5 + [None]) * 2
    assert all(row["run"] in row["verify"] for row in rows)


def test_status_names_what_is_missing(lock: Lock) -> None:
    """And begun and failed runs, with the commands of what is missing, and how many
    seeds would decide. It writes nothing. Negative control: a claim with all runs."""
    shutil.rmtree(run_of(lock, "high", 5))
    edit_summary(run_of(lock, "high", 4), status="interrupted")
    edit_summary(run_of(lock, "base", 1), status="failed", error="not finite")
    before = contents(lock.claim.path.parent)
    found = report(lock.claim.path, 0, "status")
    assert found["missing"] == {"base": [1], "high": [4, 5]}
    assert [*found["commands"]] == ["base", "high"]
    states = {(row["variant"], row["seed"]): row["state"] for row in found["runs"]}
    assert states["high", 5] == "missing"
    assert states["high", 4] == "interrupted"
    assert states["base", 1] == "failed"
    text = made_up.called("status", lock.claim.path).stdout
    assert "high: 4 finished, 1 interrupted, 1 missing of 6 seeds\n" in text
    assert f"{run_of(lock, 'base', 1)}: failed failed not finite\n" in text
    assert contents(lock.claim.path.parent) == before


def test_status_says_how_many_seeds_would_decide(tmp_path: Path) -> None:
    """By the deviation so far, of both rules. Negative control: with one seed, that is
    unknown."""
    gain = [0.002 + 0.003 * each for each in (1, -1, 1, -1, 1, -1)]
    needed = {}
    for rule in ("fixed", "sequential"):
        lock = made_up.fixed(tmp_path / rule, rule=rule)
        train_all(lock, base=BASE[:1], high=better(gain)[:1])
        found = report(lock.claim.path, 0, "status")
        assert found["seeds_to_decide"] == {"high": None}
        shutil.rmtree(made_up.runs(lock))
        train_all(lock, base=BASE, high=better(gain))
        needed[rule] = report(lock.claim.path, 0, "status")["seeds_to_decide"]["high"]
        text = made_up.called("status", lock.claim.path).stdout
        assert f"{needed[rule]} seeds decide; 6 are planned" in text
    assert 6 < needed["fixed"] < needed["sequential"] < 1000


def test_status_names_code_that_changed_since_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before runs are trained that would be refused. Negative control: the same
    code."""
    lock = made_up.fixed(tmp_path / "claim")
    line = f"this checkout has other code than the claim: {CODE}"
    assert line not in made_up.called("status", lock.claim.path).stdout
    here = {
        **code.digests_of_project(names=code.tracked(project.root())),
        CODE: "b" * 64,
    }
    monkeypatch.setattr(code, "digests_of_project", lambda *_, **__: here)
    assert line in made_up.called("status", lock.claim.path).stdout


def test_equal_runs_count_once_and_others_do_not(lock: Lock) -> None:
    """A run in two folders, one of no claim, and a damaged one are notes. Other
    machines are named. Negative control: the records before."""
    path = lock.claim.path
    before = report(path, 0)
    assert before["notes"] == []
    place = made_up.runs(lock)
    shutil.copytree(run_of(lock, "high", 5), place / "copy")
    shutil.copytree(run_of(lock, "high", 5), place / "none")
    config = place / "none" / "config.yaml"
    config.write_text(config.read_text().replace(lock.digest, "0" * 64))
    shutil.copytree(run_of(lock, "high", 5), place / "damaged")
    (place / "damaged" / "config.yaml").write_text("a: !!python/name:os.system\n")
    found = report(path, 0)
    assert found["comparisons"] == before["comparisons"]
    notes = "\n".join(found["notes"])
    assert "counts once" in notes
    assert "none: has not the digest of the claim: does not count" in notes
    assert "damaged: unreadable: " in notes
    shutil.rmtree(place / "copy")
    environment = run_of(lock, "high", 5) / "environment.json"
    entries = json.loads(environment.read_text())
    entries["cpu"]["model"] = "Another"
    environment.write_text(json.dumps(entries))
    assert "other versions or hardware" in report(path, 0)["notes"][-1]


def test_pairs_are_described(lock: Lock) -> None:
    """By the correlation over seeds, and the share of the variance of unpaired
    values."""
    [compared] = report(lock.claim.path, 0)["comparisons"]
    x = np.array(BASE[:6])
    y = np.array(better()[:6])
    ratio = np.var(y - x, ddof=1) / (np.var(x, ddof=1) + np.var(y, ddof=1))
    assert compared["correlation"] == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert compared["variance_ratio"] == pytest.approx(ratio)
    text = made_up.called("check", lock.claim.path).stdout
    assert f"pairs have {100 * ratio:.3g} % of the variance of unpaired seeds" in text


def test_streams_and_early_stopping_are_no_contradictions(tmp_path: Path) -> None:
    """Lengths that a run fills in, and fewer steps where patience is set. Negative
    control: without patience."""
    words = ["trainer.early_stopping_patience=2"]
    for settings, status in ((words, 0), ([], 2)):
        folder = tmp_path / str(status)
        lock = made_up.fixed(folder, settings=[*made_up.CLAIM["settings"], *settings])
        train_all(lock, base=BASE, high=better())
        run = run_of(lock, "high", 5)
        shutil.rmtree(run)
        how: dict[str, Any] = {"tested_step": 30, "best_step": 30}
        train(lock, "high", 5, 0.977, steps=30, **how)
        plan = json.loads((run / "plan.json").read_text())
        plan["segments"]["last_step"] = 40
        written = made_up.chain.Chain(run, plan, 0)
        written.append(30, "a" * 64, "b" * 64)
        written.close()
        report(lock.claim.path, status)


def test_data_that_the_settings_name_are_fixed(tmp_path: Path) -> None:
    """A file of another content than at `new` is other data. Negative control: the
    same."""
    file = tmp_path / "words.txt"
    file.write_text("a")
    lock = made_up.fixed(tmp_path / "claim", settings=[f"+data.words={file}"])
    digest = lock.variants["high"].data[str(file)]
    assert digest == code.sha256(b"a")
    for content, status in ((digest, 1), ("b" * 64, 2)):
        shutil.rmtree(made_up.runs(lock), ignore_errors=True)
        for seed in lock.seeds:
            for name in lock.variants:
                environment = {"files_sha256": {str(file): content}}
                train(lock, name, seed, 0.9, environment=environment)
        found = report(lock.claim.path, status)
        assert len(found["refused"]) == (12 if status == 2 else 0)


def test_records_of_a_stranger_give_no_traceback(tmp_path: Path) -> None:
    """Entries of other types are refused, or are no part of the verdict. Negative
    control: the records as they were."""
    lock = made_up.fixed(tmp_path / "claim", seeds=[0, 1])
    train_all(lock, base=BASE, high=better())
    path = lock.claim.path
    report(path, None)
    run = run_of(lock, "high", 1)
    for name in ("summary.json", "environment.json", "plan.json"):
        before = (run / name).read_text()
        entries = json.loads(before)
        for key in entries:
            for value in ([1], {"a": {"b": None}}):
                (run / name).write_text(json.dumps({**entries, key: value}))
                done = made_up.called("check", path)
                assert done.returncode in (0, 1, 2)
        (run / name).write_text(before)
    assert report(path, None)["refused"] == []


def test_a_lock_of_a_stranger_gives_no_traceback(lock: Lock) -> None:
    """Entries of other types end in one line, or in a report. Negative control: the
    lock as it was."""
    path = lock.claim.path
    place = locks.path_of(path)
    whole = json.loads(place.read_text())
    for name in ("settings", "seeds", "data", "commit", None):
        for value in (1, "x", [1], {"a": {"b": 1}}, None):
            entries = json.loads(json.dumps(whole))
            if name is None:
                entries["fixed"]["code"] = value
            else:
                entries["fixed"]["variants"]["high"][name] = value
            canonical = json.dumps(
                entries["fixed"], sort_keys=True, separators=(",", ":")
            )
            entries["digest"] = code.sha256(canonical.encode())
            place.write_text(json.dumps(entries))
            done = made_up.called("check", path)
            assert done.returncode == 2
            assert done.stderr.count("\n") == 1
    place.write_text(json.dumps(whole))
    report(path, 0)
