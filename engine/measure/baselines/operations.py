"""Repeat the operations that PyTorch's notes on reproducibility name, and others that
people use.

python engine/measure/baselines/operations.py DEVICE REPETITIONS

Prints a JSON line for each preset and operation, as soon as it is known: its number of
results.
"""

import hashlib
import json
import sys
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seedbed.determinism.running import apply_preset
from seedbed.operations import describe

DEVICE, REPETITIONS = sys.argv[1], int(sys.argv[2])
N = 200_000 if DEVICE != "cpu" else 2000


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def rnd(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded()).to(DEVICE)


def ints(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape, generator=seeded()).to(DEVICE)


def grad(function: Callable, *inputs: Tensor) -> list[Tensor]:
    """Return the result and the gradients of the inputs."""
    inputs = [each.clone().requires_grad_() for each in inputs]
    output = function(*inputs)
    output = output if torch.is_tensor(output) else output[0]
    weights = torch.linspace(0.5, 1.5, output.numel(), device=output.device).view(
        output.shape
    )
    (output * weights).sum().backward()
    return [output.detach(), *(each.grad for each in inputs)]


CASES = {
    "Conv1d": lambda: grad(
        lambda x, w: F.conv1d(x, w), rnd(32, 16, 500), rnd(32, 16, 5)
    ),
    "Conv2d": lambda: grad(
        lambda x, w: F.conv2d(x, w), rnd(64, 16, 56, 56), rnd(64, 16, 3, 3)
    ),
    "Conv3d": lambda: grad(
        lambda x, w: F.conv3d(x, w), rnd(4, 8, 16, 32, 32), rnd(8, 8, 3, 3, 3)
    ),
    "ConvTranspose1d": lambda: grad(
        lambda x, w: F.conv_transpose1d(x, w, stride=2),
        rnd(16, 16, 200),
        rnd(16, 16, 5),
    ),
    "ConvTranspose2d": lambda: grad(
        lambda x, w: F.conv_transpose2d(x, w, stride=2),
        rnd(16, 16, 28, 28),
        rnd(16, 16, 4, 4),
    ),
    "ConvTranspose3d": lambda: grad(
        lambda x, w: F.conv_transpose3d(x, w, stride=2),
        rnd(2, 8, 8, 16, 16),
        rnd(8, 8, 3, 3, 3),
    ),
    "bmm sparse-dense": lambda: [
        torch.bmm(rnd(2, 50, 50).relu().to_sparse(), rnd(2, 50, 50))
    ],
    "getitem list backward": lambda: grad(lambda x: x[ints(100, N)], rnd(100, 3)),
    "index_put": lambda: [rnd(100).index_put((ints(100, N),), rnd(N))],
    "index_put accumulate": lambda: [
        rnd(100).index_put((ints(100, N),), rnd(N), accumulate=True)
    ],
    "put_ accumulate": lambda: [rnd(100).put_(ints(100, N), rnd(N), accumulate=True)],
    "put_": lambda: [rnd(100).put_(ints(100, N), rnd(N))],
    "gather backward": lambda: grad(lambda x: x.gather(0, ints(100, N)), rnd(100)),
    "index_add": lambda: [rnd(100).index_add(0, ints(100, N), rnd(N))],
    "index_copy": lambda: [rnd(100).index_copy(0, ints(100, N), rnd(N))],
    "index_select backward": lambda: grad(
        lambda x: x.index_select(0, ints(100, N)), rnd(100, 4)
    ),
    "repeat_interleave backward": lambda: grad(
        lambda x: x.repeat_interleave(3000, 0), rnd(100, 4)
    ),
    "scatter": lambda: [rnd(100).scatter(0, ints(100, N), rnd(N))],
    "scatter_add 1d": lambda: [rnd(100).scatter_add(0, ints(100, N), rnd(N))],
    "scatter_add 2d": lambda: [rnd(100, 4).scatter_add(0, ints(100, N, 4), rnd(N, 4))],
    "scatter_reduce mean": lambda: [
        rnd(100).scatter_reduce(0, ints(100, N), rnd(N), "mean")
    ],
    "scatter_reduce amax backward": lambda: grad(
        lambda x: torch.zeros(100, device=DEVICE).scatter_reduce(
            0, ints(100, N), x, "amax"
        ),
        rnd(N),
    ),
    "index_reduce mean": lambda: [
        rnd(100).index_reduce(0, ints(100, N), rnd(N), "mean")
    ],
    "bincount weights": lambda: [torch.bincount(ints(100, N), rnd(N).abs())],
    "histc": lambda: [torch.histc(rnd(N), 50)],
    "cumsum": lambda: grad(lambda x: x.cumsum(0), rnd(N)),
    "median": lambda: [
        torch.median(rnd(N)),
        torch.median(rnd(100, 100).round(), dim=1)[1],
    ],
    "kthvalue": lambda: [torch.kthvalue(rnd(100, 1000).round(), 10, dim=1)[1]],
    "topk ties": lambda: [torch.topk(rnd(100, 1000).round(), 10, dim=1)[1]],
    "sort ties": lambda: [torch.sort(rnd(100, 1000).round(), dim=1)[1]],
    "embedding backward": lambda: grad(
        lambda w: F.embedding(ints(100, N), w), rnd(100, 16)
    ),
    "embedding_bag sum": lambda: grad(
        lambda w: F.embedding_bag(ints(100, N // 10, 10), w, mode="sum"), rnd(100, 16)
    ),
    "embedding_bag mean": lambda: grad(
        lambda w: F.embedding_bag(ints(100, N // 10, 10), w, mode="mean"), rnd(100, 16)
    ),
    "embedding_bag max": lambda: grad(
        lambda w: F.embedding_bag(ints(100, N // 10, 10), w, mode="max"), rnd(100, 16)
    ),
    "ctc_loss backward": lambda: grad(
        lambda x: F.ctc_loss(
            x.log_softmax(2),
            ints(19, 16, 30) + 1,
            torch.full((16,), 100),
            torch.full((16,), 30),
        ),
        rnd(100, 16, 20),
    ),
    "ctc_loss cudnn": lambda: grad(
        lambda x: F.ctc_loss(
            x.log_softmax(2),
            ints(19, 16 * 30).int() + 1,
            torch.full((16,), 100, dtype=torch.int32, device=DEVICE),
            torch.full((16,), 30, dtype=torch.int32, device=DEVICE),
        ),
        rnd(100, 16, 20),
    ),
    "NLLLoss2d": lambda: grad(
        lambda x: F.cross_entropy(x, ints(5, 8, 64, 64)), rnd(8, 5, 64, 64)
    ),
    "AdaptiveAvgPool2d(1)": lambda: grad(
        lambda x: F.adaptive_avg_pool2d(x, 1), rnd(8, 16, 14, 14)
    ),
    "AdaptiveAvgPool2d(5)": lambda: grad(
        lambda x: F.adaptive_avg_pool2d(x, 5), rnd(8, 16, 14, 14)
    ),
    "AdaptiveAvgPool3d": lambda: grad(
        lambda x: F.adaptive_avg_pool3d(x, 3), rnd(4, 8, 7, 7, 7)
    ),
    "AdaptiveMaxPool2d": lambda: grad(
        lambda x: F.adaptive_max_pool2d(x, 5), rnd(8, 16, 14, 14)
    ),
    "AvgPool2d": lambda: grad(lambda x: F.avg_pool2d(x, 3, 1), rnd(8, 16, 14, 14)),
    "AvgPool3d": lambda: grad(lambda x: F.avg_pool3d(x, 3, 1), rnd(4, 8, 7, 7, 7)),
    "MaxPool2d overlapping": lambda: grad(
        lambda x: F.max_pool2d(x, 3, 1), rnd(8, 16, 28, 28)
    ),
    "MaxPool3d": lambda: grad(lambda x: F.max_pool3d(x, 3, 1), rnd(4, 8, 9, 9, 9)),
    "FractionalMaxPool2d": lambda: grad(
        lambda x: F.fractional_max_pool2d(
            x,
            2,
            output_ratio=(0.6, 0.6),
            _random_samples=torch.full((8, 16, 2), 0.3, device=DEVICE),
        ),
        rnd(8, 16, 28, 28),
    ),
    "MaxUnpool2d": lambda: grad(
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        rnd(8, 16, 28, 28),
    ),
    "LPPool2d": lambda: grad(
        lambda x: F.lp_pool2d(x.abs() + 1, 2, 2), rnd(8, 16, 28, 28)
    ),
    "upsample nearest": lambda: grad(
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), rnd(8, 16, 28, 28)
    ),
    "upsample linear": lambda: grad(
        lambda x: F.interpolate(x, scale_factor=2, mode="linear"), rnd(8, 16, 280)
    ),
    "upsample bilinear": lambda: grad(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), rnd(8, 16, 28, 28)
    ),
    "upsample bilinear aa": lambda: grad(
        lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
        rnd(8, 16, 28, 28),
    ),
    "upsample bicubic": lambda: grad(
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), rnd(8, 16, 28, 28)
    ),
    "upsample trilinear": lambda: grad(
        lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), rnd(4, 4, 8, 8, 8)
    ),
    "grid_sample 2d": lambda: grad(
        lambda x, g: F.grid_sample(x, g.tanh()), rnd(8, 4, 28, 28), rnd(8, 50, 50, 2)
    ),
    "grid_sample 3d": lambda: grad(
        lambda x, g: F.grid_sample(x, g.tanh()),
        rnd(2, 4, 8, 8, 8),
        rnd(2, 12, 12, 12, 3),
    ),
    "ReflectionPad1d": lambda: grad(
        lambda x: F.pad(x, (3, 3), mode="reflect"), rnd(8, 16, 28)
    ),
    "ReflectionPad2d": lambda: grad(
        lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"), rnd(8, 16, 28, 28)
    ),
    "ReflectionPad3d": lambda: grad(
        lambda x: F.pad(x, (1,) * 6, mode="reflect"), rnd(2, 4, 8, 8, 8)
    ),
    "ReplicationPad2d": lambda: grad(
        lambda x: F.pad(x, (3, 3, 3, 3), mode="replicate"), rnd(8, 16, 28, 28)
    ),
    "ReplicationPad3d": lambda: grad(
        lambda x: F.pad(x, (1,) * 6, mode="replicate"), rnd(2, 4, 8, 8, 8)
    ),
    "cdist backward": lambda: grad(
        lambda a, b: torch.cdist(a, b), rnd(500, 16), rnd(300, 16)
    ),
    "SDPA float32 causal": lambda: grad(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *[rnd(4, 8, 256, 64)] * 3,
    ),
    "SDPA bfloat16 causal": lambda: grad(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *[rnd(4, 8, 512, 64).bfloat16()] * 3,
    ),
    "SDPA bfloat16 mask": lambda: grad(
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=rnd(512, 512).bfloat16()
        ),
        *[rnd(4, 8, 512, 64).bfloat16()] * 3,
    ),
    "SDPA bfloat16 GQA": lambda: grad(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        rnd(4, 8, 512, 64).bfloat16(),
        rnd(4, 2, 512, 64).bfloat16(),
        rnd(4, 2, 512, 64).bfloat16(),
    ),
    "LayerNorm": lambda: grad(
        lambda x, w: F.layer_norm(x, (256,), w), rnd(4096, 256), rnd(256)
    ),
    "BatchNorm2d": lambda: grad(
        lambda x: F.batch_norm(x, None, None, training=True), rnd(64, 32, 28, 28)
    ),
    "GroupNorm": lambda: grad(lambda x: F.group_norm(x, 8), rnd(64, 32, 28, 28)),
    "matmul split-k": lambda: grad(
        lambda a, b: a @ b, rnd(64, 100_000), rnd(100_000, 64)
    ),
    "matmul bf16": lambda: grad(
        lambda a, b: a @ b, rnd(64, 100_000).bfloat16(), rnd(100_000, 64).bfloat16()
    ),
    "sum": lambda: grad(lambda x: x.sum(), rnd(10_000_000)),
    "prod": lambda: [torch.prod(rnd(N).abs() + 0.5, 0)],
    "svd": lambda: [torch.linalg.svdvals(rnd(64, 64))],
    "solve": lambda: grad(
        lambda a: torch.linalg.solve(a + 10 * torch.eye(64, device=DEVICE), a),
        rnd(64, 64),
    ),
    "fft": lambda: grad(lambda x: torch.fft.rfft2(x).abs(), rnd(8, 64, 64)),
    "unique": lambda: [torch.unique(ints(100, N), return_counts=True)[1]],
    "searchsorted": lambda: [
        torch.searchsorted(torch.linspace(-3, 3, 50, device=DEVICE), rnd(N))
    ],
    "LSTM": lambda: (
        torch.manual_seed(0),
        grad(nn.LSTM(8, 32, batch_first=True).to(DEVICE), rnd(16, 100, 8)),
    )[1],
    "LSTM bf16": lambda: (
        torch.manual_seed(0),
        grad(
            nn.LSTM(8, 32, batch_first=True).to(DEVICE).bfloat16(),
            rnd(16, 100, 8).bfloat16(),
        ),
    )[1],
    "GRU": lambda: (
        torch.manual_seed(0),
        grad(nn.GRU(8, 32, batch_first=True).to(DEVICE), rnd(16, 100, 8)),
    )[1],
    "RNN": lambda: (
        torch.manual_seed(0),
        grad(nn.RNN(8, 32, batch_first=True).to(DEVICE), rnd(16, 100, 8)),
    )[1],
    "MultiheadAttention": lambda: (
        torch.manual_seed(0),
        grad(
            lambda x: nn.MultiheadAttention(64, 4, batch_first=True).to(DEVICE)(
                x, x, x
            ),
            rnd(8, 128, 64),
        ),
    )[1],
    "masked_scatter": lambda: grad(
        lambda x: torch.zeros(N, device=DEVICE).masked_scatter(rnd(N) > 0, x), rnd(N)
    ),
    "roll/flip/tile": lambda: grad(lambda x: x.tile(4).roll(3).flip(0), rnd(N)),
    "weight_norm": lambda: grad(
        lambda v, g: torch._weight_norm(v, g, 0), rnd(512, 512), rnd(512, 1)
    ),
    "multinomial": lambda: (
        torch.manual_seed(0),
        [torch.multinomial(rnd(100, 1000).softmax(1), 50)],
    )[1],
}


def digest(tensors: list[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().flatten()
        found.update(flat.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def tried(case: Callable[[], list[Tensor]]) -> str:
    """Return how many results an operation has, or why it has none."""
    try:
        count = len({digest(case()) for _ in range(REPETITIONS)})
    except Exception as error:
        message = str(error)
        if "deterministic" in message:
            return f"refused: `{describe(message)[0]}`"
        return f"error: {message.splitlines()[0][:100]}"
    return "one result" if count == 1 else f"{count} results"


def main() -> None:
    warnings.simplefilter("ignore")
    for preset in ("strict", "fast"):
        apply_preset(preset)
        for name, case in CASES.items():
            print(json.dumps([preset, name, tried(case)]), flush=True)


if __name__ == "__main__":
    main()
