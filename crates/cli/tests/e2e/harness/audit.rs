//! What was written, as the API server saw it: its audit log.

use serde_json::Value;

/// A write that the server carried out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Write {
    /// When it was done, as text that sorts by time.
    pub(crate) done: String,
    /// Who wrote.
    pub(crate) user: String,
    /// From where.
    pub(crate) source: String,
    /// What: resource and subresource.
    pub(crate) resource: String,
    /// Namespace and name.
    pub(crate) object: String,
}

/// All writes by roles of kai that the server carried out, in order of time.
pub(crate) fn writes() -> Vec<Write> {
    let mut writes: Vec<Write> = events().filter_map(|event| write(&event)).collect();
    writes.sort();
    writes
}

/// All that was asked of the server and is done.
pub(crate) fn events() -> impl Iterator<Item = Value> {
    let path = std::env::var_os("KAI_E2E_AUDIT").expect("KAI_E2E_AUDIT says where the audit log is");
    let log = std::fs::read_to_string(path).unwrap();
    // The last line may be half written.
    let lines: Vec<String> = log.lines().map(str::to_owned).collect();
    lines.into_iter().filter_map(|line| serde_json::from_str(&line).ok())
}

/// Who made a request: whom it was made as.
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
    // A review is a question.
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
