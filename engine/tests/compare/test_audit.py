"""Audits replay the first segment of a chain and those that a challenge draws: what was
forged is met as often as stated, and nothing else."""

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.utils._pytree import tree_leaves

from seedbed import config, launch, record
from seedbed.compare import audit, verify
from seedbed.record import chain, code, segments, untrusted
from seedbed.training import checkpoint
from tests.made_up_runs import contents, edit_summary, write_csv
from tests.record.test_chain import edit
from tests.run.runs import begun
from tests.running import QUICK, TEMPLATE, command, refusal, train, trained
from tests.tools.test_evaluate import alter_weights

STEPS = 12  # of tests.running.QUICK
KEEPING = (
    *("trainer.keep_checkpoint_every_steps=2", "trainer.validate_every_steps=4"),
    *("schedule=constant", "data.batch_size=100"),
)
COUNT = STEPS // 2  # of segments
SCRIPT = "scripts/verify.py"
FORGED = 3  # the segment of steps 5 and 6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 12 steps of which every second checkpoint is kept."""
    return trained(tmp_path_factory.mktemp("audit") / "run", *KEEPING)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def drawing(run: Path, *wanted: int) -> str:
    """Return a challenge that draws these segments and no others."""
    *_, last = chain.checkpoints(run).values()
    challenges = map(str, range(10_000))
    return next(
        each
        for each in challenges
        if segments.drawn(each, last["digest"], COUNT, len(wanted)) == [*wanted]
    )


def audited(run: Path, *wanted: int) -> tuple[int, dict[str, Any]]:
    """Audit segments of a run; return exit status and answer."""
    words = ("--sample", str(len(wanted)), "--challenge", drawing(run, *wanted))
    done = command(SCRIPT, str(run), *words, "--json")
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def chained_again(folder: Path) -> None:
    """Make all rows of a chain follow from its plan as it is now."""
    rows = untrusted.read_rows(folder / chain.FILE, chain.FIELDS)
    rows[0]["state"] = code.sha256((folder / chain.PLAN).read_bytes())
    before = ""
    for row in rows:
        words = (before, row["step"], row["weights"], row["state"])
        before = row["digest"] = code.sha256(",".join(words).encode())
    write_csv(folder / chain.FILE, chain.FIELDS, rows)


def edit_fingerprint(folder: Path, step: int, stage: str) -> None:
    rows = record.read_fingerprints(folder)
    rows[step - 1][stage] = "0" * 16
    write_csv(folder / "fingerprints.csv", record.FINGERPRINT_FIELDS, rows)


@pytest.mark.parametrize(("count", "sample"), [(6, 1), (6, 2), (40, 5), (7, 7)])
@pytest.mark.parametrize("bad", [(3,), (2, 5), (1, 4, 6)])
def test_segments_are_met_with_the_stated_probability(
    count: int, sample: int, bad: tuple[int, ...]
) -> None:
    """Over many challenges, and by counting all samples. Negative control: the
    probability for one segment more is another."""
    tries = 4000
    draws = (segments.drawn(f"{n}", "digest", count, sample) for n in range(tries))
    met = sum(not {*bad}.isdisjoint(drawn) for drawn in draws)
    stated = segments.probability(len(bad), count, sample)
    missed = comb(count - len(bad), sample) / comb(count, sample)
    assert stated == pytest.approx(1 - missed)
    error = 4 * (stated * (1 - stated) / tries) ** 0.5
    assert abs(met / tries - stated) <= error
    if count == 6:
        samples = [*combinations(range(1, count + 1), sample)]
        share = sum(not {*bad}.isdisjoint(each) for each in samples) / len(samples)
        assert stated == pytest.approx(share)
        other = segments.probability(len(bad), count, sample + 1)
        assert abs(met / tries - other) > error


def test_the_table_of_the_page_has_the_probabilities() -> None:
    """docs/proof.md, for 100 segments. Negative control: rows and columns are read."""
    page = (TEMPLATE / "docs" / "proof.md").read_text()
    [header] = re.findall(r"^\| N = 100 segments \|(.*)\|$", page, re.MULTILINE)
    rows = re.findall(r"^\| K = (\d+) \|(.*)\|$", page, re.MULTILINE)
    bad = [int(each) for each in re.findall(r"m = (\d+)", header)]
    assert (len(rows), len(bad)) == (3, 5)
    for sample, cells in rows:
        for number, cell in zip(bad, cells.split("|"), strict=True):
            stated = segments.probability(number, 100, int(sample))
            shown = f"{stated:.1%}".replace("100.0%", "> 99.9%")
            assert cell.strip() == shown


def test_the_number_of_segments_that_is_likely_to_be_met() -> None:
    """It is the smallest one, also of many segments."""
    for count, sample in ((6, 2), (100, 5), (250_000, 1)):
        number = segments.likely(0.95, count, sample)
        assert segments.probability(number, count, sample) >= 0.95
        assert segments.probability(number - 1, count, sample) < 0.95


def test_a_draw_depends_on_challenge_and_chain() -> None:
    """It has the asked number of segments, each once. More than all are all."""
    drawn = partial(segments.drawn, count=100, sample=10)
    first = drawn("a", "b")
    assert first == sorted({*first}) == drawn("a", "b")
    assert len(first) == 10
    assert drawn("b", "b") != first
    assert drawn("a", "c") != first
    assert segments.drawn("a", "b", 4, 9) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("numbers", "starts", "expected"),
    [
        ([1], [5, 10, 15], [(0, 5)]),
        ([1, 3], [5, 10, 15], [(0, 5), (10, 15)]),
        ([1, 2, 4], [5, 10, 15], [(0, 10), (15, 17)]),
        ([1, 3], [5, 15], [(0, 15)]),
        ([1, 4], [10], [(0, 5), (10, 17)]),
        ([2, 4], [], [(0, 17)]),
        ([1, 2, 3, 4], [5, 10, 15], [(0, 17)]),
    ],
)
def test_a_segment_is_replayed_from_the_last_checkpoint_before_it(
    numbers: list[int], starts: list[int], expected: list[tuple[int, int]]
) -> None:
    """Without its own checkpoint, over the rows in between; what meets is replayed at
    once."""
    assert segments.spans((0, 5, 10, 15, 17), numbers, starts) == expected


def test_segments_of_a_run_are_reproduced(run: Path) -> None:
    """The rows of those drawn and of the first are compared, and nothing is written.
    The draw is printed, with what it proves and what it does not."""
    before = contents(run)
    challenge = drawing(run, 3, 5)
    done = command(SCRIPT, str(run), "--sample", "2", "--challenge", challenge)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *lines = done.stdout.splitlines()
    parts = "steps 1 to 2, 5 to 6, 9 to 10"
    assert first == f"REPRODUCED {run}: 3 of 6 segments ({parts})"
    assert lines[0].startswith(f"challenge: {challenge} draws segments 3, 5 of 6;")
    assert lines[2].startswith("proven: of 6 segments, one of m that do not follow")
    assert "1 - C(6 - m, 2) / C(6, 2) or more (33.3% for 1, 60.0% for 2" in lines[2]
    assert lines[3].startswith("not proven: 3 segments that were not replayed; results")
    assert "data, seeds or code that were chosen to lead to a checkpoint" in lines[3]
    assert "The same bits at every step compared (6): sample ids" in done.stdout
    assert contents(run) == before


@pytest.mark.long
def test_a_challenge_that_nobody_gave_is_drawn_and_printed(run: Path) -> None:
    """Given again, it draws the same segments."""
    done = command(SCRIPT, str(run), "--sample", "1", "--json")
    found = json.loads(done.stdout)
    words = ("--challenge", found["challenge"], "--json")
    again = command(SCRIPT, str(run), "--sample", "1", *words)
    assert json.loads(again.stdout)["drawn"] == found["drawn"]
    assert (done.returncode, again.returncode) == (0, 0)
    assert len(found["challenge"]) == 32


def test_all_segments_are_the_whole_run(run: Path) -> None:
    """Replayed at once, with its results."""
    done = command(SCRIPT, str(run), "--sample", "99", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["segments"], len(found["replayed"])) == (COUNT, COUNT)
    assert found["steps_compared"] == STEPS
    assert "final_predictions" in found["stages_compared"]
    assert len(found["not_proven"]) == 2


def forged_run(folder: Path, *words: str) -> Path:
    """Train a run whose steps 5 and 6 had another weight decay, and remove all traces
    of that but the bits."""
    begun(folder, *QUICK, *KEEPING, *words)
    settings = record.read_config(folder)
    assert settings.optimizer.weight_decay == 0.01
    environment = launch.training_environment(config.check(settings))
    requests: list[dict[str, Any]] = [
        {"last_step": 4},
        {
            "last_step": 6,
            "settings": {"optimizer.weight_decay": 0.5},
            "allow_changed": True,
        },
        {"settings": {"optimizer.weight_decay": 0.01}, "allow_changed": True},
    ]
    for request, status in zip(requests, (143, 143, 0), strict=True):
        words = ("-m", "seedbed.worker", "train", str(folder), json.dumps(request))
        done = command(*words, environment=environment)
        assert done.returncode == status, done.stderr
    edit_summary(folder, resumes=[])
    return folder


@pytest.mark.long
def test_a_forged_segment_is_met_if_it_is_drawn(tmp_path: Path) -> None:
    """Steps of another training between two checkpoints. Negative control: the same
    record passes an audit that draws another segment, and contradicts itself in
    nothing."""
    forged = forged_run(tmp_path / "run")
    status, found = audited(forged, 5)
    assert (status, found["other_results"]) == (0, []), found
    status, found = audited(forged, FORGED)
    assert status == 1
    assert (found["same"], found["step"], found["stage"]) == (False, 5, "weights")
    challenge = drawing(forged, FORGED, 5)
    done = command(SCRIPT, str(forged), "--sample", "2", "--challenge", challenge)
    first, *lines = done.stdout.splitlines()
    assert first == "NOT REPRODUCED: the runs diverge at step 5: weights (optimizer)"
    assert lines[0] == "  in segment 3 (steps 5 to 6)"
    assert "proven" not in [line.partition(":")[0] for line in lines]


def other_plan(folder: Path) -> None:
    """State another learning rate in the settings, the plan and the whole chain."""
    edit("config.yaml", "lr: 0", "lr: 1")(folder)
    origin = record.Origin(record.read_config(folder), {})
    plan = record.read_json(folder / chain.PLAN)
    settings: Any = record.untrusted.read_dict(folder)
    stated = chain.plan_of(settings, record.read_environment(folder), STEPS)
    assert origin.settings is not None
    record.write_json(
        folder / chain.PLAN, {**plan, "settings_sha256": stated["settings_sha256"]}
    )
    chained_again(folder)


def replace_checkpoint(folder: Path) -> None:
    alter_weights(folder / "checkpoints" / "step_4.pt")


def replace_chained_checkpoint(folder: Path) -> None:
    """Replace a checkpoint together with its row and all that follow."""
    from seedbed import weights

    replace_checkpoint(folder)
    state = checkpoint.load(folder / "checkpoints" / "step_4.pt")
    rows = untrusted.read_rows(folder / chain.FILE, chain.FIELDS)
    [row] = [row for row in rows if row["step"] == "4"]
    row["weights"] = weights.digests.of_weights(state)
    row["state"] = weights._digest_of(state)
    write_csv(folder / chain.FILE, chain.FIELDS, rows)
    chained_again(folder)


def damage_checkpoint(folder: Path) -> None:
    path = folder / "checkpoints" / "step_4.pt"
    path.write_bytes(b"XX" + path.read_bytes()[2:])


def with_gap(folder: Path) -> None:
    """Remove a row, and make those behind it follow from the one before."""
    rows = untrusted.read_rows(folder / chain.FILE, chain.FIELDS)
    del rows[2]
    write_csv(folder / chain.FILE, chain.FIELDS, rows)
    chained_again(folder)


def longer_chain(folder: Path) -> None:
    """Repeat the last row as that of a step before it."""
    rows = untrusted.read_rows(folder / chain.FILE, chain.FIELDS)
    rows.append({**rows[-1], "step": "11"})
    write_csv(folder / chain.FILE, chain.FIELDS, rows)
    edit_summary(folder, resumes=[{"step": 4, "changes": {}, "can_alter_bits": []}])
    chained_again(folder)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (with_gap, "chain.csv: its steps are not those of plan.json"),
        (longer_chain, "chain.csv: its steps do not increase"),
        (
            edit(chain.PLAN, '"every_steps": 2', '"every_steps": 3'),
            "chain.csv: its first row is not that of plan.json",
        ),
        (
            edit("config.yaml", "lr: 0", "lr: 1"),
            "plan.json: settings_sha256 optimizer is not that of the record",
        ),
        (replace_checkpoint, "checkpoints/step_4.pt: other state than in chain.csv"),
        (
            replace_chained_checkpoint,
            "checkpoints/step_4.pt: other weights than in fingerprints.csv",
        ),
        (damage_checkpoint, "step_4.pt: expected the content that was written"),
    ],
)
def test_what_contradicts_itself_is_not_replayed(
    change: Callable[[Path], None], line: str, copy: Path
) -> None:
    """A chain with a gap, a plan changed afterwards, a checkpoint replaced. Negative
    control: test_segments_of_a_run_are_reproduced, of the record as it was."""
    change(copy)
    words = ("--sample", "1", "--challenge", drawing(copy, FORGED))
    done = command(SCRIPT, str(copy), *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("NOT REPRODUCED: the record contradicts itself")
    assert line in done.stdout
    assert "replaying" not in done.stderr


def test_a_plan_that_was_made_to_fit_is_found_by_the_first_segment(copy: Path) -> None:
    """Even if no later segment is replayed. Negative control: the parametrized test
    above."""
    other_plan(copy)
    words = ("--sample", "1", "--challenge", drawing(copy, 1), "--json")
    done = command(SCRIPT, str(copy), *words)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["step"], found["replayed"]) == (1, [{"number": 1, "steps": [1, 2]}])


@pytest.mark.long
def test_without_its_checkpoint_a_segment_is_replayed_from_an_earlier_one(
    copy: Path, run: Path
) -> None:
    """The challenge draws the same segments, whatever is published. Negative control:
    the forged segment is met on the way."""
    for step in (4, 6, 8):
        (copy / "checkpoints" / f"step_{step}.pt").unlink()
    status, found = audited(copy, 5)
    assert (status, found["drawn"]) == (0, [5])
    numbers = [each["number"] for each in found["replayed"]]
    assert numbers == [1, 2, 3, 4, 5]
    edit_fingerprint(copy, 5, "loss")
    status, found = audited(copy, 5)
    assert (status, found["step"], found["stage"]) == (1, 5, "loss")


def forge_test_result(folder: Path) -> None:
    rows = record.read_metrics(folder)
    [test] = [row for row in rows if row["phase"] == "test"]
    test["accuracy"] = "0.99"
    write_csv(folder / "metrics.csv", tuple(rows[0]), rows)
    for name in ("metrics", "last_metrics"):
        values = record.read_summary(folder)[name]
        if "test_accuracy" in values:
            edit_summary(folder, **{name: {**values, "test_accuracy": 0.99}})


@pytest.mark.long
def test_results_are_compared_with_the_last_segment(copy: Path) -> None:
    """A forged accuracy, in the summary and the table. Negative controls: the true one;
    and other segments, after which results are named as not proven."""
    assert audited(copy, COUNT)[0] == 0
    forge_test_result(copy)
    status, found = audited(copy, COUNT)
    assert (status, found["stage"]) == (1, "test_accuracy")
    status, found = audited(copy, 2)
    assert status == 0
    assert any(each.startswith("results on the test") for each in found["not_proven"])


@pytest.mark.long
def test_rows_are_not_needed(tmp_path: Path) -> None:
    """A segment without a row of any table is compared by the chain. Negative control:
    another digest there."""
    rare = ("trainer.log_every_steps=100", "determinism.fingerprint_every_steps=100")
    run = tmp_path / "run"
    done = train(run, *QUICK, *KEEPING, *rare, "trainer.validate_every_steps=0")
    assert done.returncode == 0, done.stderr
    assert audited(run, FORGED)[0] == 0
    rows = untrusted.read_rows(run / chain.FILE, chain.FIELDS)
    rows[FORGED]["state"] = "0" * 64
    write_csv(run / chain.FILE, chain.FIELDS, rows)
    chained_again(run)
    status, found = audited(run, FORGED)
    assert status == 1
    line = "chain.csv: step 6: another state than in the replay"
    assert line in found["other_results"]


@pytest.mark.long
def test_a_resumed_run_and_other_machines_pass(copy: Path, tmp_path: Path) -> None:
    """The best weights are chosen as in the run, although another version of a package
    is in the checkpoint. Negative control: its weights count."""
    path = copy / "checkpoints" / "step_4.pt"
    state = checkpoint.load(path)
    state["origin"]["environment"]["versions"]["numpy"] = "0"
    checkpoint.save(state, path)
    assert audited(copy, FORGED)[0] == 0
    alter_weights(path)
    assert audited(copy, FORGED)[0] == 1
    run = begun(tmp_path / "resumed", *QUICK, *KEEPING)
    settings = config.check(record.read_config(run))
    environment = launch.training_environment(settings)
    asked = json.dumps({"last_step": 7})
    command("-m", "seedbed.worker", "train", str(run), asked, environment=environment)
    status, found = audited_part(run, 3)
    assert status == 0
    assert "step 7 is behind the last row of chain.csv" in found["not_proven"]
    assert command("scripts/resume.py", str(run)).returncode == 0
    assert audited(run, 4)[0] == 0


@pytest.mark.long
def test_a_run_that_keeps_its_best_weights_passes(tmp_path: Path) -> None:
    """A replay of the last segment has fewer files of them than the run. Negative
    control: another list of their steps, found by a whole replay."""
    best = ("trainer.keep_best=2", "trainer.validate_every_steps=2")
    run = tmp_path / "run"
    assert train(run, *QUICK, *KEEPING, *best).returncode == 0
    steps = record.read_summary(run)["best_steps"]
    assert sorted(steps) == [*record.best_checkpoints(run)]
    assert [*record.kept_checkpoints(run)] == [2, 4, 6, 8, 10, 12], "all of them"
    status, found = audited(run, COUNT)
    assert (status, found["other_results"]) == (0, [])
    edit_summary(run, best_steps=[1, 2])
    done = command(SCRIPT, str(run), "--sample", "99", "--json")
    assert "best_steps is" in json.loads(done.stdout)["other_results"][0]


def audited_part(run: Path, sample: int) -> tuple[int, dict[str, Any]]:
    done = command(SCRIPT, str(run), "--sample", str(sample), "--json")
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sample", "0"], "--sample: expected an integer >= 1, got 0"),
        (["--challenge", "x"], "--challenge: expected --sample K beside it"),
        (["--sample", "1", "--challenge", ""], "--challenge: expected 1 to 1,000"),
        (["--sample", "1", "--challenge", "a\nb"], "printable characters, got 'a\\nb'"),
        (["--sample", "1", "--steps", "3"], "got --steps beside it"),
        (["--sample", "1", "--from-step", "4"], "got --from-step beside it"),
        (["--sample", "1", "--tolerance", "test_loss=1"], "got --tolerance beside it"),
    ],
)
def test_what_makes_no_sense_ends_in_one_line(
    words: list[str], message: str, run: Path
) -> None:
    assert message in refusal(command(SCRIPT, str(run), *words))


def test_a_run_without_segments_is_refused(copy: Path, quick_run: Path) -> None:
    """It says which setting makes some. Negative control: one checkpoint is left."""
    advice = "train with trainer.keep_checkpoint_every_steps=N, or replay all of it"
    line = refusal(command(SCRIPT, str(quick_run), "--sample", "1"))
    assert "without a chain of checkpoints" in line
    assert advice in line
    *others, last = record.kept_checkpoints(copy).values()
    for path in others:
        path.unlink()
    audit.of(copy, verify.read(copy), 1, "x")
    last.unlink()
    assert "without their files" in refusal(command(SCRIPT, str(copy), "--sample", "1"))


def test_replays_are_kept_each_in_a_folder(run: Path, tmp_path: Path) -> None:
    words = ("--sample", "1", "--challenge", drawing(run, FORGED))
    done = command(SCRIPT, str(run), *words, "--keep", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == ["steps_1_to_2", "steps_5_to_6"]


def alter_optimizer(folder: Path, step: int) -> None:
    """Change the optimizer's state in a kept checkpoint and in its row, which
    fingerprints of weights do not show."""
    from seedbed import weights

    path = folder / "checkpoints" / f"step_{step}.pt"
    state = checkpoint.load(path)
    for leaf in tree_leaves(state["optimizer"]):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim():
            leaf.add_(1.0)
    checkpoint.save(state, path, keep_previous=False)
    rows = untrusted.read_rows(folder / chain.FILE, chain.FIELDS)
    [row] = [row for row in rows if row["step"] == str(step)]
    row["state"] = weights._digest_of(state)
    write_csv(folder / chain.FILE, chain.FIELDS, rows)
    chained_again(folder)


@pytest.mark.long
@pytest.mark.parametrize("keeps", [2, 0])
def test_the_end_of_a_segment_is_compared_whatever_the_settings_keep(
    keeps: int, copy: Path
) -> None:
    """A forger may set trainer.keep_checkpoint_every_steps, which changes no bit, to 0.
    Negative control: the same settings, and the optimizer as it was."""
    edit("config.yaml", "every_steps: 2", f"every_steps: {keeps}")(copy)
    status, found = audited(copy, 2)
    assert status == 0, found
    alter_optimizer(copy, 4)
    status, found = audited(copy, 2)
    assert status == 1
    assert (
        "chain.csv: step 4: another state than in the replay"
        in (found["other_results"])
    )


@pytest.mark.long
def test_a_best_that_starts_anew_hides_no_other_state(copy: Path) -> None:
    """Only the best value is left out. Negative control: the run with that resume."""
    resumes = [{"step": 0, "changes": {}, "best_starts_anew": 12}]
    edit_summary(copy, resumes=resumes)
    status, found = audited(copy, 2)
    assert status == 0, found
    assert any("optimizer states before step 12" in x for x in found["not_proven"])
    alter_optimizer(copy, 4)
    status, found = audited(copy, 2)
    assert status == 1
    assert (
        "checkpoints/step_4.pt: other state than in the replay"
        in (found["other_results"])
    )
    edit_summary(copy, resumes=[{**resumes[0], "best_starts_anew": 10**18}])
    status, found = audited(copy, 5)
    assert status == 1
    assert "best_starts_anew: expected at most 12" in str(found)


@pytest.mark.parametrize("bound", ['"2"', "2.0", "null", "-1"])
def test_a_plan_without_bounds_of_segments_is_refused(bound: str, copy: Path) -> None:
    edit(chain.PLAN, '"every_steps": 2', f'"every_steps": {bound}')(copy)
    chained_again(copy)
    status, found = audited(copy, 2)
    assert status == 1
    assert "expected integers as bounds of segments" in str(found)


def test_a_record_of_endless_steps_is_refused_at_once(copy: Path) -> None:
    edit_summary(copy, steps=10**18)
    status, found = audited(copy, 2)
    assert status == 1
    assert "chain.csv: its steps are not those of plan.json" in str(found)
