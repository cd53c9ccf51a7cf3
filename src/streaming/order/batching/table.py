"""The batching methods by name, and how exactly a batch is composed."""

from __future__ import annotations

from typing import Final

from streaming.order.batching.device_per_stream import DevicePerStream
from streaming.order.batching.layout import Batching
from streaming.order.batching.per_stream import PerStream
from streaming.order.batching.random import Random
from streaming.order.batching.stratified import ExactlyStratified, Stratified

BATCHINGS: Final[dict[str, Batching]] = {
    "random": Random(),
    "stratified": Stratified(),
    "per_stream": PerStream(),
    "device_per_stream": DevicePerStream(),
}

COMPOSITIONS: Final = ("proportional", "exact")


def batching_of(method: str, composition: str) -> Batching:
    """Return the batching method of these names; only `stratified` has an exact composition."""
    return ExactlyStratified() if composition == "exact" else BATCHINGS[method]
