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
    """Has tasks and actors that this process makes run without a share unless they ask for one.

    The methods are not of Ray's public interface. In a Ray without them, what is made inherits the share's size and asks for its own.
    """
    kinds = (("ray.remote_function", "RemoteFunction", _submitting), ("ray.actor", "ActorClass", _creating))
    for module, name, wrapped in kinds:
        try:
            kind: Any = getattr(importlib.import_module(module), name, None)
        except ImportError:
            kind = None
        method = getattr(kind, "_remote", None)
        if method is None:
            print(f"bursar: {module}.{name} of this Ray is unknown: what this worker makes asks for a share like its own", file=sys.stderr)
        else:
            kind._remote = functools.wraps(method)(wrapped(method))


def _submitting(submit: Any) -> Any:
    def submit_ordinary(self: Any, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        given = options.get("runtime_env") or {}
        if given.get(_PROGRAM):
            return submit(self, args, kwargs, *more, **options)
        # The options of the decorator are in the function itself.
        return self.options(runtime_env=_ordinary(given), **_of_a_call(options)).remote(*(args or ()), **(kwargs or {}))

    return submit_ordinary


def _creating(create: Any) -> Any:
    def create_ordinary(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        given = options.get("runtime_env") or {}
        if not given.get(_PROGRAM):
            options["runtime_env"] = importlib.import_module("ray.runtime_env").RuntimeEnv(**_ordinary(given))
        return create(self, args, kwargs, **options)

    return create_ordinary


def _ordinary(given: dict[str, Any]) -> dict[str, Any]:
    """Returns a runtime environment with Ray's own program: of the environment that it has activated, or else this one."""
    activates = any(given.get(name) for name in ("pip", "uv", "conda"))
    return {**given, _PROGRAM: "python" if activates else interpreter()}


def _of_a_call(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that a call may have, of those that a function was called with."""
    return {name: value for name, value in options.items() if name not in ("max_calls", "runtime_env", "serialized_runtime_env_info")}


if __name__ == "__main__":
    main(sys.argv[1:])
