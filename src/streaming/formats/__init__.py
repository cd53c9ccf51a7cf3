"""The meaning of bytes: index, shards, columns, compression and hashes.

Rules of this package: bytes come in as arguments, and bytes or values go out. It opens no file (`fields.images` has the
one exception, and says why), knows no clock and no network, and keeps no state but the table of registered encodings.
All numbers on disk are little-endian, whatever the machine.
"""
