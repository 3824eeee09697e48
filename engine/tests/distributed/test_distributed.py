"""Several processes compute the same bits as one, and missing ranks are named."""

import gc
import itertools
import multiprocessing
import os
import re
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import astuple, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from seedbed import config, fingerprint
from seedbed.config.compose import compose
from seedbed.distributed.processes import ProcessGroup
from seedbed.distributed.rendezvous import find
from seedbed.errors import InputError, Interrupted
from seedbed.launch import STORE
from seedbed.methods import Callback, Run, Seen, Supervised
from seedbed.pipeline.positions import Position
from seedbed.pipeline.source import Batch
from seedbed.tasks import Classification
from seedbed.training.callbacks import Callbacks
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards, tree_sum
from seedbed.training.state import TrainingState
from seedbed.training.step import train_step
from tests import tiny
from tests.odd_optimizers import Langevin
from tests.tiny import methods

SHARDS = 4
BATCH_SIZE = 16
# Long, so that a slow machine does not look like a hanging rank; short where a rank is
# missing.
TIMEOUT_SECONDS = 60
SHORT_SECONDS = 3


def in_processes(
    count: int,
    work: Callable[[Any], Any],
    missing: tuple[int, ...] = (),
    timeout: int = TIMEOUT_SECONDS,
) -> dict[int, Any]:
    """Run `work` in `count` real, connected processes; return its results or errors by
    rank.

    Ranks that die or hang have no entry. A single process gets None instead of
    ProcessGroup.
    """
    context = multiprocessing.get_context("fork")

    def be(rank: int, result: Any) -> None:
        torch.set_num_threads(1)
        # as in a training process: a collection through all imports takes 0.1 s
        gc.freeze()
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
            STORE: f"{place}/store",
        }
        try:
            processes = find(timeout) if count > 1 else None
            if processes is not None:
                processes.meet(torch.device("cpu"))
            result.send(work(processes))
        except (InputError, Interrupted) as error:
            result.send(error)
        except BaseException:
            result.send(traceback.format_exc())
        os._exit(0)

    found = {}
    with tempfile.TemporaryDirectory() as place, ExitStack() as at_end:
        results = {}
        for rank in sorted({*range(count)} - {*missing}, reverse=True):
            results[rank], theirs = context.Pipe(duplex=False)
            process = context.Process(target=be, args=(rank, theirs))
            process.start()
            at_end.callback(process.kill)
            theirs.close()  # so that the pipe closes when the process dies
        for rank, result in results.items():
            with suppress(EOFError):
                if result.poll(120):
                    found[rank] = result.recv()
    return found


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
    """(a + b) + (c + d), or ((a + b) + (c + d)) + e. Negative control: another order
    differs."""
    a, b, c, d, e = map(numbers, range(5))
    (total,) = tree_sum(iter([[a], [b], [c], [d]]), 4)
    assert bits(total) == bits((a + b) + (c + d)) != bits(((a + b) + c) + d)
    (total,) = tree_sum(iter([[a], [b], [c], [d], [e]]), 5)
    assert bits(total) == bits(((a + b) + (c + d)) + e)
    for count in range(1, 20):
        parts = iter([[torch.tensor(2**i)] for i in range(count)])
        assert tree_sum(parts, count)[0].item() == 2**count - 1


def test_gradients_that_share_their_memory_are_summed_like_others() -> None:
    """Autograd may return one buffer for two parameters; complex gradients are averaged
    too."""
    for processes in (1, 2):
        shards = Shards(2)
        shards.mine = range(2 // processes)
        shared = [(torch.ones(2), torch.ones(2, dtype=torch.complex64)) for _ in "ab"]
        means = shards.reduce(
            iter([[a, a.view(2, 1), a.view(1, 2), b] for a, b in shared])
        )
        assert [mean.flatten().tolist() for mean in means] == [[1 / processes] * 2] * 4


# Training


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(tiny.FEATURES, 16, batch_first=True)
        self.dropout = nn.Dropout(0.3)
        self.last = nn.Linear(16, tiny.CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs.unsqueeze(1))[0][:, -1]
        return self.last(self.dropout(hidden))  # type: ignore[no-any-return]


class Skips(nn.Module):
    """Has weights that no sample uses, and some that only one slice of a batch uses."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(tiny.FEATURES, tiny.CLASSES)
        self.unused = nn.Linear(2, 2)
        self.rare = nn.Parameter(torch.ones(tiny.CLASSES))
        self.table = nn.Embedding(16, tiny.CLASSES)

    def forward(self, inputs: Tensor, ids: Tensor | None = None) -> Tensor:
        outputs: Tensor = self.head(inputs)
        if ids is not None:
            outputs = (outputs + self.table(ids)) * (self.rare if 0 in ids else 1)
        return outputs


class Skipping(Supervised):
    """Passes the ids to Skips."""

    def training_step(self, model: Any, batch: Batch, optimizer: str) -> Any:
        return nn.functional.cross_entropy(
            model(batch.inputs, batch.ids), batch.targets
        )


class Unlike(Supervised):
    """Logs under another name in the second half of a batch."""

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        name = "first" if int(batch.ids[0]) < BATCH_SIZE // 2 else "second"
        return {"loss": model(batch.inputs).square().mean(), name: 1.0}


class Looks(Callback):
    """Overrides the hook for which evaluations keep their outputs and targets."""

    def on_evaluation_end(self, run: Run, step: int, seen: Seen) -> None: ...


# The model of each method, which is in tests.tiny.methods unless it is above.
MODELS: dict[str, Callable[[], nn.Module]] = {
    "Supervised": Net,
    "WassersteinGAN": methods.Players,
    "Teacher": methods.Averaged,
    "LogsParameters": methods.Scaled,
    "Skipping": Skips,
}


def training_of(
    name: str = "Supervised", model: nn.Module | None = None
) -> TrainingState:
    """Return the training state of a method, with the same weights every time."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = model or MODELS.get(name, Net)()
    method = (globals().get(name) or getattr(methods, name))()
    method.task = Classification(0.1)

    def make(
        parameters: Any, lr: float = 0.01, **options: Any
    ) -> torch.optim.Optimizer:
        trained = [parameter for _, parameter in parameters if parameter.requires_grad]
        kind = Langevin if isinstance(model, Net) else torch.optim.AdamW
        return kind(trained, lr=lr, **options)

    found = method.configure_optimizers(model, make)
    optimizers = found if isinstance(found, dict) else {"optimizer": found}
    callbacks = Callbacks({"looks": Looks()})
    return TrainingState(
        model,
        optimizers,
        method,
        torch.device("cpu"),
        gradient_clip_norm=1.0,
        callbacks=callbacks,
    )


def batch_of(step: int, shards: Shards) -> list[Batch]:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH_SIZE, tiny.FEATURES, generator=generator)
    targets = torch.randint(tiny.CLASSES, (BATCH_SIZE,), generator=generator)
    positions = shards.divide(iter([Position(0, np.arange(BATCH_SIZE))]))
    whole = Batch(torch.arange(BATCH_SIZE), inputs, targets)
    return [of_ids(whole, ids) for _, ids, _ in positions]


def of_ids(whole: Batch, ids: Any) -> Batch:
    return Batch(torch.from_numpy(ids), whole.inputs[ids], whole.targets[ids])


def rows(
    processes: ProcessGroup | None,
    name: str = "Supervised",
    in_tree: bool = True,
    count: int = SHARDS,
) -> list[Any]:
    """Train for six steps, then evaluate; return fingerprints, losses and values."""
    training = training_of(name)
    shards = Shards(count, lambda: False, processes, in_tree)
    hasher = fingerprint.Hasher(training.device)
    found: list[Any] = []
    shards.begin(training, 0)
    for step in range(1, 7):
        taken = train_step(training, batch_of(step, shards), step, shards, True, hasher)
        assert taken.stages is not None
        found.append(tree_map(as_numbers, taken))
    shards.compare(training, 6)
    # Of four ranks, the first one has no batch.
    batches = shards.share([Position(0, np.arange(i, i + 4)) for i in (0, 4, 8)])
    everything = batch_of(9, Shards())[0]
    result = evaluate(
        training, [of_ids(everything, ids) for _, ids, _ in batches], shards
    )
    assert result.seen is not None
    return [*found, tree_map(as_numbers, astuple(result))]


def as_numbers(leaf: Any) -> Any:
    return leaf.tolist() if torch.is_tensor(leaf) else leaf


@pytest.mark.parametrize(
    ("name", "count"),
    [(name, 2) for name in MODELS]
    # With as many processes as shards, each sends the results of its one shard.
    + [(name, 4) for name in ("Supervised", "LogsParameters", "Skipping")],
)
def test_training_does_not_depend_on_the_number_of_processes(
    name: str, count: int
) -> None:
    """Every stage of every step, with dropout and optimizers that draw, and all logged
    values."""
    alone = rows(None, name)
    assert in_processes(count, partial(rows, name=name)) == dict.fromkeys(
        range(count), alone
    )


def test_a_parameter_is_logged_as_the_step_found_it() -> None:
    """Values are read steps later. Negative control: the step changes the parameter."""
    first, second, *_ = rows(None, "LogsParameters", count=1)
    assert first.values["scale"] == 1.0 != second.values["scale"]


def test_shards_and_the_order_of_sums_show_in_the_bits() -> None:
    """Negative controls: one shard has other sums and other dropout than four shards; a
    plain all-reduce over 4 processes sums in another order."""
    alone = rows(None)
    assert len({str(row) for row in alone[:6]}) == 6
    assert rows(None, count=1)[0] != alone[0]
    assert in_processes(4, partial(rows, in_tree=False))[0] != alone


# Stopping, and missing ranks


def steps_until_stop(processes: ProcessGroup) -> int:
    """Return the number of steps until all stop, if rank 1 is asked to stop in its
    third."""
    step = 0
    shards = Shards(SHARDS, lambda: processes.rank == 1 and step >= 3, processes)
    while not shards.stop_requested():
        step += 1
        shards.reduce(iter([[torch.ones(1)]] * len(shards.mine)))

    def evaluate_a_part() -> None:
        if processes.rank == 1:
            raise Interrupted

    with pytest.raises(Interrupted):
        shards.gather(evaluate_a_part)
    return step


def test_all_processes_stop_together() -> None:
    """If one is asked to stop, all stop after the next step, and during an
    evaluation."""
    assert in_processes(2, steps_until_stop) == dict.fromkeys(range(2), 4)


def lose(processes: ProcessGroup, how: str) -> None:
    last = processes.count - 1
    if processes.rank == last:
        (
            time.sleep(3 * SHORT_SECONDS)
            if how == "hangs"
            else os.kill(os.getpid(), signal.SIGKILL)
        )
    shards = Shards(SHARDS, lambda: False, processes, in_tree=last == 3)
    shards.reduce(iter([[torch.ones(1)]] * 2))


@pytest.mark.parametrize(
    ("count", "how", "said"),
    [
        (4, "is not there", "expected 4 processes within 3 s, got 3"),
        (4, "dies", "disconnected"),
        pytest.param(4, "hangs", "did not answer within 3 s", marks=pytest.mark.long),
        (2, "dies", "disconnected"),
    ],
)
def test_a_rank_that_is_missing_is_named_by_all(
    count: int, how: str, said: str
) -> None:
    """Also by ranks that wait for a waiting rank; two processes use all-reduce."""
    missing = (count - 1,) if how == "is not there" else ()
    found = in_processes(count, partial(lose, how=how), missing, SHORT_SECONDS)
    for rank in range(count - 1):
        assert message(found[rank]).startswith(f"rank {count - 1}: ")
        assert said in message(found[rank])


def drift(processes: ProcessGroup, rank: int | None) -> None:
    torch.manual_seed(0)
    training = training_of()
    if processes.rank == rank:
        weights = training.model.get_parameter("last.weight")
        weights.data.view(torch.int32)[0, 0] ^= 1
    Shards(SHARDS, lambda: False, processes).compare(training, 7)


def test_a_rank_whose_weights_drifted_by_one_bit_is_named() -> None:
    """All processes raise an error with rank and step. Negative control: no bit is
    flipped."""
    for result in in_processes(4, partial(drift, rank=2)).values():
        assert message(result).startswith(
            "rank 2: expected the weights of rank 0 after step 7"
        )
    assert in_processes(4, partial(drift, rank=None)) == dict.fromkeys(range(4))


# Bad input


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_nobody_can_or_does_serve_is_named(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 cannot serve a port that is in use; rank 1 finds no server on an unused
    port."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
        if rank == 0:
            listener.listen()
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
        for name, value in (variables | {"MASTER_PORT": str(port)}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(
            InputError, match=f"^MASTER_ADDR, MASTER_PORT: .* at localhost:{port}"
        ):
            find(1)


@pytest.mark.parametrize(
    ("shards", "processes", "batch_size", "refused"),
    [
        (1, 1, 1, ""),
        (3, 1, 60, ""),
        (4, 4, 64, ""),
        (6, 2, 60, "trainer.shards"),
        (3, 1, 64, "trainer.shards"),
        (2, 4, 64, "trainer.shards"),
        (4, 3, 64, "trainer.processes"),
    ],
)
def test_shards_divide_a_batch_and_processes_divide_them(
    shards: int, processes: int, batch_size: int, refused: str
) -> None:
    asked = (f"trainer.shards={shards}", f"data.batch_size={batch_size}")
    settings = config.resolve(compose(*asked, f"trainer.processes={processes}"))
    with (
        pytest.raises(InputError, match=rf"^{refused}: ") if refused else nullcontext()
    ):
        config.check(settings)


@pytest.mark.parametrize(
    ("asked", "gpus", "expected"),
    [
        ("auto", 0, "cpu"),
        ("cpu", 8, "cpu"),
        ("auto", 4, "cuda:1"),
        ("cuda", 8, "cuda:1"),
        ("auto", 2, "trainer.processes"),
        ("cuda", 0, "trainer.processes"),
        ("cuda:0", 4, "trainer.device"),
        ("mps", 0, "trainer.device"),
    ],
)
def test_each_process_has_a_gpu_of_its_own_or_the_cpu(
    asked: str, gpus: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 1 of 4 takes GPU 1 if there are 4; more processes than GPUs are
    refused."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    refused = expected.startswith("trainer")
    four = SimpleNamespace(rank=1, count=4)
    with (
        pytest.raises(InputError, match=f"^{expected}: ") if refused else nullcontext()
    ):
        assert ProcessGroup.device_name(four, asked, gpus) == expected  # type: ignore[arg-type]


# State of a model, how a forward pass changes it, and after how many passes.
CHANGES: dict[str, tuple[Callable[[Any], object], int]] = {
    # batch norm does it, for one slice at a time
    "0.running_mean": (lambda _: None, 0),
    "1.weight": (lambda model: model[1].weight.mul_(0.9), 0),
    "scale": (lambda model: model.scale.data.mul_(2), 2 * SHARDS),
}


def trained_in_shards(processes: ProcessGroup | None, what: str) -> None:
    """Train a model whose forward passes change it, then compare as before a
    checkpoint."""
    norm = nn.BatchNorm1d(tiny.FEATURES, track_running_stats=what == "0.running_mean")
    model = nn.Sequential(norm, nn.Linear(tiny.FEATURES, tiny.CLASSES))
    model.register_buffer("scale", torch.ones(()))
    (change, after), passes = CHANGES[what], itertools.count()

    @torch.no_grad()
    def changing(*_: Any) -> None:
        if next(passes) >= after:
            change(model)

    model.register_forward_pre_hook(changing)
    training = training_of(model=model)
    shards = Shards(SHARDS, lambda: False, processes)
    shards.begin(training, 0)
    for step in range(1, 2 * SHARDS + 3):
        train_step(training, batch_of(step, shards), step, shards, False, None)
    shards.compare(training, step)


def with_closure(processes: ProcessGroup | None) -> None:
    training = training_of()
    optimizer = torch.optim.LBFGS(training.model.parameters())
    training = replace(training, optimizers={"optimizer": optimizer})
    Shards(SHARDS, lambda: False, processes).begin(training, 0)


def with_sparse_gradients(processes: ProcessGroup | None) -> None:
    Shards(2, lambda: False, processes).reduce(iter([[torch.eye(2).to_sparse()]]))


REFUSED: dict[str, tuple[Callable[[ProcessGroup | None], Any], tuple[int, ...]]] = {
    **{
        f"model.{what}: expected state that no forward pass changes": (
            partial(trained_in_shards, what=what),
            (2,),
        )
        for what in CHANGES
    },
    "method: expected the same names of values for all shards": (
        partial(rows, name="Unlike"),
        (1, 2),
    ),
    "optimizer: expected one whose step() needs no closure": (with_closure, (2,)),
    "model: expected dense gradients with several processes": (
        with_sparse_gradients,
        (2,),
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_would_depend_on_the_number_of_processes_is_refused(line: str) -> None:
    """Refused are: state that forward passes change, found by its bits at the next
    checkpoint at the latest; shards that log different names; closures, which all
    processes would have to call equally often; sparse gradients, whose indices differ
    between processes.

    Negative control: Teacher, above, changes state after each step.
    """
    work, counts = REFUSED[line]
    if 1 in counts:
        with pytest.raises(InputError, match=rf"^{re.escape(line)}"):
            work(None)
    if 2 in counts:
        for found in in_processes(2, work).values():
            assert message(found).startswith(line)


def test_weights_that_no_sample_uses_stay() -> None:
    """Decay would change them; weights of a single slice are updated. Several
    processes: above."""
    training = training_of("Skipping")
    shards = Shards(SHARDS)
    before = {name: each.tolist() for name, each in training.model.named_parameters()}
    train_step(training, batch_of(1, shards), 1, shards, False, None)
    after = training.model.named_parameters()
    same = [name for name, each in after if each.tolist() == before[name]]
    assert same == ["unused.weight", "unused.bias"]
