//! Golden tests of the doctor on broken nodes: the finding and the fix for every common cause. The golden files contain only warnings and
//! problems; `fixtures.rs` has whole reports.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;

use kai_gpu::linker::Machine;
use kai_node::doctor::{self, Report, Verdict};
use support::api::Api;

const K3S: &str = "var/lib/rancher/k3s/agent/etc/containerd";
const K3S_STORE: &str = "var/lib/rancher/k3s/agent/containerd/io.containerd.metadata.v1.bolt/meta.db";
const TOOLKIT: &str = "etc/nvidia-container-runtime/config.toml";
const V3: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  enable_selinux = false\n";
const V2: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  stream_server_port = \"10010\"\n";
const RUNTIME: &str = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia']\n  runtime_type = \"io.containerd.runc.v2\"\n";

/// A recorded machine on which a test breaks something.
struct Node {
    place: tempfile::TempDir,
    args: doctor::Args,
}

impl Node {
    fn new(fixture: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../gpu/fixtures")
            .join(fixture);
        let copied = std::process::Command::new("cp")
            .arg("-a")
            .arg(from.join("."))
            .arg(place.path())
            .status();
        assert!(copied.unwrap().success());
        let mut args = doctor::Args::default();
        args.host.host_root = place.path().to_owned();
        let x86 = fixture == "x86-server" || fixture == "no-gpu";
        args.host.machine = Some(if x86 { Machine::X86_64 } else { Machine::Aarch64 });
        Self { place, args }.with_libraries()
    }

    /// The recorded libraries are stand-ins: these are ELF files.
    fn with_libraries(self) -> Self {
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(64, 0);
        elf[18] = if self.args.host.machine == Some(Machine::Aarch64) {
            183
        } else {
            62
        };
        let libraries = self.place.path().join("usr/lib/aarch64-linux-gnu");
        for directory in support::names(&libraries) {
            for name in support::names(&libraries.join(&directory)) {
                fs::write(libraries.join(&directory).join(name), &elf).unwrap();
            }
        }
        self
    }

    /// A node on which everything else works: sockets of the kubelet, k3s with containerd 2, the agent's spec.
    fn jetson() -> Self {
        Self::new("jetpack6-orin-agx")
            .with("var/lib/kubelet/device-plugins/kubelet.sock", "")
            .with("var/lib/kubelet/pod-resources/kubelet.sock", "")
            .with(&format!("{K3S}/config.toml"), V3)
            .with("var/lib/rancher/k3s/data/current/bin/k3s", &go_program("v2.1.4-k3s1"))
            .with(
                "var/run/cdi/kai.scheduler-gpu.json",
                "{\n  \"cdiVersion\": \"0.5.0\",\n  \"kind\": \"kai.scheduler/gpu\",\n  \"devices\": [{\"name\": \"0\", \"containerEdits\": {\"env\": [\"A=b\"]}}]\n}\n",
            )
            .linked("k3s", "var/lib/rancher/k3s/data/current/bin/containerd")
    }

    fn with(self, path: &str, text: &str) -> Self {
        let path = self.place.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// With an image store that has this image.
    fn with_image(self, name: &str) -> Self {
        // A bbolt database of two pages: the second is a leaf with one key.
        let mut bytes = vec![0; 8192];
        bytes[16..20].copy_from_slice(&0xED0C_DAED_u32.to_le_bytes());
        bytes[24..28].copy_from_slice(&4096_u32.to_le_bytes());
        (bytes[4096 + 8], bytes[4096 + 10]) = (2, 1);
        bytes[4096 + 20..4096 + 24].copy_from_slice(&16_u32.to_le_bytes());
        bytes[4096 + 24..4096 + 28].copy_from_slice(&(name.len() as u32).to_le_bytes());
        bytes[4096 + 32..4096 + 32 + name.len()].copy_from_slice(name.as_bytes());
        let node = self.with(K3S_STORE, "");
        fs::write(node.place.path().join(K3S_STORE), bytes).unwrap();
        node
    }

    fn without(self, path: &str) -> Self {
        let path = self.place.path().join(path);
        let removed = if path.is_dir() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        };
        removed.unwrap();
        self
    }

    fn linked(self, to: &str, path: &str) -> Self {
        std::os::unix::fs::symlink(to, self.place.path().join(path)).unwrap();
        self
    }

    fn image(mut self, name: &str) -> Self {
        self.args.images.push(name.to_owned());
        self
    }

    /// With a cluster whose node has these labels.
    async fn in_cluster(mut self, labels: &[(&str, &str)], runtime_classes: &[(&str, &str)]) -> Self {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let api = Api::start().await;
        api.change(|world| {
            world.labels = map(labels);
            world.runtime_classes = map(runtime_classes);
            world.only_node = Some("n1".to_owned());
        });
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"{}\"}}}}]\n\
             users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n",
            api.url
        );
        self = self.with("kubeconfig", &kubeconfig);
        self.args.kubeconfig = Some(self.place.path().join("kubeconfig"));
        self.args.node_name = Some("n1".to_owned());
        self
    }

    async fn report(&self) -> (Report, String) {
        let args = self.args.clone();
        let report = tokio::task::spawn_blocking(move || doctor::run(args))
            .await
            .unwrap()
            .unwrap();
        let place = self.place.path().display().to_string();
        let wrong = Report {
            findings: report
                .findings
                .iter()
                .filter(|finding| finding.verdict != Verdict::Ok)
                .cloned()
                .collect(),
        };
        let text = wrong.table().replace(&format!("{place}/"), "/").replace(&place, "/");
        (report, text)
    }

    /// Compares the warnings and problems with the golden file. `code` is the expected exit code.
    async fn check(self, name: &str, code: u8) {
        let (report, text) = self.report().await;
        assert_eq!(report.exit_code(), code, "{name}:\n{text}");
        for finding in report.findings.iter().filter(|finding| finding.verdict != Verdict::Ok) {
            assert!(finding.fix.as_ref().is_some_and(|fix| !fix.is_empty()), "{finding:?}");
        }
        insta::with_settings!({ filters => vec![
            (r"(none of the places tried: ).*", "${1}[...]"),
        ] }, {
            insta::assert_snapshot!(name, format!("exit {code}\n{text}"));
        });
    }
}

/// The text that Go stores in a program that contains containerd.
fn go_program(version: &str) -> String {
    format!(
        "\x7fELF..dep\tgithub.com/containerd/containerd/v2\tv2.0.0\n=>\tgithub.com/k3s-io/containerd/v2\t{version}\th1:x=\n"
    )
}

#[tokio::test]
async fn nothing_is_wrong() {
    let labels = [("nvidia.com/gpu.count", "1"), ("nvidia.com/gpu.memory", "56551")];
    let (report, text) = Node::jetson().in_cluster(&labels, &[]).await.report().await;
    assert_eq!(
        (report.exit_code(), text.as_str()),
        (0, "\n0 problem(s), 0 warning(s)\n")
    );
    let table = report.table();
    for words in [
        "containerd 2.1.4-k3s1 of k3s",
        "on by default in this version",
        "nvidia.com/gpu.memory=56551",
    ] {
        assert!(table.contains(words), "{words} is not in:\n{table}");
    }
}

#[tokio::test]
async fn library_not_found() {
    Node::new("gb10-dgx-spark").check("library_not_found", 1).await;
}

/// A truncated libcuda, as a full disk leaves it.
#[tokio::test]
async fn a_driver_library_that_is_cut_off() {
    let node = Node::jetson();
    let library = node
        .place
        .path()
        .join("usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1.1");
    let mut elf = fs::read(&library).unwrap();
    // One program header: a segment to load of 1 MiB from the start of the file.
    elf[32] = 64;
    (elf[54], elf[56]) = (56, 1);
    elf.resize(64 + 56, 0);
    elf[64] = 1;
    elf[64 + 34] = 16;
    fs::write(&library, elf).unwrap();
    node.check("driver_library_cut_off", 1).await;
}

#[tokio::test]
async fn no_memory_label() {
    let labels = [("nvidia.com/gpu.count", "1")];
    Node::jetson()
        .in_cluster(&labels, &[])
        .await
        .check("no_memory_label", 1)
        .await;
}

#[tokio::test]
async fn a_node_that_the_cluster_does_not_have() {
    let mut node = Node::jetson().in_cluster(&[], &[]).await;
    node.args.node_name = Some("other".to_owned());
    node.check("node_not_in_the_cluster", 0).await;
}

#[tokio::test]
async fn toolkit_modes_that_mount_nothing() {
    let mode = |mode: &str| format!("[nvidia-container-runtime]\nmode = \"{mode}\"\n");
    let lists = "etc/nvidia-container-runtime";
    Node::jetson()
        .with(TOOLKIT, &mode("legacy"))
        .check("mode_legacy_on_a_jetson", 1)
        .await;
    Node::jetson()
        .without(lists)
        .with(TOOLKIT, "[nvidia-container-runtime]\n")
        .check("mode_auto_without_lists", 1)
        .await;
    Node::jetson()
        .without(lists)
        .with(TOOLKIT, &mode("csv"))
        .check("mode_csv_without_lists", 1)
        .await;
    Node::new("no-gpu")
        .with(TOOLKIT, &mode("csv"))
        .check("mode_csv_elsewhere", 1)
        .await;
}

#[tokio::test]
async fn image_not_imported() {
    Node::jetson()
        .with_image("docker.io/kai/kai:1.1")
        .image("kai/kai:1.1")
        .image("kai/kai:1")
        .check("image_not_imported_to_k3s", 1)
        .await;
    Node::jetson()
        .image("kai/kai:1")
        .check("image_store_unreadable", 0)
        .await;
}

#[tokio::test]
async fn cdi_is_off() {
    let program = "var/lib/rancher/k3s/data/current/bin/k3s";
    let config = format!("{K3S}/config.toml");
    let off = |text: &str| format!("{text}  enable_cdi = false\n");
    // The version decides, not the format of the config.
    Node::jetson()
        .with(program, &go_program("v1.7.23-k3s2"))
        .with(&config, V2)
        .check("cdi_off_in_old_k3s", 1)
        .await;
    let (report, text) = Node::jetson().with(&config, V2).report().await;
    assert_eq!(report.exit_code(), 0, "{text}");
    Node::jetson()
        .with(&config, &off(V3))
        .with(&format!("{K3S}/config-v3.toml.tmpl"), &off(V3))
        .with(&format!("{K3S}/config.toml.tmpl"), V2)
        .check("cdi_switched_off_in_a_template", 1)
        .await;
    Node::jetson()
        .with(
            &config,
            &format!("imports = [\"/{K3S}/config-v3.toml.d/*.toml\"]\n{V3}"),
        )
        .with(&format!("{K3S}/config-v3.toml.d/10-cdi.toml"), &off(V3))
        .check("cdi_switched_off_in_an_import", 1)
        .await;
    let debian = |version: &str| {
        let removed = "Package: containerd.io\nStatus: deinstall ok config-files\nVersion: 1.4.3-1\n\n";
        let package = format!("{removed}Package: containerd\nStatus: install ok installed\nVersion: {version}\n\n");
        Node::jetson()
            .without("var/lib/rancher")
            .with("etc/containerd/config.toml", "version = 2\n")
            .with("var/lib/dpkg/status", &package)
    };
    debian("1.7.24~ds1-6").check("cdi_off_in_debian", 1).await;
    // The setting that enables CDI in later versions has no effect here.
    let old = debian("1.6.20~ds1-1+deb12u3").with(
        "etc/containerd/config.toml",
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true\n",
    );
    old.check("cdi_unknown_to_containerd", 1).await;
}

#[tokio::test]
async fn a_malformed_config_is_a_problem_and_nothing_is_concluded_from_it() {
    let config = format!("{K3S}/config.toml");
    let node = Node::jetson()
        .with(&config, "version = 3\n[plugins.'io.containerd.cri.v1.runtime'\n")
        .with(TOOLKIT, "[nvidia-container-runtime]\nmode = auto\n");
    let (report, text) = node.report().await;
    assert_eq!(report.exit_code(), 1, "{text}");
    for path in [config.as_str(), TOOLKIT] {
        assert!(text.contains(&format!("/{path} is not valid TOML: line 2: ")), "{text}");
    }
    let subjects: Vec<&str> = report.findings.iter().map(|finding| finding.subject.as_str()).collect();
    assert!(
        !subjects.contains(&"cdi") && !subjects.contains(&"toolkit mode"),
        "{text}"
    );
}

#[tokio::test]
async fn runtime_classes() {
    let labels = [("nvidia.com/gpu.count", "1"), ("nvidia.com/gpu.memory", "56551")];
    let with_runtime = || {
        Node::jetson()
            .with(&format!("{K3S}/config.toml"), &format!("{V3}{RUNTIME}"))
            .with("usr/bin/nvidia-container-runtime", "")
    };
    with_runtime()
        .in_cluster(&labels, &[])
        .await
        .check("runtime_class_without_object", 0)
        .await;
    Node::jetson()
        .in_cluster(&labels, &[("nvidia", "nvidia")])
        .await
        .check("runtime_class_unknown_to_containerd", 0)
        .await;
    let (_, text) = with_runtime()
        .in_cluster(&labels, &[("nvidia", "nvidia")])
        .await
        .report()
        .await;
    assert_eq!(text, "\n0 problem(s), 0 warning(s)\n");
    with_runtime()
        .without("usr/bin")
        .check("runtime_not_installed", 1)
        .await;
}

#[tokio::test]
async fn a_spec_that_is_out_of_date() {
    let spec = r#"{"cdiVersion":"0.5.0","kind":"kai.scheduler/gpu","devices":[{"name":"0","containerEdits":{"env":["A=b"]}}],
"containerEdits":{"mounts":[{"hostPath":"/usr/lib/gone.so","containerPath":"/usr/lib64/gone.so"}]}}"#;
    let pretty = serde_json::to_string_pretty(&serde_json::from_str::<serde_json::Value>(spec).unwrap()).unwrap();
    let stale = Node::jetson().with("var/run/cdi/kai.scheduler-gpu.json", &pretty);
    stale.check("cdi_spec_of_another_driver", 1).await;
}
