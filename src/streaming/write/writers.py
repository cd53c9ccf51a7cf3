"""The writers, one for each shard format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from streaming.errors import OptionError
from streaming.formats.mds import mds_config, mds_encoder
from streaming.formats.schema import mds_schema
from streaming.write.output_location import Out
from streaming.write.writer import DEFAULT_SIZE_LIMIT, Writer, checked_options


class MDSWriter(Writer):
    """Writes MDS shards.

    `columns` maps names to encodings. `out` is a folder, a URL, or a pair (local folder, remote URL or folder); a
    shard that was uploaded is deleted locally unless `keep_local`. `compression` is a name such as `"zstd:7"`,
    `hashes` a sorted list such as `["sha1", "xxh64"]`. `size_limit` bounds the uncompressed size of a shard, in bytes
    or as `"64mb"`; None, 0 and `""` mean one shard.

    Further keywords: `progress_bar` writes a line per shard to stderr. `max_workers` is the number of shards in work at
    once. `retry` is the least number of attempts per upload (2): what may pass is tried again for five minutes. The
    local folder must be empty unless `exist_ok`, which deletes its contents first. `storage_options` configure the
    client of the remote (see docs/stores.md).

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with MDSWriter(columns={"id": "int", "text": "str"}, out=folder, compression="zstd") as writer:
    ...     writer.write({"id": 0, "text": "hello"})
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Iterable[str] | None = None,
        size_limit: int | float | str | None = DEFAULT_SIZE_LIMIT,
        **kwargs: Any,
    ) -> None:
        options = checked_options(
            keep_local=keep_local, compression=compression, hashes=hashes, size_limit=size_limit, extra=kwargs
        )
        if not all(isinstance(text, str) for pair in columns.items() for text in pair):
            raise OptionError(f"columns must map names to names of encodings, got {columns!r}")
        config = mds_config(
            mds_schema(columns),
            compression=options.compression,
            hashes=options.hashes,
            size_limit=options.size_limit,
        )
        super().__init__(encode=mds_encoder(columns), config=config, out=out, options=options)
