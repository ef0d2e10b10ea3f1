//! The workload that a pod group was created for. Reasons and events name the workload (`Deployment team-a/llm`), not the pod group
//! (`pg-llm-0-<uid>`).

use crate::keys;
use crate::pod_group::PodGroup;

/// Kubernetes' limit for names.
const TEXT_MAX: usize = 253;

impl PodGroup {
    /// Kind, namespace and name of the workload that the pod group was created for, or of the pod group itself.
    pub fn workload(&self) -> String {
        let (kind, name) = self.workload_kind_and_name();
        format!("{kind} {}/{name}", self.metadata.namespace())
    }

    /// Kind and name of that workload, in the namespace of the pod group. The kind of a pod group without an owner is `pod group`.
    pub fn workload_kind_and_name(&self) -> (String, String) {
        let annotation = self.metadata.annotations.text(keys::TOP_OWNER_METADATA);
        let owner = annotation.and_then(top_owner).or_else(|| {
            let owner = self.metadata.owner_references.first()?;
            named(owner.kind.to_string(), owner.name.to_string())
        });
        owner.unwrap_or_else(|| ("pod group".to_owned(), self.metadata.plain_name().to_owned()))
    }

    /// The uid of that workload, if the grouper wrote it.
    pub fn top_owner_uid(&self) -> Option<String> {
        top_owner_value(self.metadata.annotations.text(keys::TOP_OWNER_METADATA)?, "uid")
    }
}

/// Reads kind and name from the annotation.
fn top_owner(text: &str) -> Option<(String, String)> {
    named(top_owner_value(text, "kind")?, top_owner_value(text, "name")?)
}

/// A value of the annotation, which has one line of YAML per value, with or without quotes.
fn top_owner_value(text: &str, key: &str) -> Option<String> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let line = line.trim();
    match line.starts_with('"') {
        true => serde_json::from_str::<String>(line).ok(),
        false => Some(line.trim_matches('\'').to_owned()),
    }
}

/// Whether the text is a plain name. A tenant can write the annotation, and other users read the message.
fn named(kind: String, name: String) -> Option<(String, String)> {
    let plain = |text: &str| {
        (1..=TEXT_MAX).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    (plain(&kind) && plain(&name)).then_some((kind, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(metadata: &str, expect: &str) {
        let text = format!(r#"{{"metadata":{{"name":"pg-llm-0-uid","namespace":"a",{metadata}}}}}"#);
        let group: PodGroup = serde_json::from_str(&text).unwrap();
        assert_eq!(group.workload(), expect);
    }

    #[test]
    fn the_top_owner_is_named_before_the_owner() {
        let owner = r#""ownerReferences":[{"kind":"Pod","name":"llm-0"}]"#;
        check(owner, "Pod a/llm-0");
        let of_ours =
            r#""annotations":{"kai.scheduler/top-owner-metadata":"name: \"llm\"\nuid: \"u\"\nkind: \"Deployment\"\n"}"#;
        check(&format!("{owner},{of_ours}"), "Deployment a/llm");
        let of_kai = r#""annotations":{"kai.scheduler/top-owner-metadata":"kind: Job\nname: train\n"}"#;
        check(of_kai, "Job a/train");
        check(r#""labels":{}"#, "pod group a/pg-llm-0-uid");
    }

    #[test]
    fn the_uid_of_the_top_owner_has_quotes_or_none() {
        for annotation in [r#"name: \"llm\"\nuid: \"u-1\"\n"#, r"kind: Deployment\nuid: u-1\n"] {
            let text =
                format!(r#"{{"metadata":{{"annotations":{{"kai.scheduler/top-owner-metadata":"{annotation}"}}}}}}"#);
            let group: PodGroup = serde_json::from_str(&text).unwrap();
            assert_eq!(group.top_owner_uid().as_deref(), Some("u-1"));
        }
        assert_eq!(PodGroup::default().top_owner_uid(), None);
    }

    #[test]
    fn what_is_no_name_is_not_repeated() {
        for wrong in [
            r"kind: Job\nname: \u001b[31m",
            r"kind: Job",
            r"nonsense",
            r"kind: a b\nname: x",
        ] {
            let metadata = format!(r#""annotations":{{"kai.scheduler/top-owner-metadata":"{wrong}"}}"#);
            check(&metadata, "pod group a/pg-llm-0-uid");
        }
    }
}
