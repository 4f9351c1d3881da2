"""What the card has given out, asked of NVML from outside every share, and what the ledger has charged."""

import ctypes
import json
import os
import subprocess

UNKNOWN = (1 << 64) - 1


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Card:
    """The first card that Bursar finds. Without NVML its figures come from `bursar devices`, whose own context is in all of them."""

    def __init__(self, bursar):
        self._bursar = bursar
        self._nvml = self._handle = None
        first = self._devices()[0]
        self.uuid, self.name, self.total = first["uuid"], first["name"], first["total"]
        try:
            self._open_nvml()
            self.source = "NVML"
        except (OSError, AttributeError, RuntimeError) as why:
            self._handle = None
            self.source = f"bursar devices, since NVML cannot be used: {why}"

    def _devices(self):
        answer = subprocess.run([self._bursar, "devices", "--json", "--driver", "cuda"], capture_output=True, text=True, timeout=60)
        devices = json.loads(answer.stdout or "{}").get("devices", [])
        if not devices or "error" in devices[0]:
            raise RuntimeError(f"there is no card: {answer.stdout} {answer.stderr}")
        return devices

    def _open_nvml(self):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            raise RuntimeError("it does not start")
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByUUID(self.uuid.encode(), ctypes.byref(handle)) != 0:
            if nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) != 0:
                raise RuntimeError("it does not know the card")
        self._nvml, self._handle = nvml, handle
        self.used()

    def memory(self):
        """Returns what is used and what is free of the card."""
        if self._handle is None:
            first = self._devices()[0]
            return first["total"] - first["free"], first["free"]
        memory = _Memory()
        status = self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory))
        if status != 0:
            raise RuntimeError(f"NVML does not say what is used: {status}")
        return memory.used, memory.free

    def used(self):
        return self.memory()[0]

    def by_process(self):
        """Returns what each process uses of the card, by its number, as far as NVML says."""
        if self._handle is None:
            return {}
        count, rows = ctypes.c_uint(512), (_Process * 512)()
        status = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._handle, ctypes.byref(count), rows)
        if status != 0:
            return {}
        return {row.pid: row.used for row in rows[: count.value] if row.used != UNKNOWN}


class LedgerFolder:
    """The ledgers of one folder, read by `bursar ledger show` without touching the card."""

    def __init__(self, bursar, folder):
        self._bursar, self.folder = bursar, folder

    def read(self):
        """Returns what is held and what is set aside but not drawn, in all, and what each process holds."""
        environment = {name: value for name, value in os.environ.items() if name != "BURSAR_SIM_DEVICES"}
        environment["BURSAR_LEDGER_DIR"] = self.folder
        command = [self._bursar, "ledger", "show", "--json", "--driver", "sim"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)
        if answer.returncode != 0:
            raise RuntimeError(f"the ledger cannot be read: {answer.stdout} {answer.stderr}")
        devices = json.loads(answer.stdout)["devices"]
        processes = [process for device in devices for process in device["processes"]]
        held = sum(device["held"] for device in devices)
        undrawn = sum(device["undrawn"] for device in devices)
        return held, undrawn, {process["pid"]: process["held"] for process in processes}

    def limit(self, ordinal, size):
        """Sets what all programs together may hold."""
        environment = dict(os.environ, BURSAR_LEDGER_DIR=self.folder)
        command = [self._bursar, "ledger", "limit", str(ordinal), size, "--driver", "cuda"]
        subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True)
