"""`device_per_stream`: every device batch comes from one stream."""

from __future__ import annotations

from typing import Final

from streaming.order.batching.layout import BatchLayout, EpochSettings, sub_order_per_stream
from streaming.order.batching.unit_merge import UnitMerge

_FEWEST_UNITS_PER_CANONICAL_NODE: Final = 64


class DevicePerStream:
    """A unit is a device batch, formed inside a canonical node of its stream; all of it goes to one rank.

    Stream i has the largest power of two up to min(C, n_i / (64 × unit)) canonical nodes, at least 1, so that each
    holds many units and few samples are left over.
    """

    takes_units: Final = True
    unit_goes_to_one_rank: Final = True
    unit_spans_ranks: Final = False

    def lay_out(self, epoch: EpochSettings) -> BatchLayout:
        """See Batching."""
        draws = epoch.draws.tolist()
        most = [min(epoch.n_canonical_nodes, n // (_FEWEST_UNITS_PER_CANONICAL_NODE * epoch.unit)) for n in draws]
        n_canonical_nodes = [1 << (max(1, n).bit_length() - 1) for n in most]
        merge = UnitMerge.of(draws, epoch.unit, n_canonical_nodes, epoch.seed, epoch.epoch, epoch.shuffle)
        return BatchLayout(sub_order_per_stream(epoch, n_canonical_nodes), merge)
