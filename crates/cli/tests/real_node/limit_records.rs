//! What the fake driver recorded, where containers run, and what the agent reports: the facts that scenes about limits compare.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use kai_api::{Object, Pod, keys};
use kai_cluster::{Part, Patch, Target};
use kai_node::podresources;
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::pods::POD_RESOURCES;

/// Where the runtime makes the cgroups of containers.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Where the hook leaves its receipts.
const RECEIPTS: &str = "/var/lib/kai/limits";

/// A limit that the fake driver keeps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Limit {
    /// UUID of the GPU.
    pub(crate) gpu: String,
    /// The cgroup's directory.
    pub(crate) cgroup: PathBuf,
    /// The most that processes in it may allocate; `None` for no limit.
    pub(crate) hard_mib: Option<u64>,
}

impl Machine {
    /// The directory in which all copies of the fake driver keep limits.
    pub(crate) fn records(&self) -> PathBuf {
        self.directory.join("records")
    }

    /// The limits of cgroups that exist. The driver finds them by the inode of the directory.
    pub(crate) fn limits(&self) -> BTreeSet<Limit> {
        let recorded = fs::read_dir(self.records()).unwrap().flatten();
        recorded.filter_map(|entry| read_limit(&entry.path())).collect()
    }

    /// When the limit of a cgroup was set.
    pub(crate) fn limited_at(&self, cgroup: &Path) -> SystemTime {
        let inode = fs::metadata(cgroup).unwrap().ino().to_string();
        let recorded = fs::read_dir(self.records()).unwrap().flatten();
        let mut found = recorded.filter(|entry| entry.path().extension().is_some_and(|last| *last == *inode));
        found.next().unwrap().metadata().unwrap().modified().unwrap()
    }

    /// The runtime's id of a running pod's only container.
    async fn container(&self, name: &str) -> String {
        self.until(&format!("{name} has a container"), async || {
            let pod = self.pod("default", name).await?;
            let status = &pod["status"]["containerStatuses"][0];
            let running = status["state"]["running"].is_object();
            let (_, id) = status["containerID"].as_str()?.split_once("://")?;
            running.then(|| id.to_owned())
        })
        .await
    }

    /// What NVML shows to a program that is executed in a running pod's only container, as `kubectl exec` does.
    pub(crate) async fn executed(&self, name: &str) -> String {
        let id = self.container(name).await;
        // ctr may end before it has copied the output of a program that ends at once.
        for attempt in 0..20 {
            let look = format!(
                "ctr -n k8s.io tasks exec --exec-id look-{attempt} {id} kai node-agent --dry-run --node-name inside"
            );
            let done = self.shell(&look).output().unwrap();
            let [stdout, stderr] = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            assert!(done.status.success(), "{look}: {stdout}{stderr}");
            if !stdout.is_empty() {
                return stdout;
            }
        }
        panic!("a program that is executed in {name} has no output");
    }

    /// The cgroup of a running pod's only container.
    pub(crate) async fn leaf(&self, name: &str) -> PathBuf {
        let id = self.container(name).await;
        let found = directories(Path::new(CGROUPS))
            .into_iter()
            .find(|path| path.ends_with(&id));
        found.unwrap_or_else(|| panic!("container {id} of {name} has no cgroup"))
    }

    /// The CDI spec of a running pod's share device. It is written at the end of PreStartContainer.
    pub(crate) async fn share_spec(&self, name: &str) -> PathBuf {
        let held = podresources::list(Path::new(POD_RESOURCES)).await.unwrap();
        let mut share = held
            .into_iter()
            .filter(|held| held.pod == name && held.resource == keys::RESOURCE_GPU_SHARE);
        format!(
            "/var/run/cdi/kai.scheduler-{}.json",
            share.next().unwrap().device_ids[0]
        )
        .into()
    }

    /// Waits for a receipt of the hook about a pod that is none of those already known.
    pub(crate) async fn receipt(&self, pod: &str, known: &[&Value]) -> Value {
        self.until(&format!("there is a receipt for {pod}"), async || {
            let files = fs::read_dir(RECEIPTS).ok()?.flatten();
            let mut receipts =
                files.filter_map(|file| serde_json::from_str::<Value>(&fs::read_to_string(file.path()).ok()?).ok());
            receipts.find(|receipt| {
                let is_known = known.iter().any(|known| known["containerId"] == receipt["containerId"]);
                receipt["container"]["pod"] == pod && !is_known
            })
        })
        .await
    }

    /// Creates a pod that the API server refuses, and returns why.
    pub(crate) async fn refused(&self, pod: &Value) -> String {
        match self.client.create(&Pod::RESOURCE, "default", pod.clone()).await {
            Ok(created) => panic!("accepted: {created:#?}"),
            Err(error) => error.to_string(),
        }
    }

    /// Changes an annotation of a pod, which the API server refuses, and returns why. `null` removes the annotation.
    pub(crate) async fn refused_annotation(&self, pod: &str, key: &str, value: Value) -> String {
        let change = Patch::Merge(json!({ "metadata": { "annotations": { key: value } } }));
        let target = Target::of::<Pod>("default", pod);
        match self.client.patch(target, Part::Object, change).await {
            Ok(changed) => panic!("accepted: {changed:#?}"),
            Err(error) => error.to_string(),
        }
    }

    /// Waits for an event about the present pod of this name whose message contains all of the words, and returns the message.
    pub(crate) async fn event(&self, pod: &str, reason: &str, words: &[&str]) -> String {
        self.until(&format!("{pod} has an event {reason} with {words:?}"), async || {
            let object = self.pod("default", pod).await?;
            // Events of earlier pods of that name stay.
            let uid = object["metadata"]["uid"].as_str()?;
            let about = format!("involvedObject.uid={uid},reason={reason}");
            let listed = self.kubectl(&[
                "get",
                "events",
                "-n",
                "default",
                "--field-selector",
                &about,
                "-o",
                "json",
            ]);
            let events: Value = serde_json::from_str(&listed).unwrap();
            let messages = events["items"]
                .as_array()?
                .iter()
                .filter_map(|event| event["message"].as_str());
            let mut found = messages.filter(|message| words.iter().all(|word| message.contains(word)));
            found.next().map(str::to_owned)
        })
        .await
    }

    /// Waits until the node has this tier, and returns what the condition says about it.
    pub(crate) async fn until_enforces(&self, tier: &str) -> String {
        self.until(&format!("the node enforces limits by {tier}"), async || {
            let node = self.node().await?;
            let conditions = node["status"]["conditions"].as_array()?;
            let condition = conditions
                .iter()
                .find(|condition| condition["type"] == keys::NODE_GPU_LIMITS)?;
            let words = condition["message"].as_str()?;
            let labelled = node["metadata"]["labels"][keys::GPU_ENFORCEMENT] == tier;
            (labelled && words.contains(&format!("tier {tier}"))).then(|| words.to_owned())
        })
        .await
    }

    /// The agent's metrics.
    pub(crate) fn metrics(&self) -> String {
        let mut connection = TcpStream::connect(&self.metrics_address).unwrap();
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Waits until a metric with these labels has such a value.
    pub(crate) async fn until_metric(&self, name: &str, labels: &[&str], is_right: impl Fn(f64) -> bool) {
        self.until(&format!("{name} of {labels:?} is right"), async || {
            let all = self.metrics();
            let of_name = all.lines().filter(|line| line.starts_with(&format!("{name}{{")));
            let mut found = of_name.filter(|line| labels.iter().all(|label| line.contains(label)));
            let value = found.next()?.rsplit_once(' ')?.1.parse().ok()?;
            is_right(value).then_some(())
        })
        .await;
    }
}

/// How long the hook of a spec takes for a running container, from its start to its end, sorted.
pub(crate) fn hook_times(spec: &Path, leaf: &Path) -> Vec<Duration> {
    const RUNS: usize = 20;
    let spec: Value = serde_json::from_str(&fs::read_to_string(spec).unwrap()).unwrap();
    let hook = &spec["devices"][0]["containerEdits"]["hooks"][0];
    let words = |key: &str| -> Vec<String> { serde_json::from_value(hook[key].clone()).unwrap() };
    let (arguments, environment) = (words("args"), words("env"));
    let pid = fs::read_to_string(leaf.join("cgroup.procs")).unwrap();
    let state = json!({
        "ociVersion": "1.0.2", "id": leaf.file_name().unwrap().to_str(), "status": "creating",
        "pid": pid.lines().next().unwrap().parse::<u32>().unwrap(), "bundle": "/",
    });
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let mut command = Command::new(hook["path"].as_str().unwrap());
            command
                .args(&arguments[1..])
                .env_clear()
                .current_dir("/")
                .stdin(Stdio::piped());
            command.envs(environment.iter().filter_map(|variable| variable.split_once('=')));
            let begun = Instant::now();
            let mut child = command.spawn().unwrap();
            child
                .stdin
                .take()
                .unwrap()
                .write_all(state.to_string().as_bytes())
                .unwrap();
            assert!(child.wait().unwrap().success());
            begun.elapsed()
        })
        .collect();
    times.sort();
    times
}

fn read_limit(path: &Path) -> Option<Limit> {
    let (gpu, inode) = path.file_name()?.to_str()?.split_once(".limit.")?;
    let record: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
    let cgroup = PathBuf::from(record["cgroup"].as_str()?);
    let lives = fs::metadata(&cgroup).is_ok_and(|facts| facts.ino().to_string() == inode);
    lives.then(|| Limit {
        gpu: gpu.to_owned(),
        cgroup,
        hard_mib: record["hardBytes"].as_u64().map(|bytes| bytes >> 20),
    })
}

/// All directories below this one.
fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    below
        .flat_map(|entry| {
            let path = entry.path();
            let mut all = directories(&path);
            all.push(path);
            all
        })
        .collect()
}
