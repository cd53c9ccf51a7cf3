"""File names that every dataset has."""

from __future__ import annotations

from typing import Final

INDEX_NAME: Final = "index.json"
