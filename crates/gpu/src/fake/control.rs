//! Faults, loads and events of the fake machine: one value, set by code or read from a control file that is polled while clients run. The
//! machine interprets it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize};

use super::QueryGroup;
use crate::GpuError;

/// The state of the whole fake machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Control {
    /// If set, every call fails with this fault, as if the kernel module had been unloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<LibraryFault>,
    /// State per GPU, by index, UUID or `*` for all. For each field a UUID overrides an index, and an index overrides `*`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<String, GpuControl>,
    /// Events. Each client receives the events that are appended after it began to wait.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<ControlEvent>,
    /// Makes the library behave as NVML does on hardware: a GPU that was lost or removed stays so for a client, whatever `gpus` says later,
    /// until the client reopens the library.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub until_opened_anew: bool,
    /// Which calls for memory limits the library has. Absent: both in driver 615 and newer, otherwise none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_calls: Option<MemoryLimitCalls>,
    /// Where the driver looks for the limit of a cgroup.
    #[serde(skip_serializing_if = "MemoryLimitLookup::is_default")]
    pub memory_limit_lookup: MemoryLimitLookup,
    /// Whether the agent takes the fake driver for one that needs a cgroup controller of the kernel to count memory, as NVML does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory_limits_need_controller: bool,
    /// Lines the library prints to stderr when it starts, as Tegra's libraries do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub noise: Vec<String>,
}

/// Failures of the library as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LibraryFault {
    /// `Driver Not Loaded`.
    DriverNotLoaded,
    /// `Insufficient Permissions`.
    NoPermission,
    /// `Driver/library version mismatch`.
    VersionMismatch,
    /// `Unknown Error`, what a container sees after its device access was revoked.
    Unknown,
}

/// Which of the calls `nvmlDeviceSetMemoryLimits_v1` and `nvmlDeviceGetMemoryLimits_v1` a library has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryLimitCalls {
    /// Both.
    Both,
    /// Only the first.
    SetOnly,
    /// Only the second.
    GetOnly,
    /// None.
    None,
}

/// Where the driver looks for the limit of a cgroup, by the back end that it has chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryLimitLookup {
    /// In the cgroup and its ancestors: the nearest limit counts (back end `misc`).
    #[default]
    Nearest,
    /// In the cgroup alone (back end `dmem`).
    Leaf,
}

impl MemoryLimitLookup {
    fn is_default(&self) -> bool {
        *self == MemoryLimitLookup::default()
    }
}

/// How the memory limits of one GPU misbehave.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MemoryLimitFaults {
    /// NVML code of every write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_code: Option<u32>,
    /// NVML code of every read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub get_code: Option<u32>,
    /// The hard limit that every read answers, instead of the true one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_back_hard_mib: Option<u64>,
    /// How often the GPU was torn down. Limits that were set under another number are lost.
    pub teardowns: u32,
    /// How long each call takes.
    pub delay_ms: u64,
    /// Whether a write needs `CAP_SYS_ADMIN`, as it does on hardware.
    pub needs_administrator: bool,
}

/// State of one GPU. Absent fields have their idle values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GpuControl {
    /// Whether it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<GpuState>,
    /// Busy share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<u32>,
    /// Memory in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_mib: Option<u64>,
    /// Temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    /// Power draw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<u32>,
    /// Processes on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<Process>>,
    /// Queries refused with NOT_SUPPORTED, besides those of the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_supported: Option<Vec<QueryGroup>>,
    /// Whether it stays initialized while nobody uses it; it does by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistence_mode: Option<bool>,
    /// How its memory limits misbehave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limits: Option<MemoryLimitFaults>,
}

impl GpuControl {
    /// The fields of `self` that are set, otherwise those of `broader`.
    fn override_with_defaults(self, broader: &GpuControl) -> GpuControl {
        GpuControl {
            state: self.state.or(broader.state),
            utilization_percent: self.utilization_percent.or(broader.utilization_percent),
            memory_used_mib: self.memory_used_mib.or(broader.memory_used_mib),
            temperature_celsius: self.temperature_celsius.or(broader.temperature_celsius),
            power_watts: self.power_watts.or(broader.power_watts),
            processes: self.processes.or_else(|| broader.processes.clone()),
            not_supported: self.not_supported.or_else(|| broader.not_supported.clone()),
            persistence_mode: self.persistence_mode.or(broader.persistence_mode),
            memory_limits: self.memory_limits.or_else(|| broader.memory_limits.clone()),
        }
    }
}

/// Whether a GPU answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuState {
    /// It answers.
    #[default]
    Healthy,
    /// It fell off the bus: `GPU is lost`.
    Lost,
    /// `GPU requires reset`.
    ResetRequired,
    /// It is not listed at all, like an unbound device.
    Removed,
}

/// A process on a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Its GPU memory.
    #[serde(default)]
    pub memory_mib: u64,
    /// Compute or graphics.
    #[serde(default)]
    pub kind: ProcessKind,
    /// On a partitioned GPU: in which GPU instance; the first if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance_id: Option<u32>,
    /// Name of a process that does not exist on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Directory of the cgroup of a process that does not exist on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// Whether the driver reports its memory as not available.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_unavailable: bool,
}

/// What a process does on a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessKind {
    /// CUDA.
    #[default]
    Compute,
    /// CUDA through a multi-process server.
    MpsClient,
    /// Rendering.
    Graphics,
}

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ControlEvent {
    /// Index or UUID; `*` for every GPU.
    #[serde(deserialize_with = "text_or_number")]
    pub gpu: String,
    /// Number of a critical error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xid: Option<u64>,
    /// An uncorrectable memory error instead.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub double_bit_ecc: bool,
    /// Only this GPU instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_instance_id: Option<u32>,
    /// Only this compute instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_instance_id: Option<u32>,
}

impl ControlEvent {
    /// A critical error of one GPU.
    pub fn xid(gpu: &str, xid: u64) -> Self {
        Self {
            gpu: gpu.to_owned(),
            xid: Some(xid),
            ..Self::default()
        }
    }
}

fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TextOrNumber {
        Number(u32),
        Text(String),
    }
    Ok(match TextOrNumber::deserialize(deserializer)? {
        TextOrNumber::Number(number) => number.to_string(),
        TextOrNumber::Text(text) => text,
    })
}

impl Control {
    /// The state of the GPU with this index and UUID: the UUID's fields override the index's, and these override those of `*`.
    pub fn gpu(&self, index: u32, uuid: &str) -> GpuControl {
        let mut result = GpuControl::default();
        for name in ["*", &index.to_string(), uuid] {
            if let Some(control) = self.gpus.get(name) {
                result = control.clone().override_with_defaults(&result);
            }
        }
        result
    }

    /// The first field that names a GPU which the machine does not have, and that name.
    pub(crate) fn unknown_gpu(&self, is_gpu: impl Fn(&str) -> bool) -> Option<(String, &str)> {
        let known = |name: &str| name == "*" || is_gpu(name);
        let by_state = self.gpus.keys().map(|name| (format!("gpus.{name}"), &**name));
        let events = self.events.iter().enumerate();
        let by_event = events.map(|(at, event)| (format!("events[{at}].gpu"), &*event.gpu));
        by_state.chain(by_event).find(|(_, name)| !known(name))
    }

    /// An error if a field names a GPU which the machine does not have. `origin` is for messages.
    pub(crate) fn check_gpus(&self, origin: &str, is_gpu: impl Fn(&str) -> bool) -> Result<(), GpuError> {
        let Some((field, name)) = self.unknown_gpu(is_gpu) else {
            return Ok(());
        };
        let detail = format!("{field}: there is no GPU {name:?} on this machine");
        let origin = origin.to_owned();
        Err(GpuError::FakeControl { origin, detail })
    }
}

/// The control file. [`ControlFile::read`] is strict, for the start. [`ControlFile::poll`] reads it at most every
/// [`ControlFile::PERIOD`]; an unreadable or half-written file changes nothing: the last good content stays, so that a save in an editor does not
/// make a GPU fail. The log has each such content once.
#[derive(Debug)]
pub(crate) struct ControlFile {
    path: PathBuf,
    text: String,
    checked: Option<Instant>,
    /// The last error in the log.
    logged: Option<String>,
}

impl ControlFile {
    /// Short enough that people see a change at once, long enough that a client that calls in a loop does not read the file at every call.
    pub(crate) const PERIOD: Duration = Duration::from_millis(20);

    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            text: String::new(),
            checked: None,
            logged: None,
        }
    }

    /// The content of the file, which has to exist and to be valid.
    pub(crate) fn read(&mut self, is_gpu: impl Fn(&str) -> bool) -> Result<Control, GpuError> {
        let text = std::fs::read_to_string(&self.path).map_err(|error| self.wrong(error.to_string()))?;
        let control = self.parse(&text, is_gpu)?;
        self.text = text;
        Ok(control)
    }

    /// New content, if the file changed. A removed file means that all GPUs are idle and healthy.
    pub(crate) fn poll(&mut self, is_gpu: impl Fn(&str) -> bool) -> Option<Control> {
        if self.checked.is_some_and(|checked| checked.elapsed() < Self::PERIOD) {
            return None;
        }
        self.checked = Some(Instant::now());
        let changed = match std::fs::read_to_string(&self.path) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(self.wrong(error.to_string())),
        };
        let parsed = changed.and_then(|text| match text == self.text {
            true => Ok(None),
            false => self.parse(&text, is_gpu).map(|control| Some((text, control))),
        });
        match parsed {
            Ok(None) => None,
            Ok(Some((text, control))) => {
                self.text = text;
                self.logged = None;
                Some(control)
            }
            Err(error) => {
                let message = error.with_remedy();
                if self.logged.as_ref() != Some(&message) {
                    tracing::warn!("the fake GPUs stay as they are: {message}");
                    self.logged = Some(message);
                }
                None
            }
        }
    }

    fn parse(&self, text: &str, is_gpu: impl Fn(&str) -> bool) -> Result<Control, GpuError> {
        if text.trim().is_empty() {
            return Ok(Control::default());
        }
        let control: Control = serde_saphyr::from_str(text).map_err(|error| self.wrong(error.to_string()))?;
        control.check_gpus(&self.origin(), is_gpu)?;
        Ok(control)
    }

    fn origin(&self) -> String {
        self.path.display().to_string()
    }

    fn wrong(&self, detail: String) -> GpuError {
        GpuError::FakeControl {
            origin: self.origin(),
            detail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precise_names_win_field_by_field() {
        let text = "
gpus:
  '*': {temperatureCelsius: 80, utilizationPercent: 5}
  1: {utilizationPercent: 50}
  GPU-x: {utilizationPercent: 99, state: lost}
";
        let control: Control = serde_saphyr::from_str(text).unwrap();
        assert_eq!(control.gpu(0, "GPU-y").utilization_percent, Some(5));
        let precise = control.gpu(1, "GPU-x");
        assert_eq!(precise.utilization_percent, Some(99));
        assert_eq!(precise.temperature_celsius, Some(80));
        assert_eq!(precise.state, Some(GpuState::Lost));
    }

    #[test]
    fn the_file_is_read_again_and_bad_content_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.yaml");
        let mut file = ControlFile::new(&path);
        let any = |_: &str| true;
        assert_eq!(file.poll(any), None, "no file is no news");
        let mut poll_after = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::thread::sleep(ControlFile::PERIOD);
            file.poll(|name| name == "0")
        };
        let hot = poll_after("gpus: {0: {temperatureCelsius: 91}}").unwrap();
        assert_eq!(hot.gpu(0, "").temperature_celsius, Some(91));
        assert_eq!(poll_after("gpus: {0: {temperatureCel"), None);
        assert_eq!(poll_after("gpus: {7: {temperatureCelsius: 95}}"), None);
        assert_eq!(poll_after("gpus: {0: {temperatureCelsius: 91}}"), None);
        assert_eq!(poll_after(""), Some(Control::default()));
    }

    #[test]
    fn at_the_start_a_file_that_is_missing_or_wrong_is_an_error_with_field_and_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.yaml");
        let read = || {
            ControlFile::new(&path)
                .read(|name| name == "0")
                .map_err(|error| error.with_remedy())
        };
        let file = path.display().to_string();
        let check = |words: &str| {
            let error = read().unwrap_err();
            let remedy = error.contains("Correct the value or the file");
            assert!(error.contains(words) && error.contains(&file) && remedy, "{error}");
        };
        check("No such file");
        std::fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
        check("UTF-8");
        for (text, words) in [
            ("gpus: {0: {stat: lost}}", "stat"),
            ("gpus: {0: {state: lots}}", "lots"),
            ("gpus: {7: {state: lost}}", "gpus.7: there is no GPU \"7\""),
            (
                "events: [{gpu: 0, xid: 48}, {gpu: GPU-x}]",
                "events[1].gpu: there is no GPU \"GPU-x\"",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            check(words);
        }
        for text in ["", "gpus: {0: {state: lost}, '*': {powerWatts: 3}}"] {
            std::fs::write(&path, text).unwrap();
            assert!(read().is_ok(), "{text}");
        }
    }
}
