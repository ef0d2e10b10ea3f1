//! `kai manifests`: the objects of an installation, for those without Helm. Talks to no cluster.
//!
//! The chart is the source: `deploy/manifests` has its rendered defaults. The flags change the parsed documents, never their text, and a
//! test compares the result with `helm template`.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use kai_api::GpuSharingMode;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The namespace in the rendered manifests.
const RENDERED_NAMESPACE: &str = "kai-scheduler";
const NODE_AGENT: &str = "kai-node-agent";
const INSTALLATION: &str = "kai-installation";
/// The annotation of the pod template by which a changed installation restarts the pods.
const DIGEST: &str = "/spec/template/metadata/annotations/kai.scheduler~1installation-digest";

/// The flags of `kai manifests`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Whether one process runs all roles, or an operator creates a Deployment for each role.
    #[arg(long, value_enum, default_value_t = Mode::AllInOne)]
    mode: Mode,
    /// Namespace of kai.
    #[arg(long, default_value = RENDERED_NAMESPACE)]
    namespace: String,
    /// Image of all pods, with its tag.
    #[arg(long, default_value = "registry/local/kai-scheduler/kai:0.0.0")]
    image: String,
    /// When the kubelet pulls the image.
    #[arg(long, value_enum, default_value_t = PullPolicy::IfNotPresent)]
    image_pull_policy: PullPolicy,
    /// How pods share GPUs: NonMemoryEnforced, HamiCore, NvFractions, or Disabled.
    #[arg(long, value_name = "MODE", default_value_t)]
    gpu_sharing_mode: GpuSharingMode,
    /// The default; accepted because it once was not.
    #[arg(long = "gpu-sharing", hide = true, conflicts_with = "gpu_sharing_mode")]
    _gpu_sharing: bool,
    /// Leave the node agent out, where another device plugin serves the GPUs.
    #[arg(long)]
    no_node_agent: bool,
    /// How containers get devices and driver files from the node agent.
    #[arg(long, value_enum, default_value_t)]
    node_agent_mode: kai_node::allocator::inject::Mode,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Yaml)]
    output: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// One Deployment runs all roles.
    AllInOne,
    /// The operator creates a Deployment for each role.
    Roles,
}

impl Mode {
    fn rendered(self) -> &'static str {
        match self {
            Mode::AllInOne => include_str!("../../../deploy/manifests/all-in-one.yaml"),
            Mode::Roles => include_str!("../../../deploy/manifests/roles.yaml"),
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum PullPolicy {
    /// At every start of a container.
    Always,
    /// If the node does not have the image.
    IfNotPresent,
    /// Never: the image was imported into the node's containerd.
    Never,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// One document per object.
    Yaml,
    /// One list.
    Json,
}

/// Prints the objects.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let objects = objects(&arguments)?;
    match arguments.output {
        Format::Yaml => crate::print(&yaml(&objects)?)?,
        Format::Json => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
            crate::print(&format!("{}\n", serde_json::to_string_pretty(&list)?))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn objects(arguments: &Arguments) -> anyhow::Result<Vec<Value>> {
    let image = Image::parse(&arguments.image, arguments.image_pull_policy)?;
    let mut objects: Vec<Value> =
        serde_saphyr::from_multiple(arguments.mode.rendered()).context("reading the rendered chart")?;
    if arguments.no_node_agent {
        remove_node_agent(&mut objects);
    }
    let mut digest = String::new();
    for object in &mut objects {
        set_namespace(object, &arguments.namespace);
        set_containers(object, &image, arguments.node_agent_mode);
        if object["kind"] == "ConfigMap" && object["metadata"]["name"] == INSTALLATION {
            set_installation(object, arguments, &image)?;
            digest = digest_of(&object["data"]);
        }
    }
    for object in &mut objects {
        if let Some(annotation) = object.pointer_mut(DIGEST) {
            *annotation = digest.clone().into();
        }
    }
    objects.insert(0, namespace(arguments));
    Ok(objects)
}

/// An image by the parts that the Config has for it.
struct Image {
    repository: String,
    name: String,
    tag: String,
    pull_policy: &'static str,
}

impl Image {
    fn parse(text: &str, policy: PullPolicy) -> anyhow::Result<Image> {
        let parts = text
            .rsplit_once('/')
            .and_then(|(repository, rest)| Some((repository, rest.split_once(':')?)));
        let Some((repository, (name, tag))) = parts.filter(|_| !text.contains('@')) else {
            bail!(
                "--image {text}: write REGISTRY/NAME:TAG; the Config has no field for an image without tag or by digest"
            );
        };
        if repository.is_empty() || name.is_empty() || tag.is_empty() {
            bail!("--image {text}: write REGISTRY/NAME:TAG");
        }
        Ok(Image {
            repository: repository.to_owned(),
            name: name.to_owned(),
            tag: tag.to_owned(),
            pull_policy: match policy {
                PullPolicy::Always => "Always",
                PullPolicy::IfNotPresent => "IfNotPresent",
                PullPolicy::Never => "Never",
            },
        })
    }

    fn full(&self) -> String {
        format!("{}/{}:{}", self.repository, self.name, self.tag)
    }

    /// The form of the Config.
    fn fields(&self) -> Value {
        json!({ "repository": self.repository, "name": self.name, "tag": self.tag, "pullPolicy": self.pull_policy })
    }
}

/// kai's namespace, which `helm --create-namespace` creates. The node agent mounts directories of the host.
fn namespace(arguments: &Arguments) -> Value {
    let mut object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": arguments.namespace } });
    if !arguments.no_node_agent {
        object["metadata"]["labels"] = json!({ "pod-security.kubernetes.io/enforce": "privileged" });
    }
    object
}

fn remove_node_agent(objects: &mut Vec<Value>) {
    objects.retain(|object| object["metadata"]["name"] != NODE_AGENT);
    for object in objects {
        if let Some(subjects) = object.get_mut("subjects").and_then(Value::as_array_mut) {
            subjects.retain(|subject| subject["name"] != NODE_AGENT);
        }
    }
}

/// The entries of a list, if the object has it.
fn entries<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = object.get_mut(field).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

fn set_namespace(object: &mut Value, namespace: &str) {
    let replace = |value: &mut Value| {
        if value == RENDERED_NAMESPACE {
            *value = namespace.into();
        }
    };
    if let Some(value) = object.pointer_mut("/metadata/namespace") {
        replace(value);
    }
    for subject in entries(object, "subjects") {
        replace(&mut subject["namespace"]);
    }
    for rule in entries(object, "rules") {
        let about_namespaces = rule["resources"]
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(|kind| kind == "namespaces"));
        if about_namespaces {
            entries(rule, "resourceNames").for_each(replace);
        }
    }
}

fn set_containers(object: &mut Value, image: &Image, agent_mode: kai_node::allocator::inject::Mode) {
    let containers = object.pointer_mut("/spec/template/spec/containers");
    for container in containers.and_then(Value::as_array_mut).into_iter().flatten() {
        container["image"] = image.full().into();
        container["imagePullPolicy"] = image.pull_policy.into();
        for variable in entries(container, "env") {
            match variable["name"].as_str() {
                Some("MS_REPOSITORY") => variable["value"] = image.repository.clone().into(),
                Some("MS_TAG") => variable["value"] = image.tag.clone().into(),
                _ => {}
            }
        }
        if container["name"] == NODE_AGENT {
            let mode = agent_mode.to_possible_value();
            for flag in entries(container, "args") {
                let is_mode = flag.as_str().is_some_and(|flag| flag.starts_with("--mode="));
                if let Some(mode) = mode.as_ref().filter(|_| is_mode) {
                    *flag = format!("--mode={}", mode.get_name()).into();
                }
            }
        }
    }
}

/// Changes the objects in the files of the installation.
fn set_installation(object: &mut Value, arguments: &Arguments, image: &Image) -> anyhow::Result<()> {
    for (file, text) in object["data"].as_object_mut().into_iter().flatten() {
        let reading = || format!("reading {file} of the rendered chart");
        let mut documents: Vec<Value> =
            serde_saphyr::from_multiple(text.as_str().unwrap_or_default()).with_context(reading)?;
        for document in documents.iter_mut().filter(|document| document["kind"] == "Config") {
            let spec = &mut document["spec"];
            // The Config of mode all-in-one names none.
            if let Some(namespace) = spec.get_mut("namespace") {
                *namespace = arguments.namespace.clone().into();
            }
            spec["global"]["gpuSharingMode"] = arguments.gpu_sharing_mode.name().into();
            set_images(spec, image);
        }
        *text = yaml(&documents)?.into();
    }
    Ok(())
}

/// Replaces each image of a Config.
fn set_images(value: &mut Value, image: &Image) {
    for (key, value) in value.as_object_mut().into_iter().flatten() {
        match key.as_str() {
            "image" => *value = image.fields(),
            _ => set_images(value, image),
        }
    }
}

fn digest_of(data: &Value) -> String {
    let digest = Sha256::digest(data.to_string());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn yaml(objects: &[Value]) -> anyhow::Result<String> {
    let documents: Result<Vec<String>, _> = objects.iter().map(serde_saphyr::to_string).collect();
    Ok(documents.context("writing YAML")?.join("---\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_a_registry_and_a_tag() {
        let image = Image::parse("example.org:5000/team/kai:1.2.3", PullPolicy::Never).unwrap();
        assert_eq!(
            (&*image.repository, &*image.name, &*image.tag),
            ("example.org:5000/team", "kai", "1.2.3")
        );
        for text in [
            "kai:1",
            "example.org/kai",
            "example.org/kai@sha256:00",
            "example.org/:1",
        ] {
            let refused = Image::parse(text, PullPolicy::Never).err().unwrap().to_string();
            assert!(
                refused.starts_with(&format!("--image {text}: write REGISTRY/NAME:TAG")),
                "{refused}"
            );
        }
    }

    #[test]
    fn written_yaml_has_the_same_objects() {
        for mode in [Mode::AllInOne, Mode::Roles] {
            let objects: Vec<Value> = serde_saphyr::from_multiple(mode.rendered()).unwrap();
            let again: Vec<Value> = serde_saphyr::from_multiple(&yaml(&objects).unwrap()).unwrap();
            assert_eq!(objects, again);
        }
    }

    /// Pod specs of the rendered objects.
    fn pods(objects: &[Value]) -> impl Iterator<Item = &Value> {
        objects
            .iter()
            .filter_map(|object| object.pointer("/spec/template/spec"))
    }

    fn accounts_exist(mode: Mode) {
        let objects: Vec<Value> = serde_saphyr::from_multiple(mode.rendered()).unwrap();
        for pod in pods(&objects) {
            let account = &pod["serviceAccountName"];
            let exists = |object: &Value| object["kind"] == "ServiceAccount" && &object["metadata"]["name"] == account;
            assert!(objects.iter().any(exists), "{account}");
        }
    }

    #[test]
    fn the_accounts_of_pods_exist() {
        accounts_exist(Mode::AllInOne);
    }

    #[test]
    fn the_accounts_of_pods_exist_with_an_operator() {
        accounts_exist(Mode::Roles);
    }

    #[test]
    fn the_program_takes_the_flags_of_the_chart() {
        for mode in [Mode::AllInOne, Mode::Roles] {
            let objects: Vec<Value> = serde_saphyr::from_multiple(mode.rendered()).unwrap();
            for pod in pods(&objects) {
                let flags = pod["containers"][0]["args"].as_array().unwrap();
                let line = std::iter::once("kai").chain(flags.iter().map(|flag| flag.as_str().unwrap()));
                let taken = <crate::Arguments as clap::Parser>::try_parse_from(line);
                assert!(taken.is_ok(), "{flags:?}: {:?}", taken.err());
            }
        }
    }
}
