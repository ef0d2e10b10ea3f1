"""Asks the fake library everything through NVIDIA's own Python bindings. Run by tests/clients.rs; prints "all good" at the end."""

import json
import os
import sys
import threading
import time

import pynvml as nv

control = os.environ["KAI_FAKE_CONTROL"]


def say(value):
    """Changes the control file the way an editor does: a new file in its place."""
    with open(control + ".new", "w") as file:
        json.dump(value, file)
    os.replace(control + ".new", control)
    time.sleep(0.05)


def refused(code, call, *arguments):
    try:
        call(*arguments)
    except nv.NVMLError as error:
        assert error.value == code, f"{call.__name__}: code {error.value}, not {code}"
        return str(error)
    raise AssertionError(f"{call.__name__} was not refused")


refused(nv.NVML_ERROR_UNINITIALIZED, nv.nvmlDeviceGetCount)
nv.nvmlInit()
assert nv.nvmlSystemGetDriverVersion() == "570.133.20"
assert nv.nvmlSystemGetCudaDriverVersion() == 12080
assert nv.nvmlSystemGetNVMLVersion() == "12.570.133.20"
assert nv.nvmlDeviceGetCount() == 3

# An A100 with partitions, an H100, a T4.
a100, h100, t4 = (nv.nvmlDeviceGetHandleByIndex(index) for index in range(3))
assert nv.nvmlDeviceGetName(a100) == "NVIDIA A100-SXM4-40GB"
assert nv.nvmlDeviceGetName(t4) == "Tesla T4"
refused(nv.NVML_ERROR_INVALID_ARGUMENT, nv.nvmlDeviceGetHandleByIndex, 3)
for index, device in enumerate([a100, h100, t4]):
    uuid = nv.nvmlDeviceGetUUID(device)
    assert uuid.startswith("GPU-") and len(uuid) == 40, uuid
    assert nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByUUID(uuid)) == index
    pci = nv.nvmlDeviceGetPciInfo(device)
    assert nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByPciBusId(pci.busId)) == index
    assert nv.nvmlDeviceGetMinorNumber(device) == index
    assert nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleBySerial(nv.nvmlDeviceGetSerial(device))) == index
refused(nv.NVML_ERROR_NOT_FOUND, nv.nvmlDeviceGetHandleByUUID, "GPU-none")
assert nv.nvmlDeviceGetCudaComputeCapability(h100) == (9, 0)
assert nv.nvmlDeviceGetPciInfo(t4).pciDeviceId == 0x1EB810DE

memory = nv.nvmlDeviceGetMemoryInfo(h100)
assert memory.total == 81559 << 20 and memory.used == 0 and memory.free == memory.total
assert nv.nvmlDeviceGetMemoryInfo(h100, version=nv.nvmlMemory_v2).total == memory.total
assert nv.nvmlDeviceGetUtilizationRates(h100).gpu == 0
assert nv.nvmlDeviceGetTemperature(h100, nv.NVML_TEMPERATURE_GPU) == 31
assert nv.nvmlDeviceGetTemperatureV(h100, nv.NVML_TEMPERATURE_GPU) == 31
assert nv.nvmlDeviceGetPowerUsage(h100) == 70_000
assert nv.nvmlDeviceGetEnforcedPowerLimit(h100) == 700_000
assert nv.nvmlDeviceGetComputeRunningProcesses(h100) == []

# MIG.
assert nv.nvmlDeviceGetMigMode(a100) == [1, 1]
assert nv.nvmlDeviceGetMigMode(h100) == [0, 0]
refused(nv.NVML_ERROR_NOT_SUPPORTED, nv.nvmlDeviceGetMigMode, t4)
partitions = []
for index in range(nv.nvmlDeviceGetMaxMigDeviceCount(a100)):
    try:
        partitions.append(nv.nvmlDeviceGetMigDeviceHandleByIndex(a100, index))
    except nv.NVMLError_NotFound:
        pass
names = [nv.nvmlDeviceGetName(mig) for mig in partitions]
assert names == ["NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"], names
big = partitions[0]
assert nv.nvmlDeviceGetUUID(big).startswith("MIG-")
assert nv.nvmlDeviceIsMigDeviceHandle(big) and not nv.nvmlDeviceIsMigDeviceHandle(a100)
assert nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(big)) == 0
assert nv.nvmlDeviceGetMemoryInfo(big).total == 20096 << 20
assert nv.nvmlDeviceGetAttributes(big).gpuInstanceSliceCount == 3
instance = nv.nvmlDeviceGetGpuInstanceById(a100, nv.nvmlDeviceGetGpuInstanceId(big))
assert nv.nvmlGpuInstanceGetInfo(instance).placement.size == 4
profile = nv.nvmlDeviceGetGpuInstanceProfileInfo(a100, nv.NVML_GPU_INSTANCE_PROFILE_3_SLICE)
assert profile.memorySizeMB == 20096 and profile.instanceCount == 2

# What is outside the set.
refused(nv.NVML_ERROR_NOT_SUPPORTED, nv.nvmlDeviceGetVgpuCapabilities, t4, 0)
refused(nv.NVML_ERROR_NOT_SUPPORTED, nv.nvmlUnitGetCount)
assert nv.nvmlErrorString(nv.NVML_ERROR_GPU_IS_LOST) == "GPU is lost"

# It runs hot while we watch.
pid = os.getpid()
say({"gpus": {"1": {"utilizationPercent": 100, "temperatureCelsius": 91, "processes": [{"pid": pid, "memoryMib": 4096}]}}})
assert nv.nvmlDeviceGetTemperature(h100, nv.NVML_TEMPERATURE_GPU) == 91
assert nv.nvmlDeviceGetUtilizationRates(h100).gpu == 100
assert nv.nvmlDeviceGetPowerUsage(h100) == 700_000
(process,) = nv.nvmlDeviceGetComputeRunningProcesses(h100)
assert (process.pid, process.usedGpuMemory) == (pid, 4096 << 20)
assert nv.nvmlSystemGetProcessName(pid)
assert nv.nvmlDeviceGetMemoryInfo(h100).used == 4096 << 20

# Events.
events = nv.nvmlEventSetCreate()
mask = nv.nvmlDeviceGetSupportedEventTypes(h100)
assert mask & nv.nvmlEventTypeXidCriticalError
nv.nvmlDeviceRegisterEvents(h100, nv.nvmlEventTypeXidCriticalError, events)
refused(nv.NVML_ERROR_TIMEOUT, nv.nvmlEventSetWait_v2, events, 10)
threading.Timer(0.2, say, [{"events": [{"gpu": 0, "xid": 31}, {"gpu": 1, "xid": 79}]}]).start()
event = nv.nvmlEventSetWait_v2(events, 10_000)
assert (event.eventType, event.eventData) == (nv.nvmlEventTypeXidCriticalError, 79)
assert nv.nvmlDeviceGetUUID(event.device) == nv.nvmlDeviceGetUUID(h100)
refused(nv.NVML_ERROR_TIMEOUT, nv.nvmlEventSetWait_v2, events, 10)
nv.nvmlEventSetFree(events)
refused(nv.NVML_ERROR_INVALID_ARGUMENT, nv.nvmlEventSetWait_v2, events, 10)

# A GPU fails and returns; its neighbours never notice.
say({"gpus": {"1": {"state": "lost"}}})
assert "lost" in refused(nv.NVML_ERROR_GPU_IS_LOST, nv.nvmlDeviceGetMemoryInfo, h100)
refused(nv.NVML_ERROR_GPU_IS_LOST, nv.nvmlDeviceGetHandleByIndex, 1)
assert nv.nvmlDeviceGetMemoryInfo(t4).total == 15360 << 20
say({"gpus": {"1": {"state": "reset-required"}}})
refused(nv.NVML_ERROR_RESET_REQUIRED, nv.nvmlDeviceGetMemoryInfo, h100)
say({})
assert nv.nvmlDeviceGetMemoryInfo(h100).total == memory.total

# The whole driver goes and returns.
say({"library": "driver-not-loaded"})
refused(nv.NVML_ERROR_DRIVER_NOT_LOADED, nv.nvmlDeviceGetCount)
say({})
assert nv.nvmlDeviceGetCount() == 3
nv.nvmlShutdown()
refused(nv.NVML_ERROR_UNINITIALIZED, nv.nvmlDeviceGetCount)
print("all good")
sys.exit(0)
