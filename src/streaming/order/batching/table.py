"""The batching methods by name."""

from __future__ import annotations

from typing import Final

from streaming.order.batching.device_per_stream import DevicePerStream
from streaming.order.batching.layout import Batching
from streaming.order.batching.per_stream import PerStream
from streaming.order.batching.random import Random
from streaming.order.batching.stratified import Stratified

BATCHINGS: Final[dict[str, Batching]] = {
    "random": Random(),
    "stratified": Stratified(),
    "per_stream": PerStream(),
    "device_per_stream": DevicePerStream(),
}
