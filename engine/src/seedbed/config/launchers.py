"""What Hydra's launchers and sweepers are given, checked before the first job starts.

Without this their mistakes are tracebacks from deep inside, minutes of silence, or endless loops.
"""

import os
import shutil
import socket
from collections.abc import Callable

from omegaconf import DictConfig, OmegaConf, open_dict

from seedbed.errors import InputError

# Launchers and sweepers of requirements-cluster.txt.
PLUGINS = ("submitit_local", "submitit_slurm", "ray", "optuna")
INSTALL = "pip install -r requirements-cluster.txt"
_ANSWER_SECONDS = 5.0
# Where the packages that start jobs elsewhere raise their errors.
_PACKAGES = ("joblib", "ray", "submitit")
# The message of Optuna when it is asked for the best of no trials.
_NO_TRIAL = "No trials are completed yet."
# Its message when the last trial of a grid failed, which Hydra expects of those that finish only.
_GRID_IS_DONE = "`Study.stop` is supposed to be invoked inside an objective function"

_COUNTS: dict[str, tuple[str, Callable[[int], bool]]] = {
    "launcher.n_jobs": ("an integer other than 0 (-1: one job for each core)", lambda n: n != 0),
    "sweeper.n_jobs": ("an integer >= 1", lambda n: n >= 1),
    "sweeper.n_trials": ("an integer >= 1", lambda n: n >= 1),
    "sweeper.max_batch_size": ("an integer >= 1 or null", lambda n: n >= 1),
}


def prepare(hydra: DictConfig) -> None:
    """Check the settings of launcher and sweeper, and complete those for a Ray that is there.

    Raises:
        InputError: what is asked for cannot be, or is not there.
    """
    for key, (expected, holds) in _COUNTS.items():
        value = OmegaConf.select(hydra, key)
        if value is not None and not (isinstance(value, int) and holds(value)):
            raise InputError(f"hydra.{key}: expected {expected}, got {value}; try hydra.{key}=2")
    launcher = str(hydra.launcher._target_).rpartition(".")[2]
    if launcher == "SlurmLauncher":
        _require_slurm()
    elif launcher == "RayLauncher":
        _prepare_ray(hydra.launcher.ray.init)


def explain(error: Exception) -> InputError | None:
    """Return one line on why jobs did not start or did not come back; None for other errors."""
    reason = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:160]}"
    if isinstance(error, ConnectionError) and not isinstance(error, BrokenPipeError):
        return InputError(
            f"hydra.launcher.ray.init.address: expected a Ray cluster that takes us, got {reason}; "
            "start one with `ray start --head`; if it asks for a token, set RAY_AUTH_MODE=token"
        )
    if type(error).__module__.partition(".")[0] in _PACKAGES:
        return InputError(
            f"hydra/launcher: expected its jobs to come back, got {reason}; resume with the sweep "
            "by scripts/resume.py"
        )
    if str(error) == _NO_TRIAL:
        return InputError("hydra/sweeper=optuna: expected a trial that finishes, got none; see why")
    return None


def ends_a_search(error: Exception) -> bool:
    """Return whether an exception only means that a grid has no more trials."""
    return isinstance(error, RuntimeError) and str(error).startswith(_GRID_IS_DONE)


def _require_slurm() -> None:
    missing = [name for name in ("sbatch", "srun") if shutil.which(name) is None]
    if missing:
        raise InputError(
            f"hydra/launcher=submitit_slurm: expected Slurm's commands, got no "
            f"{' and no '.join(missing)}; start it on a machine of the cluster, or try "
            "hydra/launcher=submitit_local"
        )


def _prepare_ray(init: DictConfig) -> None:
    address = init.get("address") or os.environ.get("RAY_ADDRESS")
    with open_dict(init):
        if address in (None, "", "local"):
            # Asked for nothing, Ray looks for a cluster on this machine, and may find the traces
            # of one that was killed.
            init.address = "local"
            return
        # The launcher asks for a store of its own size unless told not to, and a cluster that is
        # there already refuses that.
        init.setdefault("object_store_memory", None)
    _require_answer(str(address))


def _require_answer(address: str) -> None:
    """Raise InputError unless something takes connections at `host:port`.

    Ray itself would try for a minute.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return  # auto, or a name: Ray looks for it, and soon reports that there is none
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:  # a name that cannot be
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"hydra.launcher.ray.init.address: expected a Ray cluster that answers, got {reason} "
            f"from {address}; start one with `ray start --head`, or leave the address out for a "
            "Ray on this machine"
        ) from None
