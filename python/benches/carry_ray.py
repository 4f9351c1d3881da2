"""Makes a folder with wheels of Ray and all that it needs, small enough to be carried to a machine without a network.

::

    python python/benches/carry_ray.py --python 3.12 wheels
    python -m pip install --no-index --find-links wheels ray      # there

Ray's wheel has 75 MiB, of which 31 are for Java and others for parts that actors do not need; without them it has about 40.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from pathlib import Path

#: What is left out of Ray's wheel.
LEFT_OUT = ("ray/jars/", "ray/rllib/", "ray/llm/", "ray/dashboard/client/", "ray/serve/", "ray/data/", "ray/tune/", "ray/train/")


def main() -> int:
    """Fetches the wheels and makes Ray's smaller."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}", help="the version of Python there")
    words = parser.parse_args()
    words.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--python-version={words.python}"]
    command += ["--platform=manylinux2014_x86_64", "--platform=manylinux_2_17_x86_64", "--platform=manylinux_2_28_x86_64"]
    subprocess.run([*command, "--dest", str(words.folder), "ray>=2.50"], check=True)
    for wheel in words.folder.glob("ray-*.whl"):
        shrink(wheel)
    size = sum(file.stat().st_size for file in words.folder.iterdir())
    print(f"{size / (1 << 20):.1f} MiB in {words.folder}")
    return 0


def shrink(wheel: Path) -> None:
    """Leaves parts out of a wheel, and out of its list of files."""
    smaller = wheel.with_suffix(".smaller")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as rest:
        for entry in whole.infolist():
            if entry.filename.startswith(LEFT_OUT):
                continue
            data = whole.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                lines = data.decode().splitlines(keepends=True)
                data = "".join(line for line in lines if not line.startswith(LEFT_OUT)).encode()
            rest.writestr(entry, data, zipfile.ZIP_DEFLATED)
    smaller.replace(wheel)


if __name__ == "__main__":
    sys.exit(main())
