"""The fingerprints of a step's stages, in causal order."""

from collections.abc import Sequence

from torch import Tensor

from seedbed import fingerprint
from seedbed.pipeline.source import Batch
from seedbed.pipeline.tensors import contents
from seedbed.training.optimizers import optimizer_tensors
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState


class Unhashed:
    """The stages of a step without fingerprints."""

    def add_batches(self, batches: Sequence[Batch], shards: Shards) -> list[Tensor]:
        """Hash ids and contents of the batches, before a model can change them.

        Returns:
            With several shards, an int64 tensor (2, shards) to be summed over all
            processes: it is 0 for shards of other processes.
        """
        return []

    def add_update(
        self,
        shard_hashes: Sequence[Tensor],
        loss: Tensor,
        gradients: Sequence[Tensor],
        count: int,
    ) -> None:
        """Hash an update, one of `count`, before clipping changes its gradients in
        place.

        `shard_hashes` are those of all shards, given with the first update.
        """

    def add_state(self, training: TrainingState) -> None:
        """Hash weights, buffers and the state of optimizers after the step."""

    def hashes(self) -> Tensor | None:
        """Return the hash of each stage, for `fingerprint.rows`, not synchronised."""
        return None


class Hashed(Unhashed):
    """The stages of a step that a hasher takes."""

    def __init__(self, hasher: fingerprint.Hasher) -> None:
        self._hasher = hasher
        self._losses: list[Tensor] = []
        self._gradients: list[Tensor] = []  # with several updates, one hash for each

    def add_batches(self, batches: Sequence[Batch], shards: Shards) -> list[Tensor]:
        of_batches = (contents((batch.inputs, batch.targets)) for batch in batches)
        self._hasher.add(*([batch.ids] for batch in batches), *of_batches)
        if shards.count == 1:
            return []
        hashes = self._hasher.hashes().view(2, len(batches))
        of_all = hashes.new_zeros(2, shards.count)
        of_all[:, shards.mine.start : shards.mine.stop : shards.mine.step] = hashes
        return [of_all]

    def add_update(
        self,
        shard_hashes: Sequence[Tensor],
        loss: Tensor,
        gradients: Sequence[Tensor],
        count: int,
    ) -> None:
        for hashes in shard_hashes:
            self._hasher.add(*([of_kind] for of_kind in hashes))
        self._losses.append(loss)
        # of `create_graph`
        detached = [g.detach() if g.requires_grad else g for g in gradients]
        self._gradients += [fingerprint.of_tensors(detached)] if count > 1 else detached
        if len(self._losses) == count:
            self._hasher.add(self._losses, self._gradients)

    def add_state(self, training: TrainingState) -> None:
        optimizers = optimizer_tensors(*training.optimizers.values())
        optimizers += training.scaler.hashed_state()
        model = training.model
        self._hasher.add(list(model.parameters()), list(model.buffers()), optimizers)

    def hashes(self) -> Tensor | None:
        return self._hasher.hashes()
