"""The native module: what the package is made of, and no interface of its own but for ``Reservation``."""

from types import TracebackType
from typing import Any, final

def command(words: list[str], program: list[str], libraries: list[str]) -> int: ...
def devices() -> list[dict[str, Any]]: ...
def draw(token: str) -> Reservation: ...
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
def index_of(uuid: str) -> int | None: ...
def ledger() -> dict[str, Any]: ...
def parse_size(size: int | str) -> int: ...
def use_driver(name: str, sim_devices: str | None) -> None: ...
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

    def __enter__(self) -> Reservation: ...
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
    def poll(self) -> Reservation | None: ...
    def wait(self, timeout: float | None) -> Reservation: ...
