"""Optimizers with kinds of state that PyTorch's own optimizers do not have."""

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch
from torch import nn


class AllKinds(torch.optim.Optimizer):
    """SGD with momentum, as in user code: state of all kinds, by parameter and by
    name."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "seen": [0]})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.state["updates"] = self.state.get("updates", 0) + 1  # type: ignore[index, call-overload]
        self.state["sums"] = {
            "all": [torch.tensor(0.5, dtype=torch.float64)],
            "phase": "warm",
        }  # type: ignore[index]
        for group in self.param_groups:
            group["seen"][0] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["master"] = parameter.detach().float().clone()
                    state["momentum"] = torch.zeros_like(parameter, dtype=torch.float64)
                    state["other order"] = torch.zeros(parameter.shape[::-1]).t()
                    state["count"], state["frozen"], state["nothing"] = 0, False, None
                    state["phase"], state["bytes"] = "warm", b"\x00\x01"
                    state["history"] = [
                        torch.zeros((), dtype=torch.int64),
                        (1, "two", 3.0),
                    ]
                    state["kinds"] = OrderedDict(a=Counter("aab"), b={"texts"})
                    state["wrapped"] = nn.Parameter(torch.ones(2, dtype=torch.float64))
                state["count"] += 1
                state["history"][0] += 1
                state["momentum"].mul_(0.9).add_(parameter.grad.double())
                state["other order"].add_(parameter.grad)
                factor = self.state["updates"] / state["history"][0].item()  # type: ignore[index]
                state["master"].sub_(0.01 * factor * state["momentum"])
                parameter.copy_(state["master"])


class SAM(torch.optim.Optimizer):
    """Descends by the gradients at weights that were moved uphill by `rho` times the
    gradients."""

    def __init__(self, parameters: Any, lr: float, rho: float) -> None:
        super().__init__(parameters, {"lr": lr, "rho": rho})

    @torch.no_grad()
    def step(self, closure: Any) -> None:  # type: ignore[override]
        before = closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        moves = [p.grad * self.param_groups[0]["rho"] for p in parameters]
        # which leaves no new version
        torch._foreach_add_([p.data for p in parameters], moves)
        with torch.enable_grad():
            moved = closure()
        torch._foreach_sub_(parameters, moves)
        torch._foreach_add_(
            parameters, [p.grad for p in parameters], alpha=-self.param_groups[0]["lr"]
        )
        self.state.setdefault("losses", []).append((before, moved))  # type: ignore[arg-type, call-overload]


class NumPyScale(AllKinds):
    """Keeps a NumPy scalar in its state, which a checkpoint cannot restore."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        self.state["scale"] = np.sqrt(np.float64(self.state["updates"]))  # type: ignore[index]


class Langevin(torch.optim.AdamW):
    """AdamW with noise drawn from the global generators of torch and NumPy."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(torch.randn_like(parameter) * 0.01 * np.random.rand())


class ScheduleFree(torch.optim.Optimizer):
    """SGD whose `eval` swaps in the average x of the iterates z, and whose `train`
    swaps it out.

    Defazio et al. (2024), https://arxiv.org/abs/2405.15682.
    """

    def __init__(self, parameters: Any, lr: float, beta: float = 0.9) -> None:
        super().__init__(
            parameters, {"lr": lr, "beta": beta, "k": 0, "train_mode": False}
        )

    @torch.no_grad()
    def _swap(self, to_train: bool) -> None:
        for group in self.param_groups:
            assert group["train_mode"] != to_train
            weight = 1 - group["beta"] if to_train else 1 - 1 / group["beta"]
            for parameter in group["params"]:
                if "z" in self.state[parameter]:
                    parameter.lerp_(self.state[parameter]["z"], weight)
            group["train_mode"] = to_train

    def eval(self) -> None:
        self._swap(to_train=False)

    def train(self) -> None:
        self._swap(to_train=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            assert group["train_mode"], "train() was not called"
            group["k"] += 1
            share = 1 / group["k"]
            beta = group["beta"]
            for parameter in group["params"]:
                z = self.state[parameter].setdefault("z", parameter.clone())
                parameter.lerp_(z, share).add_(
                    parameter.grad, alpha=group["lr"] * (beta * (1 - share) - 1)
                )
                z.sub_(parameter.grad, alpha=group["lr"])


class Hutchinson(torch.optim.Optimizer):
    """Divides gradients by an average of the Hessian's diagonal, estimated as in
    AdaHessian.

    Yao et al. (2021), https://arxiv.org/abs/2006.00719.
    """

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"]]
        signs = [torch.randint_like(p, 2) * 2 - 1 for p in parameters]
        with torch.enable_grad():
            gradients = [p.grad for p in parameters]
            product = torch.autograd.grad(
                gradients, parameters, signs, retain_graph=True
            )
        for parameter, sign, each in zip(parameters, signs, product, strict=True):
            state = self.state[parameter]
            curvature = state.setdefault("curvature", torch.ones_like(parameter))
            curvature.lerp_((sign * each).abs(), 0.1)
            parameter.sub_(
                self.param_groups[0]["lr"] * parameter.grad / (curvature + 0.1)
            )
