//! Since when the containers of a pod run. Of the statuses of containers, only that is kept.

use kai_engine::model::Millis;
use serde::{Deserialize, Deserializer};

use super::chosen::chosen;
use crate::parse_time;

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    state: Option<State>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    running: Option<Running>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Running {
    started_at: Option<String>,
}

/// For `#[serde(deserialize_with)]`. A time that can't be read counts as none.
pub(super) fn earliest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Millis>, D::Error> {
    let started = chosen(deserializer, |container: ContainerStatus| {
        let started = container.state?.running?.started_at?;
        parse_time(&started).ok()
    })?;
    Ok(started.into_iter().min())
}

#[cfg(test)]
mod tests {
    use super::super::Pod;
    use super::*;

    fn started(statuses: &str) -> Option<Millis> {
        let pod: Pod = serde_json::from_str(&format!(r#"{{"status":{{"containerStatuses":{statuses}}}}}"#)).unwrap();
        pod.started()
    }

    #[test]
    fn the_container_that_has_run_for_longest_counts() {
        assert_eq!(
            started(
                r#"[{"name":"a","state":{"running":{"startedAt":"1970-01-01T00:00:05Z"}}},
                    {"name":"b","state":{"running":{"startedAt":"1970-01-01T00:00:03Z"}}},
                    {"name":"c","state":{"terminated":{"startedAt":"1970-01-01T00:00:01Z"}}}]"#
            ),
            Some(Millis(3_000))
        );
        for none in [
            "null",
            "[]",
            r#"[{"state":null},{"state":{"running":{"startedAt":"soon"}}},{}]"#,
        ] {
            assert_eq!(started(none), None, "{none}");
        }
    }

    #[test]
    fn a_container_that_starts_again_is_no_change() {
        let at = |time: &str| -> Pod {
            let status = format!(r#"{{"containerStatuses":[{{"state":{{"running":{{"startedAt":"{time}"}}}}}}]}}"#);
            serde_json::from_str(&format!(r#"{{"status":{status}}}"#)).unwrap()
        };
        let first = at("1970-01-01T00:00:05Z");
        assert!(at("1970-01-01T00:00:09Z").same_content(&first));
        assert!(!Pod::default().same_content(&first));
    }
}
