//! Discovery documents: the served groups, versions and resources. Pure functions of the kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::reviews::REVIEWS;
use super::unsupported::{CONTAINER_SUBRESOURCES, METRICS_GROUP, METRICS_VERSION};
use crate::server::kinds::{Kind, Kinds, api_version};
use crate::server::status_error::StatusError;

/// The minor version of Kubernetes that the server implements.
const MINOR: u32 = 35;

pub(super) fn version() -> Value {
    json!({
        "major": "1",
        "minor": MINOR.to_string(),
        "gitVersion": format!("v1.{MINOR}.0+embedded"),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

pub(super) fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

pub(super) fn paths(kinds: &Kinds) -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for (group, versions) in versions_by_group(kinds) {
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|v| format!("/apis/{group}/{v}")));
    }
    paths.extend(
        [
            "/healthz",
            "/livez",
            "/openapi/v2",
            "/openapi/v3",
            "/readyz",
            "/version",
        ]
        .map(str::to_owned),
    );
    json!({"paths": paths})
}

pub(super) fn groups(kinds: &Kinds) -> Value {
    let groups: Vec<Value> = versions_by_group(kinds)
        .iter()
        .map(|(name, versions)| group_value(name, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// Whether a group has a served resource.
pub(super) fn has_group(kinds: &Kinds, name: &str) -> bool {
    let reviewed = REVIEWS.iter().any(|(group, ..)| *group == name);
    kinds.iter().any(|kind| kind.group == name) || reviewed || name == METRICS_GROUP
}

/// A group with its versions.
pub(super) fn group(kinds: &Kinds, name: &str) -> Option<Value> {
    let groups = versions_by_group(kinds);
    let versions = groups.get(name)?;
    let mut group = group_value(name, versions);
    group["kind"] = json!("APIGroup");
    group["apiVersion"] = json!("v1");
    Some(group)
}

pub(super) fn resources(kinds: &Kinds, group: &str, version: &str) -> Result<Value, StatusError> {
    let mut list = Vec::new();
    for kind in kinds.iter().filter(|k| k.group == group && k.version == version) {
        add_resources(&mut list, kind);
    }
    for (_, plural, kind, namespaced) in REVIEWS.iter().filter(|(g, ..)| *g == group && version == "v1") {
        list.push(json!({
            "name": plural, "singularName": kind.to_lowercase(), "namespaced": namespaced, "kind": kind, "verbs": ["create"]
        }));
    }
    if list.is_empty() {
        return Err(StatusError::no_such_path());
    }
    let group_version = api_version(group, version);
    Ok(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}))
}

/// All groups but the core group, with their versions; the preferred version is first.
fn versions_by_group(kinds: &Kinds) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<(bool, String)>> = BTreeMap::new();
    let mut add = |group: &str, version: &str, stored: bool| {
        let versions = groups.entry(group.to_owned()).or_default();
        if !versions.iter().any(|(_, v)| v == version) {
            versions.push((!stored, version.to_owned()));
        }
    };
    for kind in kinds.iter().filter(|k| !k.group.is_empty()) {
        add(&kind.group, &kind.version, kind.version == kind.storage_version);
    }
    for (group, ..) in REVIEWS {
        add(group, "v1", true);
    }
    add(METRICS_GROUP, METRICS_VERSION, true);
    let sorted = groups.into_iter().map(|(group, mut versions)| {
        versions.sort();
        (group, versions.into_iter().map(|(_, v)| v).collect())
    });
    sorted.collect()
}

fn group_value(name: &str, versions: &[String]) -> Value {
    let of = |version: &String| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<Value> = versions.iter().map(of).collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions[0]})
}

/// The verbs in Kubernetes' order, which differs for custom resources.
fn verbs_of(kind: &Kind) -> &'static [&'static str] {
    if kind.custom.is_some() {
        &[
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "create",
            "update",
            "watch",
        ]
    } else {
        &[
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ]
    }
}

fn add_resources(list: &mut Vec<Value>, kind: &Arc<Kind>) {
    let mut resource = json!({
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced(),
        "kind": kind.kind,
        "verbs": verbs_of(kind),
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        resource["categories"] = json!(kind.categories);
    }
    list.push(resource);
    let mut sub = |name: &str, kind_name: &str, group_version: Option<(&str, &str)>, verbs: &[&str]| {
        let mut resource = json!({
            "name": format!("{}/{name}", kind.plural), "singularName": "", "namespaced": kind.namespaced(),
            "kind": kind_name, "verbs": verbs,
        });
        if let Some((group, version)) = group_version {
            resource["group"] = json!(group);
            resource["version"] = json!(version);
        }
        list.push(resource);
    };
    let read_write = ["get", "patch", "update"];
    if kind.status {
        sub("status", &kind.kind, None, &read_write);
    }
    if kind.scale.is_some() {
        sub("scale", "Scale", Some(("autoscaling", "v1")), &read_write);
    }
    if kind.is("", "pods") {
        sub("binding", "Binding", None, &["create"]);
        sub("eviction", "Eviction", Some(("policy", "v1")), &["create"]);
        sub("log", "Pod", None, &["get"]);
        for (name, options) in CONTAINER_SUBRESOURCES {
            sub(name, options, None, &["create", "get"]);
        }
        list.push(json!({
            "name": "bindings", "singularName": "binding", "namespaced": true, "kind": "Binding", "verbs": ["create"]
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_resources_with_subresources() {
        let kinds = Kinds::built_in();
        let core = resources(&kinds, "", "v1").unwrap();
        let names: Vec<&str> = core["resources"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|r| r["name"].as_str())
            .collect();
        for name in [
            "pods",
            "pods/binding",
            "pods/eviction",
            "pods/status",
            "nodes",
            "configmaps",
        ] {
            assert!(names.contains(&name), "{name}");
        }
        assert!(!names.contains(&"configmaps/status"));
        assert!(resources(&kinds, "apps", "v2").is_err());
        assert_eq!(
            group(&kinds, "apps").unwrap()["preferredVersion"]["groupVersion"],
            "apps/v1"
        );
    }
}
