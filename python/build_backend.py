"""The build backend: maturin's, which is given the library that keeps CUDA programs inside their shares to put into wheels.

``BURSAR_WHEEL_PROFILE`` names the profile of cargo that everything is built with; ``release`` if it is not set.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import maturin
from maturin import (
    build_editable,
    get_requires_for_build_editable,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "UnsupportedOperation",
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

FOLDER = Path(__file__).parent / "bursar" / "_lib"

# Maturin's functions look for its program, which is beside the interpreter where builds are not isolated.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])


class UnsupportedOperation(Exception):
    """An operation that this backend does not have."""


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Refuses: a source distribution has no place for the crate of the library, on which the native module does not depend."""
    raise UnsupportedOperation("wheels of bursar are built from its repository")


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Builds the library and then the wheel, which has it inside."""
    profile = os.environ.get("BURSAR_WHEEL_PROFILE", "release")
    os.environ.setdefault("MATURIN_PEP517_ARGS", f"--profile {profile}")
    FOLDER.mkdir(exist_ok=True)
    try:
        shutil.copy(_build_library(profile), FOLDER)
        return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))
    finally:
        shutil.rmtree(FOLDER)


def _build_library(profile: str) -> Path:
    """Builds the enforcing library and returns its path."""
    command = ["cargo", "rustc", "--package=bursar-enforce", "--lib", f"--profile={profile}"]
    command += ["--message-format=json-render-diagnostics", "--", "-Cstrip=symbols"]
    built = subprocess.run(command, cwd=FOLDER.parents[2], stdout=subprocess.PIPE, text=True, check=True)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    files = [file for message in messages for file in message.get("filenames", [])]
    return next(Path(file) for file in files if file.endswith("libbursar_enforce.so"))
