//! The agent with the ConfigMap of NVIDIA's device plugin, against a kubelet and an API server in the test's process: changes of the
//! ConfigMap and of the node's label take effect without a restart, and mistakes change nothing.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kai_gpu::fake::{FakeDriver, Settings};
use kai_node::agent::Settings as AgentSettings;
use support::api::{Api, World};
use support::kubelet::{Kubelet, Lists};
use support::{Agent, settings, sockets, until, within};

const GPU: &str = "nvidia.com/gpu";
const SHARED: &str = "nvidia.com/gpu.shared";
const LABEL: &str = "nvidia.com/device-plugin.config";

fn fake(text: &str) -> Arc<FakeDriver> {
    Arc::new(FakeDriver::new(&text.parse::<Settings>().unwrap().seeded("n1")).unwrap())
}

/// A ConfigMap as the kubelet mounts it: the files are links into `..data`, which is a link to the directory of the present version.
struct Mount {
    directory: PathBuf,
    version: u32,
}

impl Mount {
    fn new(place: &Path, files: &[(&str, &str)]) -> Self {
        let directory = place.join("config");
        std::fs::create_dir_all(&directory).unwrap();
        let mut mount = Self { directory, version: 0 };
        mount.write(files);
        mount
    }

    /// Replaces all files in one step: writes a new version, renames a link to it over `..data`, and removes the old version.
    fn write(&mut self, files: &[(&str, &str)]) {
        use std::os::unix::fs::symlink;
        let path = |name: &str| self.directory.join(name);
        let old = std::fs::read_link(path("..data")).ok();
        self.version += 1;
        let new = format!("..version_{}", self.version);
        std::fs::create_dir(path(&new)).unwrap();
        for (key, text) in files {
            std::fs::write(path(&new).join(key), text).unwrap();
        }
        symlink(&new, path("..data_tmp")).unwrap();
        std::fs::rename(path("..data_tmp"), path("..data")).unwrap();
        for name in support::names(&self.directory) {
            if !name.starts_with("..") && !files.iter().any(|(key, _)| *key == name) {
                std::fs::remove_file(path(&name)).unwrap();
            }
        }
        for (key, _) in files {
            if std::fs::symlink_metadata(path(key)).is_err() {
                symlink(format!("..data/{key}"), path(key)).unwrap();
            }
        }
        if let Some(old) = old {
            std::fs::remove_dir_all(self.directory.join(old)).unwrap();
        }
    }

    fn settings(&self, place: &Path, words: &[&str]) -> AgentSettings {
        let directory = self.directory.display().to_string();
        let own = ["--config-dir", &directory, "--config-map", "kai-scheduler/gpus"];
        let mut settings = settings(place, &[&own, words].concat());
        // Only a file event or a changed label may lead to a reading.
        settings.pace.refresh = std::time::Duration::from_secs(3600);
        settings
    }
}

/// The resource has `total` healthy devices.
fn offers(resource: &'static str, total: usize) -> impl Fn(&Lists) -> bool {
    move |lists| {
        let list = lists.get(resource).and_then(Option::as_ref);
        list.is_some_and(|list| list.len() == total && list.iter().all(|(_, healthy)| *healthy))
    }
}

fn ids(lists: &Lists, resource: &str) -> Vec<String> {
    let list = lists.get(resource).and_then(Option::as_ref).expect("a list");
    list.iter().map(|(id, _)| id.clone()).collect()
}

fn rejected(words: &'static str) -> impl Fn(&World) -> bool {
    move |world| {
        let message = |condition: &serde_json::Value| condition["message"].as_str().unwrap_or_default().to_owned();
        let condition = world.config_condition.as_ref();
        let is_false =
            condition.is_some_and(|condition| condition["status"] == "False" && message(condition).contains(words));
        let told = |event: &serde_json::Value| event["reason"] == "GPUConfigRejected" && message(event).contains(words);
        is_false && world.events.iter().any(told)
    }
}

fn applied(words: &'static str) -> impl Fn(&World) -> bool {
    move |world| {
        world.config_condition.as_ref().is_some_and(|condition| {
            condition["status"] == "True" && condition["message"].as_str().is_some_and(|text| text.contains(words))
        })
    }
}

fn label<'a>(world: &'a World, key: &str) -> &'a str {
    world.labels.get(key).map_or("", String::as_str)
}

fn shared(replicas: u32) -> String {
    format!(
        "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: {replicas}\n"
    )
}

#[tokio::test]
async fn a_changed_config_map_is_offered_without_a_new_registration() {
    let place = tempfile::tempdir().unwrap();
    let api = Api::start().await;
    let mut mount = Mount::new(place.path(), &[("default", &shared(4))]);
    let settings = mount.settings(place.path(), &["--api-url", &api.url, "--share-devices", "0"]);
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), fake("t4:2"));
    let before = until("eight replicas", &mut kubelet.lists, offers(GPU, 8)).await;
    let mut world = api.world();
    let seen = until("labels", &mut world, |world| {
        label(world, "nvidia.com/gpu.replicas") == "4"
    })
    .await;
    assert_eq!(label(&seen, "nvidia.com/gpu.product"), "Tesla-T4-SHARED");
    assert_eq!(label(&seen, "nvidia.com/gpu.sharing-strategy"), "time-slicing");
    assert_eq!(label(&seen, "nvidia.com/gpu.count"), "2");

    mount.write(&[("default", &shared(6))]);
    let after = until("twelve replicas", &mut kubelet.lists, offers(GPU, 12)).await;
    let kept: Vec<String> = ids(&after, GPU)
        .into_iter()
        .filter(|id| ids(&before, GPU).contains(id))
        .collect();
    assert_eq!(kept.len(), 8, "the kubelet's allocations keep their ids");
    kubelet.allocate(GPU, &[&kept[3]]).await.unwrap();
    assert_eq!(
        kubelet.registrations.borrow().len(),
        1,
        "the device plugin was not restarted"
    );

    // Without sharing: the ids of whole GPUs.
    mount.write(&[("default", "version: v1\n")]);
    let whole = until("two GPUs", &mut kubelet.lists, offers(GPU, 2)).await;
    assert!(ids(&whole, GPU).iter().all(|id| !id.contains("::")));
    let seen = until("labels", &mut world, |world| {
        label(world, "nvidia.com/gpu.replicas") == "1"
    })
    .await;
    assert_eq!(label(&seen, "nvidia.com/gpu.product"), "Tesla-T4");
    assert_eq!(label(&seen, "nvidia.com/gpu.sharing-strategy"), "none");

    // Another name: the old resource is withdrawn, the new one is registered.
    mount.write(&[(
        "default",
        "sharing: {timeSlicing: {replicas: 3, renameByDefault: true}}",
    )]);
    let lists = until("the renamed resource", &mut kubelet.lists, offers(SHARED, 6)).await;
    assert_eq!(lists[GPU], None, "the stream of the old resource has ended");
    assert_eq!(sockets(&settings.plugin_dir).len(), 1);
    let seen = until("labels", &mut world, |world| {
        label(world, "nvidia.com/gpu.replicas") == "3"
    })
    .await;
    assert_eq!(
        label(&seen, "nvidia.com/gpu.product"),
        "Tesla-T4",
        "a name of its own needs no mark"
    );
    until(
        "the condition",
        &mut world,
        applied("nvidia.com/gpu.shared with 3 replicas"),
    )
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn the_label_of_the_node_chooses_the_key() {
    let place = tempfile::tempdir().unwrap();
    let api = Api::start().await;
    let mount = Mount::new(
        place.path(),
        &[("t4", &shared(4)), ("whole", ""), ("other", &shared(7))],
    );
    api.label_node(LABEL, Some("t4"));
    // The API server does not answer at first: the agent must not guess.
    api.change(|world| world.fail = Some(503));
    let settings = mount.settings(
        place.path(),
        &[
            "--api-url",
            &api.url,
            "--share-devices",
            "0",
            "--default-config",
            "other",
        ],
    );
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), fake("t4"));
    api.change(|world| world.fail = None);
    until("four replicas", &mut kubelet.lists, offers(GPU, 4)).await;
    let mut world = api.world();
    until(
        "the condition",
        &mut world,
        applied("ConfigMap kai-scheduler/gpus, key t4: "),
    )
    .await;

    api.label_node(LABEL, Some("whole"));
    until("one GPU", &mut kubelet.lists, offers(GPU, 1)).await;
    api.label_node(LABEL, None);
    until("the default", &mut kubelet.lists, offers(GPU, 7)).await;

    api.label_node(LABEL, Some("t44"));
    let seen = until(
        "the condition and an event",
        &mut world,
        rejected("names the key \"t44\""),
    )
    .await;
    let message = seen.config_condition.unwrap()["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("did you mean t4?") && message.contains("7 replicas"),
        "{message}"
    );
    assert!(
        offers(GPU, 7)(&kubelet.lists.borrow()),
        "the last good configuration stays"
    );
    api.label_node(LABEL, Some("t4"));
    until("four replicas", &mut kubelet.lists, offers(GPU, 4)).await;
    assert_eq!(kubelet.registrations.borrow().len(), 1);
    agent.stop().await;
}

#[tokio::test]
async fn a_bad_file_keeps_the_old_devices_also_over_a_restart() {
    let place = tempfile::tempdir().unwrap();
    let api = Api::start().await;
    let mut mount = Mount::new(place.path(), &[("default", &shared(4))]);
    let words = ["--api-url", &api.url, "--share-devices", "0"];
    let settings = mount.settings(place.path(), &words);
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), fake("t4"));
    let lists = until("four replicas", &mut kubelet.lists, offers(GPU, 4)).await;
    let mut world = api.world();
    until("the condition", &mut world, applied("key default: ")).await;

    for (text, words) in [
        (
            shared(0),
            "key default, field sharing.timeSlicing.resources[0].replicas: 0 is no number",
        ),
        (
            "sharing: {timeSlicing: {replicas: 4}".to_owned(),
            "key default: this is no valid YAML",
        ),
        (
            shared(4).replace("/gpu", "/gpus"),
            "resources[0].name: \"nvidia.com/gpus\" is no resource",
        ),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}".to_owned(),
            "MPS is not supported",
        ),
        (
            "sharing: {timeSlicin: {replicas: 2}}".to_owned(),
            "did you mean timeSlicing?",
        ),
    ] {
        mount.write(&[("default", &text)]);
        until(words, &mut world, rejected(words)).await;
        assert_eq!(*kubelet.lists.borrow(), lists, "{words}");
    }
    mount.write(&[]);
    until("no keys", &mut world, rejected("does not exist or has no keys")).await;
    assert_eq!(*kubelet.lists.borrow(), lists);
    assert_eq!(kubelet.registrations.borrow().len(), 1);
    assert_eq!(label(&world.borrow(), "nvidia.com/gpu.replicas"), "4");
    agent.stop().await;

    // The agent restarts, and neither the file nor the API server is better.
    api.change(|world| world.fail = Some(503));
    let agent = Agent::start(settings.clone(), fake("t4"));
    until("another registration", &mut kubelet.registrations, |all| all.len() == 2).await;
    let again = until("four replicas", &mut kubelet.lists, offers(GPU, 4)).await;
    assert_eq!(again, lists);
    api.change(|world| {
        world.fail = None;
        world.events.clear();
    });
    until("no keys", &mut world, rejected("does not exist or has no keys")).await;
    assert_eq!(*kubelet.lists.borrow(), lists);
    mount.write(&[("default", &shared(5))]);
    until("five replicas", &mut kubelet.lists, offers(GPU, 5)).await;
    until("the condition", &mut world, applied("key default: ")).await;
    agent.stop().await;

    // Without files the flags apply, and the condition goes.
    let agent = Agent::start(support::settings(place.path(), &words), fake("t4"));
    until("one GPU", &mut kubelet.lists, offers(GPU, 1)).await;
    until("no condition", &mut world, |world| world.config_condition.is_none()).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_first_start_with_a_bad_file_offers_what_the_flags_say() {
    let place = tempfile::tempdir().unwrap();
    let api = Api::start().await;
    let mut mount = Mount::new(place.path(), &[("default", &shared(4))]);
    let flags = ["--api-url", &api.url, "--share-devices", "0", "--replicas", "2"];
    let settings = mount.settings(place.path(), &flags);
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), fake("t4"));
    until("two replicas", &mut kubelet.lists, offers(GPU, 2)).await;
    let mut world = api.world();
    let words = "field sharing.timeSlicing: the agent's flag --replicas";
    until("the conflict", &mut world, rejected(words)).await;

    // A file that leaves sharing to the flags, and sets what has no meaning here.
    mount.write(&[("default", "flags: {migStrategy: none, failOnInitError: false}")]);
    until(
        "the warning",
        &mut world,
        applied("flags.failOnInitError has no effect"),
    )
    .await;
    assert!(offers(GPU, 2)(&kubelet.lists.borrow()));
    agent.stop().await;
}

#[tokio::test]
async fn without_a_cluster_the_default_applies() {
    let place = tempfile::tempdir().unwrap();
    let mut mount = Mount::new(place.path(), &[("only", "flags: {migStrategy: single}")]);
    let settings = mount.settings(place.path(), &["--no-cluster"]);
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), fake("a100-40:1/1g.5gb*7"));
    let single = until("seven MIG devices as GPUs", &mut kubelet.lists, offers(GPU, 7)).await;
    assert!(ids(&single, GPU).iter().all(|id| id.starts_with("MIG-")));

    // Under another strategy the same devices have another name, and may be shared.
    let mixed = "flags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.5gb, replicas: 2}]}}";
    mount.write(&[("only", mixed)]);
    until("fourteen", &mut kubelet.lists, offers("nvidia.com/mig-1g.5gb", 14)).await;
    within("the old socket's end", async {
        while sockets(&settings.plugin_dir).len() != 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    agent.stop().await;
}
