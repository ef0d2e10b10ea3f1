//! Calls that list devices and return their unchanging facts.

use std::ffi::{c_int, c_uint};

use kai_gpu::fake::QueryGroup;
use kai_gpu::sysfs_bus_id;
use nvml_wrapper_sys::bindings::{nvmlPciInfo_t, nvmlPciInfoExt_v1_t};

use crate::abi::{Buffer, InOut, Out, Text, characters, export};
use crate::code::{ARGUMENT_VERSION_MISMATCH, Answer, INVALID_ARGUMENT, NOT_FOUND};
use crate::state::{Handle, QueriedDevice, device, known_device, snapshot};

const VENDOR_NVIDIA: u32 = 0x10de;

export! {
    /// How many GPUs.
    fn nvmlDeviceGetCount(count: Out<c_uint>) { count.put(snapshot()?.present().len() as c_uint) }

    /// How many GPUs.
    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) { count.put(snapshot()?.present().len() as c_uint) }

    /// A GPU by position.
    fn nvmlDeviceGetHandleByIndex(index: c_uint, handle: Out<Handle>) { by_index(index, &handle) }

    /// A GPU by position.
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: Out<Handle>) { by_index(index, &handle) }

    /// A GPU or MIG device by UUID.
    fn nvmlDeviceGetHandleByUUID(uuid: Text, handle: Out<Handle>) {
        let snapshot = snapshot()?;
        let wanted = uuid.read()?;
        for gpu in snapshot.present() {
            if snapshot.gpu(gpu).device.uuid == wanted {
                return handle.put(snapshot.handle(gpu, None)?);
            }
            let partitions = snapshot.partitions(gpu).iter().copied();
            if let Some(mig) = partitions.into_iter().find(|&mig| snapshot.gpu(gpu).mig[mig].device.uuid == wanted) {
                return handle.put(snapshot.handle(gpu, Some(mig))?);
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
        let snapshot = snapshot()?;
        let wanted = serial.read()?;
        let found = snapshot.present().into_iter().find(|&gpu| snapshot.gpu(gpu).serial == wanted);
        handle.put(snapshot.handle(found.ok_or(NOT_FOUND)?, None)?)
    }

    /// Product name; of a partition with its profile.
    fn nvmlDeviceGetName(handle: Handle, name: Buffer, length: c_uint) {
        let queried = known_device(handle)?;
        let product = &queried.fake().device.name;
        match queried.partition() {
            None => name.put(length, product),
            Some(mig) => name.put(length, &format!("{product} MIG {}", mig.profile.name)),
        }
    }

    /// UUID.
    fn nvmlDeviceGetUUID(handle: Handle, uuid: Buffer, length: c_uint) {
        let queried = known_device(handle)?;
        uuid.put(length, queried.partition().map_or(&queried.fake().device.uuid, |mig| &mig.device.uuid))
    }

    /// Position; of a partition within its GPU.
    fn nvmlDeviceGetIndex(handle: Handle, index: Out<c_uint>) {
        let queried = known_device(handle)?;
        if let Some(mig) = queried.mig {
            return index.put(mig as c_uint);
        }
        let place = queried.snapshot.present().into_iter().position(|gpu| gpu == queried.gpu);
        index.put(place.ok_or(NOT_FOUND)? as c_uint)
    }

    /// N of `/dev/nvidiaN`: the machine's number, also where fewer GPUs are visible.
    fn nvmlDeviceGetMinorNumber(handle: Handle, minor: Out<c_uint>) {
        let queried = whole_with(handle, QueryGroup::Minor)?;
        minor.put(queried.fake().device.index)
    }

    /// Serial number.
    fn nvmlDeviceGetSerial(handle: Handle, serial: Buffer, length: c_uint) {
        let queried = whole_with(handle, QueryGroup::Pci)?;
        serial.put(length, &queried.fake().serial)
    }

    /// Board number: equal for GPUs on one board.
    fn nvmlDeviceGetBoardId(handle: Handle, board: Out<c_uint>) {
        let queried = whole_with(handle, QueryGroup::Pci)?;
        board.put(queried.fake().device.board_id.ok_or(NOT_FOUND)?)
    }

    /// No board here has several GPUs.
    fn nvmlDeviceGetMultiGpuBoard(handle: Handle, several: Out<c_uint>) {
        whole_with(handle, QueryGroup::Pci)?;
        several.put(0)
    }

    /// Product line.
    fn nvmlDeviceGetBrand(handle: Handle, brand: Out<c_uint>) { brand.put(known_device(handle)?.fake().profile.brand) }

    /// Architecture number.
    fn nvmlDeviceGetArchitecture(handle: Handle, architecture: Out<c_uint>) {
        architecture.put(known_device(handle)?.fake().profile.architecture)
    }

    /// CUDA cores.
    fn nvmlDeviceGetNumGpuCores(handle: Handle, cores: Out<c_uint>) { cores.put(device(handle)?.fake().profile.cores) }

    /// Compute capability.
    fn nvmlDeviceGetCudaComputeCapability(handle: Handle, major: Out<c_int>, minor: Out<c_int>) {
        let capability = known_device(handle)?.fake().profile.compute_capability;
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
        let queried = whole_with(handle, QueryGroup::Pci)?;
        let version = InOut::version_of(&info)?;
        if version & 0xff_ffff != size_of::<nvmlPciInfoExt_v1_t>() as c_uint {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let plain = pci_info(&queried);
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

    /// Whether the GPU stays initialized while nobody uses it.
    fn nvmlDeviceGetPersistenceMode(handle: Handle, mode: Out<c_uint>) {
        let queried = whole_with(handle, QueryGroup::Power)?;
        mode.put(c_uint::from(queried.status.control.persistence_mode.unwrap_or(true)))
    }

    /// No display.
    fn nvmlDeviceGetDisplayMode(handle: Handle, mode: Out<c_uint>) {
        whole_with(handle, QueryGroup::Pci)?;
        mode.put(0)
    }

    /// No display.
    fn nvmlDeviceGetDisplayActive(handle: Handle, active: Out<c_uint>) {
        whole_with(handle, QueryGroup::Pci)?;
        active.put(0)
    }

    /// NUMA node.
    fn nvmlDeviceGetNumaNodeId(handle: Handle, node: Out<c_uint>) {
        let queried = whole_with(handle, QueryGroup::Pci)?;
        node.put(queried.fake().device.numa_node.ok_or(NOT_FOUND)?)
    }
}

/// A whole GPU for a query that NVML answers from memory, if its driver supports the query.
fn whole_with(handle: Handle, query: QueryGroup) -> Answer<QueriedDevice> {
    let queried = known_device(handle)?;
    queried.whole()?;
    queried.need(query)?;
    Ok(queried)
}

fn by_index(index: c_uint, handle: &Out<Handle>) -> Answer {
    let snapshot = snapshot()?;
    let gpu = snapshot
        .present()
        .get(index as usize)
        .copied()
        .ok_or(INVALID_ARGUMENT)?;
    handle.put(snapshot.handle(gpu, None)?)
}

fn by_bus_id(bus_id: &Text, handle: &Out<Handle>) -> Answer {
    let snapshot = snapshot()?;
    let wanted = sysfs_bus_id(&bus_id.read()?);
    let found = snapshot
        .present()
        .into_iter()
        .find(|&gpu| snapshot.gpu(gpu).device.sysfs_bus_id().as_ref() == Some(&wanted));
    handle.put(snapshot.handle(found.ok_or(NOT_FOUND)?, None)?)
}

fn pci(handle: Handle, info: &Out<nvmlPciInfo_t>) -> Answer {
    info.put(pci_info(&whole_with(handle, QueryGroup::Pci)?))
}

fn pci_info(queried: &QueriedDevice) -> nvmlPciInfo_t {
    let profile = queried.fake().profile;
    let bus_id = queried.fake().device.pci_bus_id.clone().unwrap_or_default();
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
