"""Settings of a dataset as its attributes: what is assigned takes effect, or raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, Final, Generic, Self, TypeVar, overload

from streaming.dataset_settings import DatasetSettings
from streaming.errors import OptionError
from streaming.loader_side import LoaderSide

T = TypeVar("T")

_NAME: Final = "_streaming_internals"
_DEFAULTS: Final = {field.name: field.default for field in fields(DatasetSettings) if field.default is not MISSING}


class EarlyValues:
    """What a subclass has assigned to settings before the constructor of the dataset was called."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def give_to(self, dataset: Any) -> None:
        """Assign those that the constructor was not given; of the others its argument holds. Raises OptionError."""
        side: LoaderSide = vars(dataset)[_NAME]
        for name, value in self.values.items():
            is_open = getattr(side.settings, name) == _DEFAULTS[name] if name in _DEFAULTS else side.is_default(name)
            if is_open:
                setattr(dataset, name, value)


class Setting(Generic[T]):
    """A setting that may be assigned until the first epoch begins, and as it is at any time."""

    def __init__(self, of: Callable[[LoaderSide], T], doc: str) -> None:
        self._of = of
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, dataset: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, dataset: object, owner: type | None = None) -> T: ...
    def __get__(self, dataset: object | None, owner: type | None = None) -> Self | T:
        if dataset is None:
            return self
        side = vars(dataset).get(_NAME)
        if isinstance(side, LoaderSide):
            return self._of(side)
        if isinstance(side, EarlyValues) and self.name in side.values:
            early: T = side.values[self.name]
            return early
        raise AttributeError(f"{self.name} is not there before super().__init__() was called")

    def __set__(self, dataset: object, value: Any) -> None:
        side = vars(dataset).get(_NAME)
        if not isinstance(side, LoaderSide):
            early = vars(dataset).setdefault(_NAME, EarlyValues())
            early.values[self.name] = value
        elif not self._is_shown(side, value):
            self._change(side, value)

    def _is_shown(self, side: LoaderSide, value: Any) -> bool:
        """Whether the value is the one that the attribute shows, which may be a default that depends on the data."""
        shown: Any = self._of(side)
        return type(value) is type(shown) and isinstance(value, int | str) and bool(value == shown)

    def _change(self, side: LoaderSide, value: Any) -> None:
        side.change(self.name, value)


class FixedSetting(Setting[T]):
    """A setting that is fixed when the dataset is made. The same value may be assigned."""

    def _change(self, side: LoaderSide, value: Any) -> None:
        if not side.is_as_made(self.name, value):
            raise OptionError(
                f"{self.name} is fixed when a dataset is made, and cannot become {value!r} now: "
                f"give it to the constructor, StreamingDataset(..., {self.name}=...)"
            )
