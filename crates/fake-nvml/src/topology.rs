//! Calls about connections between GPUs: NVLink to NVSwitch, and PCI.

use std::ffi::{c_int, c_uint};

use kai_gpu::PciPath;
use kai_gpu::fake::{PROFILES, QueryGroup};
use nvml_wrapper_sys::bindings::nvmlPciInfo_t;

use crate::abi::{Out, characters, export};
use crate::code::{Answer, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED};
use crate::state::{Handle, QueriedDevice, device, device_for};

/// First PCI bus of switches; no GPU has a bus this high.
const SWITCH_BUS_FIRST: u32 = 0xc0;

export! {
    /// Whether an NVLink is up.
    fn nvmlDeviceGetNvLinkState(handle: Handle, link: c_uint, active: Out<c_uint>) {
        linked(handle, link)?;
        active.put(1)
    }

    /// PCI address of the other end.
    fn nvmlDeviceGetNvLinkRemotePciInfo(handle: Handle, link: c_uint, info: Out<nvmlPciInfo_t>) {
        info.put(switch(&linked(handle, link)?))
    }

    /// PCI address of the other end.
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(handle: Handle, link: c_uint, info: Out<nvmlPciInfo_t>) {
        info.put(switch(&linked(handle, link)?))
    }

    /// Kind of device at the other end: a switch.
    fn nvmlDeviceGetNvLinkRemoteDeviceType(handle: Handle, link: c_uint, kind: Out<c_uint>) {
        linked(handle, link)?;
        kind.put(2)
    }

    /// Closest common ancestor of two GPUs.
    fn nvmlDeviceGetTopologyCommonAncestor(one: Handle, other: Handle, level: Out<c_uint>) {
        let one = device_for(one, QueryGroup::Topology)?;
        let other = device_for(other, QueryGroup::Topology)?;
        if one.gpu == other.gpu {
            return Err(INVALID_ARGUMENT);
        }
        let peer = one.fake().device.peers.iter().find(|peer| peer.index == other.fake().device.index);
        level.put(match peer.and_then(|peer| peer.path).ok_or(NOT_FOUND)? {
            PciPath::SameBoard => 0,
            PciPath::SingleSwitch => 10,
            PciPath::MultipleSwitches => 20,
            PciPath::HostBridge => 30,
            PciPath::SameNode => 40,
            PciPath::System => 50,
        })
    }

    /// No board here has several GPUs.
    fn nvmlDeviceOnSameBoard(one: Handle, other: Handle, same: Out<c_int>) {
        same.put(c_int::from(device(one)?.gpu == device(other)?.gpu))
    }
}

fn linked(handle: Handle, link: c_uint) -> Answer<QueriedDevice> {
    let queried = device_for(handle, QueryGroup::Topology)?;
    match queried.fake().profile.nvlinks {
        0 => Err(NOT_SUPPORTED),
        links if link < links => Ok(queried),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// The switch at the other end of every NVLink of a GPU: one for each product, since one fabric has GPUs of one product.
fn switch(queried: &QueriedDevice) -> nvmlPciInfo_t {
    let product = PROFILES
        .iter()
        .position(|profile| profile.id == queried.fake().profile.id)
        .unwrap_or_default();
    let bus = SWITCH_BUS_FIRST + product as u32;
    let bus_id = format!("00000000:{bus:02X}:00.0");
    nvmlPciInfo_t {
        busIdLegacy: characters(&bus_id[4..]),
        domain: 0,
        bus,
        device: 0,
        pciDeviceId: 0x1af1_10de,
        pciSubSystemId: 0,
        busId: characters(&bus_id),
    }
}
