"""The state of training, as a small JSON object and back: where it stands, and in which order.

The object is the same on every rank, whatever the number of ranks. Loading takes effect or raises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError, StateError
from streaming.order.epoch import EpochOrder
from streaming.order.spec import OrderSpec

STATE_VERSION: Final = 2
"""Which orders a state can belong to: a new version wherever an order changes. In version 1, streams that were neither
shuffled nor batched by stream took turns. All other orders are the same."""
_ACCEPT: Final = "accept_other_order=True"
_LONGEST_COMPOSITION: Final = 48


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where training stands: the epoch, and how many samples of it are consumed. Epoch -1: before the first epoch.

    Raises StateError for impossible values.
    """

    epoch: int
    consumed: int

    def __post_init__(self) -> None:
        if self.epoch < -1:
            raise StateError(f"epoch must be -1 or more, got {self.epoch}")
        if self.consumed < 0:
            raise StateError(f"sample_in_epoch must be 0 or more, got {self.consumed}")
        if self.epoch == -1 and self.consumed:
            raise StateError(f"before the first epoch no sample can be spent, got sample_in_epoch={self.consumed}")

    def after(self, n_samples: int) -> Cursor:
        """Return the cursor after `n_samples` more."""
        return replace(self, consumed=self.consumed + n_samples)

    def normalised(self, n_samples: int) -> Cursor:
        """Return where reading goes on, in epochs of `n_samples`: after a consumed epoch, at the next one.

        >>> Cursor(3, 100).normalised(100), Cursor(-1, 0).normalised(100)
        (Cursor(epoch=4, consumed=0), Cursor(epoch=0, consumed=0))
        """
        if self.epoch < 0 or (self.consumed and self.consumed >= n_samples):
            return Cursor(self.epoch + 1, 0)
        return self


def save_state(order: EpochOrder, cursor: Cursor, *, initial_physical_nodes: int | None) -> dict[str, Any]:
    """Return the state of training at `cursor`: JSON, under 1 KiB, equal on all ranks. `order`: of any epoch.

    `initial_physical_nodes`: None if nobody knows how many machines there are.
    """
    return {
        "epoch": cursor.epoch,
        "sample_in_epoch": cursor.consumed,
        "num_canonical_nodes": order.n_canonical_nodes,
        "shuffle_seed": order.spec.seed,
        "initial_physical_nodes": initial_physical_nodes,
        "version": STATE_VERSION,
        "fingerprint": fingerprint(order),
    }


def spec_of_state(state: object, order: EpochOrder, spec: OrderSpec) -> OrderSpec:
    """Return `spec` with what it leaves open taken from a saved state: canonical nodes, block size and seed.

    The seed is open while it is the default. `order` is one of `spec`, of any epoch; where it is as saved already,
    `spec` comes back as it is. Whatever cannot be taken is left to `load_state`, which names it.
    """
    if not isinstance(state, Mapping):
        return spec
    saved_marks = state.get("fingerprint")
    marks: Mapping[Any, Any] = saved_marks if isinstance(saved_marks, Mapping) else {}
    taken: dict[str, Any] = {}
    if spec.seed == OrderSpec().seed:
        taken["seed"] = state.get("shuffle_seed")
    if "version" in state:  # the predecessor's canonical nodes say nothing about this library's order
        if spec.num_canonical_nodes is None:
            taken["num_canonical_nodes"] = state.get("num_canonical_nodes")
        if spec.shuffle_block_size is None:
            taken["shuffle_block_size"] = marks.get("shuffle_block_size")
        is_default = taken.get("num_canonical_nodes", order.n_canonical_nodes) == order.n_canonical_nodes
        if is_default and taken.get("shuffle_block_size") in (None, order.shuffle_block_size):
            taken = {"seed": taken.get("seed")}  # nothing but the seed can differ
    try:
        return replace(spec, **{name: value for name, value in taken.items() if value is not None})
    except OptionError:
        return spec


def load_state(state: object, order: EpochOrder, *, accept_other_order: bool = False) -> Cursor:
    """Return the cursor of a saved state, to go on with an order like `order`, of any epoch.

    Saving the cursor again gives the same state; `Cursor.normalised` says where reading goes on. Raises StateError if
    the state is malformed or belongs to another order; the message names every difference. A state of the predecessor
    has no version. It belongs to another order, so it loads only between epochs. With `accept_other_order` the cursor
    is taken even if the order differs; samples may then be missed or seen twice in this epoch.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"a state must be a dict, as state_dict() returns it, got {type(state).__name__}")
    cursor = Cursor(_whole(state, "epoch"), _whole(state, "sample_in_epoch"))
    saved: dict[str, object] = {
        "num_canonical_nodes": _whole(state, "num_canonical_nodes"),
        "shuffle_seed": _whole(state, "shuffle_seed"),
    }
    if state.get("initial_physical_nodes") is not None:
        _whole(state, "initial_physical_nodes")
    present: dict[str, object] = {"shuffle_seed": order.spec.seed}
    if "version" in state:
        version = _whole(state, "version")
        if not 1 <= version <= STATE_VERSION:
            raise StateError(
                f"the state has version {version}, this library reads versions 1 to {STATE_VERSION}; "
                "load it with the library version that saved it"
            )
        if not accept_other_order and version == 1 and _streams_took_turns(order) and _is_amid(cursor, order):
            raise StateError(
                f"the state has version 1 and is from the middle of epoch {cursor.epoch} (sample_in_epoch="
                f"{cursor.consumed} of {order.n_samples}); without shuffle streams took turns then, and now come one "
                f"after the other. Load a state saved between epochs, or pass {_ACCEPT} to go on from that count in "
                "the new order; batching_method='stratified' still takes turns"
            )
        if not isinstance(state.get("fingerprint"), Mapping):
            raise StateError("the state has no fingerprint; it is damaged or not from state_dict()")
        saved |= {"batch_composition": "proportional", **state["fingerprint"]}  # the only one of version 1
        present["num_canonical_nodes"] = order.n_canonical_nodes
        present |= fingerprint(order)
    elif not accept_other_order and _is_amid(cursor, order):
        raise StateError(
            f"the state is from mosaicml-streaming, in the middle of epoch {cursor.epoch} (sample_in_epoch="
            f"{cursor.consumed} of {order.n_samples}), and this library orders samples in another way; load a state "
            f"saved between epochs, or pass {_ACCEPT} to go on from that count in the new order"
        )
    if not accept_other_order:
        _check_equal(saved, present)
    return cursor


def fingerprint(order: EpochOrder) -> dict[str, int | str | None]:
    """Return what an order depends on besides seed and canonical nodes: data, weights and settings.

    As numbers and digests; a setting without effect is None. The world is no part of it. Nor is the batch size, except
    as the unit by which streams take turns, which is part of the order.
    """
    spec = order.spec
    unit = {} if order.unit is None or order.composition is not None else {"unit": order.unit}
    return {
        "samples": order.n_samples,
        "streams": order.catalog.n_streams,
        "shards": order.catalog.n_shards,
        "shard_sizes": _digest(order.catalog.shard_sizes),
        "shards_per_stream": _digest(order.catalog.shards_per_stream),
        "weights": _digest(order.draws),
        "shuffle_algo": order.effective_algorithm,
        "shuffle_block_size": order.shuffle_block_size if order.uses_block else None,
        "batching_method": spec.batching_method,
        "batch_composition": _composition(order),
        "sampling_method": spec.sampling_method,
        "sampling_granularity": spec.sampling_granularity,
        **unit,
    }


def _composition(order: EpochOrder) -> str:
    """Return how batches are composed: a name, and the samples of each stream, or of many streams a digest of them."""
    if order.composition is None:
        return order.spec.batch_composition
    shown = ":".join(map(str, order.composition))
    return f"exact {shown if len(shown) <= _LONGEST_COMPOSITION else _digest(np.array(order.composition, np.int64))}"


def _streams_took_turns(order: EpochOrder) -> bool:
    """Whether samples of several streams took turns in version 1 and no longer do."""
    spec = order.spec
    return not spec.shuffle and spec.batching_method == "random" and bool(np.count_nonzero(order.draws) > 1)


def _is_amid(cursor: Cursor, order: EpochOrder) -> bool:
    """Whether a cursor stands within an epoch, so that it means something in one order only."""
    return 0 < cursor.consumed < order.n_samples


def _check_equal(saved: Mapping[str, object], present: Mapping[str, object]) -> None:
    differences = [
        f"{name}: saved {saved.get(name, 'nothing')!r}, now {value!r}"
        for name, value in present.items()
        if name not in saved or saved[name] != value
    ]
    if differences:
        raise StateError(
            "the state belongs to another order of samples and cannot continue here: "
            + "; ".join(differences)
            + f". Restore these, or pass {_ACCEPT} to go on from the same count in the present order"
        )


def _whole(state: Mapping[Any, Any], name: str) -> int:
    if name not in state:
        raise StateError(f"the state has no {name!r}; it is damaged or not from state_dict()")
    value = state[name]
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise StateError(f"{name!r} of a state must be a whole number, got {value!r}")
    return int(value)


def _digest(values: NDArray[np.int64]) -> str:
    return hashlib.sha256(values.astype("<i8").tobytes()).hexdigest()[:16]
