//! Calls about which devices there are and what they are: facts that do not change.

use std::ffi::{c_int, c_uint};

use kai_gpu::fake::Question;
use kai_gpu::sysfs_bus_id;
use nvml_wrapper_sys::bindings::{nvmlPciInfo_t, nvmlPciInfoExt_v1_t};

use crate::abi::{Buffer, InOut, Out, Text, characters, export};
use crate::code::{ARGUMENT_VERSION_MISMATCH, Answer, INVALID_ARGUMENT, NOT_FOUND};
use crate::state::{Asked, Handle, device, remembered, world};

const VENDOR_NVIDIA: u32 = 0x10de;

export! {
    /// How many GPUs.
    fn nvmlDeviceGetCount(count: Out<c_uint>) { count.put(world()?.present().len() as c_uint) }

    /// How many GPUs.
    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) { count.put(world()?.present().len() as c_uint) }

    /// A GPU by position.
    fn nvmlDeviceGetHandleByIndex(index: c_uint, handle: Out<Handle>) { by_index(index, &handle) }

    /// A GPU by position.
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: Out<Handle>) { by_index(index, &handle) }

    /// A GPU or MIG device by UUID.
    fn nvmlDeviceGetHandleByUUID(uuid: Text, handle: Out<Handle>) {
        let now = world()?;
        let wanted = uuid.read()?;
        for gpu in now.present() {
            if now.gpu(gpu).device.uuid == wanted {
                return handle.put(now.handle(gpu, None)?);
            }
            let partitions = now.partitions(gpu).iter().copied();
            if let Some(mig) = partitions.into_iter().find(|&mig| now.gpu(gpu).mig[mig].device.uuid == wanted) {
                return handle.put(now.handle(gpu, Some(mig))?);
            }
        }
        Err(NOT_FOUND)
    }

    /// A GPU by PCI address.
    fn nvmlDeviceGetHandleByPciBusId(bus_id: Text, handle: Out<Handle>) { by_bus_id(&bus_id, &handle) }

    /// A GPU by PCI address.
    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: Text, handle: Out<Handle>) { by_bus_id(&bus_id, &handle) }

    /// A GPU by serial number.
    fn nvmlDeviceGetHandleBySerial(serial: Text, handle: Out<Handle>) {
        let now = world()?;
        let wanted = serial.read()?;
        let found = now.present().into_iter().find(|&gpu| now.gpu(gpu).serial == wanted);
        handle.put(now.handle(found.ok_or(NOT_FOUND)?, None)?)
    }

    /// Product name; of a partition with its profile.
    fn nvmlDeviceGetName(handle: Handle, name: Buffer, length: c_uint) {
        let asked = remembered(handle)?;
        let product = &asked.fake().device.name;
        match asked.partition() {
            None => name.put(length, product),
            Some(mig) => name.put(length, &format!("{product} MIG {}", mig.profile.name)),
        }
    }

    /// UUID.
    fn nvmlDeviceGetUUID(handle: Handle, uuid: Buffer, length: c_uint) {
        let asked = remembered(handle)?;
        uuid.put(length, asked.partition().map_or(&asked.fake().device.uuid, |mig| &mig.device.uuid))
    }

    /// Position; of a partition within its GPU.
    fn nvmlDeviceGetIndex(handle: Handle, index: Out<c_uint>) {
        let asked = remembered(handle)?;
        if let Some(mig) = asked.mig {
            return index.put(mig as c_uint);
        }
        let place = asked.now.present().into_iter().position(|gpu| gpu == asked.gpu);
        index.put(place.ok_or(NOT_FOUND)? as c_uint)
    }

    /// N of `/dev/nvidiaN`: the machine's number, also where fewer GPUs are visible.
    fn nvmlDeviceGetMinorNumber(handle: Handle, minor: Out<c_uint>) {
        let asked = whole_with(handle, Question::Minor)?;
        minor.put(asked.fake().device.index)
    }

    /// Serial number.
    fn nvmlDeviceGetSerial(handle: Handle, serial: Buffer, length: c_uint) {
        let asked = whole_with(handle, Question::Pci)?;
        serial.put(length, &asked.fake().serial)
    }

    /// Board number: equal for GPUs on one board.
    fn nvmlDeviceGetBoardId(handle: Handle, board: Out<c_uint>) {
        let asked = whole_with(handle, Question::Pci)?;
        board.put(asked.fake().device.board_id.ok_or(NOT_FOUND)?)
    }

    /// No board here has several GPUs.
    fn nvmlDeviceGetMultiGpuBoard(handle: Handle, several: Out<c_uint>) {
        whole_with(handle, Question::Pci)?;
        several.put(0)
    }

    /// Product line.
    fn nvmlDeviceGetBrand(handle: Handle, brand: Out<c_uint>) { brand.put(remembered(handle)?.fake().profile.brand) }

    /// Architecture number.
    fn nvmlDeviceGetArchitecture(handle: Handle, architecture: Out<c_uint>) {
        architecture.put(remembered(handle)?.fake().profile.architecture)
    }

    /// CUDA cores.
    fn nvmlDeviceGetNumGpuCores(handle: Handle, cores: Out<c_uint>) { cores.put(device(handle)?.fake().profile.cores) }

    /// Compute capability.
    fn nvmlDeviceGetCudaComputeCapability(handle: Handle, major: Out<c_int>, minor: Out<c_int>) {
        let capability = remembered(handle)?.fake().profile.compute_capability;
        major.put(capability.major as c_int)?;
        minor.put(capability.minor as c_int)
    }

    /// PCI address.
    fn nvmlDeviceGetPciInfo(handle: Handle, info: Out<nvmlPciInfo_t>) { pci(handle, &info) }

    /// PCI address.
    fn nvmlDeviceGetPciInfo_v2(handle: Handle, info: Out<nvmlPciInfo_t>) { pci(handle, &info) }

    /// PCI address.
    fn nvmlDeviceGetPciInfo_v3(handle: Handle, info: Out<nvmlPciInfo_t>) { pci(handle, &info) }

    /// PCI address and class.
    fn nvmlDeviceGetPciInfoExt(handle: Handle, info: InOut<nvmlPciInfoExt_v1_t>) {
        let asked = whole_with(handle, Question::Pci)?;
        let version = InOut::version_of(&info)?;
        if version & 0xff_ffff != size_of::<nvmlPciInfoExt_v1_t>() as c_uint {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let plain = pci_info(&asked);
        info.put(nvmlPciInfoExt_v1_t {
            version,
            domain: plain.domain,
            bus: plain.bus,
            device: plain.device,
            pciDeviceId: plain.pciDeviceId,
            pciSubSystemId: plain.pciSubSystemId,
            baseClass: 3,
            subClass: 2,
            busId: plain.busId,
        })
    }

    /// Always persistent.
    fn nvmlDeviceGetPersistenceMode(handle: Handle, mode: Out<c_uint>) {
        whole_with(handle, Question::Power)?;
        mode.put(1)
    }

    /// No display.
    fn nvmlDeviceGetDisplayMode(handle: Handle, mode: Out<c_uint>) {
        whole_with(handle, Question::Pci)?;
        mode.put(0)
    }

    /// No display.
    fn nvmlDeviceGetDisplayActive(handle: Handle, active: Out<c_uint>) {
        whole_with(handle, Question::Pci)?;
        active.put(0)
    }

    /// Default compute mode: any process may use it.
    fn nvmlDeviceGetComputeMode(handle: Handle, mode: Out<c_uint>) {
        device(handle)?;
        mode.put(0)
    }

    /// NUMA node.
    fn nvmlDeviceGetNumaNodeId(handle: Handle, node: Out<c_uint>) {
        let asked = whole_with(handle, Question::Pci)?;
        node.put(asked.fake().device.numa_node.ok_or(NOT_FOUND)?)
    }
}

/// A whole GPU with facts kept in memory, if its driver has them.
fn whole_with(handle: Handle, question: Question) -> Answer<Asked> {
    let asked = remembered(handle)?;
    asked.whole()?;
    asked.need(question)?;
    Ok(asked)
}

fn by_index(index: c_uint, handle: &Out<Handle>) -> Answer {
    let now = world()?;
    let gpu = now.present().get(index as usize).copied().ok_or(INVALID_ARGUMENT)?;
    handle.put(now.handle(gpu, None)?)
}

fn by_bus_id(bus_id: &Text, handle: &Out<Handle>) -> Answer {
    let now = world()?;
    let wanted = sysfs_bus_id(&bus_id.read()?);
    let found = now
        .present()
        .into_iter()
        .find(|&gpu| now.gpu(gpu).device.sysfs_bus_id().as_ref() == Some(&wanted));
    handle.put(now.handle(found.ok_or(NOT_FOUND)?, None)?)
}

fn pci(handle: Handle, info: &Out<nvmlPciInfo_t>) -> Answer {
    info.put(pci_info(&whole_with(handle, Question::Pci)?))
}

fn pci_info(asked: &Asked) -> nvmlPciInfo_t {
    let profile = asked.fake().profile;
    let bus_id = asked.fake().device.pci_bus_id.clone().unwrap_or_default();
    let parts: Vec<u32> = bus_id
        .split([':', '.'])
        .map(|part| u32::from_str_radix(part, 16).unwrap_or_default())
        .collect();
    let part = |place: usize| parts.get(place).copied().unwrap_or_default();
    nvmlPciInfo_t {
        busIdLegacy: characters(bus_id.strip_prefix("0000").unwrap_or(&bus_id)),
        domain: part(0),
        bus: part(1),
        device: part(2),
        pciDeviceId: u32::from(profile.pci_device_id) << 16 | VENDOR_NVIDIA,
        pciSubSystemId: u32::from(profile.pci_device_id) << 16 | VENDOR_NVIDIA,
        busId: characters(&bus_id),
    }
}
