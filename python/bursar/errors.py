"""The exceptions, one class for each kind of error.

Every exception of the package's own kinds is a :class:`BursarError`. Numbers are attributes, so that nobody has to read a message to
handle an error, and every exception can be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Holder:
    """Somebody who holds memory: a tag of this process, or a process of a ledger.

    >>> Holder("weights", 3 << 30, 2)
    Holder(name='weights', bytes=3221225472, blocks=2)
    """

    name: str
    bytes: int
    blocks: int | None = None


class BursarError(Exception):
    """The base of every exception of this package."""


class OutOfMemory(BursarError, MemoryError):
    """A refusal for want of memory.

    >>> error = OutOfMemory("over budget", requested=2 << 30, available=1 << 30, limit=16 << 30)
    >>> isinstance(error, MemoryError), error.requested - error.available == 1 << 30
    (True, True)
    """

    def __init__(
        self,
        message: str = "",
        *,
        requested: int = 0,
        available: int = 0,
        limit: int | None = None,
        holders: tuple[Holder, ...] = (),
        explanation: str = "",
    ) -> None:
        super().__init__(message)
        #: The bytes that were asked for.
        self.requested = requested
        #: The bytes that were left.
        self.available = available
        #: The limit that refused; None where it is not known.
        self.limit = limit
        #: Those who hold the most under that limit, the largest first.
        self.holders = holders
        #: The whole explanation, in lines.
        self.explanation = explanation or message


class Timeout(BursarError, TimeoutError):
    """A request that was not granted in time.

    >>> issubclass(Timeout, TimeoutError)
    True
    """

    def __init__(
        self,
        message: str = "",
        *,
        requested: int = 0,
        available: int = 0,
        limit: int | None = None,
        waited: float = 0.0,
    ) -> None:
        super().__init__(message)
        #: The bytes that were asked for.
        self.requested = requested
        #: The bytes that were left when the time was over.
        self.available = available
        #: The limit of what all may have together; None where it is not known.
        self.limit = limit
        #: The seconds that the request waited.
        self.waited = waited


class NoDevice(BursarError):
    """A driver or a device that is not there or cannot be used."""


class NoCluster(BursarError, RuntimeError):
    """A question about a Ray cluster from a program that is connected to none."""


class InvalidValue(BursarError, ValueError):
    """An argument that makes no sense."""


class InvalidSize(InvalidValue):
    """A size that cannot be read, or that nothing can have."""


class Unsupported(BursarError):
    """Something that the device cannot do."""


class Forked(BursarError):
    """A use, in a forked child, of what belongs to its parent."""


class Asleep(BursarError):
    """A use of memory that sleeps, or an allocation from a pool that does."""


class StillInUse(BursarError, TimeoutError):
    """Memory that was to sleep and was still in use when there was no more time to wait."""


class Released(BursarError):
    """A use of something that was given back."""


class TooLate(BursarError, RuntimeError):
    """A choice that had to be made before something else happened."""


class StreamMisuse(BursarError):
    """A stream that may not be used for this."""


class TooManyStreams(BursarError):
    """Every stream there may be is in use."""


class UseAfterFree(BursarError):
    """A block that was freed already."""


class OutOfBounds(BursarError):
    """Something was written outside a block."""


class ForeignBlock(BursarError):
    """A block of another pool, or of nobody."""


class DriverError(BursarError):
    """A call of the driver that failed."""

    def __init__(self, message: str = "", *, call: str = "", device: int = 0, status: str = "") -> None:
        super().__init__(message)
        #: The name of the call.
        self.call = call
        #: The number of the device.
        self.device = device
        #: The status that the driver returned.
        self.status = status


class LedgerError(BursarError):
    """A ledger that cannot be used."""

    def __init__(self, message: str = "", *, file: str | None = None) -> None:
        super().__init__(message)
        #: The file of the ledger, or its folder.
        self.file = file


class LedgerCorrupt(LedgerError):
    """A file that is no ledger, or a damaged one, or that of another device."""


class LedgerVersion(LedgerError):
    """A ledger of another version of Bursar."""


class LedgerInaccessible(LedgerError):
    """A file or folder that this process may not or cannot use."""


class LedgerBusy(LedgerError):
    """A ledger that another process keeps locked or in use."""


class LedgerFull(LedgerError):
    """A table of a ledger that has no free row."""


class LedgerGone(LedgerError):
    """A ledger that was removed or cleared while it was in use.

    After ``bursar ledger clear --force`` what this process had there is gone. The pool charges to the ledger again once nothing is
    allocated and :func:`bursar.use_pool` was called; memory that was set aside is reserved again.
    """


class InvalidToken(LedgerError):
    """A token that names no reservation."""


class SimulatedWarning(RuntimeWarning):
    """The devices are simulated because there is no GPU, and nobody asked for that."""
