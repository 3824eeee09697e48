"""Parameters, gradients and optimizer states sharded over processes by PyTorch's FSDP2.

FSDP2 gathers the parameters of a block for its passes, and sums its gradients in each
backward pass. The bits are those of a run without sharding, on any number of processes,
because

- slice s of a batch belongs to rank s mod n: the sums across ranks, in a backward pass,
  are the lower levels of the tree of `training.shards`, those across the slices of a
  rank the upper ones;
- gradients are exchanged whole and added here, in that tree, and not in FSDP2's
  reduce-scatter;
- norms are those of whole gradients, gathered one after the other;
- an optimizer is refused if it treats some rows otherwise than within the whole tensor.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype
from torch.utils._pytree import tree_leaves

from seedbed import dtensors, rng
from seedbed.config.settings import Trainer
from seedbed.errors import InputError, one_line
from seedbed.training.state import TrainingState, matching
from seedbed.training.step import weighted
from seedbed.training.whole import WholeWeights

_KEY = "trainer.sharding"
_ELSE = "or use trainer.sharding=none"
_REFUSED_HOOKS = ("on_step_end", "on_evaluation_start")
# A difference is a last bit in some of the last elements: enough of them are tried to
# see it.
_EMPTY = nn.Module()  # whose attributes every module has
_PROBED_STEPS = 10
_PROBED_NUMBERS = 1 << 16
_PROBED_TENSORS = 64


class Sharding(WholeWeights):
    """A model that is sharded, and what its training step does otherwise."""

    is_sharded = True

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        patterns: Sequence[str] | None,
        in_tree: bool,
    ) -> None:
        """Shard a model in place, from the CPU to `device`: a block at a time, then the
        rest."""
        if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
            raise InputError(
                f"{_KEY}: expected PyTorch 2.15 or later for full, got"
                f" {torch.__version__}; install that version, or use"
                " trainer.sharding=none"
            )
        names = blocks(model) if patterns is None else _chosen(model, patterns)
        _require_parameters_that_fit(model, names)
        require_plain_parameters(model)
        replaced = dict(model.named_parameters())
        self._attributes = {name: dict(vars(p)) for name, p in replaced.items()}
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        # The root, too: else its parameters would stay whole after an evaluation.
        shard = partial(fully_shard, mesh=mesh, reshard_after_forward=True)
        for name in names:
            shard(model.get_submodule(name))
        shard(model)
        _require_no_references(model, replaced)
        for name, parameter in model.named_parameters():
            vars(parameter).update(self._attributes[name])
        self._model = model
        self._sum = Sum(in_tree)
        # ids of whole parameters, since `prepare`
        self._with_gradient: set[int] = set()
        self._whole: dict[str, nn.Parameter] = {}  # by name, while FSDP2 gathers them
        for path, module in model.named_modules():
            if isinstance(module, FSDPModule):
                module.set_custom_reduce_scatter(self._sum)  # type: ignore[arg-type]
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0)
                # ranks may use different ones
                module.set_reduce_scatter_unused_params(True)
                watched: Any = module
                watched.register_forward_pre_hook(partial(self._watch, path))

    def _watch(self, path: str, module: nn.Module, _inputs: Any) -> None:
        """Note the parameters that FSDP2 has gathered for a block, and which get a
        gradient."""
        for name, parameter in module.named_parameters(path):
            if name in self._whole or dtensors.is_sharded(parameter):
                continue
            # FSDP2 has just made it
            vars(parameter).update(self._attributes.get(name, {}))
            if parameter.requires_grad:
                self._whole[name] = parameter
                parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]

    def _note(self, parameter: Tensor) -> None:
        self._with_gradient.add(id(parameter))

    def prepare(self, weight: Tensor | None) -> None:
        """Forget the last gradients, and note the weight of the next ones in the sum of
        slices."""
        self._sum.weight = weight
        self._with_gradient.clear()
        for name, parameter in self._model.named_parameters():
            parameter.grad = None
            # it would overflow
            if weight is not None and parameter.dtype is torch.float16:
                raise InputError(
                    f"model.{name}: expected float32 or bfloat16 for {_KEY}=full with"
                    " slices that have weights, got float16; leave out .half(),"
                    f" {_ELSE}"
                )

    def used(self, parameters: Mapping[str, nn.Parameter]) -> list[bool]:
        # Not by `grad`, which has the sum over processes: zeros of those without one.
        return [id(self._whole.get(name)) in self._with_gradient for name in parameters]

    @torch.no_grad()
    def clip(self, parameters: Sequence[nn.Parameter], most: float) -> None:
        """Clip gradients as `clip_grad_norm_` clips whole ones, to the last bit."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            return
        rows: list[Tensor | None] = [dtensors.local(each) for each in gradients]
        # Groups of one dtype, in PyTorch's order: both sums and products depend on it.
        groups = _group_tensors_by_device_and_dtype([rows], with_indices=True).values()
        norms = [_norm(gradients[index]) for _, indices in groups for index in indices]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        factor = torch.clamp(most / (norm + 1e-6), max=1.0)
        for _, indices in groups:
            torch._foreach_mul_(
                [dtensors.local(gradients[index]) for index in indices], factor
            )


def _norm(gradient: Any) -> Tensor:
    norm: Tensor = torch._foreach_norm([gradient.full_tensor()])[0]
    return norm


class Sum:
    """The reduce-scatter of gradients: `FSDPModule.set_custom_reduce_scatter` takes
    it."""

    def __init__(self, in_tree: bool) -> None:
        self._in_tree = in_tree
        # of this process's slice in the mean over slices
        self.weight: Tensor | None = None

    def allocate(
        self, size: Any, *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Write the sum over ranks of this rank's part of the input, (n * size,), to
        (size,)."""
        if self.weight is not None:
            input_tensor = weighted(input_tensor, self.weight)
        if not self._in_tree:
            dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group)
            return
        theirs = torch.empty_like(input_tensor)
        dist.all_to_all_single(theirs, input_tensor, group=group)
        parts = theirs.view(dist.get_world_size(group), -1)
        while len(parts) > 1:
            parts = parts[::2] + parts[1::2]
        output_tensor.copy_(parts[0])


def blocks(model: nn.Module) -> list[str]:
    """Return the names of repeated blocks: siblings of one class that contain other
    modules."""
    names: list[str] = []
    for path, module in model.named_modules():
        counts = Counter(type(child) for child in module.children())
        for name, child in module.named_children():
            if (
                counts[type(child)] > 1
                and _can_be_sharded(child)
                and any(child.children())
            ):
                names.append(f"{path}.{name}".lstrip("."))
    return _outermost(names)


def _chosen(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    modules = {name: module for name, module in model.named_modules() if name}
    names = matching("trainer.shard_modules", tuple(modules), tuple(patterns))
    chosen = _outermost([name for name in modules if name in names])
    for name in chosen:
        if not _can_be_sharded(modules[name]):
            raise InputError(
                "trainer.shard_modules: expected modules with parameters and a forward"
                f" of their own, got {name}, a {type(modules[name]).__name__}; name"
                f" what it contains ({name}.?)"
            )
    return chosen


def _can_be_sharded(module: nn.Module) -> bool:
    is_container = isinstance(module, nn.ModuleList | nn.ModuleDict)
    return not is_container and any(True for _ in module.parameters())


def _outermost(names: Sequence[str]) -> list[str]:
    return [n for n in names if not any(n.startswith(f"{other}.") for other in names)]


def _require_parameters_that_fit(model: nn.Module, names: Sequence[str]) -> None:
    """Raise InputError for parameters that FSDP2 does not take, or that two blocks
    share."""
    owners: dict[int, tuple[str, str]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        if not parameter.dim():
            raise InputError(
                f"model.{path}: expected parameters with a dimension for {_KEY}=full,"
                f" got a scalar; use torch.ones(1), {_ELSE}"
            )
        if not parameter.is_contiguous():
            raise InputError(
                f"model.{path}: expected contiguous parameters for {_KEY}=full, got"
                f" strides {parameter.stride()}; set determinism.channels_last=false,"
                f" {_ELSE}"
            )
        block = next((name for name in names if path.startswith(f"{name}.")), "")
        first, other = owners.setdefault(id(parameter), (path, block))
        if other != block:
            raise InputError(
                "trainer.shard_modules: expected blocks that share no weights, got"
                f" {first} and {path}, which are one; choose modules that contain both"
                f" or neither, {_ELSE}"
            )


def require_plain_parameters(model: nn.Module) -> None:
    """Raise InputError for hooks and classes of parameters, which those of FSDP2
    lack."""
    for path, parameter in model.named_parameters():
        hooks = parameter._backward_hooks or getattr(
            parameter, "_post_accumulate_grad_hooks", None
        )
        if hooks:
            raise InputError(
                f"model.{path}: expected parameters without hooks of their own for"
                f" {_KEY}=full, got one of register_hook or"
                f" register_post_accumulate_grad_hook; leave it out, {_ELSE}"
            )
        if type(parameter) is not nn.Parameter and not dtensors.is_sharded(parameter):
            raise InputError(
                f"model.{path}: expected a plain nn.Parameter for {_KEY}=full, got "
                f"{type(parameter).__name__}; convert it, {_ELSE}"
            )


def _require_no_references(
    model: nn.Module, replaced: Mapping[str, nn.Parameter]
) -> None:
    """Raise InputError for attributes that still hold parameters which FSDP2 has
    replaced.

    Not for those that a module keeps up to date, as `nn.LSTM` does its list.
    """
    names = {id(parameter): name for name, parameter in replaced.items()}
    for path, module in model.named_modules():
        others = {k: v for k, v in vars(module).items() if k not in vars(_EMPTY)}
        _require_none_of(names, others, f"model.{path}".rstrip("."))


def _require_none_of(
    names: Mapping[int, str], attributes: Mapping[str, Any], owner: str
) -> None:
    for attribute, value in attributes.items():
        kept = [names[id(each)] for each in tree_leaves(value) if id(each) in names]
        if kept:
            raise InputError(
                f"{owner}.{attribute}: expected no weights in attributes for"
                f" {_KEY}=full, which replaces them by shards, got {kept[0]}; find it"
                f" by its name when it is needed, {_ELSE}"
            )


def require_supported(training: TrainingState, trainer: Trainer) -> None:
    """Raise InputError for what would need whole tensors, or give other bits, if
    sharded."""
    method = training.method
    unsupported = {
        "trainer.compile=true": trainer.compile,
        "trainer.replay_every_steps": trainer.replay_every_steps,
        "trainer.precision=float16": trainer.precision == "float16",
        "trainer.keep_best": trainer.keep_best > 1,
        "callbacks": len(training.callbacks),
        "several optimizers": len(training.optimizers) > 1,
        "create_graph": method.create_graph,
        **{
            f"{type(method).__name__}.{name}": training.overrides(name)
            for name in _REFUSED_HOOKS
        },
    }
    if refused := [name for name, value in unsupported.items() if value]:
        raise InputError(
            f"{_KEY}: expected none for a run with {refused[0]}, which needs whole"
            f" weights, got full; leave it out, {_ELSE}"
        )
    require_plain_parameters(training.model)  # also of `configure_optimizers`
    names_of = {
        id(parameter): name for name, parameter in training.model.named_parameters()
    }
    _require_none_of(names_of, vars(method), "method")
    if not any(training.needs_closure.values()):  # which `Shards.begin` refuses
        for optimizer in training.optimizers.values():
            require_rows_are_enough(optimizer)


def require_rows_are_enough(optimizer: torch.optim.Optimizer) -> None:
    """Raise InputError if an optimizer takes other steps with the rows of a rank than
    with a whole.

    It is tried, with tensors of the shapes at hand. Optimizers may need whole matrices
    or their norms; and vectorised kernels may round the last elements otherwise than
    the others.
    """
    tried = set[tuple[int, torch.Size]]()
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if (number, parameter.shape) in tried or not dtensors.is_sharded(parameter):
                continue
            tried.add((number, parameter.shape))
            count = parameter.device_mesh.size()
            try:
                agree = _steps_agree(optimizer, group, parameter, count)
            except Exception as error:  # an optimizer may raise anything
                raise InputError(
                    "optimizer: expected one that can be tried with rows of a weight"
                    f" for {_KEY}=full, got {type(optimizer).__name__}, which raises"
                    f" {one_line(error)}; use another optimizer, {_ELSE}"
                ) from error
            if not agree:
                fused = ", set optimizer.fused=false" if group.get("fused") else ""
                raise InputError(
                    "optimizer: expected one that takes the same steps with some rows"
                    f" of a weight as with all, for {_KEY}=full, got"
                    f" {type(optimizer).__name__}, which does not for a weight of shape"
                    f" {tuple(parameter.shape)}{fused}; use another optimizer, {_ELSE}"
                )


def _steps_agree(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], like: Any, count: int
) -> bool:
    """Return whether steps of a copy of an optimizer are the same for a tensor and for
    its rows."""
    copies = max(1, min(_PROBED_TENSORS, _PROBED_NUMBERS // max(1, like.numel())))
    numbers = rng.generator(rng.key(0, "init")).standard_normal((copies, *like.shape))
    full_tensors = list(torch.from_numpy(numbers).to(like.device, like.dtype))
    size = -(-like.shape[0] // count)
    rows = [
        part.clone()
        for full_tensor in full_tensors
        for part in torch.split(full_tensor, size)
    ]
    twins = [_twin(optimizer, group, tensors) for tensors in (full_tensors, rows)]
    with rng.restored():
        for _ in range(_PROBED_STEPS):
            gradients = [full_tensor.sin() * 0.1 for full_tensor in full_tensors]
            parts = [part for each in gradients for part in torch.split(each, size)]
            for tensor, gradient in zip(
                [*full_tensors, *rows], [*gradients, *parts], strict=True
            ):
                tensor.grad = gradient.clone()
            for twin in twins:
                twin.step()
    return torch.equal(torch.cat(full_tensors), torch.cat(rows))


def _twin(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    tensors: Sequence[Tensor],
) -> torch.optim.Optimizer:
    """Return an optimizer of the same class and options for other tensors, without any
    state."""
    twin: torch.optim.Optimizer = object.__new__(type(optimizer))
    vars(twin).update(vars(optimizer))
    twin.state = type(optimizer.state)(dict)
    twin.param_groups = [{**group, "params": list(tensors)}]
    return twin
