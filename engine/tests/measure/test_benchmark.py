"""A benchmark says what was measured, and compares within a round alone."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import benchmark
import benchmark_programs
import benchmark_sections
import benchmark_targets
import benchmark_turns
import fingerprint_cost
import portable_cost
import pytest
import shards_cost
import timing
import torch
from baselines import plain
from benchmark_report import Results
from benchmark_sections import WORKLOADS, Section
from omegaconf import OmegaConf
from timing import Measured, Program, Round, Turns

from seedbed import fingerprint
from seedbed.errors import InputError
from seedbed.worker import assemble
from tests.running import called, command, refusal

TURNS = Turns(count=4, seconds=0.1, warm_up_steps=3)
TICKS = "import time\nwhile True: time.sleep(0.001); print(time.monotonic(), file=steps)"


def took(*milliseconds: float, peak: int = 100) -> Measured:
    """Return a run whose steps took so long."""
    return Measured(1.0, [each / 1000 for each in milliseconds], 2.0, peak, 5, {})


def program(name: str, code: str = "", order: list[str] | None = None) -> Program:
    """Return a program that runs some Python, and notes in `order` that it was started."""

    def prepare(folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        if order is not None:
            order.append(name)
        steps = f"steps = open({str(folder / timing.STEPS)!r}, 'w', buffering=1)"
        return (sys.executable, "-S", "-c", f"{steps}\n{code}"), {}

    return Program(name, prepare)


def ticks(folder: Path) -> list[float]:
    return [float(line) for line in (folder / timing.STEPS).read_text().split("\n")[:-1]]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def switches(*times: list[float]) -> int:
    """Return how often another program's step follows, from when all have taken some."""
    merged = sorted((time, name) for name, each in enumerate(times) for time in each)
    names = [name for time, name in merged if time > max(each[5] for each in times)]
    return sum(a != b for a, b in pairwise(names))


def test_means_include_a_slow_step_and_medians_do_not() -> None:
    """What happens once in a while is in the one, not in the other."""
    run = took(10, 10, 10, 70)
    assert run.mean_step_seconds == pytest.approx(0.025)
    assert run.median_step_seconds == pytest.approx(0.010)


def test_programs_are_compared_within_a_round() -> None:
    """A machine that is three times slower in one round changes no ratio."""
    rounds = [
        {"base": took(20 * slow, 20 * slow), "other": took(10 * slow, 10 * slow)}
        for slow in (1, 3, 1)
    ]
    assert timing.speed(rounds, "other", "base") == pytest.approx((2, 2, 2))


def test_a_difference_within_a_round_is_seen() -> None:
    """Twin: one round in which only one of the two is slower widens the range."""
    rounds = [
        {"base": took(20), "other": took(10)},
        {"base": took(20), "other": took(40)},
        {"base": took(20), "other": took(20)},
    ]
    assert timing.speed(rounds, "other", "base") == pytest.approx((1, 0.5, 2))


def test_one_program_trains_while_the_others_are_stopped(tmp_path: Path) -> None:
    """Steps of two programs lie in turns; each round has processes of its own."""
    order: list[str] = []
    programs = [program(name, TICKS, order) for name in "ab"]
    rounds = list(timing.rounds(programs, 2, TURNS, tmp_path))
    assert order == ["a", "b", "a", "b"]
    assert [list(each) for each in rounds] == [["a", "b"]] * 2
    for number in (0, 1):
        both = [ticks(tmp_path / str(number) / name) for name in "01"]
        assert switches(*both) <= 2 * TURNS.count


def test_programs_that_nobody_stops_train_at_the_same_time(tmp_path: Path) -> None:
    """Twin: the same programs, left to themselves, are between each other's steps."""
    folders = [tmp_path / "0", tmp_path / "1"]
    running = []
    for folder in folders:
        folder.mkdir()
        running.append(subprocess.Popen(program(folder.name, TICKS).prepare(folder)[0]))
    time.sleep(2)
    for each in running:
        each.kill()
        each.wait()
    assert switches(*map(ticks, folders)) > 2 * TURNS.count


def test_the_time_of_others_is_in_no_step(tmp_path: Path) -> None:
    """A step that a stop falls into does not count."""
    [found] = timing.rounds([program(n, TICKS) for n in "ab"], 1, TURNS, tmp_path)
    for name, run in enumerate(found.values()):
        assert max(run.step_seconds) < TURNS.seconds
        ends = ticks(tmp_path / "0" / str(name))
        assert max(b - a for a, b in pairwise(ends)) > TURNS.seconds, (
            "negative control: it was stopped"
        )


def test_memory_and_files_of_a_program_are_weighed(tmp_path: Path) -> None:
    """The peak is what a process held at most, also when it has given it back; files count."""
    small = timing.run(program("small", "print(1, file=steps); print(2, file=steps)"),
                          tmp_path / "small")  # fmt: skip
    left = tmp_path / "large" / "left.txt"
    code = f"b = b'x' * (100 << 20); del b; open({str(left)!r}, 'w').write('123')"
    large = timing.run(program("large", code), tmp_path / "large")
    assert small.peak_bytes < 50 << 20, "what this process holds does not count"
    assert 95 << 20 < large.peak_bytes - small.peak_bytes < 105 << 20
    assert (small.record_bytes, large.record_bytes) == (0, 3)
    assert small.step_seconds == [1.0]


def test_a_program_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    """What a failed program said comes back as one line, whether it takes turns or not."""
    with pytest.raises(InputError, match=r"^bad: expected it to train, got no luck; "):
        timing.run(program("bad", "raise SystemExit('no luck')"), tmp_path / "bad")
    short = "import time\nfor _ in range(9): print(time.monotonic(), file=steps)\nprint('the end')"
    with pytest.raises(InputError, match=r"^short: expected it to train, got the end; "):
        list(timing.rounds([program("short", short)], 1, TURNS, tmp_path / "short"))


def test_programs_take_turns_until_each_is_accurate(tmp_path: Path) -> None:
    """Seed by seed; one that has reached the accuracy waits for nobody, and others go on."""
    order: list[str] = []

    def maker(name: str, enough: int) -> Callable[[int, int], Program]:
        def make(epochs: int, seed: int) -> Program:
            order.append(f"{name}{epochs}{seed}")
            found = {"test_accuracy": 0.995 if epochs >= enough else 0.5}
            place = f"pathlib.Path(steps.name).with_name({timing.FOUND!r})"
            text = json.dumps(found)
            return program(name, f"import pathlib; {place}.write_text({text!r})")

        return make

    makers = {"quick": maker("q", 1), "slow": maker("s", 2)}
    rows = benchmark_sections.time_to_accuracy(makers, 2, tmp_path / "runs", lambda text: None)
    assert order == ["q10", "s10", "q11", "s11", "s20", "s21"]
    assert [row["epochs"] for row in rows["quick"]] == [1]
    assert [row["accuracy"] for row in rows["slow"]] == [[0.5, 0.5], [0.995, 0.995]]


def test_nothing_is_left_running_when_a_program_fails(tmp_path: Path) -> None:
    """Those that were stopped are ended, too."""
    who = tmp_path / "pid"
    code = f"import os\nopen({str(who)!r}, 'w').write(str(os.getpid()))\n{TICKS}"
    programs = [program("good", code), program("bad", "raise SystemExit('no luck')")]
    with pytest.raises(InputError, match=r"^bad: "):
        list(timing.rounds(programs, 1, TURNS, tmp_path / "runs"))
    deadline = time.monotonic() + 10  # until whoever inherits it has taken note
    while is_alive(int(who.read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(int(who.read_text()))


def test_a_target_is_reached_or_not_or_not_measured() -> None:
    """The table of targets says which it is; a program that is not there is no failure."""
    section = Section(benchmark_targets.CNN, "bare loop", ())
    one_round: Round = {
        "bare loop": took(10), "strict": took(10), "fast": took(9)
    }  # fmt: skip
    lines = benchmark_targets.targets(Results(workloads=[(section, [one_round])])).splitlines()
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in lines}
    name = benchmark_targets.CNN
    start = f"{name}: speed of strict over"
    assert cells[f"{start} bare loop"] == ["at least 0.93", "1.00 (1.00 to 1.00)", "yes |"]
    assert cells[f"{start} fast"] == ["at least 0.95", "0.90 (0.90 to 0.90)", "no |"]
    assert cells[f"{start} Lightning"] == ["at least 1.90", "not measured", " |"]
    memory = f"{name}: memory over the bare loop's"
    assert cells[memory] == ["at most 1.2", "1.00 (1.00 to 1.00)", "yes |"]


def test_every_knob_makes_a_configuration() -> None:
    """No row names an override that the configuration does not take."""
    for words in (
        *benchmark_programs.PRESETS.values(),
        *benchmark_programs.PLAIN_IMAGES.values(),
        *benchmark_programs.SAMPLE_ROWS.values(),
        *benchmark_programs.COMPILED.values(),
        *(("determinism=strict", *words) for words in benchmark_programs.KNOBS.values()),
        *benchmark_programs.BFLOAT16.values(),
    ):
        assert benchmark_programs.configuration(*words)


def test_torchvision_reads_the_digits_that_baselines_are_given(tmp_path: Path) -> None:
    """The raw files are those of mnist5k, as torchvision's MNIST sees them."""
    from project.data import mnist5k
    from torchvision.datasets import MNIST

    root = benchmark_programs.write_digits(tmp_path)
    images, labels = mnist5k.read(mnist5k.find())
    train, test = MNIST(root, train=True), MNIST(root, train=False)
    assert (len(train), len(test)) == (4000, 1000)
    assert (train.data.numpy() == images[:4000]).all()
    assert (test.targets.numpy() == labels[4000:]).all()


def test_torchvision_s_samples_are_those_of_the_plain_loop(tmp_path: Path) -> None:
    """The same files with the same transforms, so that the same work is compared; Seedbed's own
    data set is another."""
    data = benchmark_programs.write_digits(tmp_path)
    theirs = plain.loaders({"data": str(data), "workers": 0, "batch_size": 64})[0].dataset
    described = {}
    for name, words in {"same": benchmark_programs.samples(data).overrides, "own": ()}.items():
        config = benchmark_programs.configuration("trainer.device=cpu", *words)
        settings: Any = OmegaConf.to_container(config)
        dataset = assemble.build_source(settings, "train").dataset
        described[name] = re.findall(r"[\w.]+", repr(dataset))  # YAML has lists, and no tuples
        assert settings["data"]["batch_size"] == 64
    assert described["same"] == re.findall(r"[\w.]+", repr(theirs)) != described["own"]


@pytest.mark.long
def test_a_quick_run_measures_every_row_of_its_table(tmp_path: Path) -> None:
    """Page, picture and numbers are written, and no cell of a measured table is empty."""
    done = command("engine/measure/benchmark.py", "--quick", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    numbers = json.loads((tmp_path / "benchmarks.json").read_text())
    [workload] = numbers["workloads"]
    [one_round] = workload["rounds"]
    assert list(one_round) == ["bare loop", "strict"]
    assert all(value > 0 for run in one_round.values() for name, value in run.items()
               if name != "record_bytes")  # fmt: skip
    assert one_round["strict"]["record_bytes"] > one_round["bare loop"]["record_bytes"] == 0
    page = (tmp_path / "benchmarks.md").read_text()
    assert "| bare loop | " in page
    assert "| strict | " in page
    assert (tmp_path / "benchmarks.png").read_bytes().startswith(b"\x89PNG")


def test_no_round_is_refused() -> None:
    """A number of rounds below one is bad input."""
    done = called(benchmark.main, "--rounds", "0")
    assert "--rounds: expected an integer >= 1, got 0" in refusal(done)


@pytest.mark.long
def test_a_workload_that_is_not_there_is_refused() -> None:
    """The line names those that are."""
    done = called(benchmark.main, "--only", "batch 65")
    assert "--only: expected a part of CNN, batch 64; CNN, batch 256; " in refusal(done)


def test_a_folder_without_mnist_is_refused(tmp_path: Path) -> None:
    """What --mnist names is looked at before anything is measured."""
    done = called(benchmark.main, "--mnist", str(tmp_path))
    assert f"--mnist: expected a folder that holds MNIST/raw, got {tmp_path}" in refusal(done)


def test_steps_that_take_turns_train() -> None:
    """What is timed is training, whose fingerprints change no weight; negative control: another
    seed."""

    def weights(turns: list[bool], *words: str) -> int:
        config = benchmark_programs.configuration("trainer.device=cpu", *words)
        settings: Any = OmegaConf.to_container(config)
        training = assemble.build_training_state(settings, torch.device("cpu"))
        steps = benchmark_turns.steps(settings, training, len(turns))
        for with_stages, take in zip(turns, steps, strict=True):
            take(with_stages)
        return int(fingerprint.of_tensors(training.model.parameters()))

    assert weights([True, False, True]) == weights([False, False, False])
    assert weights([True, True]) != weights([True, True], "seed=1")


@pytest.mark.parametrize("script", [fingerprint_cost, portable_cost, shards_cost])
def test_too_few_rounds_to_measure_are_refused(script: ModuleType) -> None:
    """Before anything is trained."""
    done = called(script.main, "--rounds", "0")
    assert refusal(done).startswith("--rounds, --steps:")


@pytest.mark.long
def test_steps_with_and_without_fingerprints_are_measured_side_by_side() -> None:
    """In processes of the script's own, under the preset's environment."""
    steps = 4 * fingerprint_cost.TURN_STEPS
    done = called(fingerprint_cost.main, "--rounds", "1", "--steps", str(steps))
    assert done.returncode == 0, done.stderr
    assert all(f"| {each.name} |" in done.stdout for each in WORKLOADS)
