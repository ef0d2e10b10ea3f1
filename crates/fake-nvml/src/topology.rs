//! Calls about how GPUs reach each other: NVLink to NVSwitch, and PCI.

use std::ffi::{c_int, c_uint};

use gpu::PciPath;
use gpu::fake::Question;
use nvml_wrapper_sys::bindings::nvmlPciInfo_t;

use crate::abi::{Out, characters, export};
use crate::code::{Answer, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED};
use crate::state::{Asked, Handle, device, device_for};

/// An address no GPU has: the switch at the other end of every NVLink.
const SWITCH_BUS_ID: &str = "00000000:C7:00.0";

export! {
    /// Whether an NVLink is up.
    fn nvmlDeviceGetNvLinkState(handle: Handle, link: c_uint, active: Out<c_uint>) {
        linked(handle, link)?;
        active.put(1)
    }

    /// What is at the other end.
    fn nvmlDeviceGetNvLinkRemotePciInfo(handle: Handle, link: c_uint, info: Out<nvmlPciInfo_t>) {
        linked(handle, link)?;
        info.put(switch())
    }

    /// What is at the other end.
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(handle: Handle, link: c_uint, info: Out<nvmlPciInfo_t>) {
        linked(handle, link)?;
        info.put(switch())
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

fn switch() -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        busIdLegacy: characters(&SWITCH_BUS_ID[4..]),
        domain: 0,
        bus: 0xc7,
        device: 0,
        pciDeviceId: 0x1af1_10de,
        pciSubSystemId: 0,
        busId: characters(SWITCH_BUS_ID),
    }
}
