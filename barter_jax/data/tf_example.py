"""Reading a serialized `tf.train.Example` without TensorFlow and without its generated classes.

The message is a map from names to lists: Example {Features features = 1}, Features {map<string,
Feature> feature = 1}, Feature {BytesList 1 | FloatList 2 | Int64List 3}, each with its values in
field 1 (tensorflow/core/example/example.proto and feature.proto). Only the wanted entries are read,
and an image is not copied before it is asked for.
"""

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """The bytes are no such message, or lack what is asked for."""


def read_bytes(record: bytes, name: str) -> bytes:
    """Returns the one bytes value of a feature. Raises Malformed."""
    return bytes(_only(_values(record, name, 1), name))


def read_int(record: bytes, name: str) -> int:
    """Returns the one int64 value of a feature. Raises Malformed."""
    values: list[int] = []
    for value in _values(record, name, 3):
        if isinstance(value, int):
            values.append(value)
            continue
        position = 0  # Packed, as every writer does.
        while position < len(value):
            number, position = _varint(value, position)
            values.append(number)
    number = _only(values, name)
    return number - 2**64 if number >= 2**63 else number


def _only(values, name: str):
    values = list(values)
    if len(values) != 1:
        raise Malformed(f"{len(values)} values of {name!r} instead of one")
    return values[0]


def _values(record: bytes, name: str, kind: int) -> Iterator[int | memoryview]:
    """The entries of the list that feature `name` holds, which must be of that kind."""
    wanted = name.encode()
    for features in _fields(memoryview(record), 1):
        for entry in _fields(features, 1):
            # A view equals the bytes it shows.
            if next(_fields(entry, 1), None) != wanted:
                continue
            for feature in _fields(entry, 2):
                for values in _fields(feature, kind):
                    yield from _fields(values, 1)


def _fields(message: int | memoryview, wanted: int) -> Iterator[int | memoryview]:
    """The values of one field of a message: numbers, or views of what has a length."""
    if isinstance(message, int):
        raise Malformed("a number where a message should be")
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        kind = key & 7
        value: int | memoryview
        if kind == _BYTES:
            size, position = _varint(message, position)
            value = message[position : position + size]
            position += size
        elif kind == _VARINT:
            value, position = _varint(message, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            value = message[position : position + size]
            position += size
        else:
            raise Malformed(f"wire type {kind}")
        if position > end:
            raise Malformed("it ends early")
        if key >> 3 == wanted:
            yield value


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Returns the number at a position, and the position after it."""
    number = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise Malformed("it ends early" if shift <= 63 else "a number is too long")
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
        shift += 7
