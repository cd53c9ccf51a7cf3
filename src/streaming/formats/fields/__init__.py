"""Column codecs: from one value to bytes and back, one module for each family.

`table` finds a codec by name, and lists the encodings that are unsafe.
"""

from streaming.formats.fields.table import unsafe_columns

__all__ = ["unsafe_columns"]
