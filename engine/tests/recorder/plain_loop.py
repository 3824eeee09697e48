"""The default CNN in a loop as people write them.

usage: python -m tests.recorder.plain_loop RUN OUT

RUN is a run of train.py: model, data, optimizer and seed are those of its configuration.
"""

import sys
from pathlib import Path

import torch

import seedbed
from seedbed import rng
from seedbed.config import build
from seedbed.loading import seeded_loader
from seedbed.record import read_config


def main(run: Path, out: Path) -> None:
    """Train as the run did, with nothing of the engine's training loop."""
    settings = read_config(run)
    seedbed.apply_preset("strict", threads=1)
    dataset = build.build(settings.data.train, "data.train")
    loader = seeded_loader(dataset, settings.data.batch_size, settings.seed, workers=1)
    rng.seed_globals(rng.key(settings.seed, "init"))
    model = build.build(settings.model, "model")
    options = {k: v for k, v in settings.optimizer.items() if k not in ("name", "_target_")}
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=settings.data.task.label_smoothing)
    with seedbed.Recorder(out, settings) as recorder:
        for step, (images, labels) in enumerate(loader, 1):
            images = images.clone()  # memory of PyTorch's own, as in training by train.py
            optimizer.zero_grad()
            output = model(images)
            loss = criterion(output, labels)
            loss.backward()
            optimizer.step()
            recorder.step(step, loader.ids(step), (images, labels), loss, model, optimizer)
            if step == settings.trainer.max_steps:
                break


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
