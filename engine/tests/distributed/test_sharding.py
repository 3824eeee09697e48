"""A sharded run has the bits of one on a single process, on any number of processes."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seedbed import dtensors, fingerprint, record
from seedbed.distributed import sharding
from seedbed.errors import InputError
from seedbed.training import checkpoint
from seedbed.weights import compare_checkpoints
from tests import tiny
from tests.distributed.test_distributed import in_processes, message
from tests.running import QUICK, command, made_once, train, trained
from tests.tiny.sharded import KILLED_AFTER, KILLED_RANK, Model

SHARDED = "trainer.sharding=full"
WORDS = (
    *("trainer.shards=4", "optimizer.fused=false", "fingerprint.every_steps=1"),
    # three batches: one is spare
    *("data.eval_batch_size=8", "trainer.checkpoint_every_steps=3"),
)
LIKE_TRANSFORMERS = (
    *tiny.overrides({"name": "own", "_target_": "tests.tiny.sharded.Model"}),
    *WORDS,
    *tiny.replaced("method", "tests.tiny.sharded.Weighted"),
)


def on(count: int) -> tuple[str, ...]:
    return f"trainer.processes={count}", SHARDED


@pytest.fixture(scope="session")
def whole(shared: Path) -> Path:
    """A run on one process, without sharding."""
    return made_once(
        shared / "not_sharded", lambda folder: trained(folder, *LIKE_TRANSFORMERS)
    )


def assert_same(run: Path, other: Path) -> None:
    """Compare every step's fingerprints, all metrics and predictions, and whole
    checkpoints."""
    for name in ("fingerprints.csv", "metrics.csv", "test_predictions.csv"):
        assert (run / name).read_text() == (other / name).read_text(), name
    assert compare_checkpoints(run, other) == ([], [])
    runs = [record.read_summary(each) for each in (run, other)]
    assert runs[0]["fingerprints"] == runs[1]["fingerprints"]


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_a_sharded_run_has_the_bits_of_one_process(
    whole: Path, tmp_path: Path, count: int
) -> None:
    """With tied, frozen, unused, rarely and temporarily trained weights, dropout,
    weights of slices, clipping, validations, a rehearsal, and ranks without rows or
    without a batch.
    """
    assert_same(trained(tmp_path / "run", *LIKE_TRANSFORMERS, *on(count)), whole)


class Recurrent(nn.Module):
    """Two layers of PyTorch that keep lists of their weights, and renew them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(tiny.FEATURES, 8, num_layers=2, batch_first=True)
        self.gru = nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, tiny.CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.lstm(inputs.unsqueeze(1).repeat(1, 3, 1))[0]
        logits: Tensor = self.head(self.gru(hidden)[0][:, -1])
        return logits


def test_recurrent_layers_are_sharded_with_the_same_bits(tmp_path: Path) -> None:
    target = f"{__name__}.Recurrent"
    words = (*tiny.overrides({"name": "own", "_target_": target}), *WORDS)
    run = trained(tmp_path / "whole", *words)
    assert_same(trained(tmp_path / "sharded", *words, *on(2)), run)


@pytest.mark.long
@pytest.mark.parametrize(
    "then", [(), on(2), ("trainer.processes=2", "trainer.sharding=none")]
)
def test_killed_on_four_and_resumed_on_others(
    whole: Path, tmp_path: Path, then: tuple[str, ...]
) -> None:
    """A line names the lost rank, and the run is resumed to the same bits."""
    killed = {KILLED_RANK: "2", KILLED_AFTER: "8"}
    skips = "trainer.rehearse_resume=false"
    run = tmp_path / "run"
    done = train(run, *QUICK, *LIKE_TRANSFORMERS, *on(4), skips, environment=killed)
    assert done.returncode != 0
    assert re.search(r"^error: ranks? (\d, )*2[:,]", done.stderr)
    how = then or ("trainer.processes=1", "trainer.sharding=none")
    done = command("scripts/resume.py", str(run), *how)
    assert done.returncode == 0, done.stderr
    assert "resuming after step 6" in done.stdout
    assert_same(run, whole)


@pytest.mark.long
def test_the_run_is_verified_and_evaluated(whole: Path, tmp_path: Path) -> None:
    """By the commands for any run; evaluate.py loads the weights into one process."""
    run = trained(
        tmp_path / "run", *LIKE_TRANSFORMERS, *on(2), "trainer.rehearse_resume=false"
    )
    for words in (
        ("verify", str(run)),
        ("evaluate", str(run)),
        ("compare", str(run), str(whole)),
    ):
        trust = ("--trust", "tests.tiny") if words[0] != "compare" else ()
        done = command(f"scripts/{words[0]}.py", *words[1:], *trust)
        assert done.returncode == 0, (words, done.stdout, done.stderr)


# Hashes


def hashes_agree(processes: Any, count: int) -> bool:
    """Return whether sharded tensors have the hash of whole ones, alone and among
    others."""
    mesh = torch.distributed.init_device_mesh("cpu", (count,))
    like = torch.distributed.tensor.distribute_tensor
    draws = torch.Generator().manual_seed(0)
    wholes = [
        torch.randn(shape, generator=draws).to(dtype)
        for shape in ((7, 5), (3,), (1,), (8, 2, 3), (0, 4))
        for dtype in (
            torch.float32,
            torch.bfloat16,
            torch.float64,
            torch.complex64,
            torch.int64,
        )
    ]
    wholes.append(torch.randn(1100, 1000, generator=draws))  # in several pieces
    placement = [torch.distributed.tensor.Shard(0)]
    shards: list[Tensor] = [like(each, mesh, placement) for each in wholes]
    mixed = [x for pair in zip(shards, wholes, strict=True) for x in pair]
    unmixed = [x for pair in zip(wholes, wholes, strict=True) for x in pair]
    lists = [shards, wholes[:3], mixed, [], [shards[-1]], [wholes[-1]]]
    expected = [wholes, wholes[:3], unmixed, [], [wholes[-1]], [wholes[-1]]]
    return torch.equal(fingerprint.of_lists(lists), fingerprint.of_lists(expected))


@pytest.mark.parametrize("count", [2, 4])
def test_hashes_of_shards_add_up(count: int) -> None:
    found = in_processes(count, partial(hashes_agree, count=count))
    assert found == dict.fromkeys(range(count), True)


# What a process holds


def held(processes: Any) -> tuple[list[str], float, bool]:
    """Return the blocks, this process's part of the weights, and whether they are
    gathered."""
    torch.manual_seed(0)
    model = Model()
    names = sharding.blocks(model)
    before = [p.detach().clone() for p in model.parameters()]
    sharding.Sharding(model, torch.device("cpu"), None, True)
    sharded = list(model.parameters())
    here = sum(dtensors.local(each).numel() for each in sharded)
    with torch.no_grad():
        model(torch.ones(2, tiny.FEATURES))
    assert all(map(dtensors.is_sharded, model.parameters()))  # after an evaluation, too
    whole = dtensors.gathered(sharded)
    same = all(torch.equal(a, b) for a, b in zip(whole, before, strict=True))
    return names, here / sum(each.numel() for each in sharded), same


def test_a_process_holds_its_part_and_rank_0_gathers_the_whole() -> None:
    found = in_processes(2, held)
    assert [names for names, _, _ in found.values()] == [["blocks.0", "blocks.1"]] * 2
    assert sum(part for _, part, _ in found.values()) == 1
    assert all(0.4 < part < 0.6 for _, part, _ in found.values())
    assert found[0][2]
    assert not found[1][2]


def anonymous_bytes() -> int:
    """Return the memory of this process that is not a file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(
        1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")
    )


def saved(processes: Any, folder: Path | None) -> tuple[int, int, bool]:
    """Return what gathering and then reading a checkpoint adds to memory; whether bits
    are same."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Linear(3000, 3000, bias=False) for _ in range(6))
    )
    before = [p.detach().clone() for p in model.parameters()]
    sharding.Sharding(model, torch.device("cpu"), ["*"], True)
    at_first = anonymous_bytes()
    whole = dtensors.gathered(model.state_dict(), folder)
    added = anonymous_bytes() - at_first
    if processes.rank == 0 and folder is not None:
        state = {"format_version": record.FORMAT_VERSION, "model": whole}
        checkpoint.save(state, folder / "last.pt")
    torch.distributed.barrier()
    read = whole
    if folder is not None:
        read = checkpoint.load(folder / "last.pt", mapped=True)["model"]
    same = processes.rank > 0 or all(map(torch.equal, before, read.values()))
    return added, anonymous_bytes() - at_first, same


@pytest.mark.parametrize("in_files", [True, False])
def test_a_checkpoint_takes_main_memory_for_one_tensor_at_a_time(
    tmp_path: Path, in_files: bool
) -> None:
    """Of six of 36 MB: gathered, saved and read again. Negative control: without files,
    for all."""
    found = in_processes(2, partial(saved, folder=tmp_path if in_files else None))
    assert all(same for _, _, same in found.values())
    for added, in_the_end, _ in found.values() if in_files else ():
        assert max(added, in_the_end) < 3 * 36_000_000
    assert (found[0][0] > 5 * 36_000_000) == (not in_files)
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"] * in_files


# What parameters have


def divided(whole: Tensor) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    return distribute_tensor(whole, mesh, [Shard(0)])


def attributes_agree(processes: Any) -> bool:
    """Return whether attributes of parameters are there, sharded and gathered."""
    model = Model()
    for number, parameter in enumerate(model.parameters()):
        parameter.my_lr = 0.1 * number  # type: ignore[attr-defined]
    expected = {name: p.my_lr for name, p in model.named_parameters()}  # type: ignore[attr-defined]
    sharding.Sharding(model, torch.device("cpu"), None, True)
    found: list[dict[str, float]] = []

    def look(block: nn.Module, _inputs: Any) -> None:
        here = block.named_parameters("blocks.0")
        found.append({name: p.my_lr for name, p in here})  # type: ignore[attr-defined]

    model.blocks[0].register_forward_pre_hook(look)
    model(torch.ones(2, tiny.FEATURES))["logits"].sum().backward()
    of_block = {
        name: lr for name, lr in expected.items() if name.startswith("blocks.0.")
    }
    sharded = {name: p.my_lr for name, p in model.named_parameters()}  # type: ignore[attr-defined]
    return found == [of_block] and len(of_block) == 4 and sharded == expected


def clipped(processes: Any) -> list[bool]:
    """Return for gradients of two dtypes whether they are clipped to the bits of whole
    ones."""
    draws = torch.Generator().manual_seed(0)
    same = []
    for number in range(40):
        dtypes = (
            (torch.bfloat16, torch.float32)
            if number % 2
            else (torch.float32, torch.bfloat16)
        )
        wholes = []
        for place in range(6):
            parameter = nn.Parameter(torch.zeros(5, 7, dtype=dtypes[place % 2]))
            parameter.grad = torch.randn(5, 7, generator=draws).to(parameter.dtype)
            wholes.append(parameter)
        shards = []
        for parameter in wholes:
            shards.append(nn.Parameter(divided(parameter.detach())))
            shards[-1].grad = divided(parameter.grad)  # type: ignore[arg-type]
        nn.utils.clip_grad_norm_(wholes, 1.0)
        sharding.Sharding.clip(SimpleNamespace(), shards, 1.0)  # type: ignore[arg-type]
        pairs = zip(wholes, shards, strict=True)
        same.append(all(torch.equal(a.grad, b.grad.full_tensor()) for a, b in pairs))  # type: ignore[arg-type,union-attr]
    return same


def views_agree(processes: Any) -> bool:
    """Return whether weights in one buffer are gathered apart, and tied ones as one."""
    from torch.distributed.tensor import DTensor

    for rows in (4, 1):  # of one row, the second process has none
        wholes = [torch.arange(rows * 3.0).reshape(rows, 3) + 100 * i for i in range(3)]
        like = divided(wholes[0])
        parts = [dtensors.local(divided(each)) for each in wholes]
        buffer = torch.cat([part.reshape(-1) for part in parts])
        views = [
            view.view(-1, 3) for view in buffer.split([part.numel() for part in parts])
        ]
        how: Any = {"shape": like.shape, "stride": like.stride(), "run_check": False}
        place = like.device_mesh, like.placements
        shards = [DTensor.from_local(view, *place, **how) for view in views]
        found = dtensors.gathered([*shards, shards[1].detach()])
        if processes.rank == 0:
            assert all(
                torch.equal(a, b)
                for a, b in zip(found, [*wholes, wholes[1]], strict=True)
            )
            assert found[1] is found[3]
    return True


@pytest.mark.parametrize("work", [attributes_agree, views_agree])
def test_what_belongs_to_parameters_is_kept(work: Any) -> None:
    assert in_processes(2, work) == {0: True, 1: True}


def test_gradients_of_two_dtypes_are_clipped_to_the_same_bits() -> None:
    assert in_processes(2, clipped) == dict.fromkeys(range(2), [True] * 40)


# Refusals


class Rowwise(torch.optim.SGD):
    """Divides by the norm of a whole weight."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.div_(parameter.data.norm())
        return super().step(closure)


def with_optimizer(
    processes: Any, make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    model = Model()
    sharding.Sharding(model, torch.device("cpu"), None, True)
    sharding.require_rows_are_enough(make(model.parameters()))


def sharded(
    processes: Any, change: Callable[[Model], Any], patterns: Any = None
) -> None:
    model = Model()
    change(model)
    sharding.Sharding(model, torch.device("cpu"), patterns, True)


def tie(model: Model) -> None:
    model.first.weight = model.blocks[0].mix.weight  # type: ignore[union-attr]


class Asserting(torch.optim.SGD):
    """Cannot be tried without the rest of the model, as some that look at all weights
    at once."""

    def step(self, closure: Any = None) -> Any:
        assert len(self.param_groups[0]["params"]) > 1000


class OfItsOwn(nn.Parameter):
    """A parameter whose operations are its own."""


def hook(model: Model) -> None:
    model.head.weight.register_hook(lambda gradient: 2 * gradient)


def hook_afterwards(model: Model) -> None:
    model.blocks[1].mix.bias.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[union-attr,operator]


def keep(model: Model) -> None:
    model.decayed = {"all": [model.head.weight]}


def subclass(model: Model) -> None:
    model.rare = OfItsOwn(torch.ones(10))


def add_scalar(model: Model) -> None:
    model.scale = nn.Parameter(torch.ones(()))


REFUSED: dict[str, Callable[[Any], None]] = {
    "optimizer: expected one that takes the same steps .* got Rowwise": partial(
        with_optimizer, make=lambda p: Rowwise(p, lr=0.1)
    ),
    "optimizer: expected one that takes the same steps .* optimizer.fused=false": (
        partial(with_optimizer, make=lambda p: torch.optim.AdamW(p, fused=True))
    ),
    "trainer.shard_modules: expected blocks that share no weights, got": partial(
        sharded, change=tie
    ),
    "trainer.shard_modules: expected a pattern of": partial(
        sharded, change=lambda _: None, patterns=["layers.?"]
    ),
    "trainer.shard_modules: expected modules with parameters": partial(
        sharded, change=lambda _: None, patterns=["blocks"]
    ),
    "optimizer: expected one that can be tried .* Asserting, which raises": partial(
        with_optimizer, make=lambda p: Asserting(p, lr=0.1)
    ),
    "model.head.weight: expected parameters without hooks": partial(
        sharded, change=hook
    ),
    "model.blocks.1.mix.bias: expected parameters without hooks": partial(
        sharded, change=hook_afterwards
    ),
    "model.decayed: expected no weights in attributes .* got head.weight;": partial(
        sharded, change=keep
    ),
    "model.rare: expected a plain .* got OfItsOwn": partial(sharded, change=subclass),
    "model.scale: expected parameters with a dimension": partial(
        sharded, change=add_scalar
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_have_the_same_bits_is_refused(line: str) -> None:
    """Negative control: the optimizers of the runs above are not."""
    for found in in_processes(2, REFUSED[line]).values():
        assert re.match(line, message(found))


def test_optimizers_that_treat_elements_alike_are_taken() -> None:
    for kind in (
        torch.optim.AdamW,
        torch.optim.SGD,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
    ):
        made = partial(
            with_optimizer, make=lambda p, kind=kind: kind(p, lr=0.1, weight_decay=0.1)
        )
        assert in_processes(2, made) == {0: None, 1: None}, kind


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"compile": True}, "trainer.compile=true"),
        ({"replay_every_steps": 2}, "trainer.replay_every_steps"),
        ({"keep_best": 3}, "trainer.keep_best"),
        ({"callbacks": {"a": {}}}, "callbacks"),
        ({"precision": "float16"}, "trainer.precision=float16"),
        ({"optimizers": {"a": None, "b": None}}, "several optimizers"),
        ({"hook": "on_step_end"}, "Supervised.on_step_end"),
    ],
)
def test_what_needs_whole_weights_is_refused(
    changed: dict[str, Any], named: str
) -> None:
    from seedbed.methods import Supervised

    one = {
        "compile": False,
        "replay_every_steps": 0,
        "keep_best": 1,
        "callbacks": {},
        "optimizers": {"a": None},
    }
    values = {**one, "hook": "", "precision": "float32", **changed}
    training: Any = SimpleNamespace(
        method=Supervised(),
        optimizers=values["optimizers"],
        callbacks=values["callbacks"],
        overrides=lambda n: n == values["hook"],
    )
    trainer: Any = SimpleNamespace(**values)
    with pytest.raises(
        InputError, match=rf"^trainer.sharding: expected none .* {named}"
    ):
        sharding.require_supported(training, trainer)
