//! The agent as a cluster runs it: the program in a container without capabilities, with a read-only root, and of the host only the
//! directories that docs/node-agent.md lists. Needs root, podman, runc and the built program, so it runs only if `KAI_TEST_PODMAN=1` is set
//! and `KAI_TEST_PROGRAM` names the program (see .ci/podman).

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kai_node::driver_files::cdi::Spec;
use support::kubelet::{Kubelet, Lists};
use support::{until, within};

const GPU: &str = "nvidia.com/gpu";

#[tokio::test]
async fn without_capabilities_and_with_a_read_only_root() {
    let (Some(_), Some(program)) = (
        std::env::var_os("KAI_TEST_PODMAN"),
        std::env::var_os("KAI_TEST_PROGRAM"),
    ) else {
        eprintln!("skipped: KAI_TEST_PODMAN and KAI_TEST_PROGRAM are not set");
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let directory = |name: &str| {
        let path = place.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    let (plugins, cdi, state) = (directory("plugins"), directory("cdi"), directory("state"));
    let settings = directory("settings");
    let control = |text: &str| {
        fs::write(settings.join("new"), text).unwrap();
        fs::rename(settings.join("new"), settings.join("control.yaml")).unwrap();
    };
    control("");
    fs::write(
        settings.join("gpus.yaml"),
        "gpus: [{profile: t4, count: 2}]\ncontrolFile: /settings/control.yaml\n",
    )
    .unwrap();
    let mut kubelet = Kubelet::start(&plugins);
    let root = root_directory(&directory("root"));
    let container = Container::start(&root, Path::new(&program), place.path());

    let lists = until("two GPUs", &mut kubelet.lists, counts(2)).await;
    let written = cdi.join("kai.scheduler-gpu.json");
    let spec = within("the CDI spec", async {
        loop {
            if let Some(spec) = fs::read(&written)
                .ok()
                .and_then(|bytes| serde_json::from_slice::<Spec>(&bytes).ok())
            {
                return spec;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(spec.problems(), Vec::<String>::new());
    let id = lists[GPU].as_ref().unwrap()[0].0.clone();
    let answer = within("an allocation", async {
        loop {
            match kubelet.allocate(GPU, &[&id]).await {
                Ok(answer) => return answer,
                Err(status) => assert!(status.message().contains("has not answered yet"), "{status}"),
            }
        }
    })
    .await;
    let name = answer.cdi_devices[0]
        .name
        .strip_prefix("kai.scheduler/gpu=")
        .unwrap()
        .to_owned();
    assert!(spec.devices.iter().any(|device| device.name == name), "{name}");
    control("gpus: {1: {state: lost}}");
    until("one of two", &mut kubelet.lists, counts(1)).await;
    control("");
    until("both again", &mut kubelet.lists, counts(2)).await;
    within("the last inventory", async {
        while !state.join("inventory.json").exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;

    // The kernel confirms that the process was confined.
    let process = container.process();
    let status = fs::read_to_string(process.join("status")).unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000\n")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");
    let mounts = fs::read_to_string(process.join("mountinfo")).unwrap();
    let of_root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).unwrap();
    let options = of_root.split(' ').nth(5).unwrap();
    assert!(options.split(',').any(|option| option == "ro"), "{of_root}");
}

fn counts(healthy: usize) -> impl Fn(&Lists) -> bool {
    move |lists| {
        let list = lists.get(GPU).and_then(Option::as_ref);
        list.is_some_and(|list| list.len() == 2 && list.iter().filter(|(_, fine)| *fine).count() == healthy)
    }
}

/// An empty image: the C library of this machine is mounted read-only.
fn root_directory(root: &Path) -> std::path::PathBuf {
    for name in [
        "dev", "proc", "sys", "etc", "usr", "lib", "lib64", "host", "plugins", "cdi", "state", "settings",
    ] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::write(root.join("kai"), "").unwrap();
    root.to_owned()
}

struct Container {
    name: String,
    podman: Child,
}

impl Container {
    fn start(root: &Path, program: &Path, place: &Path) -> Self {
        let name = format!("kai-confined-{}", std::process::id());
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/fixtures/no-gpu");
        let mut mounts = vec![
            format!("{}:/kai:ro", program.display()),
            format!("{}:/host:ro", fixture.canonicalize().unwrap().display()),
            format!("{}:/settings:ro", place.join("settings").display()),
        ];
        mounts.extend(["plugins", "cdi", "state"].map(|name| format!("{}:/{name}:rw", place.join(name).display())));
        mounts.extend(
            ["/usr", "/lib", "/lib64"]
                .iter()
                .filter(|path| Path::new(path).exists())
                .map(|path| format!("{path}:{path}:ro")),
        );
        let podman = Command::new("podman")
            .args([
                "--cgroup-manager",
                "cgroupfs",
                "--runtime",
                "runc",
                "run",
                "--rm",
                "--name",
                &name,
            ])
            .args([
                "--network",
                "none",
                "--read-only",
                "--read-only-tmpfs=false",
                "--cap-drop=all",
            ])
            .args([
                "--security-opt",
                "no-new-privileges",
                "--security-opt",
                "seccomp=unconfined",
            ])
            .args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"])
            .args(mounts.iter().flat_map(|mount| ["--volume", mount]))
            .arg("--rootfs")
            .arg(root)
            .args([
                "/kai",
                "node-agent",
                "--no-cluster",
                "--node-name",
                "n1",
                "--host-root",
                "/host",
            ])
            .args([
                "--fake-config",
                "/settings/gpus.yaml",
                "--probe-seconds",
                "1",
                "--good-probes",
                "1",
            ])
            .args(["--plugin-dir", "/plugins", "--cdi-dir", "/cdi", "--state-dir", "/state"])
            .args([
                "--pod-resources-socket",
                "/plugins/pod-resources.sock",
                "--metrics-address",
                "",
            ])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { name, podman }
    }

    /// Its directory in /proc.
    fn process(&self) -> std::path::PathBuf {
        let told = Command::new("podman")
            .args(["inspect", "--format", "{{.State.Pid}}", &self.name])
            .output()
            .unwrap();
        Path::new("/proc").join(String::from_utf8(told.stdout).unwrap().trim())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = Command::new("podman")
            .args(["rm", "--force", "--time", "0", &self.name])
            .output();
        let _ = self.podman.wait();
    }
}
