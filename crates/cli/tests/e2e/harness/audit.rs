//! The audit log of the API server: the calls that it received.

use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde_json::Value;

/// The prefix of the service accounts of kai's roles.
const ACCOUNTS: &str = "system:serviceaccount:kai-scheduler:";

/// The audit log from a position on.
pub(crate) struct Audit {
    path: PathBuf,
    from_byte: u64,
}

/// A write that the server carried out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Write {
    /// The time of completion, as text that sorts by time.
    pub(crate) done: String,
    /// The user.
    pub(crate) user: String,
    /// The address of the client.
    pub(crate) source: String,
    /// The resource and subresource.
    pub(crate) resource: String,
    /// Namespace and name.
    pub(crate) object: String,
}

impl Audit {
    /// The log from now on.
    pub(crate) fn from_now() -> Audit {
        let path = std::env::var_os("KAI_E2E_AUDIT").expect("KAI_E2E_AUDIT says where the audit log is");
        let path = PathBuf::from(path);
        let from_byte = std::fs::metadata(&path).unwrap().len();
        Audit { path, from_byte }
    }

    /// All writes of kai's roles that the server carried out, in order of time.
    pub(crate) fn writes(&self) -> Vec<Write> {
        let mut writes: Vec<Write> = self.calls().iter().filter_map(write).collect();
        writes.sort();
        writes
    }

    /// All completed calls of kai's roles.
    pub(crate) fn calls(&self) -> Vec<Value> {
        let mut log = std::fs::File::open(&self.path).unwrap();
        log.seek(SeekFrom::Start(self.from_byte)).unwrap();
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        // The last line may be incomplete.
        let ours = text.lines().filter(|line| line.contains(ACCOUNTS));
        ours.filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// The user of a request; with impersonation, the impersonated user.
pub(crate) fn user(event: &Value) -> &str {
    let as_whom = &event["impersonatedUser"]["username"];
    as_whom
        .as_str()
        .or(event["user"]["username"].as_str())
        .unwrap_or_default()
}

fn write(event: &Value) -> Option<Write> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let changes = ["create", "update", "patch", "delete"].contains(&event["verb"].as_str()?);
    let code = event["responseStatus"]["code"].as_u64()?;
    let reference = &event["objectRef"];
    // A review writes nothing.
    let resource = text(&reference["resource"]);
    if !changes || !(200..300).contains(&code) || resource.ends_with("reviews") {
        return None;
    }
    let user = user(event)
        .strip_prefix("system:serviceaccount:kai-scheduler:")?
        .to_owned();
    let part = reference["subresource"].as_str().map(|part| format!("/{part}"));
    Some(Write {
        done: text(&event["stageTimestamp"]),
        user,
        source: text(&event["sourceIPs"][0]),
        resource: resource + &part.unwrap_or_default(),
        object: format!("{}/{}", text(&reference["namespace"]), text(&reference["name"])),
    })
}
