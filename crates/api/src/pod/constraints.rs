//! The placement constraints of a pod: node selector, affinity, tolerations, host ports.

use kai_engine::model::{
    AFFINITY_TERMS_MAX, Affinity, Constraints, HostPort, LabelSelector, NodeSelectorTerm, Operator, PodAffinityTerm,
    Requirement, Toleration, WeightedNodeTerm, WeightedPodAffinityTerm,
};
use kai_engine::steps;
use serde::Deserialize;

use super::Pod;
use super::bounds::{HOST_PORTS_MAX, NODE_REQUIREMENTS_MAX, POD_REQUIREMENTS_MAX, TOLERATIONS_MAX, is_within};
use crate::Error;
use crate::error::FieldError;
use crate::node::{TAINT_EFFECTS, taint_effect};
use crate::text::{Text, TextMap, null_as_default};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawAffinity {
    node_affinity: Option<RawNodeAffinity>,
    pod_affinity: Option<RawPodAffinity>,
    pod_anti_affinity: Option<RawPodAffinity>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RawNodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<RawNodeSelector>,
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "null_as_default"
    )]
    preferred: Vec<RawWeightedNodeTerm>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawNodeSelector {
    #[serde(deserialize_with = "null_as_default")]
    node_selector_terms: Vec<RawNodeTerm>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawNodeTerm {
    #[serde(deserialize_with = "null_as_default")]
    match_expressions: Vec<RawRequirement>,
    #[serde(deserialize_with = "null_as_default")]
    match_fields: Vec<RawRequirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RawWeightedNodeTerm {
    weight: i32,
    #[serde(deserialize_with = "null_as_default")]
    preference: RawNodeTerm,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RawRequirement {
    key: Option<Text>,
    operator: Option<Text>,
    #[serde(deserialize_with = "null_as_default")]
    values: Vec<Text>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RawPodAffinity {
    #[serde(
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "null_as_default"
    )]
    required: Vec<RawPodTerm>,
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "null_as_default"
    )]
    preferred: Vec<RawWeightedPodTerm>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawPodTerm {
    label_selector: Option<RawSelector>,
    namespace_selector: Option<RawSelector>,
    #[serde(deserialize_with = "null_as_default")]
    namespaces: Vec<Text>,
    topology_key: Option<Text>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawWeightedPodTerm {
    weight: i32,
    #[serde(deserialize_with = "null_as_default")]
    pod_affinity_term: RawPodTerm,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawSelector {
    match_labels: TextMap,
    #[serde(deserialize_with = "null_as_default")]
    match_expressions: Vec<RawRequirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct RawToleration {
    key: Option<Text>,
    operator: Option<Text>,
    value: Option<Text>,
    effect: Option<Text>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawPort {
    container_port: Option<i64>,
    host_port: Option<i64>,
    #[serde(rename = "hostIP")]
    host_ip: Option<Text>,
    protocol: Option<Text>,
}

const AFFINITY: &str = "spec.affinity";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
impl Pod {
    pub(super) fn constraints(&self, namespace: &str, errors: &mut Vec<FieldError>) -> Constraints {
        let mut constraints = Constraints::default();
        let spec = &self.spec;
        if is_within(spec.tolerations.len(), TOLERATIONS_MAX, "spec.tolerations", errors) {
            self.read_tolerations(&mut constraints, errors);
        }
        self.read_ports(&mut constraints, errors);
        let affinity = spec.affinity.as_deref();
        let node_affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let entries = spec.node_selector.iter().count() + node_affinity.map_or(0, RawNodeAffinity::entries);
        let field = "spec.nodeSelector and spec.affinity.nodeAffinity";
        if is_within(entries, NODE_REQUIREMENTS_MAX, field, errors) {
            let selector = spec.node_selector.iter();
            constraints.node_selector = selector
                .map(|(key, value)| (key.to_owned(), value.to_string()))
                .collect();
            constraints.node_selector.sort();
            if let Some(raw) = node_affinity {
                Reader { namespace, errors }.node_affinity(raw, &mut constraints);
            }
        }
        if let Some(affinity) = affinity {
            self.read_pod_affinity(affinity, namespace, &mut constraints, errors);
        }
        constraints
    }

    fn read_pod_affinity(
        &self,
        raw: &RawAffinity,
        namespace: &str,
        constraints: &mut Constraints,
        errors: &mut Vec<FieldError>,
    ) {
        let kinds = || raw.pod_affinity.iter().chain(&raw.pod_anti_affinity);
        let terms = kinds().flat_map(RawPodAffinity::terms).count();
        let entries = kinds().flat_map(RawPodAffinity::terms).map(RawPodTerm::entries).sum();
        let field = "spec.affinity.podAffinity and podAntiAffinity";
        if !is_within(terms, AFFINITY_TERMS_MAX, field, errors)
            || !is_within(entries, POD_REQUIREMENTS_MAX, field, errors)
        {
            return;
        }
        let mut reader = Reader { namespace, errors };
        if let Some(raw) = &raw.pod_affinity {
            constraints.affinity = reader.pod_affinity(raw, "podAffinity");
        }
        if let Some(raw) = &raw.pod_anti_affinity {
            constraints.anti_affinity = reader.pod_affinity(raw, "podAntiAffinity");
        }
    }

    fn read_tolerations(&self, constraints: &mut Constraints, errors: &mut Vec<FieldError>) {
        for (at, raw) in self.spec.tolerations.iter().enumerate() {
            steps::count(1);
            let given = |text: &Option<Text>| text.as_deref().filter(|text| !text.is_empty()).map(str::to_owned);
            let mut unknown = |part: &str, text: &str, known| {
                let error = Error::Unknown {
                    text: text.to_owned(),
                    known,
                };
                errors.push(FieldError::new(format!("spec.tolerations[{at}].{part}"), error));
            };
            let value = match raw.operator.as_deref() {
                Some("Exists") => None,
                None | Some("" | "Equal") => Some(raw.value.as_deref().unwrap_or_default().to_owned()),
                Some(other) => {
                    unknown("operator", other, "Exists and Equal");
                    continue;
                }
            };
            let effect = match raw.effect.as_deref() {
                None | Some("") => None,
                Some(text) => match taint_effect(text) {
                    Some(effect) => Some(effect),
                    None => {
                        unknown("effect", text, TAINT_EFFECTS);
                        continue;
                    }
                },
            };
            constraints.tolerations.push(Toleration {
                key: given(&raw.key),
                value,
                effect,
            });
        }
    }

    fn read_ports(&self, constraints: &mut Constraints, errors: &mut Vec<FieldError>) {
        let on_host = self.spec.host_network == Some(true);
        let sidecars = self
            .spec
            .init_containers
            .iter()
            .filter(|container| container.is_sidecar());
        for raw in self
            .spec
            .containers
            .iter()
            .chain(sidecars)
            .flat_map(|container| &container.ports)
        {
            steps::count(1);
            // With `hostNetwork` every port is a host port.
            let port = match raw.host_port.filter(|port| *port != 0) {
                None if on_host => raw.container_port,
                given => given,
            };
            let Some(port) = port else { continue };
            let Ok(port) = u16::try_from(port) else {
                let error = Error::Unknown {
                    text: port.to_string(),
                    known: "ports from 1 to 65535",
                };
                errors.push(FieldError::new("spec.containers[].ports[].hostPort", error));
                continue;
            };
            constraints.host_ports.push(HostPort {
                ip: raw.host_ip.as_deref().unwrap_or_default().to_owned(),
                protocol: raw.protocol.as_deref().unwrap_or("TCP").to_owned(),
                port,
            });
        }
        let count = constraints.host_ports.len();
        if !is_within(count, HOST_PORTS_MAX, "spec.containers[].ports[].hostPort", errors) {
            constraints.host_ports.clear();
        }
    }
}

impl RawNodeAffinity {
    /// The number of terms, requirements and values. The engine compares all of them with a node.
    fn entries(&self) -> usize {
        let required = self.required.iter().flat_map(|required| &required.node_selector_terms);
        let preferred = self.preferred.iter().map(|weighted| &weighted.preference);
        let requirements = |term: &RawNodeTerm| entries_of(&term.match_expressions) + entries_of(&term.match_fields);
        required.chain(preferred).map(|term| 1 + requirements(term)).sum()
    }
}

impl RawPodAffinity {
    fn terms(&self) -> impl Iterator<Item = &RawPodTerm> {
        let preferred = self.preferred.iter().map(|weighted| &weighted.pod_affinity_term);
        self.required.iter().chain(preferred)
    }
}

impl RawPodTerm {
    /// The number of requirements, values and namespaces. The engine compares all of them with a pod.
    fn entries(&self) -> usize {
        let selector =
            |selector: &RawSelector| selector.match_labels.iter().count() + entries_of(&selector.match_expressions);
        self.namespaces.len() + self.label_selector.as_ref().map_or(0, selector)
    }
}

fn entries_of(requirements: &[RawRequirement]) -> usize {
    steps::count(requirements.len());
    requirements
        .iter()
        .map(|requirement| 1 + requirement.values.len())
        .sum()
}

impl RawNodeSelector {
    /// The terms; a node must satisfy one of them.
    pub(crate) fn terms(&self, field: &str, errors: &mut Vec<FieldError>) -> Vec<NodeSelectorTerm> {
        let mut reader = Reader { namespace: "", errors };
        let terms = self.node_selector_terms.iter().enumerate();
        terms
            .map(|(at, term)| reader.node_term(term, &format!("{field}.nodeSelectorTerms[{at}]")))
            .collect()
    }
}

impl RawSelector {
    /// The selector.
    pub(crate) fn read(&self, field: &str, errors: &mut Vec<FieldError>) -> LabelSelector {
        let mut reader = Reader { namespace: "", errors };
        reader.selector(self, field)
    }
}

/// Reads affinity terms. Holds the pod's namespace and collects errors.
struct Reader<'r> {
    namespace: &'r str,
    errors: &'r mut Vec<FieldError>,
}

impl Reader<'_> {
    fn node_affinity(&mut self, raw: &RawNodeAffinity, constraints: &mut Constraints) {
        let field = format!("{AFFINITY}.nodeAffinity");
        if let Some(required) = &raw.required {
            constraints.required_nodes = Some(required.terms(&format!("{field}.{REQUIRED}"), self.errors));
        }
        for (at, weighted) in raw.preferred.iter().enumerate() {
            let term = self.node_term(&weighted.preference, &format!("{field}.{PREFERRED}[{at}].preference"));
            constraints.preferred_nodes.push(WeightedNodeTerm {
                weight: weighted.weight,
                term,
            });
        }
    }

    fn node_term(&mut self, raw: &RawNodeTerm, field: &str) -> NodeSelectorTerm {
        NodeSelectorTerm {
            labels: self.requirements(&raw.match_expressions, &format!("{field}.matchExpressions")),
            fields: self.requirements(&raw.match_fields, &format!("{field}.matchFields")),
        }
    }

    fn pod_affinity(&mut self, raw: &RawPodAffinity, kind: &str) -> Affinity {
        let mut affinity = Affinity::default();
        for (at, term) in raw.required.iter().enumerate() {
            affinity
                .required
                .push(self.pod_term(term, &format!("{AFFINITY}.{kind}.{REQUIRED}[{at}]")));
        }
        for (at, weighted) in raw.preferred.iter().enumerate() {
            let field = format!("{AFFINITY}.{kind}.{PREFERRED}[{at}].podAffinityTerm");
            let term = self.pod_term(&weighted.pod_affinity_term, &field);
            affinity.preferred.push(WeightedPodAffinityTerm {
                weight: weighted.weight,
                term,
            });
        }
        affinity
    }

    fn pod_term(&mut self, raw: &RawPodTerm, field: &str) -> PodAffinityTerm {
        let topology_key = raw.topology_key.as_deref().unwrap_or_default();
        if topology_key.is_empty() {
            self.errors
                .push(FieldError::new(format!("{field}.topologyKey"), Error::Missing));
        }
        let selector = raw
            .label_selector
            .as_ref()
            .map(|raw| self.selector(raw, &format!("{field}.labelSelector")));
        PodAffinityTerm {
            selector,
            namespaces: self.namespaces(raw, field),
            topology_key: topology_key.to_owned(),
        }
    }

    /// Without list and selector, the pod's own namespace. With an empty selector, all namespaces.
    fn namespaces(&mut self, raw: &RawPodTerm, field: &str) -> Option<Vec<String>> {
        let mut listed: Vec<String> = raw.namespaces.iter().map(Text::to_string).collect();
        match &raw.namespace_selector {
            Some(selector) if selector.match_labels.is_empty() && selector.match_expressions.is_empty() => return None,
            Some(_) => {
                let error = Error::NamespaceSelector;
                self.errors
                    .push(FieldError::new(format!("{field}.namespaceSelector"), error));
            }
            None if listed.is_empty() => listed.push(self.namespace.to_owned()),
            None => {}
        }
        listed.sort();
        listed.dedup();
        Some(listed)
    }

    fn selector(&mut self, raw: &RawSelector, field: &str) -> LabelSelector {
        let exact = raw.match_labels.iter().map(|(key, value)| Requirement {
            key: key.to_owned(),
            operator: Operator::In,
            values: vec![value.to_string()],
        });
        let mut requirements: Vec<Requirement> = exact.collect();
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        requirements.extend(self.requirements(&raw.match_expressions, &format!("{field}.matchExpressions")));
        LabelSelector { requirements }
    }

    fn requirements(&mut self, raw: &[RawRequirement], field: &str) -> Vec<Requirement> {
        let mut requirements = Vec::with_capacity(raw.len());
        for (at, raw) in raw.iter().enumerate() {
            steps::count(1 + raw.values.len());
            let operator = match raw.operator.as_deref() {
                Some("In") => Operator::In,
                Some("NotIn") => Operator::NotIn,
                Some("Exists") => Operator::Exists,
                Some("DoesNotExist") => Operator::DoesNotExist,
                Some("Gt") => Operator::Gt,
                Some("Lt") => Operator::Lt,
                other => {
                    let text = other.unwrap_or_default().to_owned();
                    let known = "In, NotIn, Exists, DoesNotExist, Gt and Lt";
                    self.errors.push(FieldError::new(
                        format!("{field}[{at}].operator"),
                        Error::Unknown { text, known },
                    ));
                    continue;
                }
            };
            requirements.push(Requirement {
                key: raw.key.as_deref().unwrap_or_default().to_owned(),
                operator,
                values: raw.values.iter().map(Text::to_string).collect(),
            });
        }
        requirements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spec: &str) -> (Constraints, Vec<String>) {
        let text = format!(r#"{{"metadata":{{"name":"p"}},"spec":{spec}}}"#);
        let pod: Pod = serde_json::from_str(&text).unwrap();
        let mut errors = Vec::new();
        let constraints = pod.constraints("ns", &mut errors);
        (
            constraints,
            errors
                .into_iter()
                .map(|error| format!("{}: {}", error.field, error.error))
                .collect(),
        )
    }

    #[test]
    fn tolerations() {
        let (constraints, errors) = read(
            r#"{"tolerations":[{"operator":"Exists"},{"key":"gpu","value":"yes","effect":"NoSchedule"},
                               {"key":"a","operator":"Maybe"}]}"#,
        );
        assert_eq!(constraints.tolerations.len(), 2);
        assert_eq!(
            constraints.tolerations[0],
            Toleration {
                key: None,
                value: None,
                effect: None
            }
        );
        assert_eq!(constraints.tolerations[1].value.as_deref(), Some("yes"));
        assert_eq!(
            errors,
            ["spec.tolerations[2].operator: \"Maybe\" is unknown; known are Exists and Equal"]
        );
    }

    #[test]
    fn ports_of_the_host() {
        let ports = |spec: &str| {
            read(spec)
                .0
                .host_ports
                .into_iter()
                .map(|port| port.port)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            ports(r#"{"containers":[{"ports":[{"containerPort":80},{"containerPort":1,"hostPort":8080}]}]}"#),
            [8080]
        );
        assert_eq!(
            ports(r#"{"hostNetwork":true,"containers":[{"ports":[{"containerPort":80}]}]}"#),
            [80]
        );
    }

    #[test]
    fn pod_affinity_is_about_the_own_namespace_unless_stated() {
        let term = |rest: &str| {
            let spec = format!(
                r#"{{"affinity":{{"podAntiAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":
                    [{{"labelSelector":{{"matchLabels":{{"app":"x"}}}},"topologyKey":"zone"{rest}}}]}}}}}}"#
            );
            let (constraints, errors) = read(&spec);
            (constraints.anti_affinity.required[0].namespaces.clone(), errors.len())
        };
        assert_eq!(term(""), (Some(vec!["ns".to_owned()]), 0));
        assert_eq!(term(r#","namespaces":["a"]"#), (Some(vec!["a".to_owned()]), 0));
        assert_eq!(term(r#","namespaceSelector":{}"#), (None, 0));
        assert_eq!(
            term(r#","namespaceSelector":{"matchLabels":{"a":"b"}}"#),
            (Some(vec![]), 1)
        );
    }

    #[test]
    fn node_affinity() {
        let (constraints, errors) = read(
            r#"{"nodeSelector":{"b":"2","a":"1"},"affinity":{"nodeAffinity":{
                "requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[
                    {"matchExpressions":[{"key":"t","operator":"In","values":["x"]}]}]},
                "preferredDuringSchedulingIgnoredDuringExecution":[{"weight":5,"preference":{"matchFields":[
                    {"key":"metadata.name","operator":"In","values":["n"]}]}}]}}}"#,
        );
        assert_eq!(errors, Vec::<String>::new());
        assert_eq!(constraints.node_selector[0].0, "a");
        assert_eq!(constraints.required_nodes.unwrap()[0].labels[0].operator, Operator::In);
        assert_eq!(constraints.preferred_nodes[0].term.fields[0].key, "metadata.name");
    }
}
