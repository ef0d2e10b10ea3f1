//! Calls about how GPUs reach each other: NVLink to NVSwitch, and PCI.

use std::ffi::{c_int, c_uint};

use kai_gpu::PciPath;
use kai_gpu::fake::{PROFILES, Question};
use nvml_wrapper_sys::bindings::nvmlPciInfo_t;

use crate::abi::{Out, characters, export};
use crate::code::{Answer, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED};
use crate::state::{Asked, Handle, device, device_for};

/// Addresses from here on are those of switches; no GPU has one.
const SWITCH_BUS_FIRST: u32 = 0xc0;

export! {
    /// Whether an NVLink is up.
    fn nvmlDeviceGetNvLinkState(handle: Handle, link: c_uint, active: Out<c_uint>) {
        linked(handle, link)?;
        active.put(1)
    }

    /// What is at the other end.
    fn nvmlDeviceGetNvLinkRemotePciInfo(handle: Handle, link: c_uint, info: Out<nvmlPciInfo_t>) {
        info.put(switch(&linked(handle, link)?))
    }

    /// What is at the other end.
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(handle: Handle, link: c_uint, info: Out<nvmlPciInfo_t>) {
        info.put(switch(&linked(handle, link)?))
    }

    /// What kind of thing is at the other end: a switch.
    fn nvmlDeviceGetNvLinkRemoteDeviceType(handle: Handle, link: c_uint, kind: Out<c_uint>) {
        linked(handle, link)?;
        kind.put(2)
    }

    /// Closest common ancestor of two GPUs.
    fn nvmlDeviceGetTopologyCommonAncestor(one: Handle, other: Handle, level: Out<c_uint>) {
        let one = device_for(one, Question::Topology)?;
        let other = device_for(other, Question::Topology)?;
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

fn linked(handle: Handle, link: c_uint) -> Answer<Asked> {
    let asked = device_for(handle, Question::Topology)?;
    match asked.fake().profile.nvlinks {
        0 => Err(NOT_SUPPORTED),
        links if link < links => Ok(asked),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// The switch at the other end of every NVLink of a GPU: one for each product, since products do not mix on one fabric.
fn switch(asked: &Asked) -> nvmlPciInfo_t {
    let product = PROFILES
        .iter()
        .position(|profile| profile.id == asked.fake().profile.id)
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
