"""`device_per_stream`: every device batch is of one stream."""

from __future__ import annotations

from typing import Final

from streaming.order.batching.layout import Epoch, Layout, stream_orders
from streaming.order.batching.unit_merge import UnitMerge

_FEWEST_UNITS_PER_LANE: Final = 64


class DevicePerStream:
    """The unit is a device batch, formed inside a canonical node of its stream and dealt to one rank whole.

    Canonical nodes have units enough that little is left over in them: stream i has the largest power of two up to
    min(C, n_i / (64 × unit)).
    """

    takes_units: Final = True
    unit_goes_to_one_rank: Final = True

    def lay_out(self, epoch: Epoch) -> Layout:
        """See Batching."""
        draws = epoch.draws.tolist()
        most = [min(epoch.n_canonical_nodes, n // (_FEWEST_UNITS_PER_LANE * epoch.unit)) for n in draws]
        n_lanes = [1 << (max(1, n).bit_length() - 1) for n in most]
        merge = UnitMerge.of(draws, epoch.unit, n_lanes, epoch.seed, epoch.epoch, epoch.shuffle)
        return Layout(stream_orders(epoch, n_lanes), merge, mixed=False)
