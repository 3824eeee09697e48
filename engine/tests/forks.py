"""Processes that start with torch imported: forks of a server instead of new
interpreters.

Imports take half the time of a short run. `install()` replaces `subprocess.Popen` by
one that starts `python script.py ...`, `python -m seedbed...` and `python -m tests...`
by forking a server that has already imported the modules of a training process. They
are real processes with their own id, environment, streams, session and exit status,
which can be killed and signalled: the server forks twice, so that they become children
of the caller (PR_SET_CHILD_SUBREAPER). If such a process starts another one, it forks
itself, so parents are the same as without this module.

Variables that math libraries read when they are loaded must be set before that, so
there is a server for each set of them, started on demand. Other commands are started as
usual: with another interpreter or checkout, `preexec_fn` or `-c`, or inside `with
true_commands():`.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

TruePopen = subprocess.Popen
# Read once, when a library is loaded; PYTHON*: when the interpreter starts.
_AT_START = (
    *(
        "OMP_",
        "GOMP_",
        "KMP_",
        "MKL_",
        "ATEN_",
        "ONEDNN_",
        "DNNL_",
        "OPENBLAS_",
        "NPY_",
        "LD_",
    ),
    *("GLIBC_", "MALLOC_", "TORCH_", "PYTORCH_", "TQDM_", "MPL", "CUDA_", "PYTHON"),
)
# Paths are applied after the fork. How threads wait changes no result; those of servers
# sleep.
_LATER = ("PYTHONPATH", "PYTHONSAFEPATH", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_IMPORTED = (
    *(
        "scipy.linalg",
        "torch",
        "torch._dynamo",
        "matplotlib.pyplot",
        "tqdm",
        "hydra",
        "omegaconf",
    ),
    *("seedbed.run.process", "seedbed.run.experiment"),
)
# a command line, and what its process inherits from the caller
Asked = Mapping[str, Any]


class _Here:
    """The state of this process."""

    servers: dict[str, socket.socket] = {}  # noqa: RUF012
    one_at_a_time = threading.Lock()  # a request waits for the answer
    # the variables of the server that this process is a fork of
    served: str | None = None
    modules: frozenset[str] = frozenset()  # the modules that this server has imported
    on = True  # whether commands are forked
    own: list[str] = []  # noqa: RUF012  entries of sys.path before the libraries
    kept: list[object] = []  # noqa: RUF012


def install() -> None:
    """Replace `subprocess.Popen`, on Linux, so that Python is started by forks where
    possible."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        subprocess.Popen = Popen  # type: ignore[misc]


@contextmanager
def true_commands() -> Iterator[None]:
    """Start each command in a new interpreter, as a shell would, inside this
    context."""
    with patch.object(_Here, "on", False):
        yield


class Popen(TruePopen):  # type: ignore[type-arg]
    """A `subprocess.Popen` that starts a command by a fork where possible."""

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, *others: Any
    ) -> None:
        close_fds, pass_fds, cwd, env, _, _, shell, *pipes = others[:13]
        *_, new_session, _ = others
        asked = {
            "words": (
                [str(word) for word in args[1:]]
                if isinstance(args, list | tuple)
                else []
            ),
            "environment": {
                str(name): str(value) for name, value in (env or os.environ).items()
            },
            "folder": str(cwd or os.getcwd()),
            "session": bool(new_session),
            "ignored": [
                n
                for n in signal.valid_signals()
                if signal.getsignal(n) == signal.SIG_IGN
            ],
            "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        }
        plain = not (preexec_fn or executable or shell or pass_fds) and close_fds
        if _Here.on and plain and args[0] == sys.executable and _is_served(asked):
            ends = (pipes[0], pipes[3], pipes[5])
            self.pid = _start(
                asked, [fd if fd != -1 else number for number, fd in enumerate(ends)]
            )
        if not self.pid:
            super()._execute_child(args, executable, preexec_fn, *others)  # type: ignore[misc]
            return
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _is_served(asked: Asked) -> bool:
    """Return whether a command line may be run in a fork."""
    first, *others = asked["words"] or [""]
    ours = (
        others[0].split(".")[0] in ("seedbed", "tests")
        if first == "-m"
        else first[-3:] == ".py"
    )
    return ours and Path(asked["folder"]).is_dir()


def _start(asked: Asked, streams: Sequence[int]) -> int:
    """Fork a process; return its id, or 0 if no fork is possible."""
    if _Here.served is not None:  # a fork forks its children itself
        fitting = _Here.served == at_start(asked["environment"]) or not _trains(asked)
        if not fitting or _shadows(asked) or len(os.listdir("/proc/self/task")) > 1:
            return 0
        sys.stdout.flush()
        sys.stderr.flush()
        return os.fork() or _become(asked, [os.dup(fd) for fd in streams])
    with _Here.one_at_a_time:
        server = _server(_variables(asked))
        try:
            socket.send_fds(server, [json.dumps(asked).encode()], [*streams])
            return int(server.recv(100) or 0)
        except OSError:  # the server could not import and has printed why
            return 0


def _trains(asked: Asked) -> bool:
    """Return whether a command computes itself instead of starting a process that
    does."""
    return asked["words"][0] == "-m" and asked["words"][1] != "seedbed"


def at_start(environment: Mapping[str, str]) -> str:
    """Return, as JSON, the variables that must be set when interpreter and libraries
    start."""
    kept = {
        name: value
        for name, value in environment.items()
        if name.startswith(_AT_START) and name not in _LATER
    }
    return json.dumps(kept, sort_keys=True)


def _variables(asked: Asked) -> str:
    """Return the variables of the server to use, as JSON.

    For a command that starts a training process, they are the variables of that
    process.
    """
    environment = asked["environment"]
    words = asked["words"]
    if _trains(asked):
        return at_start(environment)
    preset = [
        word
        for word in words
        if word.startswith(("determinism=", "determinism.threads="))
    ]
    try:  # most run with one thread, as tests share the machine
        return at_start({**environment, **_of_preset("determinism.threads=1", *preset)})
    except Exception:  # the command itself will print the error
        return at_start(environment)


@functools.cache
def _of_preset(*words: str) -> dict[str, str]:
    from seedbed import launch
    from seedbed.config import compose

    return launch.training_environment(compose.configuration(*words))


def _server(variables: str) -> socket.socket:
    """Return a connection to the server with these variables; start it if there is
    none."""
    if variables not in _Here.servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            n: v for n, v in os.environ.items() if not n.startswith(_AT_START)
        }
        environment |= json.loads(variables) | {"OMP_WAIT_POLICY": "PASSIVE"}
        # where the engine may be
        environment |= {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        words = [sys.executable, str(Path(__file__)), str(theirs.fileno())]
        with theirs:
            TruePopen(
                words,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        _Here.servers[variables] = ours
    return _Here.servers[variables]


def serve(control: socket.socket) -> None:
    """Fork a process for each request until the requesting process has ended."""
    _Here.served = at_start(os.environ)
    subprocess.Popen = Popen  # type: ignore[misc]
    sys.path[:] = sys.path[1:]  # not the folder of this file
    _Here.own = [place for place in os.environ["PYTHONPATH"].split(os.pathsep) if place]
    importlib.import_module(_IMPORTED[0])  # OpenBLAS, whose threads handle forks
    threads = len(os.listdir("/proc/self/task"))
    for name in _IMPORTED:
        importlib.import_module(name)
    _Here.modules = frozenset(sys.modules)
    assert len(os.listdir("/proc/self/task")) == threads, (
        "PyTorch's do not survive a fork"
    )
    gc.collect()
    gc.freeze()
    while True:
        message, streams, _, _ = socket.recv_fds(control, 2**20, 3)
        if not message:
            return
        asked = json.loads(message)
        # Sent after the process in between has ended: the fork is now a child of the
        # caller.
        control.send(b"0" if _shadows(asked) else _forked(asked, streams))
        for stream in streams:
            os.close(stream)


def _forked(asked: Asked, streams: Sequence[int]) -> bytes:
    """Fork a process that does not stay a child of this server; return its id."""
    read, write = os.pipe()
    between = os.fork()
    if not between:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            os.write(write, str(pid).encode())
            os._exit(0)
        while os.getppid() == parent:
            time.sleep(0.001)
        _become(asked, streams)
    os.waitpid(between, 0)
    pid_text = os.read(read, 100)
    os.close(read)
    os.close(write)
    return pid_text


def _path(asked: Asked) -> list[str]:
    """Return the entries of the sys.path of a process that precede the libraries."""
    environment = asked["environment"]
    words = asked["words"]
    first = Path(asked["folder"])
    if words[0] != "-m":
        first = (first / words[0]).resolve().parent
    places = environment.get("PYTHONPATH", "").split(os.pathsep)
    own = [] if environment.get("PYTHONSAFEPATH") else [str(first)]
    return own + [str(Path(asked["folder"], place)) for place in places if place]


def _shadows(asked: Asked) -> bool:
    """Return whether a process would import other files than the server has
    imported."""
    importlib.invalidate_caches()
    for name in ("sitecustomize", "usercustomize", *_Here.modules):
        spec = None if "." in name else PathFinder.find_spec(name, _path(asked))
        ours = getattr(sys.modules.get(name), "__file__", None)
        if spec is not None and spec.origin not in (None, ours):
            return True
    return False


def _become(asked: Asked, streams: Sequence[int]) -> NoReturn:
    """Run the requested command in this fork, and end with its exit status."""
    status = 1
    try:
        _take(asked, streams)
        _run(asked["words"])
        status = 0
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_globals.get("__file__") == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # its reader has gone, or it is closed
                stream.flush()
        os._exit(status & 0xFF)


def _take(asked: Asked, streams: Sequence[int]) -> None:
    """Set streams, signals, session, environment, path and random state as in a new
    process."""
    gc.freeze()  # objects from before must not close the descriptors below again
    for number, stream in enumerate([os.dup(stream) for stream in streams]):
        os.dup2(stream, number)
    os.closerange(3, 1024)
    if asked["session"]:
        os.setsid()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # also what nohup ignores
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
        if number in asked["ignored"]:
            signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    libraries = [place for place in sys.path if place not in _Here.own]
    _Here.own = _path(asked)
    sys.path[:] = [*_Here.own, *libraries]
    tempfile.tempdir = None
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # temporary folders of others
    # imported since the server was forked
    for name in set(sys.modules) - _Here.modules:
        if name.split(".")[0] in ("seedbed", "project", "tests"):
            _Here.kept.append(sys.modules.pop(name))
            parent, _, last = name.rpartition(".")
            if parent in sys.modules:
                sys.modules[parent].__dict__.pop(last, None)
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].default_generator.seed()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _Here.kept.append(getattr(sys, name))
        errors = "backslashreplace" if number == 2 else None
        mode = "w" if number else "r"
        stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)
        if number:
            stream.reconfigure(line_buffering=number == 2 or os.isatty(number))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(words: Sequence[str]) -> None:
    """Run a command line in a new `__main__`, as if this process had been started with
    it."""
    sys.orig_argv = [sys.executable, *words]
    main = types.ModuleType("__main__")
    _Here.kept.append(sys.modules["__main__"])
    # multiprocessing uses both names
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    main.__dict__["__builtins__"] = __builtins__
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        return
    sys.argv = list(words)
    main.__file__ = os.path.abspath(words[0])
    exec(compile(Path(words[0]).read_bytes(), main.__file__, "exec"), main.__dict__)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # skips torch's messages about what is left
