"""Column codecs: one value to bytes and back, by family.

`table` finds a codec by name and knows which encodings are unsafe.
"""

from streaming.formats.fields.table import unsafe_columns

__all__ = ["unsafe_columns"]
