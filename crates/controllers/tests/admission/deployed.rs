//! The committed files in deploy/ are those of a default installation.

use kai_controllers::admission::{self, Args};
use serde_json::Value;

#[derive(clap::Parser)]
struct NoFlags {
    #[command(flatten)]
    args: Args,
}

fn default_settings() -> admission::Settings {
    let flags = <NoFlags as clap::Parser>::try_parse_from(["admission"]).unwrap();
    flags.args.settings().unwrap()
}

fn deployed(file: &str) -> std::path::PathBuf {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy")).join(file)
}

/// Compares a committed file; `KAI_UPDATE=1` writes it.
fn assert_committed(file: &str, head: &str, objects: impl IntoIterator<Item = Value>) {
    let mut text = head.to_owned();
    for object in objects {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(&object).unwrap());
    }
    let path = deployed(file);
    if std::env::var_os("KAI_UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(&path).unwrap_or_default(),
        text,
        "run this test with KAI_UPDATE=1"
    );
}

/// The committed policies are those of a default installation.
#[test]
fn committed_policies_are_current() {
    let head = "# The scheduler's own keys and objects, guarded by the API server itself. `kai admission` applies these at start;\n\
                # this file is for installations that apply them beforehand. Generated; see crates/controllers/tests/admission/deployed.rs.\n";
    assert_committed(
        "admission-policies.yaml",
        head,
        admission::admission_policies(&default_settings()),
    );
}

/// The committed webhooks are those of a default installation.
#[test]
fn committed_webhooks_are_current() {
    let head = "# The webhooks, for installations whose `kai admission --register=false` may not register them. They have no caBundle: write\n\
                # the authority of the certificate in --cert-dir there, or let cert-manager do it (cert-manager.io/inject-ca-from).\n\
                # Generated; see crates/controllers/tests/admission/deployed.rs.\n";
    let configurations = admission::webhook_configurations(&default_settings(), "");
    assert_committed("admission-webhooks.yaml", head, configurations);
}

/// The account that registers may write each webhook configuration and policy by name; the account that only serves may write none.
#[test]
fn the_right_to_register_is_apart_and_names_every_object() {
    let text = std::fs::read_to_string(deployed("rbac.yaml")).unwrap();
    let manifests = serde_saphyr::from_multiple::<Value>(&text).unwrap();
    let rules = |name: &str| -> Vec<Value> {
        let role = manifests
            .iter()
            .find(|object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == name);
        role.unwrap()["rules"].as_array().unwrap().clone()
    };
    let registration = "admissionregistration.k8s.io";
    let of_group = |rule: &&Value| rule["apiGroups"][0] == registration;
    assert_eq!(rules("kai-admission").iter().filter(of_group).count(), 0);
    let may_patch = |resource: &str, name: &str| {
        rules("kai-admission-registration").iter().filter(of_group).any(|rule| {
            let has = |field: &str, value: &str| rule[field].as_array().unwrap().iter().any(|entry| entry == value);
            has("verbs", "patch") && has("resources", resource) && has("resourceNames", name)
        })
    };
    let settings = default_settings();
    let objects = admission::admission_policies(&settings).into_iter();
    for object in objects.chain(admission::webhook_configurations(&settings, "")) {
        let kind = object["kind"].as_str().unwrap().to_lowercase();
        let plural = match kind.strip_suffix('y') {
            Some(stem) => format!("{stem}ies"),
            None => format!("{kind}s"),
        };
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(may_patch(&plural, name), "{plural} {name}");
    }
}
