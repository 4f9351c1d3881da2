"""Sizes, given as a number of bytes or as text."""

from __future__ import annotations

from typing import Union

from . import _native

#: A size: a number of bytes, or text such as ``"20GiB"``, ``"512 MiB"`` or ``"10GB"``.
Size = Union[int, str]


def parse_size(size: Size) -> int:
    """Returns the bytes of a size.

    >>> parse_size("1.5GiB"), parse_size("512 MiB"), parse_size(4096)
    (1610612736, 536870912, 4096)
    """
    return _native.parse_size(size)
