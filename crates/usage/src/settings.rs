//! `usageDBConfig` of a shard, with KAI's defaults.

use std::time::Duration;

use kai_api::crd::{UsageDbConfig, UsageParams};
use kai_api::parse_duration;
use kai_engine::model::Millis;

use crate::decay::Decay;
use crate::prometheus::PrometheusSettings;
use crate::window::{WINDOW_MAX, Window};

const MINUTE: Duration = Duration::from_secs(60);
const WEEK: Millis = Millis::seconds(7 * 24 * 3600);
/// The shortest time between two queries. Shorter ones would load Prometheus without new data: it is scraped every few seconds at best.
const FETCH_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Where usage comes from, and what of the past counts.
#[derive(Clone, Debug)]
pub struct UsageSettings {
    /// Where usage comes from.
    pub source: Source,
    /// The window of the past that counts.
    pub window: Window,
    /// What the past weighs.
    pub decay: Decay,
    /// The time between two updates of the engine.
    pub fetch_interval: Duration,
    /// How old the last answer of Prometheus may be before it is reported as stale. It is used all the same.
    pub staleness: Duration,
    /// How long the first cycle waits for the first answer of Prometheus.
    pub wait_timeout: Duration,
}

/// Where usage comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// The scheduler's own history.
    Embedded,
    /// A Prometheus server.
    Prometheus(PrometheusSettings),
}

impl Default for UsageSettings {
    /// The embedded history with KAI's defaults.
    fn default() -> UsageSettings {
        UsageSettings {
            source: Source::Embedded,
            window: Window::Sliding { size: WEEK },
            decay: Decay::new(None),
            fetch_interval: MINUTE,
            staleness: 5 * MINUTE,
            wait_timeout: MINUTE,
        }
    }
}

/// Reads the settings. An error names the field.
pub fn read(config: &UsageDbConfig) -> Result<UsageSettings, String> {
    let default_params = UsageParams::default();
    let params = config.usage_params.as_ref().unwrap_or(&default_params);
    let source = source(config, params)?;
    let defaults = UsageSettings::default();
    let fetch_interval = duration("fetchInterval", &params.fetch_interval)?.unwrap_or(defaults.fetch_interval);
    let fetch_interval = fetch_interval.max(FETCH_INTERVAL_MIN);
    let staleness = duration("stalenessPeriod", &params.staleness_period)?.unwrap_or(defaults.staleness);
    Ok(UsageSettings {
        source,
        window: window(params)?,
        decay: Decay::new(millis("halfLifePeriod", &params.half_life_period)?),
        fetch_interval,
        staleness: staleness.max(fetch_interval),
        wait_timeout: duration("waitTimeout", &params.wait_timeout)?.unwrap_or(defaults.wait_timeout),
    })
}

fn source(config: &UsageDbConfig, params: &UsageParams) -> Result<Source, String> {
    let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let address = (set(&config.connection_string), set(&config.connection_string_env_var));
    match (config.client_type.as_str(), address) {
        (_, (Some(_), Some(_))) => {
            Err("connectionString and connectionStringEnvVar: both are set; remove one".to_owned())
        }
        ("" | "prometheus" | "embedded", (None, None)) => Ok(Source::Embedded),
        ("embedded", _) => Err("clientType: embedded has no address; remove it, or write prometheus".to_owned()),
        ("" | "prometheus", (url, variable)) => PrometheusSettings::read(url, variable, params).map(Source::Prometheus),
        ("fake" | "fake-with-history", _) => Err(
            "clientType: the fake clients of KAI's tests do not exist here; write prometheus or embedded".to_owned(),
        ),
        (other, _) => Err(format!(
            "clientType: {other:?} is unknown; known are prometheus and embedded"
        )),
    }
}

fn window(params: &UsageParams) -> Result<Window, String> {
    let size = match params.window_size.as_deref().filter(|text| !text.is_empty()) {
        None => WEEK,
        Some(text) => window_size(text)?,
    };
    match params.window_type.as_deref().unwrap_or_default() {
        "" | "sliding" => Ok(Window::Sliding { size }),
        "tumbling" => {
            let first = params.tumbling_window_start_time.as_ref();
            let first =
                first.ok_or("tumblingWindowStartTime: windowType tumbling needs it, such as 2026-01-01T00:00:00Z")?;
            let first = Millis(first.0.as_millisecond());
            Ok(Window::Tumbling { size, first })
        }
        "cron" => {
            let schedule = params.cron_string.as_deref().unwrap_or_default();
            Window::cron(schedule)
                .map_err(|error| format!("cronString: {schedule:?} is not a schedule such as \"0 0 * * 1\": {error}"))
        }
        other => Err(format!(
            "windowType: {other:?} is unknown; known are sliding, tumbling and cron"
        )),
    }
}

/// Reads a length as Prometheus writes it, such as `1w2d`, or as Go does.
pub fn window_size(text: &str) -> Result<Millis, String> {
    let size = match prometheus_duration(text) {
        Some(size) => size,
        None => parse_duration(text).map_err(|error| format!("windowSize: {error}"))?,
    };
    match size {
        size if size.0 <= 0 => Err(format!(
            "windowSize: {text:?} is no time; write more than zero, such as 1w"
        )),
        size if size > WINDOW_MAX => Err(format!("windowSize: {text:?} is too long; write at most 366d")),
        size => Ok(size),
    }
}

/// Whole numbers with the units of Prometheus, each at most once, the longest first. `None` = it is something else.
fn prometheus_duration(text: &str) -> Option<Millis> {
    const DAY: i64 = 24 * 3_600_000;
    let units = [
        ("y", 365 * DAY),
        ("w", 7 * DAY),
        ("d", DAY),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
        ("ms", 1),
    ];
    let (mut rest, mut units, mut sum) = (text, units.into_iter(), 0_i64);
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let number: i64 = rest[..digits].parse().ok()?;
        let tail = &rest[digits..];
        let letters = tail.find(|letter: char| letter.is_ascii_digit()).unwrap_or(tail.len());
        let (_, factor) = units.find(|(unit, _)| *unit == &tail[..letters])?;
        sum = sum.saturating_add(number.saturating_mul(factor));
        rest = &tail[letters..];
    }
    (!text.is_empty()).then_some(Millis(sum))
}

fn millis(field: &str, text: &Option<String>) -> Result<Option<Millis>, String> {
    let text = text.as_deref().filter(|text| !text.is_empty());
    let read = text.map(|text| prometheus_duration(text).map_or_else(|| parse_duration(text), Ok));
    read.transpose().map_err(|error| format!("{field}: {error}"))
}

/// A duration that is not negative.
pub(crate) fn duration(field: &str, text: &Option<String>) -> Result<Option<Duration>, String> {
    let Some(millis) = millis(field, text)? else {
        return Ok(None);
    };
    let duration = u64::try_from(millis.0).map(Duration::from_millis);
    duration
        .map(Some)
        .map_err(|_| format!("{field}: it is negative; write zero or more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: serde_json::Value) -> Result<UsageSettings, String> {
        read(&serde_json::from_value(json).unwrap())
    }

    fn params(params: serde_json::Value) -> Result<UsageSettings, String> {
        config(
            serde_json::json!({ "clientType": "prometheus", "connectionString": "http://p:9090", "usageParams": params }),
        )
    }

    #[test]
    fn the_defaults_are_those_of_kai() {
        let read = params(serde_json::json!({})).unwrap();
        assert!(matches!(read.window, Window::Sliding { size } if size == WEEK));
        assert_eq!(read.decay.half_life(), None);
        let times = [read.fetch_interval, read.staleness, read.wait_timeout].map(|time| time.as_secs());
        assert_eq!(times, [60, 300, 60]);
    }

    #[test]
    fn without_an_address_the_scheduler_keeps_the_history() {
        for kind in ["prometheus", "embedded", ""] {
            let read =
                config(serde_json::json!({ "clientType": kind, "usageParams": { "halfLifePeriod": "24h" } })).unwrap();
            assert_eq!(read.source, Source::Embedded);
            assert_eq!(read.decay.half_life(), Some(Millis::seconds(24 * 3600)));
        }
        let read = params(serde_json::json!({})).unwrap();
        assert!(matches!(read.source, Source::Prometheus(_)));
    }

    #[test]
    fn times_are_written_as_prometheus_or_go_does() {
        for (text, hours) in [
            ("1w", 168),
            ("1w2d3h", 219),
            ("168h0m0s", 168),
            ("1y", 365 * 24),
            ("90m", 1),
        ] {
            assert_eq!(window_size(text).unwrap().0 / 3_600_000, hours, "{text}");
        }
        assert_eq!(window_size("1s5ms").unwrap(), Millis(1005));
        for (text, told) in [
            ("0", "no time"),
            ("2y", "too long"),
            ("5d1w", "duration"),
            ("soon", "duration"),
            ("-1h", "no time"),
        ] {
            let error = window_size(text).unwrap_err();
            assert!(
                error.starts_with("windowSize: ") && error.contains(told),
                "{text}: {error}"
            );
        }
        let read =
            params(serde_json::json!({ "fetchInterval": "10m", "stalenessPeriod": "1m", "halfLifePeriod": "-1s" }))
                .unwrap();
        assert_eq!((read.staleness.as_secs(), read.decay.half_life()), (600, None));
    }

    #[test]
    fn an_error_names_field_and_remedy() {
        for (given, told) in [
            (
                serde_json::json!({ "windowType": "tumbling" }),
                "tumblingWindowStartTime: windowType tumbling needs it",
            ),
            (
                serde_json::json!({ "windowType": "cron" }),
                "cronString: \"\" is not a schedule",
            ),
            (
                serde_json::json!({ "windowType": "round" }),
                "windowType: \"round\" is unknown; known are sliding, tumbling and cron",
            ),
            (
                serde_json::json!({ "fetchInterval": "-1s" }),
                "fetchInterval: it is negative",
            ),
            (
                serde_json::json!({ "halfLifePeriod": "soon" }),
                "halfLifePeriod: \"soon\" is not a duration",
            ),
        ] {
            let error = params(given).unwrap_err();
            assert!(error.starts_with(told), "{error}");
        }
        for (given, told) in [
            (
                serde_json::json!({ "clientType": "influx" }),
                "clientType: \"influx\" is unknown",
            ),
            (
                serde_json::json!({ "clientType": "fake" }),
                "clientType: the fake clients",
            ),
            (
                serde_json::json!({ "clientType": "prometheus", "connectionString": "http://p", "connectionStringEnvVar": "P" }),
                "connectionString and",
            ),
        ] {
            let error = config(given).unwrap_err();
            assert!(error.starts_with(told), "{error}");
        }
        assert!(
            params(serde_json::json!({ "windowType": "tumbling", "tumblingWindowStartTime": "2026-01-01T00:00:00Z" }))
                .is_ok()
        );
        assert!(params(serde_json::json!({ "windowType": "cron", "cronString": "0 0 * * 1" })).is_ok());
    }
}
