"""Several processes compute what one computes alone, and who is missing is named."""

import multiprocessing
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seedbed import config, fingerprint, tasks
from seedbed.data.positions import Position
from seedbed.data.source import Batch
from seedbed.distributed.processes import Processes, find
from seedbed.errors import InputError, Interrupted
from seedbed.methods import Supervised
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards, SharedShards, tree_sum
from seedbed.training.state import TrainingState
from seedbed.training.step import train_step

SHARDS, BATCH_SIZE, FEATURES, CLASSES = 4, 16, 12, 5
# Long, so that a slow machine is not taken for a rank that hangs; short where one does.
TIMEOUT_SECONDS, SHORT_SECONDS = 60, 5
Work = Callable[[Processes], Any]
Found = dict[int, Any]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


def in_processes(
    count: int, work: Work, missing: tuple[int, ...] = (), timeout: int = TIMEOUT_SECONDS
) -> Found:
    """Do some work in so many real processes that have met; what each returned, or its error."""
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()
    port, others_ended = free_port(), context.Event()
    ranks = [
        context.Process(
            target=be_rank, args=(rank, count, port, work, results, others_ended, timeout)
        )
        for rank in reversed(range(count))
        if rank not in missing
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        if process is ranks[-1]:
            others_ended.set()
        process.join(120)
        process.kill()  # one that hangs is missing below
    found: Found = {}
    while not results.empty():
        rank, result = results.get()
        found[rank] = result
    return found


def be_rank(
    rank: int, count: int, port: int, work: Work, results: Any, others_ended: Any, timeout: int
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    try:
        processes = find(timeout)
        processes.meet(torch.device("cpu"), lambda: False)
        results.put((rank, work(processes)))
    except (InputError, Interrupted) as error:
        results.put((rank, error))
    except BaseException:
        results.put((rank, traceback.format_exc()))
    if rank == 0:
        others_ended.wait(120)  # it serves the store
    os._exit(0)


def message(result: Any) -> str:
    assert isinstance(result, InputError), result
    return str(result)


# Sums


def numbers(index: int, size: int = 1000) -> Tensor:
    generator = torch.Generator().manual_seed(index)
    return torch.randn(size, generator=generator) * 10.0 ** float(index % 3)


def bits(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def test_the_tree_is_the_one_that_is_drawn() -> None:
    """Four lists of tensors are summed as (a + b) + (c + d)."""
    a, b, c, d = map(numbers, range(4))
    (total,) = tree_sum(iter([[a], [b], [c], [d]]), 4)
    assert bits(total) == bits((a + b) + (c + d))


def test_a_tree_of_another_number_lacks_its_last_leaves() -> None:
    """Five are ((a + b) + (c + d)) + e; of any number, each is summed once."""
    a, b, c, d, e = map(numbers, range(5))
    (total,) = tree_sum(iter([[a], [b], [c], [d], [e]]), 5)
    assert bits(total) == bits(((a + b) + (c + d)) + e)
    for count in range(1, 20):
        parts = iter([[torch.tensor(2**i)] for i in range(count)])
        assert tree_sum(parts, count)[0].item() == 2**count - 1


def test_gradients_that_share_their_memory_are_summed_like_others() -> None:
    """Autograd may hand one buffer to two parameters; complex ones are averaged, too."""
    shared = [torch.ones(3) for _ in range(2)]
    parts = iter([[part.view(1, 3), part.view(3, 1)] for part in shared])
    assert [t.flatten().tolist() for t in tree_sum(parts, 2)] == [[2.0] * 3] * 2
    for processes in (1, 2):
        shards = SharedShards(2, lambda: False)
        shards.mine = range(2 // processes)
        numbers = [[torch.ones(2)] * 2 + [torch.ones(2, dtype=torch.complex64)] for _ in "ab"]
        means = shards.reduce(iter(numbers))
        assert [mean.tolist() for mean in means] == [[1 / processes] * 2] * 3


def test_another_order_of_sums_gives_other_bits() -> None:
    """Twin: floating-point sums do depend on their order."""
    a, b, c, d = map(numbers, range(4))
    assert bits((a + b) + (c + d)) != bits(((a + b) + c) + d)


def test_the_tree_holds_few_lists_at_a_time() -> None:
    """Of 64 lists, no more than 7 are alive when the next one is made."""
    alive: list[int] = []
    most = 0

    class Noted(list[Tensor]):
        def __init__(self) -> None:
            super().__init__([torch.ones(1)])
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    def parts() -> Iterator[list[Tensor]]:
        nonlocal most
        for _ in range(64):
            most = max(most, len(alive) + 1)
            yield Noted()

    assert tree_sum(parts(), 64)[0].item() == 64
    assert most <= 7


def reduced(processes: Processes | None, in_tree: bool = True) -> list[bytes]:
    """Reduce floats, integers, a scalar and a tensor in another memory order."""
    shards = SharedShards(SHARDS, lambda: False, processes, in_tree)
    parts = (
        [
            numbers(index),
            torch.tensor([index, index**2]),
            numbers(20 + index, 1)[0],
            numbers(30 + index, 24).view(2, 3, 4).transpose(0, 2).clone(),
        ]
        for index in shards.mine
    )
    return [bits(tensor.contiguous()) for tensor in shards.reduce(parts)]


@pytest.mark.parametrize("count", [2, 4])
def test_means_do_not_depend_on_the_number_of_processes(count: int) -> None:
    """All of 2 or 4 processes get the bits that one alone gets."""
    alone = reduced(None)
    assert in_processes(count, reduced) == dict.fromkeys(range(count), alone)


def test_integers_are_summed_and_floats_averaged() -> None:
    """Of shards 0 to 3, the sum of indices is 6 and the mean of numbers the mean."""
    floats, integers, *_ = reduced(None)
    assert np.frombuffer(integers, np.int64).tolist() == [6, 14]
    a, b, c, d = map(numbers, range(4))
    assert floats == bits(((a + b) + (c + d)) / 4)


def test_plain_allreduce_may_give_other_bits() -> None:
    """Twin: the order of an all-reduce over 4 processes is another, for some of 1,000 numbers."""
    found = in_processes(4, partial(reduced, in_tree=False))
    assert found[0][1] == reduced(None)[1], "integers do not depend on the order"
    assert found[0][0] != reduced(None)[0]


# Training


class Net(nn.Module):
    def __init__(self, recurrent: bool) -> None:
        super().__init__()
        self.first = nn.LSTM(FEATURES, 16, batch_first=True) if recurrent else None
        convolution = nn.Sequential(nn.Conv1d(1, 16, 3), nn.ReLU(), nn.AdaptiveMaxPool1d(1))
        self.second = None if recurrent else nn.Sequential(convolution, nn.Flatten())
        self.dropout = nn.Dropout(0.3)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.first is not None:
            hidden = self.first(inputs.unsqueeze(1))[0][:, -1]
        else:
            assert self.second is not None
            hidden = self.second(inputs.unsqueeze(1))
        return self.last(self.dropout(hidden))  # type: ignore[no-any-return]


def training_of(model: nn.Module) -> TrainingState:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    task = tasks.Classification(0.1)
    return TrainingState(
        model,
        {"optimizer": optimizer},
        Supervised(task),
        torch.device("cpu"),
        gradient_clip_norm=1.0,
    )


def batch_of(step: int, shards: Shards) -> list[Batch]:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH_SIZE, FEATURES, generator=generator)
    targets = torch.randint(CLASSES, (BATCH_SIZE,), generator=generator)
    positions = shards.divide(iter([Position(0, np.arange(BATCH_SIZE))]))
    return [Batch(torch.from_numpy(ids), inputs[ids], targets[ids]) for _, ids, _ in positions]


def fingerprint_rows(
    processes: Processes | None, recurrent: bool, shards: Shards | None = None
) -> list[Any]:
    """Train for eight steps; return all fingerprints and the losses."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shards = shards or SharedShards(SHARDS, lambda: False, processes)
    training = training_of(Net(recurrent))
    hasher = fingerprint.Hasher(training.device)
    found = []
    for step in range(1, 9):
        batches = batch_of(step, shards)
        loss, values, stages = train_step(training, batches, step, shards, True, hasher)
        assert values is not None
        assert stages is not None
        found.append((loss.item(), values["accuracy"].item(), stages.tolist()))
    return found


@pytest.mark.parametrize(("count", "recurrent"), [(4, False), (2, True)], ids=["CNN", "LSTM"])
def test_training_does_not_depend_on_the_number_of_processes(count: int, recurrent: bool) -> None:
    """Every stage of every step is the same on 1 process and on several, with dropout too."""
    alone = fingerprint_rows(None, recurrent)
    found = in_processes(count, partial(fingerprint_rows, recurrent=recurrent))
    assert found == dict.fromkeys(range(count), alone)


def test_the_number_of_shards_is_part_of_the_experiment() -> None:
    """Twin: one batch whole is another sum, and other dropout, than four slices of it."""
    assert fingerprint_rows(None, False)[0] != fingerprint_rows(None, False, Shards())[0]


def test_one_shard_is_the_single_process_path() -> None:
    """With one shard, SharedShards changes nothing of what Shards does."""
    assert fingerprint_rows(None, True, Shards()) == fingerprint_rows(
        None, True, SharedShards(1, lambda: False)
    )


# Who does what


class Rank(Processes):
    """A process that has met nobody."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_shards_and_evaluation_batches_are_covered_once_in_order(count: int) -> None:
    """Ranks in order have the shards in order, and the batches of an evaluation, even if few."""
    for batches in (1, 3, 8, 21):
        positions = [Position(0, np.arange(i, i + 2)) for i in range(batches)]
        everybody = [SharedShards(8, lambda: False, Rank(r, count)) for r in range(count)]
        assert [i for shards in everybody for i in shards.mine] == list(range(8))
        shared = [position for shards in everybody for position in shards.share(positions)]
        assert [p.ids[0] for p in shared] == [p.ids[0] for p in positions]


def test_a_batch_is_divided_into_its_samples() -> None:
    """The samples of a batch, in order, are those of its shards; each rank loads its own only."""
    ids = np.random.default_rng(0).permutation(BATCH_SIZE)
    everybody = [SharedShards(SHARDS, lambda: False, Rank(rank, 2)) for rank in range(2)]
    parts = [list(shards.divide(iter([Position(3, ids)]))) for shards in everybody]
    assert [len(part) for part in parts] == [2, 2]
    assert np.concatenate([p.ids for part in parts for p in part]).tolist() == ids.tolist()


def evaluated(processes: Processes | None) -> list[Any]:
    torch.manual_seed(0)
    shards = SharedShards(SHARDS, lambda: False, processes)
    training = training_of(Net(recurrent=False))
    positions = [Position(0, np.arange(i, i + 4)) for i in range(0, BATCH_SIZE, 4)][:3]
    everything = batch_of(1, Shards())[0]
    batches = [
        Batch(torch.from_numpy(ids), everything.inputs[ids], everything.targets[ids])
        for _, ids, _ in shards.share(positions)
    ]
    result = evaluate(training, batches, shards)
    columns = (result.predictions, result.targets, result.output_hashes)
    return [*result.values.values(), *(column.tolist() for column in columns)]


def test_evaluation_does_not_depend_on_the_number_of_processes() -> None:
    """Three batches over four processes, one of which has none: the same loss and outputs."""
    assert in_processes(4, evaluated) == dict.fromkeys(range(4), evaluated(None))


class Adapts(nn.Module):
    """A model that follows the inputs of an evaluation, or of training alone."""

    def __init__(self, in_evaluation: bool) -> None:
        super().__init__()
        self.head, self.in_evaluation = nn.Linear(FEATURES, CLASSES), in_evaluation
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        if self.in_evaluation and not self.training:
            self.mean.lerp_(x.mean(0), 0.5)
        return self.head(x - self.mean)


@pytest.mark.parametrize("changes", [True, False])
@pytest.mark.parametrize("shards", [Shards(), SharedShards(SHARDS, lambda: False)])
def test_state_that_an_evaluation_changes_is_refused_with_shards(
    shards: Shards, changes: bool
) -> None:
    """Each process would see some of the batches; negative controls: without either."""
    training = training_of(Adapts(changes))
    refused = pytest.raises(InputError, match=r"^model: expected an evaluation that leaves")
    with refused if changes and shards.count > 1 else nullcontext():
        evaluate(training, batch_of(1, Shards()), shards)


# Stopping


def steps_until_stop(processes: Processes) -> int:
    """Count the steps until all agree to stop; rank 2 is asked to in its third."""
    step = 0
    shards = SharedShards(SHARDS, lambda: processes.rank == 2 and step >= 3, processes)
    while not shards.stop_requested():
        step += 1
        shards.reduce(iter([[torch.ones(1)]]))
    return step


def test_all_processes_stop_at_the_same_step() -> None:
    """One process is asked to stop, and all stop after the same step, the next one."""
    assert in_processes(4, steps_until_stop) == dict.fromkeys(range(4), 4)


def interrupted(processes: Processes) -> str:
    def work() -> int:
        if processes.rank == 1:
            raise Interrupted
        return processes.rank

    try:
        return str(SharedShards(SHARDS, lambda: False, processes).gather(work))
    except Interrupted:
        return "interrupted"


def test_an_evaluation_is_interrupted_in_all_processes() -> None:
    """One process is asked to stop while it evaluates, and all hear of it at the end."""
    assert in_processes(2, interrupted) == {0: "interrupted", 1: "interrupted"}


# Who is missing


def test_a_rank_that_never_arrives_is_named() -> None:
    """Three of four processes wait as long as they were told, and say that rank 2 is missing."""
    found = in_processes(4, lambda _: None, missing=(2,), timeout=SHORT_SECONDS)
    for rank in (0, 1, 3):
        assert message(found[rank]).startswith("rank 2: expected 4 processes within 5 s, got 3")


def lose(processes: Processes, how: str) -> None:
    if processes.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL) if how == "dies" else time.sleep(3 * SHORT_SECONDS)
    SharedShards(SHARDS, lambda: False, processes).reduce(iter([[torch.ones(1)]]))


@pytest.mark.parametrize(("how", "said"), [("dies", "closed"), ("hangs", "within 5 s, got none")])
def test_a_rank_that_dies_or_hangs_is_named_by_all(how: str, said: str) -> None:
    """Rank 3 dies or hangs: also those that wait for somebody who waits for it name rank 3."""
    found = in_processes(4, partial(lose, how=how), timeout=SHORT_SECONDS)
    for rank in (0, 1, 2):
        assert message(found[rank]).startswith("rank 3: ")
        assert said in message(found[rank])


def lose_in_allreduce(processes: Processes) -> None:
    if processes.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    shards = SharedShards(SHARDS, lambda: False, processes, in_tree=False)
    shards.reduce(iter([[torch.ones(1)]] * 2))


def test_a_rank_that_dies_in_an_allreduce_is_named() -> None:
    """With trainer.reduce=allreduce, too."""
    found = in_processes(2, lose_in_allreduce)
    assert message(found[0]).startswith("rank 1: ")


def fail(processes: Processes) -> tuple[str, bool]:
    time.sleep(0.3 * processes.rank)
    return processes.record_failure(f"reason {processes.rank}")


def test_the_first_failure_is_the_reason_for_all() -> None:
    """The first process to fail says why; the others know its reason and are silent."""
    assert in_processes(2, fail) == {0: ("reason 0", True), 1: ("reason 0", False)}


def drift(processes: Processes, rank: int | None) -> None:
    torch.manual_seed(0)
    training = training_of(Net(recurrent=False))
    if processes.rank == rank:
        weights = training.model.get_parameter("last.weight")
        weights.data.view(torch.int32)[0, 0] ^= 1
    SharedShards(SHARDS, lambda: False, processes).compare(training, 7)


def test_a_rank_whose_weights_drifted_by_one_bit_is_named() -> None:
    """One flipped bit on rank 2 stops all processes, and they say where."""
    for result in in_processes(4, partial(drift, rank=2)).values():
        assert message(result).startswith("rank 2: expected the weights of rank 0 after step 7")


def test_ranks_with_the_same_weights_go_on() -> None:
    """Twin: without the flipped bit nothing happens."""
    assert in_processes(4, partial(drift, rank=None)) == dict.fromkeys(range(4))


# Bad input


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 cannot serve the store where somebody else listens, and says which port."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
        for name, value in (variables | {"MASTER_PORT": str(port)}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(InputError, match=f"MASTER_PORT: expected a free port, got {port}"):
            find(1)


def test_a_store_that_nobody_serves_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 waits for rank 0 as long as it was told, and says where."""
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    for name, value in (variables | {"MASTER_PORT": str(free_port())}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="MASTER_ADDR: expected rank 0 or torchrun at localhost"):
        find(1)


@pytest.mark.parametrize(
    ("shards", "processes", "batch_size", "said"),
    [
        (6, 2, 60, "trainer.shards: expected a power of two"),
        (3, 1, 64, "trainer.shards: expected a divisor of data.batch_size .64., got 3"),
        (4, 3, 64, "trainer.processes: expected a power of two"),
        (2, 4, 64, "trainer.shards: expected at least one for each of 4 processes, got 2"),
        (128, 1, 64, "trainer.shards: expected a divisor of data.batch_size .64., got 128"),
        (8, 8, 60, "trainer.shards: expected a divisor of data.batch_size .60., got 8"),
    ],
)
def test_shards_that_cannot_be(shards: int, processes: int, batch_size: int, said: str) -> None:
    """Each way to ask for impossible shards has its own line."""
    with pytest.raises(InputError, match=said):
        config.check_shards(shards, processes, batch_size)


def test_shards_that_can_be() -> None:
    """Twin: what fits is not refused."""
    for shards, processes, batch_size in (
        (1, 1, 1),
        (4, 1, 64),
        (3, 1, 60),
        (4, 4, 64),
        (64, 2, 64),
    ):
        config.check_shards(shards, processes, batch_size)


@pytest.mark.parametrize(
    ("asked", "gpus", "expected"),
    [
        ("auto", 0, "cpu"),
        ("cpu", 8, "cpu"),
        ("auto", 4, "cuda:1"),
        ("cuda", 8, "cuda:1"),
        ("auto", 2, "trainer.processes: expected at most 2 on this machine"),
        ("cuda", 0, "trainer.processes: expected at most 0 on this machine"),
        ("cuda:0", 4, "trainer.device: expected auto, cpu or cuda"),
        ("mps", 0, "trainer.device: expected auto, cpu or cuda"),
    ],
)
def test_each_process_has_a_gpu_of_its_own_or_the_cpu(
    asked: str, gpus: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 1 of 4 takes GPU 1 if there are 4; more processes than GPUs are refused."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    if ":" not in expected or expected.startswith("cuda"):
        assert Rank(1, 4).device_name(asked, gpus) == expected
    else:
        with pytest.raises(InputError, match=expected):
            Rank(1, 4).device_name(asked, gpus)


@pytest.mark.parametrize("tracks", [True, False])
def test_running_statistics_are_refused_with_their_layer(tracks: bool) -> None:
    """Batch norm would see one slice at a time; negative control: one that tracks nothing."""
    norm = nn.BatchNorm1d(FEATURES, track_running_stats=tracks)
    training = training_of(nn.Sequential(nn.Sequential(norm), nn.Linear(FEATURES, CLASSES)))
    shards = SharedShards(SHARDS, lambda: False)
    shards.begin(training, 0)
    refused = pytest.raises(InputError, match=r"^model\.0\.0\.running_mean: .* use GroupNorm")
    with refused if tracks else nullcontext():
        train_step(training, batch_of(1, shards), 1, shards, False, None)


class Counting(nn.Module):
    """A model that counts its forward passes, or only keeps a number."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.head, self.counts = nn.Linear(FEATURES, CLASSES), counts
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.counts:
            self.passes += 1
        return self.head(x)


def test_a_buffer_that_forward_passes_change_is_refused() -> None:
    """One process would change it for every slice, two for half of them; negative control: one
    that stays."""
    for counts in (False, True):
        training, shards = training_of(Counting(counts)), SharedShards(SHARDS, lambda: False)
        shards.begin(training, 0)
        step = partial(train_step, training, batch_of(1, shards), 1, shards, False, None)
        if counts:
            with pytest.raises(InputError, match=r"model\.passes: expected state that no forward"):
                step()
        else:
            step()


class Follows(nn.Module):
    """A model whose slow weights follow in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.slow = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)
        self.slow.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.slow.weight.lerp_(self.head.weight, 0.1)
        return self.head(x) + self.slow(x)


class Annealed(nn.Module):
    """A model that counts its forward passes in an extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.calls = nn.Linear(FEATURES, CLASSES), 0

    def get_extra_state(self) -> int:
        return self.calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(x) / self.calls


class Shrinks(nn.Module):
    """A model that makes its own trained weights smaller in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.head.weight.mul_(0.9)
        return self.head(x)


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (Follows, r"slow\.weight"),
        (Annealed, r"get_extra_state\(\)"),
        (Shrinks, r"head\.weight"),
    ],
)
def test_other_state_that_forward_passes_change_is_refused(model: Any, path: str) -> None:
    """Weights, trained or not, and extra states: as often as there are slices here."""
    training, shards = training_of(model()), SharedShards(SHARDS, lambda: False)
    shards.begin(training, 0)
    with pytest.raises(InputError, match=rf"^model\.{path}: expected state that no forward pass"):
        train_step(training, batch_of(1, shards), 1, shards, False, None)


def step_that_shrinks(processes: Processes | None) -> None:
    shards, training = SharedShards(SHARDS, lambda: False, processes), training_of(Shrinks())
    shards.begin(training, 0)
    train_step(training, batch_of(1, shards), 1, shards, False, None)


def test_trained_weights_that_a_forward_pass_changes_are_refused_by_each_process() -> None:
    """In the same line as by one."""
    for result in in_processes(2, step_that_shrinks).values():
        assert message(result).startswith("model.head.weight: expected state that no forward pass")


class ChangesLater(nn.Module):
    """A model whose third forward pass and later ones change a buffer, or only read it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.head, self.how, self.calls = nn.Linear(FEATURES, CLASSES), how, 0
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 2 * SHARDS and self.how == "in place":
            self.scale *= 2
        if self.calls > 2 * SHARDS and self.how == "through .data":
            self.scale.data.copy_(self.scale.data * 2)
        return self.head(x) * self.scale


class Averaging(Supervised):
    """Changes a buffer after each step, which forward passes may not."""

    def on_step_end(self, model: nn.Module, step: int) -> None:
        model.get_buffer("scale").mul_(0.5)


def trained_in_shards(
    processes: Processes | None, how: str, method: type[Supervised] = Supervised
) -> None:
    """Take steps, and compare as before a checkpoint."""
    torch.manual_seed(0)
    shards = SharedShards(SHARDS, lambda: False, processes)
    training = replace(training_of(ChangesLater(how)), method=method(tasks.Classification()))
    shards.begin(training, 0)
    for step in range(1, 2 * SHARDS + 3):
        train_step(training, batch_of(step, shards), step, shards, False, None)
    shards.compare(training, step)


@pytest.mark.parametrize("method", [Supervised, Averaging])
@pytest.mark.parametrize("how", ["in place", "through .data"])
def test_a_buffer_that_changes_now_and_then_is_refused_on_any_number_of_processes(
    how: str, method: type[Supervised]
) -> None:
    """By its bits, however it is written to, at the latest before the next checkpoint.

    Also with a method that changes it, rightly, after each step.
    """
    expected = r"^model\.scale: expected state that no forward pass changes"
    with pytest.raises(InputError, match=expected):
        trained_in_shards(None, how, method)
    work = partial(trained_in_shards, how=how, method=method)
    for result in in_processes(2, work).values():
        assert message(result).startswith("model.scale: expected state")


def test_a_buffer_that_stays_is_not_refused() -> None:
    """Negative control: a buffer that is only read, or changed after steps."""
    trained_in_shards(None, "not at all")
    trained_in_shards(None, "not at all", Averaging)
    assert in_processes(2, partial(trained_in_shards, how="not at all")) == dict.fromkeys(range(2))


class Langevin(torch.optim.SGD):
    """An optimizer that draws."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(torch.randn_like(parameter) * 0.01)


def drawn_weights(processes: Processes | None) -> list[bytes]:
    torch.manual_seed(0)
    shards = SharedShards(SHARDS, lambda: False, processes)
    training = training_of(Net(recurrent=False))
    optimizer = Langevin(training.model.parameters(), lr=0.1)
    training = replace(training, optimizers={"optimizer": optimizer})
    for step in range(1, 4):
        train_step(training, batch_of(step, shards), step, shards, False, None)
    shards.compare(training, step)
    return [bits(parameter.detach()) for parameter in training.model.parameters()]


def test_what_an_optimizer_draws_is_the_same_on_any_number_of_processes() -> None:
    """Dropout leaves each process with other generators; the update draws from seeded ones."""
    assert in_processes(2, drawn_weights) == dict.fromkeys(range(2), drawn_weights(None))
