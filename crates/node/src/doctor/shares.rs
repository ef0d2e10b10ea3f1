//! The doctor's findings about GPU shares: by what this machine can hold containers to their GPU memory, and why by nothing better.

use kai_api::{EnforcementTier, keys};
use kai_gpu::{Driver, Inventory, MemoryKind};

use super::facts::{ClusterView, Facts};
use super::report::Report;
use crate::driver_files::files::DriverFiles;
use crate::driver_files::host_root::HostRoot;
use crate::enforcement::cgroup::{CGROUP_ROOT, CgroupVersion, LimitController};
use crate::enforcement::facts::gpu_facts;
use crate::enforcement::hold::EnforcePolicy;
use crate::enforcement::tier::{Enforce, NodeEnforcement, TierFacts, driver_obstacles, persistence_warning};
use crate::share_devices::offer::SHARE_DEVICES_DEFAULT;

const SUBJECT: &str = "GPU shares";

/// What decides about limits on a machine with GPUs, with the agent's defaults. Whether the hook's program runs and the host's processes are
/// seen, is known to the agent only.
pub(super) fn tier_facts(
    driver: &dyn Driver,
    inventory: &Inventory,
    files: &DriverFiles,
    host: &HostRoot,
) -> TierFacts {
    let library = files
        .libraries
        .iter()
        .find(|library| library.names.iter().any(|name| name == "libnvidia-ml.so.1"));
    let cgroups = host.local_path(CGROUP_ROOT);
    TierFacts {
        policy: EnforcePolicy::default(),
        enforce: Enforce::Driver,
        mode: Default::default(),
        share_devices: SHARE_DEVICES_DEFAULT,
        calls: driver.memory_limit_support(),
        cgroup: CgroupVersion::at(&cgroups),
        controller: driver.counts_by_controller().then(|| LimitController::at(&cgroups)),
        gpus: inventory
            .devices
            .iter()
            .map(|device| gpu_facts(driver, device))
            .collect(),
        library: library.map(|library| library.path.clone()),
        program: None,
        mps: Ok(()),
        watch: Ok(()),
        given_up: None,
    }
}

/// Adds the findings.
pub(super) fn check(facts: &Facts, report: &mut Report) {
    let Some(Ok(inventory)) = &facts.inventory else { return };
    let (Some(limits), false) = (&facts.limits, inventory.devices.is_empty()) else {
        return;
    };
    let obstacles = driver_obstacles(limits);
    match obstacles.is_empty() {
        true => report.ok(
            SUBJECT,
            "the driver can hold each container to its GPU memory (tier driver)",
        ),
        false => report.ok(
            SUBJECT,
            format!(
                "the driver can't hold containers to their GPU memory: {}",
                obstacles.join("; ")
            ),
        ),
    }
    if inventory
        .devices
        .iter()
        .any(|device| device.memory_kind == MemoryKind::Unified)
    {
        report.ok(SUBJECT, unified_memory(facts.decided.as_ref()));
    }
    if let (true, Some((problem, remedy))) = (obstacles.is_empty(), persistence_warning(limits)) {
        report.warning(SUBJECT, problem, remedy);
    }
    if let ClusterView::Node { labels, .. } = &facts.cluster {
        told_by_agent(
            labels.get(keys::GPU_ENFORCEMENT).map(String::as_str),
            obstacles.is_empty(),
            report,
        );
    }
}

/// What holds containers on GPUs without memory of their own. The node agent's last decision says whether its hook limits them.
fn unified_memory(decided: Option<&NodeEnforcement>) -> String {
    let unless = match decided.map(|decided| decided.hook.is_some()) {
        Some(true) => "",
        None => "unless the node agent runs with --unified-memory-limit=false, ",
        Some(false) => {
            return "GPU and CPU share memory, and the node agent does not limit it: a container with a GPU share and without a memory limit may \
                    use all of it (--unified-memory-limit=false, or the condition GPULimits has the reason)"
                .to_owned();
        }
    };
    format!(
        "GPU and CPU share memory: {unless}the memory cgroup holds a container with a GPU share, and without a memory limit, to its request and \
         its share; memory that the GPU's driver allocates (nvmap) may not be counted there"
    )
}

/// Compares with what the node agent decided.
fn told_by_agent(label: Option<&str>, can_limit: bool, report: &mut Report) {
    let Some(tier) = label else { return };
    match EnforcementTier::from_name(tier) {
        Some(EnforcementTier::None | EnforcementTier::Watch) if can_limit => report.warning(
            SUBJECT,
            format!("the node agent offers tier {tier}"),
            "read why: kubectl get node NODE -o jsonpath='{.status.conditions[?(@.type==\"GPULimits\")].message}'",
        ),
        Some(_) => report.ok(SUBJECT, format!("the node agent offers tier {tier}")),
        None => report.warning(
            SUBJECT,
            format!("label {}={tier} is none of the node agent's", keys::GPU_ENFORCEMENT),
            "remove the label; the node agent writes its own",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kai_gpu::MemoryLimitSupport;
    use kai_gpu::fake::{FakeDriver, Settings};

    use super::super::RuntimeClass;
    use super::super::report::Verdict;
    use super::*;
    use crate::enforcement::program::HookProgram;
    use crate::enforcement::tier::HookSetup;

    fn facts(gpus: &str, change: impl FnOnce(&mut TierFacts)) -> Facts {
        let driver = FakeDriver::new(&gpus.parse::<Settings>().unwrap().seeded("n")).unwrap();
        let inventory = driver.devices().unwrap();
        let mut limits = tier_facts(
            &driver,
            &inventory,
            &DriverFiles::default(),
            &HostRoot::new("/".as_ref()),
        );
        limits.calls = MemoryLimitSupport::Offered;
        limits.cgroup = CgroupVersion::V2;
        limits.library = Some("/usr/lib/libnvidia-ml.so.1".to_owned());
        change(&mut limits);
        Facts {
            inventory: Some(Ok(inventory)),
            limits: Some(limits),
            ..Facts::default()
        }
    }

    fn lines(facts: &Facts) -> Vec<(Verdict, String)> {
        let mut report = Report::default();
        check(facts, &mut report);
        report
            .findings
            .into_iter()
            .map(|finding| (finding.verdict, finding.saw))
            .collect()
    }

    #[test]
    fn each_machine_is_told_what_holds_and_what_not() {
        let able = lines(&facts("a100-40:1", |_| {}));
        assert_eq!(able.len(), 1);
        assert!(able[0].1.contains("(tier driver)"), "{able:?}");
        let old = lines(&facts("a100-40:1", |limits| limits.cgroup = CgroupVersion::V1));
        assert!(old[0].1.contains("cgroup version 1"), "{old:?}");
        let bare = lines(&facts("a100-40:1", |limits| {
            limits.controller = Some(LimitController::Absent)
        }));
        assert!(bare[0].1.contains("boot a kernel with CONFIG_CGROUP_DMEM"), "{bare:?}");
        let jetson = lines(&facts("orin-agx:1", |_| {}));
        assert!(
            jetson[0].1.contains("no memory of its own") && jetson[1].1.contains("nvmap"),
            "{jetson:?}"
        );
        let forgetful = lines(&facts("a100-40:1", |limits| {
            limits.gpus[0].persistence_mode = Some(false)
        }));
        assert!(matches!(&forgetful[1], (Verdict::Warning, saw) if saw.contains("persistence mode is off")));
    }

    #[test]
    fn whether_the_memory_of_a_jetson_is_limited_is_what_the_agent_decided() {
        let mut facts = facts("orin-agx:1", |_| {});
        let off = NodeEnforcement::switched_off();
        let on = NodeEnforcement {
            hook: Some(HookSetup {
                program: HookProgram {
                    directory: "/var/lib/kai/hook/abc".into(),
                    loader: "ld.so".to_owned(),
                },
                library: None,
                environment: Vec::new(),
                receipts: "/var/lib/kai/limits".into(),
                policy: EnforcePolicy::Closed,
            }),
            ..off.clone()
        };
        for (decided, words) in [
            (
                None,
                "unless the node agent runs with --unified-memory-limit=false, the memory cgroup holds",
            ),
            (Some(on), "share memory: the memory cgroup holds"),
            (Some(off), "the node agent does not limit it"),
        ] {
            facts.decided = decided;
            let told = lines(&facts);
            assert!(told[1].1.contains(words), "{told:?}");
        }
    }

    #[test]
    fn the_agents_tier_is_compared() {
        let mut facts = facts("a100-40:1", |_| {});
        for (tier, verdict) in [
            ("driver", Verdict::Ok),
            ("watch", Verdict::Warning),
            ("best", Verdict::Warning),
        ] {
            facts.cluster = ClusterView::Node {
                labels: BTreeMap::from([(keys::GPU_ENFORCEMENT.to_owned(), tier.to_owned())]),
                runtime_class: RuntimeClass::Missing,
            };
            assert_eq!(lines(&facts)[1].0, verdict, "{tier}");
        }
    }
}
