"""A plain loop with accelerate, which saves and skips as its documentation shows it."""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from digits import (
    BATCH_SIZE,
    CHECKPOINT_EVERY,
    EPOCHS,
    after_step,
    network,
    training,
    validation,
    write_weights,
)
from torch.utils.data import DataLoader


@torch.no_grad()
def validate(model: torch.nn.Module, loader: DataLoader) -> float:
    """Return the mean loss."""
    model.eval()
    losses = [F.cross_entropy(model(x), y) for x, y in loader]
    model.train()
    return float(torch.stack(losses).mean())


def main() -> None:
    """Train."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    set_seed(settings["seed"], deterministic=True)
    accelerator = Accelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True),
    )
    model = network(settings)
    model, optimizer, loader, others = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"]),
        DataLoader(training(), BATCH_SIZE, shuffle=True, num_workers=settings["workers"]),
        DataLoader(validation(), 256, num_workers=settings["workers"]),
    )
    saved = Path(settings["out"], "checkpoint")
    done = 0
    if settings["resume"]:
        accelerator.load_state(saved)
        done = json.loads((saved / "step.json").read_text())
    first_epoch = done // len(loader)
    for epoch in range(first_epoch, EPOCHS):
        loader.set_epoch(epoch)
        skipped = done % len(loader) if epoch == first_epoch else 0
        batches = accelerator.skip_first_batches(loader, skipped) if skipped else loader
        for x, y in batches:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            done += 1
            if done % CHECKPOINT_EVERY == 0:
                accelerator.save_state(saved)
                (saved / "step.json").write_text(json.dumps(done))
            after_step(done, settings)
        if settings["validate"]:
            validate(model, others)
    if accelerator.is_main_process:
        write_weights(accelerator.unwrap_model(model), settings["out"])


if __name__ == "__main__":
    main()
