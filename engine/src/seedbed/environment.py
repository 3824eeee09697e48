"""The environment of a run: versions, processor, devices, flags in force, input files,
imports."""

import locale
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch_deterministic_kernels as kernels

import seedbed
from seedbed import determinism, project, record
from seedbed.config import targets_of
from seedbed.determinism import backends
from seedbed.errors import printable
from seedbed.pipeline import imports
from seedbed.record import Change, code, files, untrusted

# Variables that can change results, besides the preset's; exceptions that others set.
_PREFIXES = (
    "ATEN_",
    "CUBLAS",
    "CUDA_",
    "CUDNN_",
    "DNNL_",
    "GLIBC_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "NPY_",
    "NVIDIA_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTHONHASHSEED",
    "PYTORCH_",
    "TORCH",
    "XLA_",
)
_LEFT_OUT = (
    backends.INDUCTOR_VARIABLE,
    "TORCHINDUCTOR_CACHE",
    "TORCHELASTIC_",
    "TORCH_CPP_LOG",
)

# Packages that every run needs, or that decode and transform images, and their
# distributions.
CORE = {
    "torch": "torch",
    "torchvision": "torchvision",
    "numpy": "numpy",
    "PIL": "pillow",
    "hydra": "hydra-core",
    "omegaconf": "omegaconf",
    "torch_deterministic_kernels": "torch-deterministic-kernels",
}
# as arguments of classes
_SECTIONS = (*files.SECTIONS, "metrics", "callbacks")
# Fields of /proc/cpuinfo that tell processors apart, on x86-64 and on Arm.
_CPUINFO = (
    *("vendor_id", "cpu family", "model", "stepping", "cache size"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),
)
_real_folder = cache(os.path.realpath)
_packages = cache(metadata.packages_distributions)  # takes a tenth of a second
# PyTorch replaces CUDA kernels of its own by theirs if they are installed
# (torch/_native).
_KERNEL_PACKAGES = ("nvidia-cutlass-dsl", "apache-tvm-ffi", "nvmath-python", "helion")
_CUBLAS = (
    "nvidia-cublas",
    "nvidia-cublas-cu13",
    "nvidia-cublas-cu12",
    "nvidia-cublas-cu11",
)


def describe(device: torch.device) -> dict[str, Any]:
    """Return everything in the environment that can change a bit, for
    environment.json."""
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "seedbed": seedbed.__version__,
        **{name: version(name) for name in CORE.values()},
        "torch_git": torch.version.git_version,
        "cuda": torch.version.cuda,
    }
    gpus = []
    if device.type == "cuda":
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        kernel = Path("/proc/driver/nvidia/version")
        versions |= {
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
            "nccl": ".".join(map(str, nccl)),
            "triton": version("triton"),
            # One wheel for each version of CUDA, and a name without the version from
            # CUDA 13 on.
            "cublas": next(filter(None, map(version, _CUBLAS)), None),
            "driver": driver_version(kernel.read_text() if kernel.is_file() else ""),
            **{name: version(name) for name in _KERNEL_PACKAGES if version(name)},
        }
        properties = torch.cuda.get_device_properties(device)
        gpu = {
            "name": properties.name,
            "multiprocessors": properties.multi_processor_count,
        }
        gpu |= {
            "capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
        }
        gpus.append(gpu)
    return {
        "versions": versions,
        "cpu": cpu(),
        "gpu": gpus,
        "device": device.type,
        "platform": platform.platform(),
        "interpreter": interpreter(),
        "env": variables(),
        "flags": determinism.in_force(),
    }


def variables() -> dict[str, str]:
    """Return the environment variables that can change results."""
    names = [name for name in sorted(os.environ) if name.startswith(_PREFIXES)]
    return {name: os.environ[name] for name in names if not name.startswith(_LEFT_OUT)}


def interpreter() -> dict[str, Any]:
    """Return the switches of Python that change what code does, by option or by
    variable."""
    return {
        "optimize": sys.flags.optimize,  # -O leaves out assertions
        "dev_mode": sys.flags.dev_mode,
        "warnings_as_errors": any(
            option.startswith("error") for option in sys.warnoptions
        ),
        "text_encoding": locale.getencoding() if not sys.flags.utf8_mode else "UTF-8",
    }


def machine() -> dict[str, Any]:
    """Return what a rehearsal depends on besides settings, code and data; no GPU is
    initialized."""
    driver = Path("/proc/driver/nvidia")
    gpus = [path.read_text() for path in sorted(driver.glob("gpus/*/information"))]
    folders = filter(None, sys.path)
    installed = {
        path for folder in folders for path in Path(folder).glob("*.dist-info")
    }
    return {
        "cpu": cpu(),
        "gpu": [re.findall(r"^Model:\s*(.*)$", text, re.MULTILINE) for text in gpus],
        "driver": [path.read_text() for path in driver.glob("version")],
        "packages": sorted(path.name for path in installed),
        "interpreter": interpreter(),
        "env": variables(),
    }


def driver_version(text: str) -> str | None:
    """Return the version in /proc/driver/nvidia/version, of closed or open kernel
    modules."""
    match = re.search(r"^NVRM version:.*?\b(\d+\.[\d.]+)", text, re.MULTILINE)
    return match and match[1]


def more_versions(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the versions of the other distributions that the classes of a run use,
    once imported.

    These are the distributions of the classes in the configuration, and those imported
    by the modules of these classes and by modules that are not installed.
    """
    targets = {
        target for _, target in targets_of({k: settings.get(k) for k in _SECTIONS})
    }
    modules = {target.rpartition(".")[0] for target in targets}
    packages = {target.partition(".")[0] for target in targets}
    for name, module in list(sys.modules.items()):
        if name in modules or not (
            name.startswith("seedbed.") or _is_installed(module)
        ):
            for value in list(vars(module).values()):
                definition = (
                    value if isinstance(value, type | FunctionType) else type(value)
                )
                origin = (
                    value.__name__
                    if isinstance(value, ModuleType)
                    else str(definition.__module__)
                )
                packages.add(origin.partition(".")[0])
    others = packages - CORE.keys() - sys.stdlib_module_names - {"seedbed"}
    installed = sorted(name for name in others if _is_installed(sys.modules.get(name)))
    return {each: version(each) for name in installed for each in _distributions(name)}


def _distributions(package: str) -> Sequence[str]:
    with suppress(metadata.PackageNotFoundError):
        distribution = metadata.distribution(package)  # most have their package's name
        if f"{package}/__init__.py" in map(str, distribution.files or ()):
            return [distribution.name]
    return _packages().get(package, ())


def _is_installed(module: ModuleType | None) -> bool:
    file = getattr(module, "__file__", None) or next(
        iter(getattr(module, "__path__", ())), None
    )
    return not isinstance(file, str) or project.is_installed(file)


def version(distribution: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return None


def cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """Return the processor's identity, the instruction set in use and the number of
    threads."""
    # The entry of the first processor; clouds use one model name for many kinds.
    # not Linux
    text = cpuinfo.read_text().partition("\n\n")[0] if cpuinfo.is_file() else ""
    lines = dict(re.findall(r"^([^\t:]+?)\s*:\s*(.*)$", text, re.MULTILINE))
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return {
        "model": lines.get("model name", platform.processor()),
        "kind": ", ".join(
            f"{name} {lines[name]}" for name in _CPUINFO if name in lines
        ),
        "features": " ".join(
            sorted(name for name, value in capabilities.items() if value is True)
        ),
        "l1d_bytes": capabilities.get("l1d_cache_size"),
        "l2_bytes": capabilities.get("l2_cache_size"),
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def file_stamps(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of sizes and times of all files and folders that a configuration
    names."""
    names = (*files.SECTIONS, "files")
    paths = {path for name in names for path in files.texts(settings.get(name))}
    return {
        path: files.stamp(path)
        for path in sorted(paths)
        if path and os.path.exists(path)
    }


class Imports:
    """Keeps the files imported from outside site-packages, each as it was when first
    seen."""

    def __init__(
        self, folder: Path, environment: dict[str, Any], root: Path | None = None
    ) -> None:
        # content of environment.json, with `imported_files`
        self.environment = environment
        self._digests: dict[str, str] = environment.setdefault("imported_files", {})
        self._folder = folder
        self._root = root or project.root()
        self._kept: dict[str, bytes] = {}
        self._modules = self._bytes = self._replaced = 0
        imports.note_engine()
        # all of it: --explain runs more than a run
        for name, path in code.engine_files().items():
            self._kept[name] = imports.executed[str(path)].content

    def scan(self) -> bool:
        """Read the files imported since the last call; return whether there are any."""
        count = len(sys.modules) + len(imports.of_workers)
        if count == self._modules:
            return False
        self._modules, before = count, len(self._digests)
        files = [
            (key, getattr(module, "__file__", None))
            for key, module in [*sys.modules.items()]
        ]
        files += [(imports.executed[path].module, path) for path in imports.of_workers]
        for key, file in files:
            # Imports do not search the caches of compilers: the name of such a file is
            # outside.
            if isinstance(file, str) and not project.is_installed(file):
                name, path = self._place_of(key, file)
                if untrusted.is_inside(name) and name not in self._digests:
                    with suppress(OSError):  # deleted in the meantime
                        if file not in imports.executed:
                            imports.executed[file] = imports.Executed(
                                key, path.read_bytes()
                            )
                        self._keep(name, imports.executed[file].content)
        return len(self._digests) > before

    def _place_of(self, key: str, file: str) -> tuple[str, Path]:
        """Return the name in code.zip of a module that is not installed, and its
        path."""
        path = Path(file)
        if not path.is_relative_to(self._root):  # maybe reached through a symlink
            path = Path(_real_folder(str(path.parent)), path.name)
        # The file relative to the entry of sys.path that it fits, if it fits one.
        spec = getattr(sys.modules.get(key), "__spec__", None)
        parts = (spec.name if spec is not None else key).split(".")
        parts = [*parts, "__init__"] if path.stem == "__init__" else parts
        # of an extension, name.cpython-311-x86_64-linux-gnu.so
        stem = path.name.partition(".")[0]
        fits = [*path.parts[-len(parts) : -1], stem] == parts
        if path.suffix != ".py":  # Triton loads what it compiles itself, from its cache
            fits = fits and str(path.parents[len(parts) - 1]) in map(
                _real_folder, sys.path
            )
        inner = "/".join([*parts[:-1], path.name]) if fits else ""
        is_ours = path.is_relative_to(self._root)
        name = path.relative_to(self._root).as_posix() if is_ours else ""
        if not name or (inner and name not in (inner, f"src/{inner}")):
            name = f"{code.ELSEWHERE}/{inner}"
        return printable(name), path

    def expect(self, names: Iterable[str]) -> None:
        """Add what an earlier process of this run imported, as it is here: a step may
        import it."""
        for name in names:
            content = (
                None if name in self._digests else code.read_here(name, self._root)
            )
            if content is not None:
                self._keep(name, content)

    def _keep(self, name: str, content: bytes) -> None:
        self._digests[name] = code.sha256(content)
        self._bytes += len(content)
        # beyond that, only digests are kept
        if self._bytes < untrusted.MAX_CODE_BYTES // 2:
            self._kept[name] = content

    def write(self, patch: bytes | None = None) -> None:
        """Write code.zip, then environment.json, which lists its files, and
        source.patch."""
        content = untrusted.zipped({**self._kept, code.PATH: code.PATH_ENTRY})
        path = self._folder / code.ARCHIVE
        if not path.is_file() or path.read_bytes() != content:
            record.write_atomically(path, content)
        files: dict[str, Any] = {"imported_files": dict(sorted(self._digests.items()))}
        replaced = [item.operation for item in kernels.replaced()]
        self._replaced = len(replaced)
        files["operations_replaced"] = sorted(replaced)
        record.write_json(self._folder / "environment.json", self.environment | files)
        if patch is not None:
            record.write_atomically(self._folder / "source.patch", patch)

    def note(self) -> None:
        if self.scan() or len(kernels.replaced()) > self._replaced:
            self.write()


def keep_code(folder: Path, step: int, changes: Sequence[Change]) -> dict[str, Any]:
    """Keep code.zip as code_until_step_N.zip if the code has changed since step N.

    If there is one for this step or a later one, it holds that code: code since then
    left no steps. Return the entry for the resume in summary.json, which
    `record.altered` reads.
    """
    path = folder / code.ARCHIVE
    prefix = "code_until_step_"
    kept = [each.stem.removeprefix(prefix) for each in folder.glob(f"{prefix}*.zip")]
    is_kept = any(number.isdecimal() and int(number) >= step for number in kept)
    is_changed = any(change.kind == "code" and change.alters_bits for change in changes)
    if is_changed and not is_kept and path.is_file():
        record.write_atomically(folder / f"{prefix}{step}.zip", path.read_bytes())
    return {
        "step": step,
        "changes": {change.key: [change.before, change.now] for change in changes},
        "can_alter_bits": [change.key for change in changes if change.alters_bits],
    }
