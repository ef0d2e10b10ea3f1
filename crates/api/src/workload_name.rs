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
}

/// Reads kind and name from the annotation: one line of YAML each, with or without quotes.
fn top_owner(text: &str) -> Option<(String, String)> {
    let value = |key: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        let line = line.trim();
        match line.starts_with('"') {
            true => serde_json::from_str::<String>(line).ok(),
            false => Some(line.trim_matches('\'').to_owned()),
        }
    };
    named(value("kind")?, value("name")?)
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
