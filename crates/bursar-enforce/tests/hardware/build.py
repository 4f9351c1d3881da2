"""Builds the programs of the trials with what the machine has."""

import concurrent.futures
import os
import shutil
import subprocess

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")


def _cuda_root():
    """Returns the folder of CUDA, which has its headers."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    roots = [os.environ.get("CUDA_HOME"), os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "/usr/local/cuda"]
    for root in filter(None, roots):
        for include in ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"):
            if os.path.exists(os.path.join(root, include, "cuda.h")):
                return root, os.path.join(root, include)
    return None, None


def _commands(to):
    """Returns, for each program, the commands to try in turn, or the reason that there is none."""
    root, include = _cuda_root()
    if root is None:
        why = "there is no cuda.h"
        return {name: why for name in ("lookup", "processes", "cost", "plain-shared", "plain-static")}
    compiler = shutil.which("gcc") or shutil.which("cc") or "cc"
    commands = {}
    for name in ("lookup", "processes", "cost"):
        source, built = os.path.join(SOURCES, name + ".c"), os.path.join(to, name)
        commands[name] = [[compiler, "-O2", "-g", "-I", include, source, "-o", built, "-ldl"]]
    nvcc = shutil.which("nvcc") or os.path.join(root, "bin", "nvcc")
    source = os.path.join(SOURCES, "plain.cu")
    for runtime in ("shared", "static"):
        name = "plain-" + runtime
        if not os.path.exists(nvcc):
            commands[name] = "there is no nvcc"
            continue
        stubs = [os.path.join(root, folder) for folder in ("lib64/stubs", "targets/x86_64-linux/lib/stubs", "targets/sbsa-linux/lib/stubs")]
        link = [word for folder in stubs if os.path.isdir(folder) for word in ("-L", folder)]
        tail = [f"-cudart={runtime}", source, "-o", os.path.join(to, name), *link, "-lcuda"]
        if runtime == "shared":
            tail += ["-Xlinker", "-rpath=" + os.path.join(root, "lib64")]
        base = [nvcc, "-O2", "-std=c++17"]
        commands[name] = [[*base, "-arch=native", *tail], [*base, *tail]]
    return commands


def _build(commands):
    if isinstance(commands, str):
        return commands
    said = ""
    for command in commands:
        try:
            answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        except (OSError, subprocess.TimeoutExpired) as why:
            said += f"{' '.join(command)}: {why}\n"
            continue
        if answer.returncode == 0:
            return None
        said += f"{' '.join(command)}\n{answer.stdout}{answer.stderr}"
    return "it cannot be built: " + said


def build(to):
    """Builds every program into a folder. Returns, for each, nothing or the reason that it is not there."""
    commands = _commands(to)
    with concurrent.futures.ThreadPoolExecutor() as workers:
        return dict(zip(commands, workers.map(_build, commands.values())))
