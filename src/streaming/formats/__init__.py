"""What bytes mean: index, shards, columns, compression and hashes.

Rules of this package: it is given bytes and gives bytes. It opens no file (one exception, in `fields.images`, says
why), knows no clock and no network, and keeps no state but the table of registered encodings. All numbers on disk are
little-endian, whatever the machine.
"""
