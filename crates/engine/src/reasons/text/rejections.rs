//! The text of failed checks on nodes.

use std::fmt;

use super::ReasonText;
use crate::model::{FractioningCondition, GangKey, Gpus};
use crate::reasons::{Check, Rejections, Resource};

impl Check {
    /// Text for people.
    pub fn text(self) -> &'static str {
        match self {
            Check::Gpus => "node(s) didn't have enough resources: GPUs",
            Check::GpuMemory => "node(s) didn't have enough resources: GPU memory",
            Check::GpuTooSmall => "node(s) didn't have enough resources: GPU memory (the GPUs are too small)",
            Check::Cpu => "node(s) didn't have enough resources: CPU cores",
            Check::Memory => "node(s) didn't have enough resources: memory",
            Check::PodSlots => "node(s) pod number exceeded",
            Check::Extended => "node(s) didn't have enough resources: extended resources",
            Check::Unschedulable => "node is unschedulable",
            Check::NotReady => "node has NotReady condition or is under pressure",
            Check::Leaving => "node(s) that are being removed from the cluster",
            Check::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            Check::Taints => "node(s) had untolerated taint(s)",
            Check::HostPorts => "node(s) didn't have free ports for the requested pod ports",
            Check::PodAffinity => "node(s) didn't match pod affinity rules",
            Check::PodAntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Check::MigMismatch => "node(s) whose MIG mode does not suit the GPU request",
            Check::GpuMemoryUnknown => "node(s) with unknown GPU memory (label nvidia.com/gpu.memory missing)",
            Check::Enforcement => {
                "node(s) that don't limit GPU memory (required by annotation kai.scheduler/gpu-enforcement)"
            }
            Check::ComputeMode => "node(s) without a multi-process server (MPS) for compute mode sm-sharing",
            Check::SmSharingOnly => {
                "node(s) whose GPUs take pods with compute mode sm-sharing alone (multi-process server, MPS)"
            }
            Check::ComputeModeInUse => "node(s) whose GPUs with enough memory have pods of another compute mode",
            Check::Fractioning(FractioningCondition::Met) => {
                "node(s) where condition gpu-fractioning.nvidia.com/Ready is True"
            }
            Check::Fractioning(FractioningCondition::False) => {
                "node(s) where condition gpu-fractioning.nvidia.com/Ready is False"
            }
            Check::Fractioning(FractioningCondition::Unknown) => {
                "node(s) where condition gpu-fractioning.nvidia.com/Ready is Unknown"
            }
            Check::Fractioning(FractioningCondition::NotFound) => {
                "node(s) where condition gpu-fractioning.nvidia.com/Ready is Unknown (ConditionNotFound)"
            }
            Check::VolumeNodes => "node(s) had volume node affinity conflict",
            Check::VolumesToBind => "node(s) didn't find available persistent volumes to bind",
            Check::Storage => "node(s) did not have enough free storage",
            Check::ExclusiveClaim => {
                "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
            }
            Check::AttachLimit => "node(s) exceed max volume count",
            Check::QueueBound => "node(s) where it would pass a queue's bound",
            Check::Domain => "node(s) outside the topology domain",
        }
    }
}

impl fmt::Display for ReasonText<'_, Rejections> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rejections {
            checks,
            extended,
            holders,
            search_cut,
        } = self.reason;
        if checks.is_empty() {
            return write!(f, "there is no node");
        }
        for (at, (check, nodes)) in checks.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{nodes} ")?;
            match extended.as_slice() {
                [mig] if *check == Check::Extended && crate::cluster::mig_slices(mig) > 0 => {
                    write!(f, "node(s) didn't have enough of mig profile: {mig}")?;
                }
                [_, ..] if *check == Check::Extended => {
                    write!(f, "node(s) didn't have enough resources: {}", extended.join(" or "))?;
                }
                [] | [_, ..] => f.write_str(check.text())?,
            }
        }
        for (at, (name, gpus)) in sums_by_name(holders, self.name).iter().enumerate() {
            let lead = if at == 0 { "; held by" } else { "," };
            write!(f, "{lead} {name} ({})", Resource::Gpu.text(gpus.0))?;
        }
        if checks.iter().any(|(check, _)| *check == Check::VolumesToBind) {
            f.write_str(VOLUMES_REMEDY)?;
        }
        if *search_cut {
            write!(
                f,
                "; the search for gangs to make room was cut short and goes on in a later cycle"
            )?;
        }
        Ok(())
    }
}

/// What helps a pod whose claims get no volume.
const VOLUMES_REMEDY: &str = "; create a PersistentVolume that suits the claim and that such a node can use, or a claim of a storage class \
                              that makes volumes for it";
/// How many holders of GPUs a reason names.
const HOLDERS_NAMED_MAX: usize = 3;

/// The GPUs by the name of their holders, the largest sums first: pods of a Deployment are gangs of their own with one name.
fn sums_by_name(holders: &[(GangKey, Gpus)], name: &dyn Fn(&GangKey) -> String) -> Vec<(String, Gpus)> {
    let mut sums: Vec<(String, Gpus)> = Vec::new();
    for (gang, gpus) in holders {
        let name = name(gang);
        match sums.iter_mut().find(|(other, _)| *other == name) {
            Some((_, sum)) => sum.0 = sum.0.saturating_add(gpus.0),
            None => sums.push((name, *gpus)),
        }
    }
    sums.sort_by_key(|(_, gpus)| std::cmp::Reverse(gpus.0));
    sums.truncate(HOLDERS_NAMED_MAX);
    sums
}
