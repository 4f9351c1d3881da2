"""The start of Ray's worker in a process that has a share.

What a task or actor makes inherits its runtime environment, and with it the program that Ray starts as a worker. What is made in a
worker with a share is started by Ray's own program here, unless it asks for a share itself. Ray merges the two environments and
has no way to leave out what is inherited, and so the two methods that everything is made by are wrapped.
"""

from __future__ import annotations

import functools
import importlib
import os
import runpy
import sys
import threading
import time
from typing import Any

from ._ray_worker import interpreter

_PROGRAM = "py_executable"

#: The seconds that threads have to end after Ray has left the worker.
_GRACE = 2.0


def main(words: list[str]) -> None:
    """Runs Ray's worker, ``words``, as Python does."""
    make_children_ordinary()
    sys.argv[:] = words
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        # Ray has left the worker and counts its bytes as free; threads of the actor may run on.
        threading.Thread(target=_end_after, args=(_GRACE,), daemon=True).start()


def _end_after(seconds: float) -> None:
    time.sleep(seconds)
    os._exit(1)


def make_children_ordinary() -> None:
    """Has tasks and actors that this process makes run without a share unless they ask for one."""
    function: Any = importlib.import_module("ray.remote_function").RemoteFunction
    actor: Any = importlib.import_module("ray.actor").ActorClass
    submit, create = function._remote, actor._remote

    @functools.wraps(submit)
    def submit_ordinary(self: Any, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        given = options.get("runtime_env")
        if _names_a_program(given):
            return submit(self, args, kwargs, *more, **options)
        # The options of the decorator are in the function itself.
        return self.options(runtime_env=_ordinary(given), **_of_a_call(options)).remote(*(args or ()), **(kwargs or {}))

    @functools.wraps(create)
    def create_ordinary(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        given = options.get("runtime_env")
        if not _names_a_program(given):
            options["runtime_env"] = importlib.import_module("ray.runtime_env").RuntimeEnv(**_ordinary(given))
        return create(self, args, kwargs, **options)

    function._remote, actor._remote = submit_ordinary, create_ordinary


def _names_a_program(given: dict[str, Any] | None) -> bool:
    return bool(given) and given is not None and bool(given.get(_PROGRAM))


def _ordinary(given: dict[str, Any] | None) -> dict[str, Any]:
    """Returns a runtime environment with Ray's own program: of the environment that it has activated, or else this one."""
    given = dict(given or {})
    activates = any(given.get(name) for name in ("pip", "uv", "conda"))
    return {**given, _PROGRAM: "python" if activates else interpreter()}


def _of_a_call(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that a call may have, of those that a function was called with."""
    return {name: value for name, value in options.items() if name not in ("max_calls", "runtime_env", "serialized_runtime_env_info")}


if __name__ == "__main__":
    main(sys.argv[1:])
