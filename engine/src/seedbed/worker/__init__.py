"""The training process, `python -m seedbed.worker RUN_FOLDER`."""
