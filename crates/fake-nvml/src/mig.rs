//! Calls about MIG: mode, devices, instances, profiles. Partitions are fixed by the settings; setting anything is not supported.

use std::ffi::c_uint;

use kai_gpu::MigMode;
use kai_gpu::fake::{MigProfile, QueryGroup};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlDeviceAttributes_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t,
};

use crate::abi::{InOut, List, Out, characters, export};
use crate::code::{ARGUMENT_VERSION_MISMATCH, Answer, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED};
use crate::state::{Handle, QueriedDevice, device, device_for, known_device};

/// Upper bound on partitions of a GPU.
const PARTITIONS_MAX: c_uint = 7;

export! {
    /// Whether MIG is on, now and after a reset.
    fn nvmlDeviceGetMigMode(handle: Handle, current: Out<c_uint>, pending: Out<c_uint>) {
        let queried = device_for(handle, QueryGroup::Mig)?;
        queried.whole()?;
        let mode = c_uint::from(queried.fake().device.mig_mode == Some(MigMode::Enabled));
        current.put(mode)?;
        pending.put_if_wanted(mode)
    }

    /// Upper bound on the MIG devices of a GPU.
    fn nvmlDeviceGetMaxMigDeviceCount(handle: Handle, count: Out<c_uint>) {
        let queried = device(handle)?;
        queried.whole()?;
        count.put(if queried.fake().profile.mig.is_empty() { 0 } else { PARTITIONS_MAX })
    }

    /// The MIG device at an index.
    fn nvmlDeviceGetMigDeviceHandleByIndex(handle: Handle, index: c_uint, mig: Out<Handle>) {
        let queried = device_for(handle, QueryGroup::Mig)?;
        queried.whole()?;
        let partition = queried.snapshot.partitions(queried.gpu).get(index as usize).copied();
        mig.put(Handle::of(queried.gpu, Some(partition.ok_or(NOT_FOUND)?)))
    }

    /// The GPU of a MIG device.
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig: Handle, parent: Out<Handle>) {
        let queried = known_device(mig)?;
        queried.partition().ok_or(INVALID_ARGUMENT)?;
        parent.put(Handle::of(queried.gpu, None))
    }

    /// Whether a handle is a MIG device.
    fn nvmlDeviceIsMigDeviceHandle(handle: Handle, is_mig: Out<c_uint>) {
        is_mig.put(c_uint::from(known_device(handle)?.mig.is_some()))
    }

    /// GPU instance of a MIG device.
    fn nvmlDeviceGetGpuInstanceId(mig: Handle, id: Out<c_uint>) {
        let queried = device(mig)?;
        id.put(queried.partition().ok_or(NOT_SUPPORTED)?.device.gpu_instance_id)
    }

    /// Compute instance of a MIG device.
    fn nvmlDeviceGetComputeInstanceId(mig: Handle, id: Out<c_uint>) {
        let queried = device(mig)?;
        id.put(queried.partition().ok_or(NOT_SUPPORTED)?.device.compute_instance_id)
    }

    /// Sizes of a MIG device.
    fn nvmlDeviceGetAttributes(mig: Handle, attributes: Out<nvmlDeviceAttributes_t>) { sizes(mig, &attributes) }

    /// Sizes of a MIG device.
    fn nvmlDeviceGetAttributes_v2(mig: Handle, attributes: Out<nvmlDeviceAttributes_t>) { sizes(mig, &attributes) }

    /// A GPU instance by its id. Its handle is that of the partition in it.
    fn nvmlDeviceGetGpuInstanceById(handle: Handle, id: c_uint, instance: Out<Handle>) {
        let queried = device_for(handle, QueryGroup::Mig)?;
        let found = queried.fake().mig.iter().position(|mig| mig.device.gpu_instance_id == id);
        instance.put(Handle::of(queried.gpu, Some(found.ok_or(NOT_FOUND)?)))
    }

    /// GPU instances of one profile.
    fn nvmlDeviceGetGpuInstances(handle: Handle, profile_id: c_uint, list: List<Handle>, count: Out<c_uint>) {
        let queried = device_for(handle, QueryGroup::Mig)?;
        let partitions = queried.fake().mig.iter().enumerate();
        let wanted = partitions.filter(|(_, mig)| mig.profile.shape.profile_id() == profile_id);
        let handles: Vec<Handle> = wanted.map(|(place, _)| Handle::of(queried.gpu, Some(place))).collect();
        list.put_all(&count, handles)
    }

    /// A GPU instance's place.
    fn nvmlGpuInstanceGetInfo(instance: Handle, info: Out<nvmlGpuInstanceInfo_t>) {
        let queried = device(instance)?;
        let mig = queried.partition().ok_or(INVALID_ARGUMENT)?;
        let place = mig.device.placement.ok_or(NOT_FOUND)?;
        info.put(nvmlGpuInstanceInfo_t {
            device: Handle::of(queried.gpu, None).as_pointer(),
            id: mig.device.gpu_instance_id,
            profileId: mig.profile.shape.profile_id(),
            placement: nvmlGpuInstancePlacement_t { start: place.start, size: place.size },
        })
    }

    /// A compute instance: each GPU instance here has one, which fills it.
    fn nvmlGpuInstanceGetComputeInstanceById(instance: Handle, id: c_uint, compute: Out<Handle>) {
        let queried = device(instance)?;
        let mig = queried.partition().ok_or(INVALID_ARGUMENT)?;
        if mig.device.compute_instance_id != id {
            return Err(NOT_FOUND);
        }
        compute.put(instance)
    }

    /// A compute instance's place.
    fn nvmlComputeInstanceGetInfo_v2(compute: Handle, info: Out<nvmlComputeInstanceInfo_t>) {
        let queried = device(compute)?;
        let mig = queried.partition().ok_or(INVALID_ARGUMENT)?;
        info.put(nvmlComputeInstanceInfo_t {
            device: Handle::of(queried.gpu, None).as_pointer(),
            gpuInstance: compute.as_pointer(),
            id: mig.device.compute_instance_id,
            profileId: mig.profile.shape.nvml_compute_instance_profile(),
            placement: nvmlComputeInstancePlacement_t { start: 0, size: mig.profile.shape.slices() },
        })
    }

    /// A profile the GPU offers, by NVML's number.
    fn nvmlDeviceGetGpuInstanceProfileInfo(handle: Handle, number: c_uint, info: Out<nvmlGpuInstanceProfileInfo_t>) {
        let queried = device_for(handle, QueryGroup::Mig)?;
        let profile = by_number(&queried, number)?;
        let sizes = profile.attributes();
        info.put(nvmlGpuInstanceProfileInfo_t {
            id: profile.shape.profile_id(),
            isP2pSupported: 0,
            sliceCount: profile.shape.slices(),
            instanceCount: profile.shape.count_max(),
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: sizes.copy_engines,
            decoderCount: sizes.decoders,
            encoderCount: sizes.encoders,
            jpegCount: sizes.jpeg_engines,
            ofaCount: sizes.ofa_engines,
            memorySizeMB: profile.memory_mib,
        })
    }

    /// The same with its name.
    fn nvmlDeviceGetGpuInstanceProfileInfoV(
        handle: Handle,
        number: c_uint,
        info: InOut<nvmlGpuInstanceProfileInfo_v2_t>,
    ) {
        let version = InOut::version_of(&info)?;
        if version != size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as c_uint | 2 << 24 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let queried = device_for(handle, QueryGroup::Mig)?;
        let profile = by_number(&queried, number)?;
        let sizes = profile.attributes();
        info.put(nvmlGpuInstanceProfileInfo_v2_t {
            version,
            id: profile.shape.profile_id(),
            isP2pSupported: 0,
            sliceCount: profile.shape.slices(),
            instanceCount: profile.shape.count_max(),
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: sizes.copy_engines,
            decoderCount: sizes.decoders,
            encoderCount: sizes.encoders,
            jpegCount: sizes.jpeg_engines,
            ofaCount: sizes.ofa_engines,
            memorySizeMB: profile.memory_mib,
            name: characters(&format!("MIG {}", profile.name)),
        })
    }

    /// Possible placements of instances of a profile.
    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        handle: Handle,
        profile_id: c_uint,
        list: List<nvmlGpuInstancePlacement_t>,
        count: InOut<c_uint>,
    ) {
        let queried = device_for(handle, QueryGroup::Mig)?;
        let offered = queried.fake().profile.mig.iter();
        let shape = offered.map(|profile| profile.shape).find(|shape| shape.profile_id() == profile_id);
        let shape = shape.ok_or(NOT_SUPPORTED)?;
        let place = |&start: &u32| nvmlGpuInstancePlacement_t { start, size: shape.memory_slices() };
        list.put(&count, shape.starts().iter().map(place).collect())
    }

    /// How many more instances of a profile fit: none, because the layout is fixed.
    fn nvmlDeviceGetGpuInstanceRemainingCapacity(handle: Handle, _profile_id: c_uint, count: Out<c_uint>) {
        device_for(handle, QueryGroup::Mig)?;
        count.put(0)
    }
}

fn by_number(queried: &QueriedDevice, number: c_uint) -> Answer<MigProfile> {
    let mut offered = queried.fake().profile.mig.iter();
    offered
        .find(|profile| profile.shape.nvml_gpu_instance_profile() == number)
        .copied()
        .ok_or(NOT_SUPPORTED)
}

fn sizes(handle: Handle, attributes: &Out<nvmlDeviceAttributes_t>) -> Answer {
    let queried = device(handle)?;
    let mig = queried.partition().ok_or(NOT_SUPPORTED)?;
    let sizes = mig.profile.attributes();
    attributes.put(nvmlDeviceAttributes_t {
        multiprocessorCount: sizes.multiprocessors,
        sharedCopyEngineCount: sizes.copy_engines,
        sharedDecoderCount: sizes.decoders,
        sharedEncoderCount: sizes.encoders,
        sharedJpegCount: sizes.jpeg_engines,
        sharedOfaCount: sizes.ofa_engines,
        gpuInstanceSliceCount: sizes.gpu_instance_slices,
        computeInstanceSliceCount: sizes.compute_instance_slices,
        memorySizeMB: mig.profile.memory_mib,
    })
}
