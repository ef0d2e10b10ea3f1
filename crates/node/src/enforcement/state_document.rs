//! The state document that a container runtime passes to a hook on its stdin (OCI runtime specification, "State"). Only the pid and the id
//! are read. `status` is not: runc says `creating` and crun `created` at the same point.

use std::io::Read;

use serde::Deserialize;

/// Longest document that is read. A document has a few hundred bytes, and the container's annotations.
const BYTES_MAX: u64 = 1 << 20;

/// What a hook knows about its container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerState {
    /// The container's id.
    pub id: String,
    /// Its first process, as the hook's PID namespace numbers it.
    pub pid: u32,
}

/// Why a state document is of no use.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// stdin can't be read.
    #[error("reading the container's state from stdin: {0}; only a container runtime can run this hook")]
    Read(std::io::Error),
    /// The document is longer than any runtime writes.
    #[error("the container's state on stdin is longer than {BYTES_MAX} bytes; remove annotations of the container")]
    TooLong,
    /// It is no state document.
    #[error("the container's state on stdin is not the document of the OCI runtime specification: {0}")]
    Malformed(serde_json::Error),
    /// The container has no process yet.
    #[error(
        "the container's state on stdin has pid {0}: the runtime runs this hook before the container's process exists; use runc or crun"
    )]
    NoProcess(i64),
}

#[derive(Deserialize)]
struct Document {
    id: String,
    #[serde(default)]
    pid: i64,
}

/// Reads the document.
pub fn read(input: impl Read) -> Result<ContainerState, StateError> {
    let mut bytes = Vec::new();
    input
        .take(BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(StateError::Read)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(StateError::TooLong);
    }
    let document: Document = serde_json::from_slice(&bytes).map_err(StateError::Malformed)?;
    match u32::try_from(document.pid) {
        Ok(pid) if pid > 0 => Ok(ContainerState { id: document.id, pid }),
        Ok(_) | Err(_) => Err(StateError::NoProcess(document.pid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Documents as runc and crun write them: the field `status` differs.
    pub(crate) fn document(status: &str, pid: i64) -> String {
        format!(
            r#"{{"ociVersion":"1.2.1","id":"abc","status":"{status}","pid":{pid},"bundle":"/run/x","annotations":{{"a":"b"}}}}"#
        )
    }

    #[test]
    fn the_status_does_not_matter() {
        for status in ["creating", "created"] {
            let expect = ContainerState {
                id: "abc".to_owned(),
                pid: 42,
            };
            assert_eq!(read(document(status, 42).as_bytes()).unwrap(), expect);
        }
    }

    #[test]
    fn what_is_no_state_is_refused() {
        let full = document("creating", 42);
        for cut in [0, 1, full.len() / 2, full.len() - 1] {
            assert!(matches!(read(&full.as_bytes()[..cut]), Err(StateError::Malformed(_))));
        }
        for pid in [0, -1, i64::MAX] {
            assert!(matches!(
                read(document("creating", pid).as_bytes()),
                Err(StateError::NoProcess(_))
            ));
        }
        assert!(matches!(read(std::io::repeat(b' ')), Err(StateError::TooLong)));
        assert!(matches!(read(&b"[]"[..]), Err(StateError::Malformed(_))));
    }

    fn fuzz(fuzz: kai_fuzz::Fuzz) {
        fuzz.json(&[serde_json::from_str(&document("created", 1)).unwrap()], |tree| {
            let _ = read(tree.to_string().as_bytes());
        });
    }

    #[test]
    fn mutated_documents_never_panic() {
        fuzz(kai_fuzz::Fuzz::short("state document"));
    }
}
