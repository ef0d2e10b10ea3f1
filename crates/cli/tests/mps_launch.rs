//! `kai mps-launch` as the node agent runs it: in a mount namespace that does not have the host's program. The "host" is a namespace of this
//! test, whose init is a shell; the program is the fake of the agent's own tests.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kai_gpu::Driver;
use kai_gpu::fake::{FakeDriver, Settings};
use kai_node::enforcement::mps::plan::namespace_name;
use kai_node::enforcement::mps::run::MpsConfig;
use kai_node::enforcement::mps::{MpsHandle, MpsPlan, MpsStatus, Namespace, start};

const KAI: &str = env!("CARGO_BIN_EXE_kai");
const PROGRAM: &str = "nvidia-cuda-mps-control";

/// A host with pids and mounts of its own. Files below `host/` are not visible in the agent's mount namespace.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    /// `None` where this machine gives its users no namespaces.
    fn new() -> Option<Host> {
        if !namespaces().arg("true").status().is_ok_and(|status| status.success()) {
            eprintln!("skipped: this machine allows no user namespaces");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        for made in ["host", "pipe"] {
            std::fs::create_dir(dir.path().join(made)).unwrap();
        }
        let host = Host { dir };
        let fake = include_str!("../../node/src/enforcement/mps/fake-control.sh");
        write_program(&host.program(), fake);
        // What the agent's container sees: an empty directory instead of the host's files.
        let hidden = format!(
            "mount -t tmpfs none '{}/host' && exec '{KAI}' \"$@\"",
            host.dir.path().display()
        );
        write_program(
            &host.agent(),
            &format!("#!/bin/sh\nexec unshare --mount sh -c \"$(cat <<'END'\n{hidden}\nEND\n)\" kai \"$@\"\n"),
        );
        Some(host)
    }

    fn program(&self) -> PathBuf {
        self.dir.path().join("host").join(PROGRAM)
    }

    /// `kai` as a process of the agent's container.
    fn agent(&self) -> PathBuf {
        self.dir.path().join("agent")
    }

    /// Runs a shell as the host's init. `$agent` and `$program` are paths.
    fn run(&self, script: &str) -> Output {
        let mut init = namespaces();
        init.args(["sh", "-c", script])
            .env("agent", self.agent())
            .env("program", self.program())
            .env("CUDA_MPS_PIPE_DIRECTORY", self.dir.path().join("pipe"));
        init.output().unwrap()
    }
}

fn namespaces() -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount",
        "--mount-proc",
    ]);
    command
}

fn write_program(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).unwrap()
}

#[test]
fn it_becomes_the_hosts_program_and_ends_with_sigterm() {
    let Some(host) = Host::new() else { return };
    let done = host.run(
        r#"
        unshare --mount sh -c 'mount -t tmpfs none "$(dirname "$program")" && test ! -e "$program"' || exit 9
        printf 'schema_version = "1.0"\n[servers.kai]\n[features.memacct]\n' > "$CUDA_MPS_PIPE_DIRECTORY/mps.toml"
        "$agent" mps-launch -- "$program" -p 3 -m -f -a "$CUDA_MPS_PIPE_DIRECTORY/mps.toml" < /dev/null &
        launched=$!
        while [ ! -s "$CUDA_MPS_PIPE_DIRECTORY/pid" ]; do kill -0 $launched || exit 8; done
        echo "same process: $(( $(cat "$CUDA_MPS_PIPE_DIRECTORY/pid") == launched ))"
        "$agent" mps-launch -- "$program" -p 3 server list kai < /dev/null
        kill -TERM $launched
        wait $launched
        echo "ended: $?"
        "$agent" mps-launch -- "$program" -p 3 server list kai < /dev/null
        echo "answered: $?"
        "#,
    );
    let said = text(&done);
    assert!(said.contains("same process: 1\nkai,0,"), "{said}");
    assert!(said.contains("ended: 0\n"), "{said}");
    assert!(
        said.contains("Cannot find MPS control daemon process\nanswered: 1"),
        "the program's own exit code: {said}"
    );
    let calls = std::fs::read_to_string(host.dir.path().join("host/calls")).unwrap();
    assert!(calls.starts_with("-p 3 -m -f -a "), "{calls}");
}

#[test]
fn what_is_missing_is_named_with_its_remedy() {
    let Some(host) = Host::new() else { return };
    let said = text(&host.run(r#""$agent" mps-launch -- /usr/bin/no-such-control -f; echo "code $?""#));
    assert!(
        said.contains("running /usr/bin/no-such-control on the host: No such file or directory")
            && said.contains("install the driver's compute utilities")
            && said.contains("code 2"),
        "{said}"
    );
    // Without the host's init in sight: this process may not enter the namespace of another user's init.
    let mut unprivileged = Command::new("unshare");
    let done = unprivileged
        .args(["--user", KAI, "mps-launch", "--", "/bin/true"])
        .output()
        .unwrap();
    let said = text(&done);
    assert!(
        said.contains("entering the mount namespace of the host") && said.contains("nodeAgent.hostPID"),
        "{said}"
    );
    assert_eq!(done.status.code(), Some(2));
}

/// The host's init, which waits.
struct Init(Child);

impl Drop for Init {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Init {
    fn start() -> Init {
        let mut init = namespaces();
        init.args(["sh", "-c", "echo ready; exec sleep 600"])
            .stdout(Stdio::piped());
        let mut init = Init(init.spawn().unwrap());
        let mut ready = [0; 6];
        std::io::Read::read_exact(&mut init.0.stdout.take().unwrap(), &mut ready).unwrap();
        init
    }

    /// Pid of the init in this process's namespace: the only child of `unshare`.
    fn pid(&self) -> String {
        let children = format!("/proc/{0}/task/{0}/children", self.0.id());
        std::fs::read_to_string(children).unwrap().trim().to_owned()
    }
}

async fn until(handle: &MpsHandle, is_it: impl Fn(&MpsStatus) -> bool) -> MpsStatus {
    let mut status = handle.status();
    let found = tokio::time::timeout(Duration::from_secs(60), status.wait_for(|status| is_it(status))).await;
    found.expect("the status changes within a minute").unwrap().clone()
}

/// The agent's supervisor, with every call through `kai mps-launch`.
#[tokio::test]
async fn the_agent_runs_the_hosts_daemon_by_it() {
    let Some(host) = Host::new() else { return };
    let init = Init::start();
    // A process of the agent's container: in the namespaces of the host's init, except for its mounts.
    let own_program = host.dir.path().join("own-program");
    write_program(
        &own_program,
        &format!(
            "#!/bin/sh\nexec nsenter --target {} --user --preserve-credentials --mount --pid -- '{}' \"$@\"\n",
            init.pid(),
            host.agent().display()
        ),
    );
    let driver = Arc::new(FakeDriver::new(&Settings::of("h100", 1)).unwrap());
    let gpus = driver
        .devices()
        .unwrap()
        .devices
        .into_iter()
        .map(|gpu| gpu.uuid)
        .collect();
    let config = MpsConfig {
        plan: MpsPlan {
            program: host.program().display().to_string(),
            gpus,
        },
        host_root: "/host".into(),
        own_program,
        state_dir: host.dir.path().join("state"),
        pace: Duration::from_millis(20),
    };
    let handle = start(config, driver);
    until(&handle, |status| *status == MpsStatus::Serves).await;
    let namespace = Namespace {
        name: namespace_name("share-3"),
        percent: 25,
        memory_mib: 2048,
    };
    handle.open(namespace).await.unwrap();
    let pipe = host.dir.path().join("state/mps/pipe");
    assert!(pipe.join("kai/p_share_3").is_dir());

    let kill = "kill -9 $(cat \"$0/pid\")";
    let pipes = pipe.display().to_string();
    let target = init.pid();
    let inside = [
        "--target",
        &target,
        "--user",
        "--preserve-credentials",
        "--mount",
        "--pid",
        "--",
        "sh",
        "-c",
        kill,
        &pipes,
    ];
    assert!(Command::new("nsenter").args(inside).status().unwrap().success());
    let reason = until(&handle, |status| matches!(status, MpsStatus::Fails(_))).await;
    let reason = reason.ability().unwrap_err();
    assert!(reason.contains("it ended"), "{reason}");
    until(&handle, |status| *status == MpsStatus::Serves).await;

    handle.stop().await;
    assert!(!pipe.join("pid").exists(), "the daemon has ended");
    drop(init);
}
