//! The GPU operator's ClusterPolicy. The binder reads it for the names of GPUs, and kai's operator for the arguments of the binder.

use serde_json::Value;

/// From this release on the GPU operator's device plugin uses CDI devices wherever CDI is enabled.
const CDI_SINCE: (u32, u32) = (25, 10);
/// Label of a ClusterPolicy: the release of the GPU operator.
const VERSION_LABEL: &str = "app.kubernetes.io/version";

/// Whether the GPU operator's device plugin uses CDI devices, from its ClusterPolicies.
pub fn gpu_operator_uses_cdi(policies: &[Value]) -> bool {
    let Some(policy) = policies.first() else { return false };
    let cdi = &policy["spec"]["cdi"];
    let version = policy["metadata"]["labels"][VERSION_LABEL].as_str().and_then(release);
    let recent = version.is_some_and(|version| version >= CDI_SINCE);
    cdi["enabled"] == true && (recent || cdi["default"] == true)
}

/// Year and month of `v25.10.1`.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix('v').unwrap_or(text).split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cdi_is_used_by_recent_releases_or_by_default() {
        let check = |version: &str, cdi: Value, expect: bool| {
            let labels = json!({ "app.kubernetes.io/version": version });
            let policy = json!({ "metadata": { "labels": labels }, "spec": { "cdi": cdi } });
            assert_eq!(gpu_operator_uses_cdi(&[policy]), expect, "{version}");
        };
        assert!(!gpu_operator_uses_cdi(&[]));
        check("v25.10.0", json!({ "enabled": true }), true);
        check("v26.1.0", json!({ "enabled": true }), true);
        check("v25.3.4", json!({ "enabled": true }), false);
        check("v25.3.4", json!({ "enabled": true, "default": true }), true);
        check("v25.10.0", json!({ "enabled": false, "default": true }), false);
        check("nightly", json!({ "enabled": true }), false);
    }
}
