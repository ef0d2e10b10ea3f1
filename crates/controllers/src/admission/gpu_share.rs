//! Pods that share GPUs: whether a pod is one, which of its containers gets the share, and how its ConfigMaps are called. The binder
//! goes by the same names.

use kai_api::keys;
use serde_json::Value;

use super::review::FieldError;
use super::unstructured::{self, CONTAINER_LISTS, MetadataMap};

/// Kubernetes' limit for names of volumes, which are made from names of ConfigMaps.
const VOLUME_NAME_MAX: usize = 63;
const VOLUME_SUFFIX: &str = "-vol";
/// What the base of a name leaves room for: the token with its two hyphens and the volume's suffix.
const EXTRA_CHARS: usize = TOKEN_CHARS + 6;
/// Length of the random part of names.
pub(crate) const TOKEN_CHARS: usize = 7;
/// The characters of random parts. No vowels and nothing that looks like one, so that no words come out.
const TOKEN_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Whether the pod asks for a part of a GPU. The key alone counts: a wrong value is refused, not ignored.
pub(crate) fn is_fractional(pod: &Value) -> bool {
    let has = |key| unstructured::entry(pod, MetadataMap::Annotations, key).is_some();
    has(keys::GPU_FRACTION) || has(keys::GPU_MEMORY)
}

/// A container, by its list and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContainerRef {
    pub(crate) list: &'static str,
    pub(crate) index: usize,
}

impl ContainerRef {
    /// Where it is within the pod.
    pub(crate) fn pointer(self) -> String {
        format!("/spec/{}/{}", self.list, self.index)
    }

    fn suffix(self) -> String {
        match self.list {
            "initContainers" => format!("-i{}", self.index),
            _ => format!("-{}", self.index),
        }
    }
}

/// The container of a fractional pod that gets the share; `None` if there is no container at all.
pub(crate) fn container(pod: &Value) -> Result<Option<ContainerRef>, FieldError> {
    if unstructured::list(pod, "/spec/containers").is_empty() {
        return Ok(None);
    }
    let Some(name) = unstructured::entry(pod, MetadataMap::Annotations, keys::GPU_FRACTION_CONTAINER) else {
        return Ok(Some(ContainerRef {
            list: "containers",
            index: 0,
        }));
    };
    for list in ["initContainers", "containers"] {
        let containers = unstructured::list(pod, &format!("/spec/{list}"));
        let named = |container: &Value| unstructured::text(container, "/name") == Some(&name);
        if let Some(index) = containers.iter().position(named) {
            return Ok(Some(ContainerRef { list, index }));
        }
    }
    Err(FieldError::invalid(
        format!("metadata.annotations.{}", keys::GPU_FRACTION_CONTAINER),
        format!("the pod has no container {name:?}; name one of its containers or init containers"),
    ))
}

/// How many slots the container with the share requests.
pub(crate) const SHARE_DEVICES_PER_CONTAINER: &str = "1";

/// Whether the container can be given its GPU through a slot: the kubelet does not tell which slots init containers hold that end.
pub(crate) fn may_request_share_device(at: ContainerRef, container: &Value) -> bool {
    at.list != "initContainers" || unstructured::text(container, "/restartPolicy") == Some("Always")
}

/// Resources that the pod's containers ask for: where, in which list, name and amount.
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

/// What is wrong with a sharing pod's requests for slots. `container` is the one with the share.
pub(crate) fn validate_share_devices(pod: &Value, container: Option<ContainerRef>) -> Option<FieldError> {
    let mut slots = resource_requests(pod).filter(|(_, _, name, _)| *name == keys::RESOURCE_GPU_SHARE);
    let fits = |at: ContainerRef, amount: &Value| {
        Some(at) == container && (amount == SHARE_DEVICES_PER_CONTAINER || amount.as_i64() == Some(1))
    };
    let (at, kind, name, _) = slots.find(|(at, _, _, amount)| !fits(*at, amount))?;
    Some(FieldError::invalid(
        format!("spec.{}[{}].resources.{kind}.{name}", at.list, at.index),
        SHARE_DEVICE_BY_HAND,
    ))
}

/// What a tenant is told who asks for a slot.
pub(crate) const SHARE_DEVICE_BY_HAND: &str = "the scheduler adds it to the container that gets a part of a GPU; remove it, and ask by \
                                       the annotation gpu-fraction or gpu-memory";

/// The names of everything that a sharing pod refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedGpuNames {
    /// What the annotation says.
    pub(crate) prefix: String,
    /// The ConfigMap with the devices and the portion.
    pub(crate) capabilities: String,
    /// The ConfigMap that is taken as a whole into the environment.
    pub(crate) environment: String,
    /// The volume of the first.
    pub(crate) volume: String,
}

/// The names for a pod: after its annotation, or new ones with this token as their random part.
pub(crate) fn names(pod: &Value, container: ContainerRef, token: &str) -> Result<SharedGpuNames, FieldError> {
    let prefix = match unstructured::entry(pod, MetadataMap::Annotations, keys::SHARED_GPU_CONFIG_MAP) {
        Some(given) => given.into_owned(),
        None => new_prefix(pod, container, token),
    };
    let capabilities = format!("{prefix}{}", container.suffix());
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

/// The random part of names, from a text that is random or at least differs from pod to pod.
pub(crate) fn token(seed: &str) -> String {
    // FNV-1a: nothing secret is at stake, only that two pods of one name rarely get one token.
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
    // A pod with a generated name has none yet.
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

/// ConfigMaps have names with dots, volumes have not.
fn volume_name(config_map: &str) -> String {
    let mut name = String::with_capacity(config_map.len() + VOLUME_SUFFIX.len());
    for c in config_map.chars().chain(VOLUME_SUFFIX.chars()) {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' {
            name.push(c);
        } else if !name.ends_with('\u{0}') {
            // One hyphen for each run of characters that a label can't have.
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
    fn the_container_is_found_by_name_init_containers_first() {
        let pod = |name: &str| {
            json!({
                "metadata": {"annotations": {"gpu-fraction-container-name": name}},
                "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}, {"name": "a"}]},
            })
        };
        let at = |list, index| Ok(Some(ContainerRef { list, index }));
        assert_eq!(container(&pod("b")), at("containers", 1));
        assert_eq!(container(&pod("a")), at("initContainers", 1));
        assert_eq!(container(&json!({"spec": {"containers": [{}]}})), at("containers", 0));
        assert_eq!(container(&json!({"spec": 3})), Ok(None));
        assert!(container(&pod("c")).is_err());
    }

    #[test]
    fn tokens_differ_and_repeat() {
        assert_eq!(token("a"), token("a"));
        assert_ne!(token("a"), token("b"));
        assert_eq!(token("").len(), TOKEN_CHARS);
    }
}
