//! Golden tests: labels, injection and the doctor's report on every recorded machine of the `gpu` crate. The recorded libraries are
//! placeholders, so a copy of the tree has minimal ELF files instead.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use kai_gpu::fake::{FakeDriver, Settings};
use kai_gpu::linker::Machine;
use kai_gpu::{Driver, Inventory, OpenOptions, PlatformKind, Roots};
use kai_node::allocator::plan::Policy;
use kai_node::doctor;
use kai_node::driver_files::cdi::Spec;
use kai_node::driver_files::collect::Search;
use kai_node::driver_files::prepare::DriverFileInjector;
use kai_node::labels::labels;

fn fixtures() -> Vec<String> {
    let names = support::names(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/fixtures"));
    names.into_iter().filter(|name| !name.contains('.')).collect()
}

/// A copy of the tree whose libraries are ELF files.
fn tree(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/fixtures").join(name);
    let done = std::process::Command::new("cp")
        .arg("-a")
        .arg(from.join("."))
        .arg(copy.path())
        .status()
        .unwrap();
    assert!(done.success());
    if name == "x86-server" {
        for (library, soname) in [
            ("libcuda.so.550.54.15", "libcuda.so.1"),
            ("libnvidia-ptxjitcompiler.so.550.54.15", "libnvidia-ptxjitcompiler.so.1"),
            ("libcuda.so.535.1.1", ""),
        ] {
            let directory = copy.path().join("usr/lib/x86_64-linux-gnu");
            fs::write(directory.join(library), "").unwrap();
            if !soname.is_empty() {
                std::os::unix::fs::symlink(library, directory.join(soname)).unwrap();
            }
        }
        fs::create_dir_all(copy.path().join("usr/bin")).unwrap();
        fs::write(copy.path().join("usr/bin/nvidia-smi"), "").unwrap();
    }
    elves(&copy.path().join("usr/lib"), machine(name));
    copy
}

fn machine(name: &str) -> Machine {
    if name == "x86-server" || name == "no-gpu" {
        Machine::X86_64
    } else {
        Machine::Aarch64
    }
}

fn elves(directory: &Path, machine: Machine) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            elves(&path, machine);
        } else if kind.is_file() && path.to_str().unwrap().contains(".so") {
            let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
            bytes.resize(64, 0);
            bytes[18] = if machine == Machine::Aarch64 { 183 } else { 62 };
            fs::write(path, bytes).unwrap();
        }
    }
}

/// The inventory of the recorded machine. Where it needs a real NVML, the fake driver of the same hardware is used.
fn inventory(name: &str, root: &Path) -> Inventory {
    let options = OpenOptions {
        roots: Roots::under(root),
        tegra_nvml: false,
        ..OpenOptions::default()
    };
    let opened = kai_gpu::open(options).unwrap();
    let fake = match name {
        "x86-server" => "a100-40:2",
        "gb10-dgx-spark" => "gb10",
        "igx-orin-dgpu" => return with_card(opened.driver.devices().unwrap()),
        _ => return opened.driver.devices().unwrap(),
    };
    let settings = fake.parse::<Settings>().unwrap().seeded(name);
    let mut listed = FakeDriver::new(&settings).unwrap().devices().unwrap();
    listed.platform = opened.detection.platform;
    listed.driver_version = Some("550.54.15".to_owned());
    listed
}

/// The card of the IGX, which only NVML lists.
fn with_card(mut inventory: Inventory) -> Inventory {
    if inventory.devices.len() == 1 {
        let settings = Settings::of("l40s", 1).seeded("igx");
        let mut card = FakeDriver::new(&settings).unwrap().devices().unwrap().devices.remove(0);
        card.index = 1;
        inventory.devices.push(card);
    }
    inventory
}

/// Removes the groups of device nodes, which depend on the checkout's owner; `driver_files::nodes` and a test below cover groups.
fn without_groups(mut spec: Spec) -> Spec {
    for edits in spec.devices.iter_mut().map(|device| &mut device.container_edits) {
        edits.additional_gids.clear();
        edits.device_nodes.iter_mut().for_each(|node| node.gid = None);
    }
    spec.cdi_version = spec.version_needed().to_owned();
    spec
}

fn injector(name: &str, root: &Path) -> DriverFileInjector {
    let mut search = Search::new(Roots::under(root));
    search.machine = machine(name);
    let nowhere = PathBuf::from("/nowhere");
    DriverFileInjector {
        mode: Default::default(),
        search,
        cdi_dir: nowhere.clone(),
        volume_dir: nowhere,
        fake: None,
    }
}

/// multiubuntu.yaml and the documentation promise that four of five pods with 30 GiB run on this machine; `kai simulate` shows it with the example.
#[test]
fn the_example_of_a_thor_has_the_labels_of_the_agent() {
    let tree = tree("jetpack7-thor");
    let labels = labels(&inventory("jetpack7-thor", tree.path()), &Policy::default());
    let example = include_str!("../../../examples/thor.yaml");
    for key in [
        "nvidia.com/gpu.count",
        "nvidia.com/gpu.memory",
        "nvidia.com/gpu.product",
        "kai.scheduler/gpu-memory-type",
    ] {
        let value = example
            .lines()
            .find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
        let value = value.map(|value| value.trim_matches('"'));
        assert_eq!(value, labels.get(key).map(String::as_str), "{key}");
    }
    let memory: u64 = labels["nvidia.com/gpu.memory"].parse().unwrap();
    // The scheduler counts whole hundreds, as KAI's does.
    assert_eq!(memory / 100 * 100 / 30_720, 4);
}

#[test]
fn labels_and_cdi_specs_of_every_recorded_machine() {
    for name in fixtures() {
        let tree = tree(&name);
        let inventory = inventory(&name, tree.path());
        let labels: String = labels(&inventory, &Policy::default())
            .iter()
            .map(|(key, value)| format!("{key}={value}\n"))
            .collect();
        insta::assert_snapshot!(format!("labels@{name}"), labels);
        if inventory.platform.kind == PlatformKind::Tegra {
            for label in ["nvidia.com/gpu.memory=", "nvidia.com/gpu.count="] {
                assert!(labels.contains(label), "{name} has no {label}");
            }
        }
        let prepared = injector(&name, tree.path()).plan(&inventory, None);
        let spec = prepared.spec.map(without_groups);
        assert_eq!(
            spec.as_ref().map(Spec::problems).unwrap_or_default(),
            Vec::<String>::new(),
            "{name}"
        );
        let text = spec.map_or("none\n".to_owned(), |spec| kai_node::driver_files::store::render(&spec));
        let notes: String = prepared
            .warnings
            .iter()
            .map(|warning| format!("# {warning}\n"))
            .collect();
        insta::assert_snapshot!(format!("cdi@{name}"), format!("{notes}{text}"));
    }
}

#[test]
fn the_doctor_on_every_recorded_machine() {
    for name in fixtures() {
        let tree = tree(&name);
        let mut args = doctor::Args::default();
        args.host.host_root = tree.path().to_owned();
        args.host.machine = Some(machine(&name));
        let report = doctor::run(args).unwrap();
        let place = tree.path().display().to_string();
        let text = report.table().replace(&format!("{place}/"), "/").replace(&place, "/");
        insta::with_settings!({ filters => vec![
            // The loader's message depends on the machine that runs the tests.
            (r"(none of the places tried: ).*", "${1}[...]"),
            (r"(loading NVML from ).*", "${1}[...]"),
            (r"(libraries and) (\d+) programs", "${1} ${2} programs"),
        ] }, {
            insta::assert_snapshot!(format!("doctor@{name}"), format!("exit {}\n{text}", report.exit_code()));
        });
    }
}

/// On a Jetson all gauges have values without NVML: from sysfs, and memory from /proc/meminfo.
#[test]
fn metrics_of_every_jetson() {
    use kai_node::agent::limits_audit::LimitMetrics;
    use kai_node::agent::state::Snapshot;
    use kai_node::enforcement::watch::WatchReport;
    use kai_node::metrics::{FractioningMetrics, Scrape, render};
    for name in fixtures() {
        let tree = tree(&name);
        let options = OpenOptions {
            roots: Roots::under(tree.path()),
            tegra_nvml: false,
            ..OpenOptions::default()
        };
        let opened = kai_gpu::open(options).unwrap();
        if opened.detection.platform.kind != PlatformKind::Tegra {
            continue;
        }
        let snapshot = Snapshot {
            inventory: std::sync::Arc::new(opened.driver.devices().unwrap()),
            confirmed: true,
            ..Snapshot::default()
        };
        let text = render(&Scrape {
            node: &name,
            snapshot: &snapshot,
            samples: &opened.driver.samples().unwrap(),
            allocations: &[],
            registrations: 1,
            limits: &LimitMetrics::default(),
            watched: &WatchReport::default(),
            fractioning: FractioningMetrics::Off,
        });
        let gauges: String = text
            .lines()
            .filter(|line| line.starts_with("DCGM"))
            .map(|line| format!("{line}\n"))
            .collect();
        for gauge in ["DCGM_FI_DEV_FB_USED{", "DCGM_FI_DEV_FB_FREE{"] {
            assert!(gauges.contains(gauge), "{name} has no {gauge}");
        }
        insta::assert_snapshot!(format!("metrics@{name}"), gauges);
    }
}

#[test]
fn groups_of_restricted_nodes_are_carried() {
    use kai_node::driver_files::files::{DriverFiles, Node};
    use kai_node::driver_files::spec::{SpecInputs, spec};
    let tree = tree("jetpack6-orin-agx");
    let inventory = inventory("jetpack6-orin-agx", tree.path());
    let node = |path: &str, group| Node {
        path: path.to_owned(),
        host_path: None,
        group,
    };
    let nodes = [(
        inventory.devices[0].uuid.clone(),
        vec![
            node("/dev/nvmap", Some(44)),
            node("/dev/dri/renderD128", Some(104)),
            node("/dev/host1x-fence", None),
        ],
    )];
    let files = DriverFiles::default();
    let of = SpecInputs {
        inventory: &inventory,
        files: &files,
        nodes: &nodes.into(),
        machine: Machine::Aarch64,
        env: &[],
        hook: None,
    };
    let spec = spec(&of).unwrap();
    assert_eq!(spec.cdi_version, "0.7.0");
    assert_eq!(spec.devices[0].container_edits.additional_gids, [44, 104]);
    assert_eq!(spec.devices[0].container_edits.device_nodes[2].gid, Some(44));
    assert_eq!(spec.problems(), Vec::<String>::new());
}

/// NVML works after one restart and is missing after the next: the agent offers the same device id all the time.
#[tokio::test]
async fn an_orin_offers_the_same_id_after_every_restart() {
    use kai_node::agent::files::IntegratedGpuIdentity;
    use std::sync::Arc;
    use support::kubelet::Kubelet;
    /// NVML's inventory of the same GPU: with another UUID, unless the driver knows the earlier one.
    fn renamed(mut inventory: Inventory, served: Option<String>) -> Inventory {
        inventory.devices[0].uuid = served.unwrap_or_else(|| "1f7d1f0e-0000-5b2c-8c7e-9a1b2c3d4e5f".to_owned());
        inventory
    }
    let tree = tree("jetpack6-orin-agx");
    let place = tempfile::tempdir().unwrap();
    let mut settings = support::settings(place.path(), &["--no-cluster"]);
    settings.search.roots = Roots::under(tree.path());
    settings.search.machine = Machine::Aarch64;
    let from_files = inventory("jetpack6-orin-agx", tree.path());
    let made_up = from_files.devices[0].uuid.clone();
    for nvml in [false, true, false, true] {
        // As the agent does before it opens the driver.
        let served = IntegratedGpuIdentity::new(&settings.state_dir, &settings.search.roots).load();
        let listed = if nvml {
            renamed(from_files.clone(), served)
        } else {
            from_files.clone()
        };
        let mut kubelet = Kubelet::start(&settings.plugin_dir);
        let agent = support::Agent::start(settings.clone(), Arc::new(Listing(listed)));
        let offered = |lists: &support::kubelet::Lists| {
            let list = lists.get("nvidia.com/gpu").and_then(Option::as_ref);
            list.is_some_and(|list| list.len() == 1 && list[0] == (made_up.clone(), true))
        };
        support::until("the first id", &mut kubelet.lists, offered).await;
        let identity = IntegratedGpuIdentity::new(&settings.state_dir, &settings.search.roots);
        support::within("the note", async {
            while identity.load().as_ref() != Some(&made_up) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        agent.stop().await;
    }
    // The same disk in another board.
    fs::write(tree.path().join("etc/machine-id"), "another\n").unwrap();
    assert_eq!(
        IntegratedGpuIdentity::new(&settings.state_dir, &settings.search.roots).load(),
        None
    );
}

/// A healthy driver with this inventory.
#[derive(Debug)]
struct Listing(Inventory);

impl Driver for Listing {
    fn kind(&self) -> kai_gpu::DriverKind {
        kai_gpu::DriverKind::Tegra
    }
    fn devices(&self) -> Result<Inventory, kai_gpu::GpuError> {
        Ok(self.0.clone())
    }
    fn samples(&self) -> Result<Vec<kai_gpu::Sample>, kai_gpu::GpuError> {
        Ok(Vec::new())
    }
    fn probe(&self, _uuid: &str) -> Result<(), kai_gpu::GpuError> {
        Ok(())
    }
    fn wait_events(&self, timeout: std::time::Duration) -> Result<Vec<kai_gpu::HealthEvent>, kai_gpu::GpuError> {
        std::thread::sleep(timeout);
        Ok(Vec::new())
    }
}
