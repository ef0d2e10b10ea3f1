//! Pods that share GPUs: which container gets the GPU share, and the names of the pod's ConfigMaps. The binder uses the same names.

use kai_api::{ContainerRef, Enforcement, TextMap, keys, share_container};
use serde_json::Value;

use super::args::Feature;
use super::review::FieldError;
use super::unstructured::{self, CONTAINER_LISTS, MetadataMap};

/// Kubernetes' limit for the name of a volume, which is derived from the name of a ConfigMap.
const VOLUME_NAME_MAX: usize = 63;
const VOLUME_SUFFIX: &str = "-vol";
/// Characters beside the base of a name: the token, two hyphens and the volume's suffix.
const EXTRA_CHARS: usize = TOKEN_CHARS + 6;
/// Length of the random part of names.
pub(crate) const TOKEN_CHARS: usize = 7;
/// The characters of tokens. No vowels and no digits that look like vowels, so that tokens form no words.
const TOKEN_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Whether the pod requests a part of a GPU. The annotation's key decides: an invalid value is denied, not ignored.
pub(crate) fn is_fractional(pod: &Value) -> bool {
    unstructured::entries(pod, MetadataMap::Annotations).any(|(key, _)| keys::GPU_SHARE_ANNOTATIONS.contains(key))
}

/// The annotations of the pod's GPU request. A value that is no string is its JSON, so that the parser denies it.
pub(crate) fn request_annotations(pod: &Value) -> TextMap {
    let entries = unstructured::entries(pod, MetadataMap::Annotations);
    let requested = entries.filter(|(key, _)| keys::GPU_REQUEST_ANNOTATIONS.contains(key));
    requested.map(|(key, value)| (key.into(), (&*value).into())).collect()
}

/// The container that gets the GPU share; `None` if the pod has no container.
pub(crate) fn container(pod: &Value) -> Result<Option<ContainerRef>, FieldError> {
    share_container(pod).map_err(|error| {
        let field = format!("metadata.annotations.{}", error.key());
        FieldError::invalid(field, error.to_string())
    })
}

/// Share devices that the container with the GPU share requests.
pub(crate) const SHARE_DEVICES_PER_CONTAINER: &str = "1";

/// Whether the container can get its GPU through a share device. The kubelet does not report the devices of init containers that end,
/// so only sidecars among them can.
pub(crate) fn may_request_share_device(at: ContainerRef, container: &Value) -> bool {
    at.list != "initContainers" || unstructured::text(container, "/restartPolicy") == Some("Always")
}

/// The error if the pod requires a limit of its GPU memory and its container gets no share device: the node agent holds containers by that
/// device alone. `container` is the one that gets the GPU share.
pub(crate) fn validate_enforcement(pod: &Value, at: ContainerRef, share_devices: Feature) -> Option<FieldError> {
    let enforcement = unstructured::entry(pod, MetadataMap::Annotations, keys::GPU_ENFORCEMENT)?;
    match Enforcement::from_name(&enforcement)? {
        Enforcement::Preferred => return None,
        Enforcement::Required => {}
    }
    let container = pod.pointer(&at.pointer()).unwrap_or(&Value::Null);
    let problem = match share_devices {
        Feature::Off => "the GPU memory of no container is limited in this cluster, because share devices are turned off; write preferred, \
                         or ask an administrator to turn them on (--gpu-share-devices)"
            .to_owned(),
        Feature::On if may_request_share_device(at, container) => return None,
        Feature::On => {
            let name = unstructured::text(container, "/name").unwrap_or_default();
            format!("spec.{}[{}] ({name}): {ENDING_CONTAINER_NOT_LIMITED}", at.list, at.index)
        }
    };
    let field = format!("metadata.annotations.{}", keys::GPU_ENFORCEMENT);
    Some(FieldError::invalid(field, problem))
}

/// Denial of a required limit for an init container without a share device.
pub(crate) const ENDING_CONTAINER_NOT_LIMITED: &str = "the GPU memory of an init container that ends can't be limited; name another container \
                                                       for the GPU share (gpu-fraction-container-name), make it a sidecar \
                                                       (restartPolicy: Always), or write preferred";

/// The resources that the pod's containers request: container, `requests` or `limits`, name, amount.
pub(crate) fn resource_requests(pod: &Value) -> impl Iterator<Item = (ContainerRef, &'static str, &str, &Value)> {
    let containers = CONTAINER_LISTS.into_iter().flat_map(|list| {
        let containers = unstructured::list(pod, &format!("/spec/{list}")).iter().enumerate();
        containers.map(move |(index, container)| (ContainerRef { list, index }, container))
    });
    containers.flat_map(|(at, container)| {
        ["requests", "limits"].into_iter().flat_map(move |kind| {
            let map = container
                .get("resources")
                .and_then(|resources| resources.get(kind)?.as_object());
            let entries = map.into_iter().flatten();
            entries.map(move |(name, amount)| (at, kind, name.as_str(), amount))
        })
    })
}

/// The error if the pod requests share devices by hand. `container` is the one that gets the GPU share.
pub(crate) fn validate_share_devices(pod: &Value, container: Option<ContainerRef>) -> Option<FieldError> {
    let mut requests = resource_requests(pod).filter(|(_, _, name, _)| *name == keys::RESOURCE_GPU_SHARE);
    let fits = |at: ContainerRef, amount: &Value| {
        Some(at) == container && (amount == SHARE_DEVICES_PER_CONTAINER || amount.as_i64() == Some(1))
    };
    let (at, kind, name, _) = requests.find(|(at, _, _, amount)| !fits(*at, amount))?;
    Some(FieldError::invalid(
        format!("spec.{}[{}].resources.{kind}.{name}", at.list, at.index),
        SHARE_DEVICE_BY_HAND,
    ))
}

/// Denial of a share device that the user wrote.
pub(crate) const SHARE_DEVICE_BY_HAND: &str = "the scheduler adds it to the container that gets a part of a GPU; remove it, and ask by \
                                       the annotation gpu-fraction or gpu-memory";

/// The names of the objects that a pod with a GPU share refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedGpuNames {
    /// The value of the pod's annotation, from which the other names are derived.
    pub(crate) prefix: String,
    /// The ConfigMap with the devices and the fraction.
    pub(crate) capabilities: String,
    /// The ConfigMap whose keys all become environment variables.
    pub(crate) environment: String,
    /// The volume of the first ConfigMap.
    pub(crate) volume: String,
}

/// The names for a pod: from its annotation, or new ones with this token.
pub(crate) fn names(pod: &Value, container: ContainerRef, token: &str) -> Result<SharedGpuNames, FieldError> {
    let prefix = match unstructured::entry(pod, MetadataMap::Annotations, keys::SHARED_GPU_CONFIG_MAP) {
        Some(given) => given.into_owned(),
        None => new_prefix(pod, container, token),
    };
    let capabilities = format!("{prefix}-{}", container.config_map_index());
    let volume = volume_name(&capabilities);
    let character = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let valid = prefix.chars().all(character) && edge(prefix.chars().next()) && edge(prefix.chars().last());
    if !valid || volume.len() > VOLUME_NAME_MAX {
        return Err(FieldError::invalid(
            format!("metadata.annotations.{}", keys::SHARED_GPU_CONFIG_MAP),
            "it is no beginning for names of ConfigMaps and volumes; remove it, and the scheduler chooses one",
        ));
    }
    Ok(SharedGpuNames {
        environment: format!("{capabilities}{}", keys::ENV_CONFIG_MAP_SUFFIX),
        volume,
        capabilities,
        prefix,
    })
}

/// The random part of names, derived from a seed that differs from pod to pod.
pub(crate) fn token(seed: &str) -> String {
    // FNV-1a: the token is no secret; it only keeps names of different pods apart.
    let mut hash = seed.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut token = String::with_capacity(TOKEN_CHARS);
    for _ in 0..TOKEN_CHARS {
        let letters = TOKEN_ALPHABET.len() as u64;
        token.push(char::from(TOKEN_ALPHABET[(hash % letters) as usize]));
        hash /= letters;
    }
    token
}

fn new_prefix(pod: &Value, container: ContainerRef, token: &str) -> String {
    // A pod whose name the API server generates has no name yet.
    let base = unstructured::text(pod, "/metadata/ownerReferences/0/name")
        .or_else(|| unstructured::text(pod, "/metadata/name"))
        .or_else(|| unstructured::text(pod, "/metadata/generateName"))
        .unwrap_or("pod");
    let index_chars = container.index.to_string().len() + 1;
    let suffix_chars = keys::SHARED_GPU_SUFFIX.len() - 1;
    let base_max =
        VOLUME_NAME_MAX.saturating_sub(EXTRA_CHARS + suffix_chars + index_chars + keys::ENV_CONFIG_MAP_SUFFIX.len());
    let base: String = base.chars().take(base_max).collect();
    let base = match base.trim_end_matches(['.', '-']) {
        "" => "pod",
        base => base,
    };
    format!("{base}-{token}{}", keys::SHARED_GPU_SUFFIX)
}

/// Names of volumes are DNS labels, without the dots that names of ConfigMaps may have.
fn volume_name(config_map: &str) -> String {
    let mut name = String::with_capacity(config_map.len() + VOLUME_SUFFIX.len());
    for c in config_map.chars().chain(VOLUME_SUFFIX.chars()) {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' {
            name.push(c);
        } else if !name.ends_with('\u{0}') {
            // A hyphen for each run of characters that a DNS label can't have.
            name.push('\u{0}');
        }
    }
    let name = name.replace('\u{0}', "-");
    name.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FIRST: ContainerRef = ContainerRef {
        list: "containers",
        index: 0,
    };

    fn check_prefix(pod: Value, expect: &str) {
        let names = names(&pod, FIRST, "bcdfghj").unwrap();
        assert_eq!(names.prefix, expect);
        assert!(names.volume.len() <= VOLUME_NAME_MAX);
    }

    #[test]
    fn names_come_from_the_owner_or_the_pod() {
        check_prefix(json!({"metadata": {"name": "train"}}), "train-bcdfghj-shared-gpu");
        check_prefix(
            json!({"metadata": {"name": "x", "ownerReferences": [{"name": "rs.1"}, {"name": "b"}]}}),
            "rs.1-bcdfghj-shared-gpu",
        );
        check_prefix(
            json!({"metadata": {"generateName": "train-"}}),
            "train-bcdfghj-shared-gpu",
        );
        check_prefix(json!({}), "pod-bcdfghj-shared-gpu");
        let long = "a".repeat(32) + ".-" + &"b".repeat(200);
        check_prefix(
            json!({"metadata": {"name": long}}),
            &format!("{}-bcdfghj-shared-gpu", "a".repeat(32)),
        );
    }

    #[test]
    fn a_volume_is_called_after_its_config_map() {
        let pod = json!({"metadata": {"annotations": {"runai/shared-gpu-configmap": "a.b"}}});
        let names = names(
            &pod,
            ContainerRef {
                list: "initContainers",
                index: 2,
            },
            "",
        )
        .unwrap();
        assert_eq!(names.capabilities, "a.b-i2");
        assert_eq!(names.environment, "a.b-i2-evar");
        assert_eq!(names.volume, "a-b-i2-vol");
    }

    #[test]
    fn a_given_prefix_must_be_one() {
        for prefix in ["", "-a", "a-", "A", "a b", "ä", "../x", &"a".repeat(58)] {
            let pod = json!({"metadata": {"annotations": {"runai/shared-gpu-configmap": prefix}}});
            assert!(names(&pod, FIRST, "").is_err(), "{prefix}");
        }
    }

    #[test]
    fn tokens_differ_and_repeat() {
        assert_eq!(token("a"), token("a"));
        assert_ne!(token("a"), token("b"));
        assert_eq!(token("").len(), TOKEN_CHARS);
    }
}
