"""Print hashes of what PyTorch's operations return, and of their gradients."""

import json
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seedbed import fingerprint
from seedbed.determinism.running import apply_preset

# What models with attention, and GANs, are made of: functions of positive numbers, (8, 4, 24, 16).
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "attention, causal": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention, masked": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.ones(24, 24).tril().log()
    ),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "cross_entropy": lambda x: F.cross_entropy(x.flatten(0, 2), torch.arange(768) % 16),
    "layer_norm": lambda x: F.layer_norm(x, (16,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "rms_norm": lambda x: F.rms_norm(x, (16,)),
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "leaky_relu": lambda x: F.leaky_relu(x - 0.5, 0.2),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, x[:4, :, :4, :4], stride=2),
    "embedding": lambda x: F.embedding(torch.arange(512) % 100, x.reshape(-1, 16)),
    "norm": lambda x: x.norm(dim=-1),
    "std": lambda x: x.std(-1),
    "exp": torch.exp,
    "log": torch.log,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "rsqrt": torch.rsqrt,
    "sqrt": torch.sqrt,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "x ** 0.5": lambda x: x**0.5,
}
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p),
}


def main() -> None:
    apply_preset("portable")
    generator = torch.Generator().manual_seed(0)
    values = torch.rand((8, 4, 24, 16), generator=generator) * 0.98 + 0.01
    found = {name: of_operation(work, values) for name, work in OPERATIONS.items()}
    found |= {name: of_optimizer(make, values) for name, make in OPTIMIZERS.items()}
    print(json.dumps(found))


def of_operation(work: Callable[[Tensor], Tensor], values: Tensor) -> str:
    """Return the hash of an operation's result and of its gradient."""
    inputs = values.clone().requires_grad_()
    result = work(inputs)
    # Not the sum, whose gradient would be 1 everywhere.
    (gradient,) = torch.autograd.grad((result * result.detach()).sum(), inputs)
    return f"{int(fingerprint.of_tensors([result.detach(), gradient])):x}"


def of_optimizer(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], values: Tensor
) -> str:
    """Return the hash of parameters after three steps."""
    parameter = nn.Parameter(values.clone())
    optimizer = make([parameter])
    for _ in range(3):
        parameter.grad = parameter.detach() * values - 0.3
        optimizer.step()
    return f"{int(fingerprint.of_tensors([parameter.detach()])):x}"


if __name__ == "__main__":
    main()
