"""Sets and reads memory limits through NVIDIA's own Python bindings. Run by tests/clients.rs with the directory of a cgroup as its argument and
a driver that has the calls; prints "all good" at the end."""

import ctypes
import sys

import pynvml as nv

cgroup = sys.argv[1]
nv.nvmlInit()
a100, partitioned = (nv.nvmlDeviceGetHandleByIndex(index) for index in range(2))


def refused(code, call, *arguments):
    try:
        call(*arguments)
    except nv.NVMLError as error:
        assert error.value == code, f"code {error.value}, not {code}"
        return
    raise AssertionError(f"{call.__name__} was not refused")


def write(gpu, path, soft, hard):
    limits = nv.c_nvmlSetMemoryLimits_v1_t()
    assert ctypes.sizeof(limits) == 24
    for (name, _), value in zip(limits._fields_, [path.encode(), soft, hard]):
        setattr(limits, name, value)
    nv.nvmlDeviceSetMemoryLimits_v1(gpu, limits)


def read(gpu, path):
    limits = nv.c_nvmlGetMemoryLimits_v1_t()
    assert ctypes.sizeof(limits) == 32
    setattr(limits, limits._fields_[0][0], path.encode())
    nv.nvmlDeviceGetMemoryLimits_v1(gpu, limits)
    return tuple(getattr(limits, name) for name, _ in limits._fields_[1:])


NO_LIMIT = 2**64 - 1
refused(nv.NVML_ERROR_NOT_SUPPORTED, read, a100, cgroup)
write(a100, cgroup, 0, 1 << 30)
assert read(a100, cgroup) == (0, 1 << 30, 0)
write(a100, cgroup, 1 << 20, NO_LIMIT)
assert read(a100, cgroup) == (1 << 20, NO_LIMIT, 0)
refused(nv.NVML_ERROR_INVALID_ARGUMENT, write, a100, cgroup, 2, 1)
refused(nv.NVML_ERROR_INVALID_ARGUMENT, write, a100, cgroup, 0, (40960 << 20) + 1)
refused(nv.NVML_ERROR_NOT_SUPPORTED, write, a100, "/", 0, 1)
refused(nv.NVML_ERROR_OPERATING_SYSTEM, write, a100, cgroup + "/none", 0, 1)
refused(nv.NVML_ERROR_NOT_SUPPORTED, write, partitioned, cgroup, 0, 1)

# Outside of the cgroup both memory calls tell of the whole GPU.
assert nv.nvmlDeviceGetMemoryInfo(a100).total == nv.nvmlDeviceGetMemoryInfo(a100, version=nv.nvmlMemory_v2).total

if len(sys.argv) > 2:
    # Inside of it, only the newer call tells of the limit.
    write(a100, cgroup, 0, 1 << 30)
    with open(cgroup + "/cgroup.procs", "w") as file:
        file.write("0")
    assert nv.nvmlDeviceGetMemoryInfo(a100).total == 40960 << 20
    within = nv.nvmlDeviceGetMemoryInfo(a100, version=nv.nvmlMemory_v2)
    assert (within.total, within.used, within.free) == (1 << 30, 0, 1 << 30)

nv.nvmlShutdown()
print("all good")
