//! One configuration file of NVIDIA's device plugin (`version: v1`): text in, settings and warnings out. A field that would change what the
//! node offers is honoured or refused; a field that has no effect here is named in a warning. Pure.

use serde_json::Value;

use super::fields::{FieldProblem, Section, shown};
use crate::allocator::plan::{GPU_RESOURCE, MigStrategy, Policy};
use crate::allocator::prefer::SharedPolicy;
use crate::allocator::sharing::{InvalidSharing, Rename, Sharing};

/// What a configuration file sets. `None` leaves the setting to the agent's flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileSettings {
    /// `flags.migStrategy`.
    pub mig: Option<MigStrategy>,
    /// `flags.plugin.sharedDevicesAllocationPolicy`.
    pub shared_policy: Option<SharedPolicy>,
    /// `sharing.timeSlicing`.
    pub sharing: Option<Sharing>,
}

/// A file that can be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigFile {
    /// What it sets.
    pub settings: FileSettings,
    /// Fields without effect, each with the reason.
    pub warnings: Vec<String>,
}

const MIG_STRATEGY: &str = "flags.migStrategy";
const SHARED_POLICY: &str = "flags.plugin.sharedDevicesAllocationPolicy";
const TIME_SLICING: &str = "sharing.timeSlicing";

/// Flags of NVIDIA's programs without effect here, with the reason or the way to do it here.
const FLAGS_WITHOUT_EFFECT: [(&str, &str); 9] = [
    (
        "failOnInitError",
        "the agent waits for the driver and reports that it does not answer",
    ),
    ("mpsRoot", "MPS is not supported"),
    ("nvidiaDriverRoot", "the agent has the flag --driver-root"),
    ("nvidiaDevRoot", "the agent finds device nodes under --host-root"),
    ("gdrcopyEnabled", "the agent injects no GDRCopy devices"),
    ("gdsEnabled", "the agent injects no GPUDirect Storage devices"),
    ("mofedEnabled", "the agent injects no MOFED devices"),
    ("useNodeFeatureAPI", "the agent writes the labels itself"),
    ("deviceDiscoveryStrategy", "the agent has the flag --driver"),
];
const PLUGIN_FLAGS_WITHOUT_EFFECT: [(&str, &str); 6] = [
    ("passDeviceSpecs", "the agent has the flag --mode"),
    ("deviceListStrategy", "the agent has the flag --mode"),
    ("deviceIDStrategy", "device ids are UUIDs"),
    ("cdiAnnotationPrefix", "the agent writes the prefix cdi.k8s.io/"),
    ("nvidiaCTKPath", "the agent's CDI specs have no hooks"),
    ("containerDriverRoot", "the agent has the flag --driver-root"),
];
const GFD_FLAGS: [&str; 5] = [
    "oneshot",
    "noTimestamp",
    "sleepInterval",
    "outputFile",
    "machineTypeFile",
];

/// Reads a file. An empty file sets nothing.
pub fn parse(text: &str) -> Result<ConfigFile, FieldProblem> {
    let tree: Value = kai_yaml::from_str(text).map_err(|error| {
        let problem = format!("this is no valid YAML: {error}; correct the file");
        FieldProblem::new("", problem)
    })?;
    let root = Section::new(String::new(), &tree)?;
    root.only(&["version", "flags", "resources", "sharing", "imex"])?;
    version(&root)?;
    let mut warnings = Vec::new();
    let flags = root.section("flags")?;
    let (mig, shared_policy) = read_flags(&flags, &mut warnings)?;
    let sharing = read_sharing(&root.section("sharing")?, &mut warnings)?;
    read_resources(&root.section("resources")?, &mut warnings)?;
    if root.get("imex").is_some() {
        warnings.push("imex has no effect: the agent injects no IMEX channels".to_owned());
    }
    Ok(ConfigFile {
        settings: FileSettings {
            mig,
            shared_policy,
            sharing,
        },
        warnings,
    })
}

impl FileSettings {
    /// The policy of the node: that of the flags, with what the file sets. A setting in both places must be the same: neither place is the
    /// obvious one to win, and the loser would be ignored silently.
    pub fn over(&self, flags: &Policy) -> Result<Policy, FieldProblem> {
        Ok(Policy {
            mig: merged(
                self.mig,
                flags.mig,
                MIG_STRATEGY,
                "--mig-strategy (chart: nodeAgent.migStrategy)",
            )?,
            shared_policy: merged(
                self.shared_policy,
                flags.shared_policy,
                SHARED_POLICY,
                "--shared-policy",
            )?,
            sharing: merged(
                self.sharing.clone(),
                flags.sharing.clone(),
                TIME_SLICING,
                "--replicas or --one-replica-per-container (chart: nodeAgent.timeSlicing)",
            )?,
            share_devices: flags.share_devices,
        })
    }
}

fn merged<T: Default + PartialEq>(file: Option<T>, flag: T, field: &str, option: &str) -> Result<T, FieldProblem> {
    match file {
        None => Ok(flag),
        Some(file) if flag == T::default() || file == flag => Ok(file),
        Some(_) => Err(FieldProblem::new(
            field,
            format!("the agent's flag {option} says something else; remove the flag or this field"),
        )),
    }
}

fn version(root: &Section) -> Result<(), FieldProblem> {
    match root.text("version")? {
        None | Some("" | "v1") => Ok(()),
        Some(other) => Err(FieldProblem::new(
            "version",
            format!("{} is unknown; write v1", shown(&other.into())),
        )),
    }
}

type MigAndSpread = (Option<MigStrategy>, Option<SharedPolicy>);

fn read_flags(flags: &Section, warnings: &mut Vec<String>) -> Result<MigAndSpread, FieldProblem> {
    let strategies = [MigStrategy::None, MigStrategy::Single, MigStrategy::Mixed].map(|mig| (mig.as_str(), mig));
    let mig = flags.one_of("migStrategy", &strategies)?;
    let (plugin, gfd) = (flags.section("plugin")?, flags.section("gfd")?);
    let policies = [("distributed", SharedPolicy::Spread), ("packed", SharedPolicy::Packed)];
    let shared_policy = plugin.one_of("sharedDevicesAllocationPolicy", &policies)?;
    without_effect(
        flags,
        &["migStrategy", "plugin", "gfd"],
        &FLAGS_WITHOUT_EFFECT,
        warnings,
    )?;
    without_effect(
        &plugin,
        &["sharedDevicesAllocationPolicy"],
        &PLUGIN_FLAGS_WITHOUT_EFFECT,
        warnings,
    )?;
    let gfd_flags = GFD_FLAGS.map(|name| (name, "the agent writes the labels itself"));
    without_effect(&gfd, &[], &gfd_flags, warnings)?;
    Ok((mig, shared_policy))
}

/// Names the flags that have no effect. An unknown flag may be one of a newer plugin and gives a warning, too, unless it looks like a typo.
fn without_effect(
    section: &Section,
    honoured: &[&str],
    without_effect: &[(&str, &str)],
    warnings: &mut Vec<String>,
) -> Result<(), FieldProblem> {
    for name in section.others(honoured) {
        let known = without_effect
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        let reason = match known {
            Some((_, reason)) => *reason,
            None => {
                let all: Vec<&str> = honoured
                    .iter()
                    .copied()
                    .chain(without_effect.iter().map(|(known, _)| *known))
                    .collect();
                if kai_yaml::nearest(name, all.iter().copied()).is_some() {
                    return Err(section.unknown(name, &all));
                }
                "the agent does not know it"
            }
        };
        let field = kai_yaml::shortened(&section.path_of(name), 80);
        warnings.push(format!("{field} has no effect: {reason}"));
    }
    Ok(())
}

fn read_sharing(sharing: &Section, warnings: &mut Vec<String>) -> Result<Option<Sharing>, FieldProblem> {
    sharing.only(&["timeSlicing", "mps"])?;
    if sharing.get("mps").is_some() {
        return Err(FieldProblem::new(
            "sharing.mps",
            "MPS is not supported; use sharing.timeSlicing, or pods with the annotation gpu-fraction, and remove this field",
        ));
    }
    if sharing.get("timeSlicing").is_none() {
        return Ok(None);
    }
    time_slicing(&sharing.section("timeSlicing")?, warnings).map(Some)
}

fn time_slicing(section: &Section, warnings: &mut Vec<String>) -> Result<Sharing, FieldProblem> {
    section.only(&["renameByDefault", "failRequestsGreaterThanOne", "resources", "replicas"])?;
    let mut sharing = Sharing::default();
    sharing.one_per_container = section.bool("failRequestsGreaterThanOne")?;
    let rename = if section.bool("renameByDefault")? {
        Rename::WithSuffix
    } else {
        Rename::Keep
    };
    match (section.get("replicas"), section.list("resources")?) {
        (None, Some(entries)) if !entries.is_empty() => {
            for (at, entry) in entries.iter().enumerate() {
                let path = format!("{}[{at}]", section.path_of("resources"));
                shared_resource(&Section::new(path, entry)?, rename, &mut sharing, warnings)?;
            }
        }
        (None, _) => {
            let problem = format!(
                "no resource is shared; write `- {{name: {GPU_RESOURCE}, replicas: 2}}`, or remove timeSlicing"
            );
            return Err(FieldProblem::new(section.path_of("resources"), problem));
        }
        // Ours: NVIDIA's plugin refuses this short form. It can only mean all GPUs.
        (Some(_), None) => {
            let replicas = replicas(section)?;
            sharing
                .add(GPU_RESOURCE, replicas, rename)
                .map_err(|invalid| at_field(section, invalid))?;
        }
        (Some(_), Some(_)) => {
            let problem = "it stands beside resources; write replicas into the entries of resources";
            return Err(FieldProblem::new(section.path_of("replicas"), problem));
        }
    }
    Ok(sharing)
}

fn shared_resource(
    entry: &Section,
    default: Rename,
    sharing: &mut Sharing,
    warnings: &mut Vec<String>,
) -> Result<(), FieldProblem> {
    entry.only(&["name", "rename", "devices", "replicas"])?;
    let Some(name) = entry.text("name")? else {
        let problem = format!("the resource has no name; write {GPU_RESOURCE}");
        return Err(FieldProblem::new(entry.path_of("name"), problem));
    };
    let rename = match entry.text("rename")? {
        None | Some("") => default,
        Some(new) => Rename::To(new),
    };
    let replicas = replicas(entry)?;
    devices(entry, warnings)?;
    sharing
        .add(name, replicas, rename)
        .map_err(|invalid| at_field(entry, invalid))
}

fn replicas(section: &Section) -> Result<u64, FieldProblem> {
    let path = section.path_of("replicas");
    let Some(value) = section.get("replicas") else {
        return Err(FieldProblem::new(
            path,
            "the number of replicas is missing; write 2 or more",
        ));
    };
    value.as_u64().ok_or_else(|| {
        let problem = format!(
            "{} is no number of replicas; write a whole number, 2 or more",
            shown(value)
        );
        FieldProblem::new(path, problem)
    })
}

/// Checks the choice of devices. NVIDIA's plugin shares all devices of a resource, whatever a file chooses, and so does the agent: a
/// resource of shared and unshared devices would let the scheduler count memory of a GPU that is not there.
fn devices(entry: &Section, warnings: &mut Vec<String>) -> Result<(), FieldProblem> {
    let is_choice = match entry.get("devices") {
        None => return Ok(()),
        Some(Value::String(all)) if all == "all" => return Ok(()),
        Some(Value::Number(count)) => count.as_u64().is_some_and(|count| count > 0),
        Some(Value::Array(list)) => list.iter().all(|device| device.is_u64() || device.is_string()),
        Some(Value::String(_) | Value::Bool(_) | Value::Object(_) | Value::Null) => false,
    };
    let path = entry.path_of("devices");
    if !is_choice {
        return Err(FieldProblem::new(
            path,
            "this is no choice of devices; write all, or remove the field",
        ));
    }
    warnings.push(format!(
        "{path} has no effect: all devices of the resource are shared, as by NVIDIA's device plugin"
    ));
    Ok(())
}

fn at_field(section: &Section, invalid: InvalidSharing) -> FieldProblem {
    let (name, problem) = match invalid {
        InvalidSharing::Name(problem) => ("name", problem),
        InvalidSharing::Replicas(problem) => ("replicas", problem),
        InvalidSharing::Rename(problem) => ("rename", problem),
    };
    FieldProblem::new(section.path_of(name), problem)
}

/// Names of resources by product and MIG profile. NVIDIA's plugin ignores them with a warning. The agent can't honour them: the scheduler
/// and its reservation pods know GPUs by their usual names.
fn read_resources(resources: &Section, warnings: &mut Vec<String>) -> Result<(), FieldProblem> {
    resources.only(&["gpus", "mig"])?;
    for list in ["gpus", "mig"] {
        for (at, entry) in resources.list(list)?.unwrap_or_default().iter().enumerate() {
            let entry = Section::new(format!("{}[{at}]", resources.path_of(list)), entry)?;
            entry.only(&["pattern", "name"])?;
            let (pattern, name) = (entry.text("pattern")?, entry.text("name")?);
            if !is_usual_name(pattern.unwrap_or_default(), name.unwrap_or_default()) {
                warnings.push(format!(
                    "{} has no effect: the scheduler knows GPUs as {GPU_RESOURCE} and nvidia.com/mig-<profile>",
                    entry.path_of("name")
                ));
            }
        }
    }
    Ok(())
}

/// Whether the pattern's resource has the name anyway.
fn is_usual_name(pattern: &str, name: &str) -> bool {
    let name = name.strip_prefix("nvidia.com/").unwrap_or(name);
    match name.strip_prefix("mig-") {
        Some(profile) => profile == pattern.replace('+', "."),
        None => (pattern, name) == ("*", "gpu"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::sharing::SharedResource;

    /// The settings and warnings of a file, or its problem, one per line.
    fn told(text: &str) -> String {
        let file = match parse(text) {
            Ok(file) => file,
            Err(FieldProblem { field, problem }) => return format!("{field}: {problem}"),
        };
        let mut lines = Vec::new();
        if let Some(mig) = file.settings.mig {
            lines.push(format!("mig {}", mig.as_str()));
        }
        if let Some(policy) = file.settings.shared_policy {
            lines.push(format!("spread {policy:?}"));
        }
        if let Some(sharing) = &file.settings.sharing {
            let entry = |(name, shared): (&str, &SharedResource)| {
                format!("{name} {} {}", shared.replicas, shared.rename.as_deref().unwrap_or("-"))
            };
            lines.extend(sharing.resources().map(entry));
            lines.extend(sharing.one_per_container.then(|| "one per container".to_owned()));
        }
        lines.extend(file.warnings.iter().map(|warning| format!("warning: {warning}")));
        lines.join("\n")
    }

    /// The file gives exactly these lines.
    fn check(text: &str, expect: &[&str]) {
        assert_eq!(told(text), expect.join("\n"), "{text}");
    }

    /// The file has a problem with this field, and the message contains the words.
    fn refused(text: &str, field: &str, words: &str) {
        let FieldProblem { field: found, problem } = parse(text).expect_err(text);
        assert_eq!(found, field, "{text}: {problem}");
        assert!(problem.contains(words), "{text}: {problem}");
        assert!(problem.chars().count() < 400, "{problem}");
    }

    fn sharing(text: &str) -> String {
        format!("version: v1\nsharing: {{timeSlicing: {{{text}}}}}")
    }

    #[test]
    fn files_as_users_have_them() {
        // The example of NVIDIA's documentation for the GPU Operator.
        check(
            "version: v1\nflags:\n  migStrategy: none\nsharing:\n  timeSlicing:\n    renameByDefault: false\n    \
             failRequestsGreaterThanOne: false\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 4\n",
            &["mig none", "nvidia.com/gpu 4 -"],
        );
        check(
            "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: 8}\n    \
             - {name: nvidia.com/mig-1g.5gb, replicas: 2}\n    - {name: mig-3g.20gb, replicas: 2, devices: all}\n",
            &[
                "nvidia.com/gpu 8 -",
                "nvidia.com/mig-1g.5gb 2 -",
                "nvidia.com/mig-3g.20gb 2 -",
            ],
        );
        // The short form, which NVIDIA's plugin refuses.
        check(
            "sharing:\n  timeSlicing:\n    replicas: 10  # of each GPU\n",
            &["nvidia.com/gpu 10 -"],
        );
        check(
            "version: v1\nflags:\n  migStrategy: mixed\n  failOnInitError: true\n  plugin:\n    passDeviceSpecs: true\n    \
             deviceListStrategy: [envvar, cdi-cri]\n    deviceIDStrategy: uuid\n    sharedDevicesAllocationPolicy: packed\n  \
             gfd:\n    oneshot: false\n    sleepInterval: 30s\n",
            &[
                "mig mixed",
                "spread Packed",
                "warning: flags.failOnInitError has no effect: the agent waits for the driver and reports that it does not answer",
                "warning: flags.plugin.deviceIDStrategy has no effect: device ids are UUIDs",
                "warning: flags.plugin.deviceListStrategy has no effect: the agent has the flag --mode",
                "warning: flags.plugin.passDeviceSpecs has no effect: the agent has the flag --mode",
                "warning: flags.gfd.oneshot has no effect: the agent writes the labels itself",
                "warning: flags.gfd.sleepInterval has no effect: the agent writes the labels itself",
            ],
        );
        for empty in [
            "",
            "version: v1",
            "version: v1\nflags: {}\nsharing:\n",
            "{}",
            "# nothing\n",
        ] {
            check(empty, &[]);
        }
    }

    #[test]
    fn names_of_shared_resources() {
        check(
            &sharing(
                "renameByDefault: true, failRequestsGreaterThanOne: true, resources: [{name: nvidia.com/gpu, replicas: 4}]",
            ),
            &["nvidia.com/gpu 4 nvidia.com/gpu.shared", "one per container"],
        );
        check(
            &sharing("renameByDefault: true, resources: [{name: gpu, replicas: 4, rename: nvidia.com/slice}]"),
            &["nvidia.com/gpu 4 nvidia.com/slice"],
        );
        check(
            &sharing("renameByDefault: true, replicas: 3"),
            &["nvidia.com/gpu 3 nvidia.com/gpu.shared"],
        );
        // As in Go, names of fields match in any case.
        check("Sharing: {timeslicing: {Replicas: 3}}", &["nvidia.com/gpu 3 -"]);
    }

    #[test]
    fn fields_without_effect_are_named() {
        let devices = "warning: sharing.timeSlicing.resources[0].devices has no effect: all devices of the resource are shared, as by \
                       NVIDIA's device plugin";
        for choice in ["2", "[0, '1:0', GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c]"] {
            let text = sharing(&format!("resources: [{{name: gpu, replicas: 4, devices: {choice}}}]"));
            check(&text, &["nvidia.com/gpu 4 -", devices]);
        }
        check(
            "imex: {channelIDs: [0], required: true}\nflags: {newestFlagOfAll: 1}",
            &[
                "warning: flags.newestFlagOfAll has no effect: the agent does not know it",
                "warning: imex has no effect: the agent injects no IMEX channels",
            ],
        );
        check(
            "resources: {gpus: [{pattern: '*', name: nvidia.com/gpu}, {pattern: '*A100*', name: a100}], mig: [{pattern: 1g.5gb+me, name: \
             mig-1g.5gb.me}]}",
            &[
                "warning: resources.gpus[1].name has no effect: the scheduler knows GPUs as nvidia.com/gpu and nvidia.com/mig-<profile>",
            ],
        );
    }

    #[test]
    fn mistakes_name_the_field_and_the_remedy() {
        let resource = |text: &str| sharing(&format!("resources: [{{{text}}}]"));
        let first = "sharing.timeSlicing.resources[0]";
        for (text, field, words) in [
            ("name: gpu, replicas: 0", ".replicas", "from 2 to 1000"),
            ("name: gpu, replicas: -1", ".replicas", "-1 is no number"),
            ("name: gpu, replicas: 2.5", ".replicas", "2.5 is no number"),
            ("name: gpu, replicas: '4'", ".replicas", "write a whole number"),
            ("name: gpu, replicas: 1000000", ".replicas", "from 2 to 1000"),
            (
                "name: gpu, replicas: 99999999999999999999",
                ".replicas",
                "write a whole number",
            ),
            ("name: gpu", ".replicas", "missing"),
            ("name: gpu, replica: 4", ".replica", "did you mean replicas?"),
            ("replicas: 4", ".name", "write nvidia.com/gpu"),
            ("name: nvidia.com/gpus, replicas: 4", ".name", "no resource of GPUs"),
            ("name: amd.com/gpu, replicas: 4", ".name", "no resource of GPUs"),
            ("name: [gpu], replicas: 4", ".name", "write text"),
            (
                "name: gpu, replicas: 4, rename: nvidia.com/mig-1g.5gb",
                ".rename",
                "another resource",
            ),
            ("name: gpu, replicas: 4, devices: some", ".devices", "write all"),
            ("name: gpu, replicas: 4, devices: 0", ".devices", "write all"),
        ] {
            refused(&resource(text), &format!("{first}{field}"), words);
        }
        for (text, field, words) in [
            (
                "sharing: {timeSlicing: {}}",
                "sharing.timeSlicing.resources",
                "no resource is shared",
            ),
            (
                "sharing: {timeSlicing: {resources: []}}",
                "sharing.timeSlicing.resources",
                "no resource is shared",
            ),
            (
                "sharing: {timeSlicing: {resources: gpu}}",
                "sharing.timeSlicing.resources",
                "write a list",
            ),
            (
                "sharing: {timeSlicing: {replicas: 2, resources: [{name: gpu, replicas: 4}]}}",
                "sharing.timeSlicing.replicas",
                "beside resources",
            ),
            (
                "sharing: {timeSlicing: {renameByDefault: maybe, replicas: 2}}",
                "sharing.timeSlicing.renameByDefault",
                "true or false",
            ),
            (
                "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}, {name: nvidia.com/gpu, replicas: 3}]}}",
                "sharing.timeSlicing.resources[1].name",
                "there twice",
            ),
            (
                "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}",
                "sharing.mps",
                "not supported",
            ),
            (
                "sharing: {mps: {renameByDefault: true}, timeSlicing: {replicas: 2}}",
                "sharing.mps",
                "not supported",
            ),
            (
                "sharing: {timeSlicng: {replicas: 2}}",
                "sharing.timeSlicng",
                "did you mean timeSlicing?",
            ),
            ("shering: {}", "shering", "did you mean sharing?"),
            ("sharing: [1]", "sharing", "no mapping"),
            ("version: v2", "version", "write v1"),
            ("version: 1", "version", "write text"),
            (
                "flags: {migStrategy: multiple}",
                "flags.migStrategy",
                "none or single or mixed",
            ),
            (
                "flags: {migStrateg: single}",
                "flags.migStrateg",
                "did you mean migStrategy?",
            ),
            ("flags: {plugin: cdi}", "flags.plugin", "no mapping"),
            (
                "flags: {plugin: {sharedDevicesAllocationPolicy: spread}}",
                "flags.plugin.sharedDevicesAllocationPolicy",
                "distributed or packed",
            ),
            ("sharing: {timeSlicing: {replicas: 2}", "", "no valid YAML"),
            ("a: 1\na: 2", "", "is there twice"),
            ("just text", "", "no mapping"),
            ("- 1", "", "no mapping"),
        ] {
            refused(text, field, words);
        }
        let long = format!("version: {}", "x".repeat(5_000));
        refused(&long, "version", "5");
    }

    #[test]
    fn a_setting_in_a_flag_and_in_the_file_must_be_the_same() {
        let flags = Policy {
            mig: MigStrategy::Mixed,
            sharing: Sharing::of_gpus(4, Rename::Keep).unwrap(),
            share_devices: 7,
            ..Policy::default()
        };
        let over = |text: &str, flags: &Policy| parse(text).unwrap().settings.over(flags);
        assert_eq!(over("", &flags), Ok(flags.clone()));
        let same = "flags: {migStrategy: mixed}\nsharing: {timeSlicing: {replicas: 4}}";
        assert_eq!(over(same, &flags), Ok(flags.clone()));
        let of_file = over(same, &Policy::default()).unwrap();
        assert_eq!((of_file.mig, &of_file.sharing), (flags.mig, &flags.sharing));
        assert_eq!(of_file.share_devices, 0, "the file does not set it");
        for (text, field, option) in [
            ("flags: {migStrategy: none}", MIG_STRATEGY, "--mig-strategy"),
            ("sharing: {timeSlicing: {replicas: 5}}", TIME_SLICING, "--replicas"),
        ] {
            let problem = over(text, &flags).unwrap_err();
            assert_eq!(problem.field, field);
            assert!(problem.problem.contains(option), "{problem:?}");
        }
    }

    fn fuzz(fuzz: kai_fuzz::Fuzz) {
        let seeds = [
            "version: v1\nflags:\n  migStrategy: mixed\n  plugin: {passDeviceSpecs: true}\nsharing:\n  timeSlicing:\n    renameByDefault: \
             true\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 4\n      devices: [0, '1:0']\n",
            "sharing: {timeSlicing: {replicas: 10, failRequestsGreaterThanOne: true}}",
            "resources: {gpus: [{pattern: '*', name: nvidia.com/gpu}]}\nsharing: {mps: {resources: []}}\nimex: {}\n",
        ];
        let words = [
            "sharing:",
            "timeSlicing:",
            "resources:",
            "replicas:",
            "rename:",
            "nvidia.com/",
            "mig-1g.5gb",
            ".shared",
            "-1",
            "1e9",
            "null",
            "&a",
            "*a",
            "[",
            "]",
            "{",
            "}",
            "\n",
            "\u{0}",
            "'",
        ];
        fuzz.texts(&seeds, &words, |text| match parse(text) {
            Ok(file) => {
                let policy = file.settings.over(&Policy::default()).expect("no flag is set");
                for (name, shared) in policy.sharing.resources() {
                    assert!((1..=1000).contains(&shared.replicas) && name.starts_with("nvidia.com/"));
                }
                // No two resources have one name, so that none hides another.
                let names = policy
                    .sharing
                    .resources()
                    .map(|(name, shared)| shared.rename.as_deref().unwrap_or(name));
                let all: Vec<&str> = names.collect();
                let distinct: std::collections::BTreeSet<&str> = all.iter().copied().collect();
                assert_eq!(distinct.len(), all.len());
            }
            Err(FieldProblem { problem, .. }) => {
                assert!(problem.lines().count() == 1 && problem.contains("; "), "{problem}")
            }
        });
    }

    #[test]
    fn mutated_files_never_panic() {
        fuzz(kai_fuzz::Fuzz::short("device plugin configuration"));
    }

    #[test]
    #[ignore = "runs for KAI_FUZZ_SECONDS"]
    fn long_run_of_files() {
        fuzz(kai_fuzz::Fuzz::long("device plugin configuration"));
    }
}
