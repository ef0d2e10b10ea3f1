//! `kai doctor NODE`: runs the doctor in a Job on a node of the cluster, with the credentials of the user, and returns its report.
//!
//! The pod has no token and no capabilities; it only reads the host's files. The node object is read here, with the user's rights, and
//! passed to the doctor, so that its report is complete.

mod job;
mod progress;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kai_api::{Resource, Scope};
use kai_cluster::{Client, ClientConfig, Deletion, Informer, Selection, Target};
use serde_json::Value;
use tokio::sync::Notify;

use super::facts::{ClusterView, read_cluster};
use crate::agent::HostArgs;
use crate::signals;
use job::{JobSettings, PodSettings};
use progress::{Event, Pod, Progress, Remedy};

const JOBS: Resource = Resource::new("batch", "v1", "Job", "jobs", Scope::Namespaced);
const DAEMON_SETS: Resource = Resource::new("apps", "v1", "DaemonSet", "daemonsets", Scope::Namespaced);
const DEPLOYMENTS: Resource = Resource::new("apps", "v1", "Deployment", "deployments", Scope::Namespaced);

/// The installed objects whose image has the doctor, the best first: the agent's has its settings for this node, too.
const INSTALLED: [(Resource, &str); 3] = [
    (DAEMON_SETS, "kai-node-agent"),
    (DEPLOYMENTS, "kai-scheduler-default"),
    (DEPLOYMENTS, "kai-operator"),
];

/// The longest report that is read from a pod's log. A report has a few kilobytes.
const REPORT_BYTES_MAX: u32 = 1 << 20;

/// Why the doctor did not run on the node.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the API server failed.
    #[error(transparent)]
    Cluster(#[from] kai_cluster::Error),
    /// The cluster has no such node.
    #[error("the cluster has no node {0}; `kubectl get nodes` lists the names")]
    NoSuchNode(String),
    /// No installed object has an image with the doctor.
    #[error(
        "kai is not installed in namespace {0}, so the doctor's image is not known; name it with --job-image, or kai's namespace with \
         --namespace"
    )]
    NoImage(String),
    /// The pod does not start.
    #[error("the doctor does not start on node {node}: {cause}; {remedy}")]
    NotStarted {
        /// The node.
        node: String,
        /// Why, in the words of Kubernetes.
        cause: String,
        /// What to do.
        remedy: String,
    },
    /// The pod did not end in time.
    #[error("the doctor did not report from node {node} within {seconds} s: {waits_for}; {remedy}")]
    Deadline {
        /// The node.
        node: String,
        /// The deadline.
        seconds: u64,
        /// What the pod waits for.
        waits_for: String,
        /// What to do.
        remedy: String,
    },
    /// SIGINT or SIGTERM.
    #[error("interrupted; the Job is removed")]
    Interrupted,
    /// A flag that names a thing of this machine.
    #[error("{flag} names {thing} of this machine, and the doctor runs on the node; leave it out")]
    LocalFlag {
        /// The flag.
        flag: &'static str,
        /// What it names.
        thing: &'static str,
    },
}

/// Flags of the doctor's Job.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "On a node of the cluster")]
pub struct JobArgs {
    /// Namespace of the Job, and of the installation whose image it has.
    #[arg(long, short, default_value = kai_api::keys::SYSTEM_NAMESPACE, requires = "node")]
    pub namespace: String,
    /// Image with kai for the Job. Default: the image of the installed node agent, or of the Deployment.
    #[arg(long, requires = "node", value_name = "IMAGE")]
    pub job_image: Option<String>,
    /// Runtime class of the Job's pod, with which it sees the GPUs. Default: that of the installed node agent.
    #[arg(long, requires = "node", value_name = "NAME")]
    pub runtime_class: Option<String>,
    /// Run the Job's pod privileged, so that it sees discrete GPUs without NVIDIA's runtime. Default: as the installed node agent.
    #[arg(long, requires = "node")]
    pub privileged: bool,
    /// Seconds to wait for the report.
    #[arg(long, default_value_t = 120, requires = "node", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub timeout: u64,
    /// Print the Job instead of running it.
    #[arg(long, requires = "node")]
    pub print_job: bool,
    /// Context of the kubeconfig to use.
    #[arg(long, requires = "node", value_name = "NAME")]
    pub context: Option<String>,
}

/// One run of the doctor on a node.
#[derive(Debug, Clone)]
pub struct NodeDoctor {
    /// The node.
    pub node: String,
    /// The user's flags about the Job.
    pub job: JobArgs,
    /// The doctor's own flags that go to the pod, as `--flag=value`.
    pub flags: Vec<String>,
}

/// The result of a run on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// The report as the doctor printed it.
    pub text: String,
    /// The doctor's exit code.
    pub exit_code: u8,
    /// What the user should know beside the report.
    pub note: Option<String>,
}

/// Where the user's credentials are.
pub fn access(kubeconfig: Option<&PathBuf>, job: &JobArgs) -> ClientConfig {
    ClientConfig::User {
        kubeconfig: kubeconfig.cloned(),
        context: job.context.clone(),
    }
}

/// The doctor's flags for the pod, of those that the user gave. Only flags that differ from their default go to the pod: for the others
/// the installed agent's value counts.
pub fn pod_flags(host: &HostArgs, images: &[String]) -> Result<Vec<String>, Error> {
    let default = HostArgs::default();
    let local = |flag, thing| Err(Error::LocalFlag { flag, thing });
    if host.host_root != default.host_root {
        return local("--host-root", "a directory");
    }
    if host.fake_config.is_some() {
        return local("--fake-config", "a file");
    }
    let mut flags = Vec::new();
    let mut add = |flag: &str, value: Option<String>| flags.extend(value.map(|value| format!("{flag}={value}")));
    let path = |path: &PathBuf| path.display().to_string();
    add(
        "--driver-root",
        (host.driver_root != default.driver_root).then(|| path(&host.driver_root)),
    );
    add("--device-tree", host.device_tree.as_ref().map(path));
    add(
        "--csv-dir",
        (host.csv_dir != default.csv_dir).then(|| host.csv_dir.clone()),
    );
    add("--nvml-library", host.nvml_library.as_ref().map(path));
    add("--driver", (host.driver != default.driver).then(|| host.driver.clone()));
    add("--fake-control", host.fake_control.clone());
    add(
        "--memory-reserve-mib",
        host.memory_reserve_mib.map(|mib| mib.to_string()),
    );
    for directory in &host.library_dirs {
        add("--library-dir", Some(directory.clone()));
    }
    for image in images {
        add("--image", Some(image.clone()));
    }
    Ok(flags)
}

impl NodeDoctor {
    /// The Job, for a user who applies it. Reads the installation, unless the image is given.
    pub async fn manifest(&self, access: &ClientConfig) -> Result<Value, Error> {
        let pod = match &self.job.job_image {
            Some(image) => PodSettings {
                image: image.clone(),
                ..PodSettings::default()
            },
            None => self.installed(&Client::connect(access).await?).await?,
        };
        Ok(self.build(pod, None))
    }

    /// Runs the Job, waits for its end, and removes it.
    pub async fn run(&self, client: &Client) -> Result<NodeReport, Error> {
        let view = match read_cluster(client, &self.node).await {
            ClusterView::NoSuchNode(name) => return Err(Error::NoSuchNode(name)),
            view => view.without_foreign_labels(),
        };
        let view = serde_json::to_string(&view).expect("a view is JSON");
        let mut job = self.build(self.installed(client).await?, Some(view));
        let name = job["metadata"]["name"].take();
        job["metadata"]["generateName"] = format!("{}-", name.as_str().unwrap_or_default()).into();
        job["metadata"].as_object_mut().map(|metadata| metadata.remove("name"));
        let created = client.create(&JOBS, &self.job.namespace, job).await?;
        let text = |pointer: &str| created.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (name, uid) = (text("/metadata/name"), text("/metadata/uid"));
        let reported = tokio::select! {
            reported = self.report_of(client, name) => reported,
            () = signals::terminated() => Err(Error::Interrupted),
        };
        let removed = self.remove(client, name, uid).await;
        let mut report = reported?;
        if let Err(error) = removed {
            report.note = Some(format!("{error}; Kubernetes removes the Job an hour after its end"));
        }
        Ok(report)
    }

    fn build(&self, mut pod: PodSettings, cluster_view: Option<String>) -> Value {
        if let Some(class) = &self.job.runtime_class {
            pod.runtime_class = Some(class.clone()).filter(|class| !class.is_empty());
        }
        pod.privileged |= self.job.privileged;
        let flags = job::merge_flags(&self.flags, &pod.host_flags);
        job::job(&JobSettings {
            namespace: &self.job.namespace,
            node: &self.node,
            pod: &pod,
            flags: &flags,
            cluster_view,
        })
    }

    /// The settings of the installed objects. With `--job-image` the installation is optional, and so is the right to read it.
    async fn installed(&self, client: &Client) -> Result<PodSettings, Error> {
        let given = self.job.job_image.as_ref();
        let namespace = &self.job.namespace;
        for (resource, name) in &INSTALLED {
            let target = Target {
                resource,
                namespace,
                name,
            };
            let found = match client.get_value(target).await {
                Err(_) if given.is_some() => None,
                found => found?,
            };
            if let Some(mut settings) = found.as_ref().and_then(PodSettings::of_workload) {
                settings.image = given.cloned().unwrap_or(settings.image);
                return Ok(settings);
            }
        }
        match given {
            Some(image) => Ok(PodSettings {
                image: image.clone(),
                ..PodSettings::default()
            }),
            None => Err(Error::NoImage(namespace.clone())),
        }
    }

    /// Waits for the end of the Job's pod and reads its log.
    async fn report_of(&self, client: &Client, job: &str) -> Result<NodeReport, Error> {
        let mut waits_for = String::new();
        let deadline = Duration::from_secs(self.job.timeout);
        let ended = tokio::time::timeout(deadline, self.end_of(client, job, &mut waits_for)).await;
        let Ok(ended) = ended else {
            return Err(Error::Deadline {
                node: self.node.clone(),
                seconds: self.job.timeout,
                waits_for,
                remedy: format!(
                    "`kubectl describe node {}` shows its state; --timeout waits longer",
                    self.node
                ),
            });
        };
        let (pod, exit_code, reason) = ended?;
        let text = client.pod_log(&self.job.namespace, &pod, REPORT_BYTES_MAX).await?;
        // The doctor's own codes are 0, 1 and 2.
        let died = !(0..=2).contains(&exit_code);
        Ok(NodeReport {
            text,
            exit_code: u8::try_from(exit_code).unwrap_or(u8::MAX),
            note: died.then(|| format!("the doctor's container died with exit code {exit_code} ({reason})")),
        })
    }

    /// Waits until the pod has ended or can't start: its name, exit code and the runtime's word for the end. `waits_for` always has the
    /// latest state.
    async fn end_of(&self, client: &Client, job: &str, waits_for: &mut String) -> Result<(String, i32, String), Error> {
        let namespace = Some(self.job.namespace.clone());
        let of_job = Selection {
            namespace: namespace.clone(),
            labels: format!("job-name={job}"),
            ..Selection::default()
        };
        let pods = Informer::<Pod>::start(client, &of_job);
        let of_namespace = Selection {
            namespace,
            ..Selection::default()
        };
        // A user who may not read events gets no more than the deadline's message.
        let events = Informer::<Event>::start(client, &of_namespace);
        let wake = Arc::new(Notify::new());
        let (seen_pods, seen_events) = (pods.subscribe(&wake), events.subscribe(&wake));
        loop {
            wake.notified().await;
            seen_pods.take();
            seen_events.take();
            let pods = pods.all();
            let pod = pods.first().map(|pod| &**pod);
            let events = events.all();
            let events: Vec<&Event> = events
                .iter()
                .map(|event| &**event)
                .filter(|event| event.is_about(job))
                .collect();
            match progress::progress(pod, &events) {
                Progress::Waiting(state) => *waits_for = state,
                Progress::Ended { exit_code, reason } => {
                    let name = pod.and_then(|pod| pod.metadata.name.as_deref()).unwrap_or_default();
                    return Ok((name.to_owned(), exit_code, reason));
                }
                Progress::Failed { cause, remedy } => {
                    return Err(Error::NotStarted {
                        node: self.node.clone(),
                        cause,
                        remedy: self.remedy(remedy),
                    });
                }
            }
        }
    }

    fn remedy(&self, remedy: Remedy) -> String {
        let namespace = &self.job.namespace;
        match remedy {
            Remedy::Image => "import the image into the node's containerd (`k3s ctr images import`), or name another one with --job-image".to_owned(),
            Remedy::PodSecurity => format!(
                "the doctor mounts the host's / read-only: allow it with `kubectl label namespace {namespace} \
                 pod-security.kubernetes.io/enforce=privileged --overwrite`, or choose another namespace with --namespace and --job-image"
            ),
            Remedy::Describe => format!("repair it, or print the Job with --print-job and change it; `kubectl -n {namespace} get events` has more"),
        }
    }

    async fn remove(&self, client: &Client, name: &str, uid: &str) -> Result<(), kai_cluster::Error> {
        let target = Target {
            resource: &JOBS,
            namespace: &self.job.namespace,
            name,
        };
        let deletion = Deletion {
            uid: Some(uid.to_owned()),
            ..Deletion::default()
        };
        client.delete(target, &deletion).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flags_that_the_user_changed_go_to_the_pod() {
        let host = HostArgs::default();
        assert_eq!(pod_flags(&host, &[]).unwrap(), Vec::<String>::new());
        let host = HostArgs {
            driver: "tegra".to_owned(),
            library_dirs: vec!["/a".to_owned(), "/b".to_owned()],
            ..HostArgs::default()
        };
        let flags = pod_flags(&host, &["llm:1".to_owned()]).unwrap();
        assert_eq!(
            flags,
            [
                "--driver=tegra",
                "--library-dir=/a",
                "--library-dir=/b",
                "--image=llm:1"
            ]
        );
        let host = HostArgs {
            host_root: "/host".into(),
            ..HostArgs::default()
        };
        let refused = pod_flags(&host, &[]).unwrap_err().to_string();
        assert!(
            refused.starts_with("--host-root names a directory of this machine"),
            "{refused}"
        );
    }
}
