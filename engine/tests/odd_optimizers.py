"""Optimizers whose state is of kinds that PyTorch's own have not."""

from typing import Any

import numpy as np
import torch


class Master(torch.optim.Optimizer):
    """SGD with float64 master weights, counts, and options of its own for vectors."""

    def __init__(self, parameters: Any, lr: float, betas: tuple[float, float] = (0.5, 0.9)) -> None:
        parameters = list(parameters)
        vectors = {"params": [p for p in parameters if p.dim() < 2], "lr": lr / 2}
        matrices = {"params": [p for p in parameters if p.dim() > 1]}
        super().__init__([vectors, matrices], {"lr": lr, "betas": tuple(betas)})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step."""
        self.state["updates"] = self.state.get("updates", 0) + 1  # type: ignore[index, call-overload]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("master", parameter.double())
                state["averages"] = self._averages(state.get("averages"), parameter, group)
                size = group["lr"] * (1 + 1 / self.state["updates"])  # type: ignore[index]
                state["master"] -= size * sum(state["averages"])
                parameter.copy_(state["master"])

    def _averages(
        self, before: list[torch.Tensor] | None, parameter: torch.Tensor, group: dict[str, Any]
    ) -> list[torch.Tensor]:
        gradient = parameter.grad.double()  # type: ignore[union-attr]
        old = before or [torch.zeros_like(gradient) for _ in group["betas"]]
        return [torch.lerp(gradient, a, b) for a, b in zip(old, group["betas"], strict=True)]


class SAM(torch.optim.Optimizer):
    """Moves uphill by the gradients that are there, and down by those of the closure there."""

    def __init__(self, parameters: Any, lr: float, rho: float) -> None:
        super().__init__(parameters, {"lr": lr, "rho": rho})

    @torch.no_grad()
    def step(self, closure: Any) -> None:  # type: ignore[override]
        """Take a step."""
        before = closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        moves = [p.grad * self.param_groups[0]["rho"] for p in parameters]
        torch._foreach_add_(parameters, moves)
        with torch.enable_grad():
            moved = closure()
        torch._foreach_sub_(parameters, moves)
        torch._foreach_add_(
            parameters, [p.grad for p in parameters], alpha=-self.param_groups[0]["lr"]
        )
        self.state.setdefault("losses", []).append((before, moved))  # type: ignore[arg-type, call-overload]


class NumPyScale(Master):
    """Keeps a NumPy scalar, which no checkpoint brings back."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step."""
        super().step()
        self.state["scale"] = np.sqrt(np.float64(self.state["updates"]))  # type: ignore[index]


class Langevin(torch.optim.AdamW):
    """Draws, from two generators."""

    def step(self, closure: Any = None) -> Any:
        """Take a step."""
        super().step(closure)
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(torch.randn_like(parameter) * 0.01 * np.random.rand())
