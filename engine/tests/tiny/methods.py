"""User-defined methods, callbacks and schedules, each short, for `tests.tiny.data`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seedbed.methods import Callback, Make, Method, Run, Supervised
from seedbed.pipeline.source import Batch
from tests.tiny import FEATURES


class Autoencoder(nn.Module):
    """A variational autoencoder that returns a tuple."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, 2 * width)
        self.decoder = nn.Linear(width, FEATURES)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(points).chunk(2, dim=1)
        noise = torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(mean + noise), mean, log_variance


class VAE(Method):
    """A method whose loss has named parts."""

    def parts(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        decoded, mean, log_variance = model(batch.inputs)
        reconstruction = F.mse_loss(decoded, batch.inputs, reduction="none").sum(1)
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
        return {"loss": reconstruction + kl, "reconstruction": reconstruction, "kl": kl}

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        return {name: part.mean() for name, part in self.parts(model, batch).items()}

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        return self.parts(model, batch)


class Players(nn.Module):
    """The two networks of a GAN."""

    def __init__(self, width: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        layers = nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(dropout)
        self.critic = nn.Sequential(*layers, nn.Linear(8, 1))
        self.generator = nn.Linear(width, FEATURES)


class WassersteinGAN(Method):
    """Updates the critic twice a step, with a gradient penalty; the generator in odd
    steps."""

    monitor = "validation_distance"

    def configure_optimizers(
        self, model: Any, make: Make
    ) -> dict[str, torch.optim.Optimizer]:
        return {
            "critic": make(model.critic.named_parameters(), lr=0.01),
            "generator": make(model.generator.named_parameters(), betas=[0.5, 0.9]),
        }

    def updates(self, step: int, names: Sequence[str]) -> Sequence[str]:
        return ["critic", "critic", *(["generator"] if step % 2 else [])]

    def training_step(self, model: Any, batch: Batch, optimizer: str) -> Any:
        real = batch.inputs
        made = model.generator(torch.randn(len(real), 4))
        if optimizer == "generator":
            return -model.critic(made).mean()
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * made).detach().requires_grad_()
        (slopes,) = torch.autograd.grad(
            model.critic(between).sum(), between, create_graph=True
        )
        penalty = (slopes.norm(dim=1) - 1).square().mean()
        loss = model.critic(made).mean() - model.critic(real).mean() + 10 * penalty
        return {"loss": loss, "penalty": penalty}

    def validation_step(self, model: Any, batch: Batch) -> Any:
        made = model.generator(torch.randn(len(batch.inputs), 4))
        return {"distance": (batch.inputs.mean(0) - made.mean(0)).abs()}

    def compute(self, values: Mapping[str, Any]) -> Mapping[str, float]:
        return {"distance": float(values["distance"].mean())}


class Teacher(Supervised):
    """Evaluates with a moving average of the weights, kept in frozen parameters."""

    def on_step_end(self, model: Any, step: int) -> None:
        for average, weight in zip(
            model.average.parameters(), model.net.parameters(), strict=True
        ):
            average.lerp_(weight, 0.1)
        model.noise.normal_()

    def validation_step(self, model: Any, batch: Batch) -> Any:
        return super().validation_step(model.average, batch)


class Averaged(nn.Module):
    """A network, and a frozen copy for a moving average of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(FEATURES, 3)
        self.average = nn.Linear(FEATURES, 3)
        self.average.requires_grad_(False).load_state_dict(self.net.state_dict())
        self.register_buffer("noise", torch.zeros(3))

    def forward(self, points: Tensor) -> Tensor:
        return self.net(points) + self.noise  # type: ignore[no-any-return]


class FineTuning(Supervised):
    """Named parameter groups; the first layer is trained from step 4 on."""

    def configure_optimizers(
        self, model: nn.Module, make: Make
    ) -> torch.optim.Optimizer:
        named = dict(model.named_parameters())
        first = [p for name, p in named.items() if name.startswith("0.")]
        rest = [p for name, p in named.items() if not name.startswith("0.")]
        return make(
            [
                {"name": "first", "params": first, "lr": 0.001, "weight_decay": 0.0},
                {"name": "rest", "params": rest},
            ]
        )

    def trainable(self, step: int) -> Iterable[str] | None:
        return ["3.*"] if step < 4 else None


class Tokens(Supervised):
    """A mean over tokens: each shard of a batch is weighted by its number of tokens."""

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        counted = batch.targets != 0
        losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
        loss = (losses * counted).sum() / counted.sum()
        return {"loss": loss, "tokens": lambda: counted.sum(), "weight": counted.sum()}

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
        counted = batch.targets != 0
        return {"nll": ((losses * counted).sum(), counted.sum())}

    def compute(self, values: Mapping[str, Any]) -> Mapping[str, float]:
        nll, tokens = values["nll"]
        return {"loss": nll / tokens, "accuracy": 0.0, "tokens": tokens}

    def on_train_end(self, model: nn.Module, log: Callable[[str], None]) -> None:
        log(f"drawn at the end: {torch.rand(1).item()}")


class Scaled(nn.Linear):
    """A linear layer with a learnt scale, and a buffer with the weight of a shard."""

    def __init__(self) -> None:
        super().__init__(FEATURES, 3)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("counts", torch.tensor(2.0))

    def forward(self, points: Tensor) -> Tensor:
        return self.scale * super().forward(points)


class LogsParameters(Supervised):
    """Returns a parameter as the loss and a buffer as the weight, and logs both,
    uncopied."""

    def training_step(self, model: Any, batch: Batch, optimizer: str) -> Any:
        values = {"scale": model.scale, "counts": model.counts}
        return {"loss": model.scale, "weight": model.counts} | values


class Norms(Callback):
    """Logs gradient norms before clipping, keeps the largest in its state, and
    draws."""

    def __init__(self) -> None:
        self.largest = 0.0

    def on_before_optimizer_step(
        self, run: Run, step: int, gradients: Mapping[str, Tensor]
    ) -> None:
        torch.rand(step)
        norm = nn.utils.get_total_norm(list(gradients.values()))
        self.largest = max(self.largest, float(norm))
        run.log("gradient_norm", norm)
        run.log("largest", self.largest)
        run.model.zero_grad()  # as after computing its own gradients

    def on_validation_end(self, run: Run, step: int) -> None:
        run.model.train()
        (run.folder / f"seen_at_{step}.txt").write_text(f"{torch.rand(1).item()}")
        run.log("weight", next(run.model.parameters()).mean())

    def state_dict(self) -> dict[str, Any]:
        return {"largest": self.largest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.largest = state["largest"]


class Meddling(Callback):
    """Changes a gradient or a weight in one of its hooks, or freezes the model."""

    def __init__(self, at: str, through_data: bool = False) -> None:
        self.at = at
        self.through_data = through_data

    def _meddle(self, at: str, tensor: Tensor) -> None:
        if at == self.at:
            (tensor.data if self.through_data else tensor).mul_(2)

    def on_before_optimizer_step(
        self, run: Run, step: int, gradients: Mapping[str, Tensor]
    ) -> None:
        self._meddle("on_before_optimizer_step", next(iter(gradients.values())))

    def on_step_end(self, run: Run, step: int) -> None:
        self._meddle("on_step_end", next(run.model.parameters()))
        run.model.requires_grad_(self.at != "freezes")

    def on_validation_end(self, run: Run, step: int) -> None:
        self._meddle("on_validation_end", next(run.model.parameters()))


class Sawtooth:
    """A schedule with a factor for each named group."""

    def __init__(self, period: int) -> None:
        self.period = period

    def factor(self, step: int, total_steps: int) -> dict[str, float]:
        return {"first": 1 - step % self.period / self.period, "rest": 0.5}


def halved(step: int, total_steps: int, start: float) -> float:
    return start * 0.5**step


class Impure:
    """A schedule whose factor is its number of calls."""

    calls = 0

    def factor(self, step: int, total_steps: int) -> float:
        self.calls += 1
        return float(self.calls)
