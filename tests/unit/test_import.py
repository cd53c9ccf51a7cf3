"""`import streaming` is light, and has what it names."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import streaming

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch",
    "obstore",
    "boto3",
    "PIL",
    "transformers",
    "numpy",
    "zstandard",
    "brotli",
    "cramjam",
    "xxhash",
    "tqdm",
)


def _loaded_by(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return set(run.stdout.split())


def test_import_brings_in_nothing_heavy() -> None:
    """Neither torch, nor a store's client, nor a codec."""
    assert not _loaded_by("import streaming") & set(HEAVY)


def test_writing_and_worlds_need_no_torch() -> None:
    """Writer, world and the fetcher's client work without torch; only the fetcher imports obstore."""
    code = "from streaming import MDSWriter, World, Stream; import streaming.fetch.client; World.detect({}); "
    code += "import streaming.write.merge"
    assert not _loaded_by(code) & {"torch", "obstore", "boto3"}


def test_a_fetcher_starts_without_numpy_and_codecs() -> None:
    """The first batch waits for it to start; numpy alone would take a third of that."""
    assert not _loaded_by("import streaming.fetch.server.process") & {
        "numpy",
        "torch",
        "obstore",
        "zstandard",
        "brotli",
    }


def test_datasets_never_import_the_client_of_a_store() -> None:
    """Ranks fork, so only the fetcher may have a native client."""
    assert not _loaded_by("from streaming import StreamingDataset, StreamingDataLoader, LocalDataset") & {"obstore"}


@pytest.mark.parametrize("name", streaming.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """All that `from streaming import *` promises."""
    assert getattr(streaming, name) is not None
    assert name in dir(streaming)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As in any module."""
    with pytest.raises(AttributeError, match="parrot"):
        _ = streaming.parrot


def test_no_dependency_has_an_upper_bound() -> None:
    """Caps make resolvers fall back to old releases."""
    requirements = importlib.metadata.requires("streaming-dataset") or []
    assert requirements
    assert not [text for text in requirements if re.search(r"<|==|~=", text.partition(";")[0])]


def test_the_extra_all_brings_every_store() -> None:
    """Every extra but those for developing and testing is in it."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    (brought,) = extras["all"]
    named = brought.removeprefix("streaming-dataset[").removesuffix("]").split(",")
    assert named == sorted(extras.keys() - {"all", "demo", "dev", "testing"})
