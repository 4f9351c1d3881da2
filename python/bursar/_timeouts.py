"""Times to wait at most, given as a number of seconds; None waits without end."""

from __future__ import annotations

import math

from .errors import InvalidValue


def checked_timeout(timeout: float | None) -> float | None:
    """Returns a time to wait as a float, if it is one.

    >>> checked_timeout(1), checked_timeout(None)
    (1.0, None)
    """
    if timeout is not None and (isinstance(timeout, (str, bool)) or not hasattr(timeout, "__float__")):
        raise TypeError(f"a timeout is a number of seconds, or None, not {type(timeout).__name__}")
    if timeout is not None and not (timeout >= 0 and _is_finite(timeout)):
        raise InvalidValue(f"a timeout is a number of seconds, 0 or more, and not {_shown(timeout)}; None waits without end")
    return None if timeout is None else float(timeout)


def _shown(timeout: float) -> str:
    """Returns a number as text, or says that it is too large to be one."""
    try:
        text = repr(timeout)
    except ValueError:
        return "a number of so many digits"
    return text if len(text) <= 40 else f"{text[:40]}..."


def _is_finite(timeout: float) -> bool:
    try:
        return math.isfinite(timeout)
    except OverflowError:
        return False


def seconds(timeout: float | None) -> float:
    """Returns a time to wait as a number, which is infinite where it has no end.

    >>> seconds(1.5), seconds(None)
    (1.5, inf)
    """
    checked = checked_timeout(timeout)
    return math.inf if checked is None else checked
