//! Redacts values by the rules. The same walk runs twice: first it finds the names, then it writes their replacements.

use std::collections::BTreeSet;

use kai_api::keys::{self, ContainerKey};
use serde_json::{Map, Value};

use super::annotations::{self, Annotation};
use super::kinds;
use super::names::{FoundNames, NameClass, Replacements};
use super::rules::{Rule, Special};
use super::vocabulary::{self, class_of_label, is_label_value};

/// What the walk does with names.
pub(super) enum Names<'n> {
    Find(&'n mut FoundNames),
    Replace(&'n Replacements),
}

/// Walks through the objects of one cluster.
pub(super) struct Walk<'n> {
    pub(super) names: Names<'n>,
    /// Labels that selectors compare as numbers.
    pub(super) compared_labels: &'n BTreeSet<String>,
    /// Whether objects without a uid get one. New pods of manifests have to stay without.
    pub(super) with_uids: bool,
}

impl Walk<'_> {
    pub(super) fn value(&mut self, value: &Value, rule: &Rule) -> Value {
        match (value, rule) {
            (Value::Null, _) => Value::Null,
            (Value::Object(fields), Rule::Fields(known)) => {
                let kept = known.iter().filter_map(|(name, rule)| {
                    let value = self.value(fields.get(*name)?, rule);
                    Some(((*name).to_owned(), value))
                });
                Value::Object(kept.collect())
            }
            (Value::Array(values), Rule::List(rule)) => values.iter().map(|value| self.value(value, rule)).collect(),
            (Value::Object(fields), Rule::Keyed(class, rule)) => {
                let mut keyed = Map::new();
                for (name, value) in fields {
                    keyed.insert(self.name(*class, name), self.value(value, rule));
                }
                Value::Object(keyed)
            }
            (Value::String(name), Rule::Name(class)) => self.name(*class, name).into(),
            (Value::Object(fields), Rule::Metadata(class)) => self.metadata(fields, *class),
            (value, Rule::Special(special)) => self.special(value, *special),
            // A value of another type than the field has, such as a number for the name of an action.
            (value, Rule::Word | Rule::Fields(_) | Rule::List(_) | Rule::Keyed(..)) => self.word(value),
            (_, Rule::Name(_) | Rule::Metadata(_)) => Value::Null,
        }
    }

    fn special(&mut self, value: &Value, special: Special) -> Value {
        let text = value.as_str().unwrap_or_default();
        match (special, value) {
            (Special::Presence, _) => Value::Object(Map::new()),
            (Special::Kind, _) => self.kind(text).into(),
            (Special::ApiVersion, _) => self.api_version(text).into(),
            (Special::WordList, _) => {
                let words = text.split(',').map(str::trim);
                let words: Vec<&str> = words.filter(|word| vocabulary::is_word(word)).collect();
                words.join(", ").into()
            }
            (Special::ConfigMap, _) => self.config_map(text).into(),
            (Special::CaseGroup, _) => match text {
                "bench" => "bench".into(),
                _ if text.starts_with("action-") => "action-redacted".into(),
                _ => "redacted".into(),
            },
            (Special::Grouped, value) => self.grouped(value, None),
            (Special::Labels, Value::Object(labels)) => self.labels(labels),
            (Special::Annotations, Value::Object(annotations)) => self.annotations(annotations),
            (Special::Resources, Value::Object(resources)) => {
                let mut amounts = Map::new();
                for (name, amount) in resources {
                    amounts.insert(self.resource(name), self.word(amount));
                }
                Value::Object(amounts)
            }
            (Special::LabelRequirement, Value::Object(fields)) => self.label_requirement(fields),
            (Special::FieldRequirement, Value::Object(fields)) => self.field_requirement(fields),
            (Special::Taint, Value::Object(fields)) => self.taint(fields),
            (Special::OwnerReference, Value::Object(fields)) => self.owner(fields),
            (Special::Variable, Value::Object(fields)) => self.variable(fields),
            (Special::Partition, Value::Object(fields)) => self.partition(fields),
            (Special::ExpectedPods, Value::Object(pods)) => self.expected_pods(pods),
            (
                Special::Labels
                | Special::Annotations
                | Special::Resources
                | Special::LabelRequirement
                | Special::FieldRequirement
                | Special::Taint
                | Special::OwnerReference
                | Special::Variable
                | Special::Partition
                | Special::ExpectedPods,
                _,
            ) => Value::Null,
        }
    }

    fn name(&mut self, class: NameClass, name: &str) -> String {
        let stays = match class {
            NameClass::LabelKey => vocabulary::is_label_key(name),
            NameClass::Value => vocabulary::is_word(name),
            NameClass::Resource => vocabulary::is_resource(name),
            NameClass::Variable => vocabulary::is_variable(name),
            NameClass::Kind => vocabulary::is_kind(name),
            NameClass::ApiGroup => vocabulary::is_api_group(name),
            _ => false,
        };
        if stays {
            return name.to_owned();
        }
        match &mut self.names {
            Names::Find(found) => {
                found.add(class, name);
                name.to_owned()
            }
            Names::Replace(replacements) => replacements.of(class, name),
        }
    }

    /// A number, a boolean or a text. Values in values are left out.
    fn word(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.name(NameClass::Value, text).into(),
            Value::Number(_) | Value::Bool(_) => value.clone(),
            Value::Null | Value::Array(_) | Value::Object(_) => Value::Null,
        }
    }

    fn kind(&mut self, kind: &str) -> String {
        self.name(NameClass::Kind, kind)
    }

    fn api_version(&mut self, written: &str) -> String {
        let (group, version) = written.split_once('/').unwrap_or(("", written));
        let version = if vocabulary::is_version(version) { version } else { "v1" };
        match self.name(NameClass::ApiGroup, group) {
            group if group.is_empty() => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }

    /// The name of a resource. A GPU of another vendor stays a GPU.
    fn resource(&mut self, name: &str) -> String {
        let replaced = self.name(NameClass::Resource, name);
        match replaced.rsplit_once('/') {
            Some((domain, number)) if replaced != name && keys::is_gpu_resource(name) => {
                format!("{number}.{domain}{}", keys::GPU_SUFFIX)
            }
            _ => replaced,
        }
    }

    /// The name of a ConfigMap. A name that the binder gives keeps its end, by which the scheduler knows it.
    fn config_map(&mut self, name: &str) -> String {
        let end = name.rfind(keys::SHARED_GPU_SUFFIX);
        match end.filter(|end| is_sharing_end(&name[end + keys::SHARED_GPU_SUFFIX.len()..])) {
            Some(end) => format!("{}{}", self.name(NameClass::ConfigMap, &name[..end]), &name[end..]),
            None => self.name(NameClass::ConfigMap, name),
        }
    }

    fn metadata(&mut self, fields: &Map<String, Value>, class: NameClass) -> Value {
        let mut kept = Map::new();
        let text = |field: &str| fields.get(field).and_then(Value::as_str);
        if let Some(name) = text("name") {
            let name = match class {
                NameClass::ConfigMap => self.config_map(name),
                class => self.name(class, name),
            };
            kept.insert("name".to_owned(), name.into());
        }
        if let Some(prefix) = text("generateName") {
            let prefix = self.name(class, prefix.trim_end_matches('-'));
            kept.insert("generateName".to_owned(), format!("{prefix}-").into());
        }
        match text("namespace") {
            Some(namespace) => {
                let namespace = self.name(NameClass::Namespace, namespace);
                kept.insert("namespace".to_owned(), namespace.into());
            }
            // The API server sets it; the other namespaces are sorted around it.
            None if is_namespaced(class) => drop(self.name(NameClass::Namespace, "default")),
            None => {}
        }
        if let Some(uid) = uid(fields, class, self.with_uids) {
            kept.insert("uid".to_owned(), self.name(NameClass::Uid, &uid).into());
        }
        for field in [
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
        ] {
            if let Some(value) = fields.get(field) {
                kept.insert(field.to_owned(), self.word(value));
            }
        }
        let parts = [
            ("labels", Rule::Special(Special::Labels)),
            ("annotations", Rule::Special(Special::Annotations)),
            ("ownerReferences", Rule::List(&Rule::Special(Special::OwnerReference))),
        ];
        for (field, rule) in parts {
            if let Some(value) = fields.get(field) {
                kept.insert(field.to_owned(), self.value(value, &rule));
            }
        }
        Value::Object(kept)
    }

    fn labels(&mut self, labels: &Map<String, Value>) -> Value {
        let mut kept = Map::new();
        for (key, value) in labels {
            let replaced = self.label_value(key, value);
            kept.insert(self.label_key(key), replaced);
        }
        Value::Object(kept)
    }

    fn label_key(&mut self, key: &str) -> String {
        match key.strip_prefix(keys::GPU_GROUP_PREFIX) {
            Some(group) => format!("{}{}", keys::GPU_GROUP_PREFIX, self.name(NameClass::GpuGroup, group)),
            None => self.name(NameClass::LabelKey, key),
        }
    }

    fn label_value(&mut self, key: &str, value: &Value) -> Value {
        let Value::String(text) = value else { return Value::Null };
        match class_of_label(key) {
            NameClass::Value if is_label_value(key, text, self.compared_labels.contains(key)) => value.clone(),
            // A number is no word of the vocabulary here.
            NameClass::Value => self.replaced_value(text).into(),
            class => self.name(class, text).into(),
        }
    }

    /// The replacement of a text, also of a number.
    fn replaced_value(&mut self, text: &str) -> String {
        match &mut self.names {
            Names::Find(found) => {
                found.add(NameClass::Value, text);
                text.to_owned()
            }
            Names::Replace(replacements) => replacements.of(NameClass::Value, text),
        }
    }

    fn annotations(&mut self, annotations: &Map<String, Value>) -> Value {
        let mut kept = Map::new();
        for (key, value) in annotations {
            let Some(text) = value.as_str() else { continue };
            if let Some(replaced) = self.container_annotation(key) {
                kept.insert(replaced, self.name(NameClass::Value, text).into());
                continue;
            }
            let Some(rule) = annotations::of_annotation(key) else {
                continue;
            };
            let replaced = match rule {
                Annotation::Word => self.name(NameClass::Value, text),
                Annotation::Name(class) => self.name(class, text),
                Annotation::Names(class) => {
                    let names = text.split(',').map(|name| self.name(class, name.trim()));
                    names.collect::<Vec<_>>().join(",")
                }
                Annotation::ConfigMap => self.config_map(text),
                Annotation::TopOwner => match self.top_owner(text) {
                    Some(owner) => owner,
                    None => continue,
                },
            };
            kept.insert(key.clone(), replaced.into());
        }
        Value::Object(kept)
    }

    /// The key of an annotation for one container, with the container's replacement.
    fn container_annotation(&mut self, key: &str) -> Option<String> {
        let named = |known: &ContainerKey| Some((*known, known.container(key)?));
        let (known, container) = annotations::CONTAINER_KEYS.iter().find_map(named)?;
        known.of(&self.name(NameClass::Container, container))
    }

    /// Kind and name of the top owner; the scheduler reads no other line.
    fn top_owner(&mut self, text: &str) -> Option<String> {
        let line = |key: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            Some(line.trim().trim_matches(['"', '\'']).to_owned())
        };
        let (kind, name) = (line("kind")?, line("name")?);
        let name = self.name(class_of_owner(&kind), &name);
        Some(format!("kind: {}\nname: {name}\n", self.kind(&kind)))
    }

    fn label_requirement(&mut self, fields: &Map<String, Value>) -> Value {
        let key = fields.get("key").and_then(Value::as_str).unwrap_or_default();
        let values = fields.get("values").and_then(Value::as_array);
        let values: Option<Vec<Value>> =
            values.map(|values| values.iter().map(|value| self.label_value(key, value)).collect());
        let replaced = self.label_key(key);
        self.requirement(fields, replaced, values)
    }

    fn field_requirement(&mut self, fields: &Map<String, Value>) -> Value {
        let key = match fields.get("key").and_then(Value::as_str) {
            Some("metadata.name") => "metadata.name".to_owned(),
            key => self.name(NameClass::LabelKey, key.unwrap_or_default()),
        };
        let values = fields.get("values").and_then(Value::as_array);
        let values: Option<Vec<Value>> = values.map(|values| {
            let names = values
                .iter()
                .map(|value| self.value(value, &Rule::Name(NameClass::Node)));
            names.collect()
        });
        self.requirement(fields, key, values)
    }

    fn requirement(&mut self, fields: &Map<String, Value>, key: String, values: Option<Vec<Value>>) -> Value {
        let mut kept = Map::new();
        kept.insert("key".to_owned(), key.into());
        if let Some(operator) = fields.get("operator") {
            kept.insert("operator".to_owned(), self.word(operator));
        }
        if let Some(values) = values {
            kept.insert("values".to_owned(), values.into());
        }
        Value::Object(kept)
    }

    fn taint(&mut self, fields: &Map<String, Value>) -> Value {
        let mut kept = Map::new();
        let key = fields.get("key").and_then(Value::as_str).unwrap_or_default();
        if fields.contains_key("key") {
            kept.insert("key".to_owned(), self.label_key(key).into());
        }
        if let Some(value) = fields.get("value") {
            kept.insert("value".to_owned(), self.label_value(key, value));
        }
        for field in ["operator", "effect", "tolerationSeconds"] {
            if let Some(value) = fields.get(field) {
                kept.insert(field.to_owned(), self.word(value));
            }
        }
        Value::Object(kept)
    }

    fn owner(&mut self, fields: &Map<String, Value>) -> Value {
        let mut kept = Map::new();
        let text = |field: &str| fields.get(field).and_then(Value::as_str);
        let kind = text("kind").unwrap_or_default();
        if let Some(version) = text("apiVersion") {
            kept.insert("apiVersion".to_owned(), self.api_version(version).into());
        }
        kept.insert("kind".to_owned(), self.kind(kind).into());
        if let Some(name) = text("name") {
            kept.insert("name".to_owned(), self.name(class_of_owner(kind), name).into());
        }
        if let Some(uid) = text("uid") {
            kept.insert("uid".to_owned(), self.name(NameClass::Uid, uid).into());
        }
        for field in ["controller", "blockOwnerDeletion"] {
            if let Some(Value::Bool(value)) = fields.get(field) {
                kept.insert(field.to_owned(), (*value).into());
            }
        }
        Value::Object(kept)
    }

    /// A variable keeps the ConfigMap that it refers to, and the value only where admission reads it.
    fn variable(&mut self, fields: &Map<String, Value>) -> Value {
        let mut kept = Map::new();
        let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
        kept.insert("name".to_owned(), self.name(NameClass::Variable, name).into());
        if let Some(source) = fields.get("valueFrom") {
            kept.insert("valueFrom".to_owned(), self.value(source, &kinds::VARIABLE_SOURCE));
        } else if let Some(value) = fields.get("value").filter(|_| vocabulary::is_variable(name)) {
            kept.insert("value".to_owned(), self.word(value));
        }
        Value::Object(kept)
    }

    fn partition(&mut self, fields: &Map<String, Value>) -> Value {
        let key = fields
            .get("NodePoolLabelKey")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let label = if key.is_empty() { keys::NODE_POOL } else { key };
        let mut kept = Map::new();
        kept.insert("NodePoolLabelKey".to_owned(), self.label_key(key).into());
        if let Some(value) = fields.get("NodePoolLabelValue") {
            kept.insert("NodePoolLabelValue".to_owned(), self.label_value(label, value));
        }
        Value::Object(kept)
    }

    /// Expected reasons are left out: they are parts of texts with names.
    fn expected_pods(&mut self, pods: &Map<String, Value>) -> Value {
        const EXPECTED: Rule = Rule::Fields(&[("status", Rule::Word), ("node", Rule::Name(NameClass::Node))]);
        let mut kept = Map::new();
        for (name, expected) in pods {
            let name = match name.split_once('/') {
                Some((namespace, name)) => {
                    let namespace = self.name(NameClass::Namespace, namespace);
                    format!("{namespace}/{}", self.name(NameClass::Pod, name))
                }
                None => self.name(NameClass::Pod, name),
            };
            kept.insert(name, self.value(expected, &EXPECTED));
        }
        Value::Object(kept)
    }

    /// The fields of workloads that the pod grouper reads. `class` is that of a text.
    fn grouped(&mut self, value: &Value, class: Option<NameClass>) -> Value {
        match value {
            Value::Object(fields) => {
                let mut kept = Map::new();
                for (name, class) in annotations::GROUPED_FIELDS {
                    if let Some(value) = fields.get(*name) {
                        kept.insert((*name).to_owned(), self.grouped(value, *class));
                    }
                }
                // Pods and templates in workloads have labels and annotations.
                if let Some(Value::Object(metadata)) = fields.get("metadata") {
                    kept.insert("metadata".to_owned(), self.metadata(metadata, NameClass::Pod));
                }
                Value::Object(kept)
            }
            Value::Array(values) => values.iter().map(|value| self.grouped(value, class)).collect(),
            Value::String(text) => match class {
                Some(class) => self.name(class, text).into(),
                None => self.name(NameClass::Value, text).into(),
            },
            Value::Number(_) | Value::Bool(_) | Value::Null => value.clone(),
        }
    }
}

/// The uid of an object. One without a uid counts as one whose uid is its name, by which ties are broken.
fn uid(fields: &Map<String, Value>, class: NameClass, with_uids: bool) -> Option<String> {
    let text = |field: &str| {
        let text = fields.get(field).and_then(Value::as_str);
        text.filter(|text| !text.is_empty())
    };
    if let Some(uid) = text("uid") {
        return Some(uid.to_owned());
    }
    let name = text("name").filter(|_| with_uids)?;
    match class {
        NameClass::Queue => Some(name.to_owned()),
        NameClass::PodGroup => Some(format!("{}/{name}", text("namespace").unwrap_or("default"))),
        NameClass::Pod => Some(format!("{}/{name}", text("namespace").unwrap_or("default"))),
        _ => None,
    }
}

/// Whether objects with names of this class have a namespace.
fn is_namespaced(class: NameClass) -> bool {
    matches!(
        class,
        NameClass::Pod | NameClass::PodGroup | NameClass::Workload | NameClass::VolumeClaim | NameClass::ConfigMap
    )
}

fn class_of_owner(kind: &str) -> NameClass {
    match kind {
        "Pod" => NameClass::Pod,
        "Node" => NameClass::Node,
        "PodGroup" => NameClass::PodGroup,
        "Queue" => NameClass::Queue,
        _ => NameClass::Workload,
    }
}

/// Whether the text is empty, or an end of the names of GPU sharing ConfigMaps: `-0`, `-i0`, `-0-evar`.
fn is_sharing_end(text: &str) -> bool {
    let index = text.strip_suffix(keys::ENV_CONFIG_MAP_SUFFIX).unwrap_or(text);
    let digits = index
        .strip_prefix('-')
        .map(|index| index.strip_prefix('i').unwrap_or(index));
    text.is_empty()
        || digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}
