"""Images: `pil` (raw pixels), `jpeg`, `png`, lists of them, and `jpeg_array` (lists of ready JPEG files)."""

from __future__ import annotations

import importlib.util
import io
import struct
from collections.abc import Callable
from typing import Any, Final

from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from streaming.errors import ValueDecodeError, ValueEncodeError, ValueTypeError
from streaming.formats.fields.codec import ColumnCodec, Stored
from streaming.formats.fields.text import decoded

_BYTES_PER_PIXEL: Final = {
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBX", "RGBa", "CMYK", "I", "F"), 4),
}
_POSTSCRIPT: Final = (b"%!PS", b"\xc5\xd0\xd3\xc6")
_HAS_AVIF: Final = importlib.util.find_spec("PIL.AvifImagePlugin") is not None
_FILE_FORMATS: Final = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "ICO"),
    *(("AVIF",) if _HAS_AVIF else ()),
)
"""Of stored files: all that hold pixels of their own. Some others, such as IPTC, make Pillow open what is inside them,
and PostScript makes it run a program."""
_RAW_HEAD: Final = struct.Struct("<III")


class ImageEncodeError(ValueEncodeError, OSError):
    """An image that the file format of its column cannot hold (OSError, as Pillow raises)."""


class ImageDecodeError(ValueDecodeError, UnidentifiedImageError):
    """Stored bytes that are no image (UnidentifiedImageError, as Pillow raises)."""


# --- raw pixels


def _encode_raw(value: Any) -> bytes:
    image = _image(value, "pil")
    mode = image.mode.encode()
    # Read back, it has the palette of a new image: an empty one, which older releases of Pillow fill with grey.
    if image.getpalette() != Image.new(image.mode, (1, 1)).getpalette():
        raise ImageEncodeError(
            f"'pil' cannot hold the palette of an image of mode {image.mode}; convert it, or use 'png'"
        )
    try:
        pixels = image.tobytes()
    except (OSError, ValueError) as error:
        raise ImageEncodeError(f"'pil' cannot hold this image: {error}") from error
    return _RAW_HEAD.pack(*image.size, len(mode)) + mode + pixels


def _decode_raw(stored: Stored) -> Image.Image:
    if len(stored) < _RAW_HEAD.size:
        raise ImageDecodeError(f"stored image of {len(stored)} bytes is cut before its mode")
    width, height, n_mode = _RAW_HEAD.unpack_from(stored)
    begin = _RAW_HEAD.size + n_mode
    mode = decoded(stored[_RAW_HEAD.size : begin]) if n_mode <= 8 else ""
    n_row = (width + 7) // 8 if mode == "1" else width * _BYTES_PER_PIXEL.get(mode, 0)
    if mode != "1" and mode not in _BYTES_PER_PIXEL:
        raise ImageDecodeError(f"stored image has the unknown mode {mode!r}")
    if n_row * height != len(stored) - begin:
        raise ImageDecodeError(
            f"stored image of {width} × {height} pixels in mode {mode} has {len(stored) - begin} bytes of pixels"
        )
    try:
        return Image.frombytes(mode, (width, height), bytes(stored[begin:]))
    except (ValueError, OverflowError, MemoryError) as error:
        raise ImageDecodeError(f"stored image of {width} × {height} pixels in mode {mode}: {error}") from error


# --- files


def _encode_jpeg(value: Any) -> bytes:
    image = _image(value, "jpeg")
    # MPO: what phones write, a JPEG file with more pictures behind the first.
    if isinstance(image, JpegImageFile) and image.format in ("JPEG", "MPO") and not image.tell():
        original = _untouched_file(image)
        if original is not None:
            return original
    return _saved(image, "JPEG")


def _encode_png(value: Any) -> bytes:
    return _saved(_image(value, "png"), "PNG")


def _saved(image: Image.Image, file_format: str) -> bytes:
    into = io.BytesIO()
    try:
        image.save(into, file_format)
    except (OSError, ValueError, KeyError, SystemError) as error:
        raise ImageEncodeError(
            f"{file_format} cannot hold an image of mode {image.mode} and size {image.size}: {error}; convert it"
        ) from error
    return into.getvalue()


def _untouched_file(image: JpegImageFile) -> bytes | None:
    """The bytes of the file that this image was opened from, None if the image may have changed since.

    Encoding an opened JPEG again would lose quality, so its own bytes are stored. But pixels may have been drawn over
    in place, so the bytes are taken only if the pixels were not loaded yet, or are equal to those of the file.
    """
    stored = _file_bytes(image)
    if stored is None:
        return None
    try:
        again = Image.open(io.BytesIO(stored), formats=("JPEG",))
        if again.size != image.size or again.mode != image.mode:
            return None
        if not image.tile and again.tobytes() != image.tobytes():  # an image without tiles has its pixels in memory
            return None
    except Exception:  # Pillow's parsers raise many kinds, and a doubtful file is not taken
        return None
    return stored


def _file_bytes(image: JpegImageFile) -> bytes | None:
    try:
        if image.fp is not None:
            place = image.fp.tell()
            image.fp.seek(0)
            stored = bytes(image.fp.read())
            image.fp.seek(place)
            return stored
        if image.filename:
            # The one place of `formats` that opens a file: the format stores this file, and only the image names it.
            with open(image.filename, "rb") as file:
                return file.read()
    except (OSError, ValueError):  # closed, gone, or not seekable
        pass
    return None


def _decode_file(stored: Stored) -> Image.Image:
    """An image whose pixels are decoded when they are first used. Pillow's own pixel limit applies."""
    if bytes(stored[:4]) in _POSTSCRIPT:
        raise ImageDecodeError("stored bytes are PostScript, for which Pillow would run a program; this is refused")
    try:
        return Image.open(io.BytesIO(stored), formats=_FILE_FORMATS)
    except Exception as error:  # Pillow's parsers raise many kinds on damaged files
        raise ImageDecodeError(f"stored bytes are no image that Pillow can open: {error}") from error


# --- lists


def _list_codec(name: str, encode_one: Callable[[Any], bytes], decode_one: Callable[[Stored], Any]) -> ColumnCodec:
    def encode(value: Any) -> bytes:
        if not isinstance(value, list):
            raise ValueTypeError(f"{name!r} takes a list of PIL images, got {type(value).__name__}")
        return bytes(4) + _packed([encode_one(image) for image in value])

    def decode(stored: Stored) -> list[Any]:
        if bytes(stored[:4]) != bytes(4):
            raise ValueDecodeError("stored list of images does not begin with four zero bytes")
        return [decode_one(item) for item in _unpacked(stored, 4)]

    return ColumnCodec(None, encode, decode)


def _encode_jpeg_files(value: Any) -> bytes:
    if not isinstance(value, list | tuple):
        raise ValueTypeError(f"'jpeg_array' takes a list of JPEG files as bytes, got {type(value).__name__}")
    if not all(isinstance(file, bytes | bytearray | memoryview) for file in value):
        raise ValueTypeError("'jpeg_array' takes JPEG files as bytes; for PIL images use 'list[jpeg]'")
    if not value:
        raise ValueEncodeError("'jpeg_array' cannot hold an empty list: readers refuse it")
    return _packed([bytes(file) for file in value])


def _decode_jpeg_files(stored: Stored) -> list[Image.Image]:
    items = _unpacked(stored, 0)
    if not items:
        raise ValueDecodeError("stored 'jpeg_array' is empty")
    return [_decode_file(item) for item in items]


def _packed(items: list[bytes]) -> bytes:
    """Pack items as a u32 count, a u32 length of each, and the items themselves. Raises ValueEncodeError."""
    try:
        return struct.pack(f"<{1 + len(items)}I", len(items), *map(len, items)) + b"".join(items)
    except struct.error as error:
        raise ValueEncodeError("an image of 4 GiB or more cannot be stored") from error


def _unpacked(stored: Stored, begin: int) -> list[Stored]:
    if len(stored) < begin + 4:
        raise ValueDecodeError(f"stored list of {len(stored)} bytes is cut before its count")
    n = int.from_bytes(stored[begin : begin + 4], "little")
    begin += 4
    if len(stored) - begin < 4 * n:
        raise ValueDecodeError(f"stored list says {n} items, which its {len(stored)} bytes cannot hold")
    lengths = struct.unpack_from(f"<{n}I", stored, begin)
    begin += 4 * n
    if sum(lengths) != len(stored) - begin:
        raise ValueDecodeError(f"stored list has items of {sum(lengths)} bytes, but {len(stored) - begin} are there")
    items = []
    for length in lengths:
        items.append(stored[begin : begin + length])
        begin += length
    return items


def _image(value: Any, name: str) -> Image.Image:
    if not isinstance(value, Image.Image):
        raise ValueTypeError(f"{name!r} takes a PIL image or the bytes to store, got {type(value).__name__}")
    return value


_CODECS: Final = {
    "pil": ColumnCodec(None, _encode_raw, _decode_raw),
    "jpeg": ColumnCodec(None, _encode_jpeg, _decode_file),
    "png": ColumnCodec(None, _encode_png, _decode_file),
    "list[pil]": _list_codec("list[pil]", _encode_raw, _decode_raw),
    "list[jpeg]": _list_codec("list[jpeg]", _encode_jpeg, _decode_file),
    "list[png]": _list_codec("list[png]", _encode_png, _decode_file),
    **dict.fromkeys(("jpeg_array", "jpegarray"), ColumnCodec(None, _encode_jpeg_files, _decode_jpeg_files)),
}


def codec(encoding: str) -> ColumnCodec:
    """The codec of an encoding of `table.IMAGES`."""
    return _CODECS[encoding]
