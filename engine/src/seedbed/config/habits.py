"""What keys of Lightning and of lightning-hydra-template are called here."""

_KEYS = {
    "accelerator": "trainer.device",
    "accumulate_grad_batches": "trainer.accumulate",
    "check_val_every_n_epoch": "trainer.validate_every_epochs",
    "ckpt_path": "scripts/resume.py RUN, or scripts/evaluate.py RUN",
    "deterministic": "determinism=strict",
    "devices": "trainer.processes",
    "early_stopping": "trainer.early_stopping_patience",
    "epochs": "trainer.max_epochs",
    "every_n_train_steps": "trainer.checkpoint_every_steps or trainer.keep_checkpoint_every_steps",
    "fast_dev_run": "debug=default",
    "gradient_clip_val": "trainer.gradient_clip_norm",
    "learning_rate": "optimizer.lr",
    "limit_val_batches": "trainer.limit_validation_batches",
    "log_every_n_steps": "trainer.log_every_steps",
    "max_time": "trainer.max_steps, or `timeout 2h python train.py ...`, which saves a checkpoint",
    "name": "hydra.run.dir=runs/NAME, or tags=[NAME]",
    "num_epochs": "trainer.max_epochs",
    "num_nodes": "torchrun ... -m seedbed.worker RUN",
    "num_sanity_val_steps": "trainer.rehearse_resume",
    "patience": "trainer.early_stopping_patience",
    "profiler": "debug=profile",
    "save_top_k": "trainer.keep_checkpoint_every_steps",
    "task_name": "hydra.run.dir=runs/NAME, or tags=[NAME]",
    "val_check_interval": "trainer.validate_every_steps",
}
# Sections whose other keys are arguments of a class, or names that are free to choose.
_OPEN = ("data", "model", "method", "optimizer", "schedule", "metrics", "callbacks", "logger")


def called_here(key: str) -> str:
    """Return `; here: X` for a key of the trainer or of the top that others have; else empty."""
    section, _, name = key.rpartition(".")
    return f"; here: {_KEYS[name]}" if name in _KEYS and section in ("", "trainer") else ""


def to_add(key: str) -> str:
    """Return how to add a key to a composed configuration; empty where it would be refused."""
    return f"; to add it: +{key}=..." if key.partition(".")[0] in _OPEN and "." in key else ""
