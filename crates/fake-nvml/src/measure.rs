//! Calls that return measurements: memory, load, temperature, power, clocks, errors.

use std::ffi::{c_int, c_uint, c_ulonglong};

use kai_gpu::fake::QueryGroup;
use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlTemperature_v1_t, nvmlUtilization_t,
};

use crate::abi::{InOut, Out, export};
use crate::code::{ARGUMENT_VERSION_MISMATCH, Answer, INVALID_ARGUMENT, NOT_SUPPORTED};
use crate::limits::memory_of_caller;
use crate::state::{Handle, QueriedDevice, device_for};

const MIB: u64 = 1 << 20;
const ENFORCED_MAX_CELSIUS: [u32; 4] = [95, 92, 85, 90];

export! {
    /// Memory of the GPU.
    fn nvmlDeviceGetMemoryInfo(handle: Handle, memory: Out<nvmlMemory_t>) {
        let (total, used) = memory_bytes(&device_for(handle, QueryGroup::Memory)?);
        memory.put(nvmlMemory_t { total, free: total - used, used })
    }

    /// Memory that the caller may use.
    fn nvmlDeviceGetMemoryInfo_v2(handle: Handle, memory: InOut<nvmlMemory_v2_t>) {
        let version = InOut::version_of(&memory)?;
        if version != size_of::<nvmlMemory_v2_t>() as c_uint | 2 << 24 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let queried = device_for(handle, QueryGroup::Memory)?;
        // The driver adapts this call to the cgroup of the caller, and not the older one.
        let (total, used) = memory_of_caller(&queried).unwrap_or_else(|| memory_bytes(&queried));
        memory.put(nvmlMemory_v2_t { version, total, reserved: 0, free: total - used, used })
    }

    /// The window through which the CPU accesses the memory.
    fn nvmlDeviceGetBAR1MemoryInfo(handle: Handle, memory: Out<nvmlBAR1Memory_t>) {
        let queried = device_for(handle, QueryGroup::Memory)?;
        let total = (queried.fake().memory_mib * MIB).next_power_of_two();
        memory.put(nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - MIB, bar1Used: MIB })
    }

    /// Busy shares. Partitions have none, as on real GPUs.
    fn nvmlDeviceGetUtilizationRates(handle: Handle, rates: Out<nvmlUtilization_t>) {
        let queried = whole(handle, QueryGroup::Utilization)?;
        let gpu = queried.status.utilization_percent;
        rates.put(nvmlUtilization_t { gpu, memory: gpu / 2 })
    }

    /// Encoder: idle.
    fn nvmlDeviceGetEncoderUtilization(handle: Handle, percent: Out<c_uint>, period: Out<c_uint>) {
        whole(handle, QueryGroup::Codec)?;
        percent.put(0)?;
        period.put(167_000)
    }

    /// Decoder: idle.
    fn nvmlDeviceGetDecoderUtilization(handle: Handle, percent: Out<c_uint>, period: Out<c_uint>) {
        whole(handle, QueryGroup::Codec)?;
        percent.put(0)?;
        period.put(167_000)
    }

    /// Temperature of the GPU, the only sensor.
    fn nvmlDeviceGetTemperature(handle: Handle, sensor: c_uint, celsius: Out<c_uint>) {
        if sensor != 0 {
            return Err(INVALID_ARGUMENT);
        }
        celsius.put(whole(handle, QueryGroup::Temperature)?.status.temperature_celsius)
    }

    /// Temperature of the GPU, by versioned struct.
    fn nvmlDeviceGetTemperatureV(handle: Handle, temperature: InOut<nvmlTemperature_v1_t>) {
        if InOut::version_of(&temperature)? != size_of::<nvmlTemperature_v1_t>() as c_uint | 1 << 24 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let queried = whole(handle, QueryGroup::Temperature)?;
        let told = temperature.get()?;
        temperature.put(nvmlTemperature_v1_t { temperature: queried.status.temperature_celsius as c_int, ..told })
    }

    /// Shutdown, slowdown, memory and GPU maximum.
    fn nvmlDeviceGetTemperatureThreshold(handle: Handle, kind: c_uint, celsius: Out<c_uint>) {
        whole(handle, QueryGroup::Temperature)?;
        celsius.put(*ENFORCED_MAX_CELSIUS.get(kind as usize).ok_or(NOT_SUPPORTED)?)
    }

    /// Power draw.
    fn nvmlDeviceGetPowerUsage(handle: Handle, milliwatts: Out<c_uint>) {
        milliwatts.put(whole(handle, QueryGroup::Power)?.status.power_milliwatts)
    }

    /// Power limit.
    fn nvmlDeviceGetPowerManagementLimit(handle: Handle, milliwatts: Out<c_uint>) { limit(handle, &milliwatts) }

    /// Power limit.
    fn nvmlDeviceGetPowerManagementDefaultLimit(handle: Handle, milliwatts: Out<c_uint>) { limit(handle, &milliwatts) }

    /// Power limit.
    fn nvmlDeviceGetEnforcedPowerLimit(handle: Handle, milliwatts: Out<c_uint>) { limit(handle, &milliwatts) }

    /// Range of power limits.
    fn nvmlDeviceGetPowerManagementLimitConstraints(handle: Handle, least: Out<c_uint>, most: Out<c_uint>) {
        let queried = whole(handle, QueryGroup::Power)?;
        least.put(queried.fake().profile.limit_watts * 500)?;
        most.put(queried.fake().profile.limit_watts * 1000)
    }

    /// Power management is on.
    fn nvmlDeviceGetPowerManagementMode(handle: Handle, mode: Out<c_uint>) {
        whole(handle, QueryGroup::Power)?;
        mode.put(1)
    }

    /// P0 under load, P8 when idle.
    fn nvmlDeviceGetPerformanceState(handle: Handle, state: Out<c_uint>) { performance(handle, &state) }

    /// P0 under load, P8 when idle.
    fn nvmlDeviceGetPowerState(handle: Handle, state: Out<c_uint>) { performance(handle, &state) }

    /// Fans: only workstation cards have their own.
    fn nvmlDeviceGetFanSpeed(handle: Handle, percent: Out<c_uint>) {
        let queried = whole(handle, QueryGroup::Fan)?;
        if queried.fake().profile.brand != 12 {
            return Err(NOT_SUPPORTED);
        }
        percent.put(30 + queried.status.utilization_percent / 2)
    }

    /// Present clock rate.
    fn nvmlDeviceGetClockInfo(handle: Handle, kind: c_uint, megahertz: Out<c_uint>) {
        let queried = whole(handle, QueryGroup::Clocks)?;
        let most = clock_max(kind)?;
        megahertz.put(if queried.status.utilization_percent > 0 { most } else { most / 4 })
    }

    /// Highest clock rate.
    fn nvmlDeviceGetMaxClockInfo(handle: Handle, kind: c_uint, megahertz: Out<c_uint>) {
        whole(handle, QueryGroup::Clocks)?;
        megahertz.put(clock_max(kind)?)
    }

    /// Traffic on PCI in KB/s.
    fn nvmlDeviceGetPcieThroughput(handle: Handle, _counter: c_uint, kilobytes: Out<c_uint>) {
        let queried = whole(handle, QueryGroup::Pci)?;
        kilobytes.put(queried.status.utilization_percent * 10_000)
    }

    /// PCI generation.
    fn nvmlDeviceGetCurrPcieLinkGeneration(handle: Handle, generation: Out<c_uint>) {
        whole(handle, QueryGroup::Pci)?;
        generation.put(4)
    }

    /// PCI generation.
    fn nvmlDeviceGetMaxPcieLinkGeneration(handle: Handle, generation: Out<c_uint>) {
        whole(handle, QueryGroup::Pci)?;
        generation.put(4)
    }

    /// PCI lanes.
    fn nvmlDeviceGetCurrPcieLinkWidth(handle: Handle, lanes: Out<c_uint>) {
        whole(handle, QueryGroup::Pci)?;
        lanes.put(16)
    }

    /// PCI lanes.
    fn nvmlDeviceGetMaxPcieLinkWidth(handle: Handle, lanes: Out<c_uint>) {
        whole(handle, QueryGroup::Pci)?;
        lanes.put(16)
    }

    /// ECC is on.
    fn nvmlDeviceGetEccMode(handle: Handle, current: Out<c_uint>, pending: Out<c_uint>) {
        whole(handle, QueryGroup::Ecc)?;
        current.put(1)?;
        pending.put(1)
    }

    /// No memory errors.
    fn nvmlDeviceGetTotalEccErrors(handle: Handle, _kind: c_uint, _counter: c_uint, count: Out<c_ulonglong>) {
        whole(handle, QueryGroup::Ecc)?;
        count.put(0)
    }
}

fn whole(handle: Handle, query: QueryGroup) -> Answer<QueriedDevice> {
    let queried = device_for(handle, query)?;
    queried.whole()?;
    Ok(queried)
}

/// Total and used bytes, of the GPU or of a partition.
fn memory_bytes(queried: &QueriedDevice) -> (u64, u64) {
    let gpu = queried.fake();
    match queried.mig {
        None => (gpu.memory_mib * MIB, queried.status.memory_used_mib * MIB),
        Some(mig) => (
            gpu.mig[mig].profile.memory_mib * MIB,
            gpu.partition_used_mib(mig, &queried.status) * MIB,
        ),
    }
}

fn limit(handle: Handle, milliwatts: &Out<c_uint>) -> Answer {
    milliwatts.put(whole(handle, QueryGroup::Power)?.fake().profile.limit_watts * 1000)
}

fn performance(handle: Handle, state: &Out<c_uint>) -> Answer {
    let queried = whole(handle, QueryGroup::Clocks)?;
    state.put(if queried.status.utilization_percent > 0 { 0 } else { 8 })
}

/// Graphics, SM, memory, video.
fn clock_max(kind: c_uint) -> Answer<u32> {
    [1980, 1980, 2619, 1545]
        .get(kind as usize)
        .copied()
        .ok_or(INVALID_ARGUMENT)
}
