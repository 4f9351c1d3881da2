"""The native module: what the package is made of, and no interface of its own but for ``Buffer`` and ``Reservation``."""

from collections.abc import Callable
from os import PathLike
from types import TracebackType
from typing import Any, final

from typing_extensions import Buffer as _SupportsBuffer, Self

from ._devices import Device

def command(words: list[str], program: list[str], libraries: list[str]) -> int: ...
def allocate_anywhere(bytes: int, device: int) -> int: ...
def cupy_allocator(
    memory: type, pointer: type, device: int, stream: int, has_device: bool, refusal: Callable[[BaseException], BaseException]
) -> Callable[[int], Any]: ...
def cupy_uses_stream(handle: int) -> None: ...
def device_count() -> int: ...
def devices() -> list[dict[str, Any]]: ...
def draw(variable: str, token: str) -> Reservation: ...
def driver() -> tuple[str, str]: ...
def fit(
    memory: str,
    per_worker: int | str,
    fixed: int | str,
    workers: int,
    headroom: float | None,
    available: int | str | None,
    devices: list[int] | None,
    label: str,
    allow_overflow: bool,
) -> dict[str, Any]: ...
def fit_cards(
    per_worker: int | str, fixed: int | str, workers: int, headroom: float | None, cards: list[tuple[int, int]]
) -> dict[str, Any]: ...
def free_anywhere(ptr: int, device: int) -> None: ...
def default_device() -> int: ...
def index_of(uuid: str) -> int | None: ...
def ledger() -> dict[str, Any]: ...
def memory_info(device: int) -> tuple[int, int]: ...
def parse_size(size: int | str) -> int: ...
def pool_statistics() -> list[dict[str, Any]]: ...
def sleep_when_asked(devices: list[int]) -> None: ...
def close_logs() -> None: ...
def end_asked() -> None: ...
def sleep(
    tags: list[str], discard: list[str], discard_all: bool, keep_place: bool, timeout: float
) -> tuple[int, int, int, int, float]: ...
def sleep_state() -> tuple[str, int, int]: ...
def stream_ends(handle: int) -> None: ...
def torch_answer_workspaces() -> bool: ...
def torch_blocks(device: int) -> list[tuple[int, int, int, int, int]]: ...
def torch_check_awake(device: int) -> None: ...
def torch_check_captures() -> None: ...
def torch_counts(device: int) -> dict[str, Any]: ...
def torch_fraction(device: int) -> float: ...
def torch_functions() -> dict[str, int]: ...
def torch_launched_of(device: int, stream: int, pool: tuple[int, int]) -> None: ...
def torch_launches(device: int, stream: int) -> bool: ...
def torch_observe_refusals(observer: Callable[[int, int, int, int], object]) -> None: ...
def torch_ranges(device: int) -> list[tuple[int, int]]: ...
def torch_reset_peaks(device: int) -> None: ...
def torch_reset_totals(device: int) -> None: ...
def torch_uses_stream(handle: int) -> None: ...
def pinned_statistics() -> list[tuple[int, int, int]]: ...
def trim() -> int: ...
def wake(tags: list[str], timeout: float) -> tuple[int, int, float]: ...
def use_pool(limit: int | str | None, reservation: Reservation | None, device: int | None) -> None: ...
def use_driver(name: str, sim_devices: str | None) -> None: ...
def version() -> str: ...
class Tag:
    """A context manager that names what is allocated in its block."""

    def __new__(cls, name: str) -> Self: ...
    @property
    def name(self) -> str: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_error: object) -> None: ...

class Work:
    """A context manager that keeps the memory of the pool awake in its block."""

    def __new__(cls) -> Self: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_error: object) -> None: ...

@final
class Buffer:
    """Memory of a device, of the pool of this process, until nobody has it: neither Python nor a library that it was handed to.

    >>> import bursar
    >>> bursar.use_driver("sim", sim_devices="1x24GiB")
    >>> buffer = bursar.Buffer("1KiB")
    >>> buffer.copy_from(b"some bytes")
    >>> buffer.to_bytes()[:4], buffer.nbytes, buffer.is_simulated
    (b'some', 1024, True)

    Without ``device`` it is memory of the one that the pool is for, or else that this worker has a share of if ``bursar run`` started
    it, or else of device 0. It is ordered on ``stream``: a raw handle, or a stream of PyTorch, CuPy or Numba, which has to stay for as long as the memory;
    the legacy default stream if there is none. ``torch.from_dlpack``, ``cupy.from_dlpack`` and ``numba.cuda.as_cuda_array`` take it as
    it is. What they do on another stream comes after what was done on its own, and it is freed after that, where they name the
    stream, as DLPack does; for other uses there is ``record_stream``. Memory of a simulated device is offered to no library.
    """

    def __new__(cls, size: int | str, *, device: int | str | Device | None = None, stream: object = None) -> Buffer: ...
    @property
    def ptr(self) -> int:
        """The address on the device."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""

    @property
    def device(self) -> int:
        """The number of the device."""

    @property
    def stream(self) -> int:
        """The raw handle of the stream that it is ordered on; 1 is the legacy default stream."""

    @property
    def is_simulated(self) -> bool:
        """True if the device is no hardware."""

    def __len__(self) -> int: ...
    def copy_from(self, data: _SupportsBuffer) -> None:
        """Copies bytes to its beginning, and waits for that. They are those of any object with the buffer protocol whose bytes lie one
        behind the other, whatever its items are: of an array of numbers, of pinned memory."""

    def to_bytes(self) -> bytes:
        """Returns the bytes, after what its stream was given."""

    def record_stream(self, stream: object) -> None:
        """Has the stream come after what was done so far, and the memory freed after what the stream was given until then."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...

@final
class Delegation:
    """Memory that was set aside here and that other processes draw on, until neither they nor this object are there any more.

    >>> import bursar
    >>> bursar.use_driver("sim", sim_devices="1x8GiB@delegated")
    >>> given = bursar.reserve("2GiB", timeout=0).wait().delegate()
    >>> given.bytes >> 30, given.held
    (2, 0)

    A process that has its ``token`` in ``BURSAR_RESERVATION`` is a worker with a share, as those of ``bursar run`` are.
    """

    @property
    def token(self) -> str:
        """The text by which other processes draw on it."""

    @property
    def bytes(self) -> int:
        """The number of bytes set aside."""

    @property
    def held(self) -> int:
        """The bytes that those who draw on it hold."""

    def release(self) -> None:
        """Gives back what nobody draws on, and the rest when they end. Does nothing the second time."""

class Log:
    """A log of what happens to the memory of the pool."""

    def __new__(cls, path: str | bytes | PathLike[str] | PathLike[bytes]) -> Self: ...
    @property
    def dropped(self) -> int:
        """The number of events that were lost, because the disk was too slow or failed."""
    def flush(self, timeout: float) -> bool: ...
    def close(self, timeout: float) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...

@final
class PinnedMemory:
    """Pinned host memory near a device, until the object is gone."""

    def __new__(cls, size: int | str, device: int) -> PinnedMemory: ...
    @property
    def address(self) -> int: ...
    @property
    def numa_node(self) -> int | None: ...
    def __len__(self) -> int: ...

@final
class Reservation:
    """Memory that is set aside for this process until it is released, or nobody has it any more."""

    @property
    def bytes(self) -> int:
        """The number of bytes set aside."""

    @property
    def held(self) -> int:
        """The bytes of it that this process holds."""

    @property
    def undrawn(self) -> int:
        """The bytes of it that nobody holds."""

    @property
    def label(self) -> str:
        """The label by which ``bursar ledger`` shows it."""

    @property
    def uuid(self) -> str:
        """The UUID of the device that it is memory of."""

    @property
    def device(self) -> int | None:
        """The number of the device; None for a share, whose device need not be open."""

    @property
    def released(self) -> bool:
        """True once it was released."""

    def release(self) -> None:
        """Gives back what is not held. Does nothing the second time."""

    def shrink(self, to: int | str) -> None:
        """Gives back what it has beyond ``to``."""

    def split(self, bytes: int | str) -> Reservation:
        """Returns a reservation of its own, made out of bytes that nobody holds."""

    def delegate(self) -> Delegation:
        """Hands it on to processes that draw on it by a token. It counts as released here."""

    def __enter__(self) -> Reservation: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class ReservationBlock:
    """A block that has a reservation, and releases it at its end."""

    def __new__(cls, size: int, device: object, *arguments: object) -> Self: ...
    def ask(self) -> bool: ...
    def keep(self, reservation: Reservation) -> Reservation: ...
    def release(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

@final
class Waiting:
    """A request for memory. Closing it, or losing it, leaves the queue."""

    def __new__(cls, bytes: int | str, device: int, tenant: str, priority: int, label: str) -> Waiting: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...
    def give_up(self) -> Reservation: ...
    def now(self) -> Reservation: ...
    def pause(self, left: float | None) -> float | None: ...
    def poll(self) -> Reservation | None: ...
    def wait(self, timeout: float | None) -> Reservation: ...
