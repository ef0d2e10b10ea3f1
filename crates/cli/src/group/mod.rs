//! `kai group`: which pod groups the pod grouper would make of workloads in files, and why. Nothing is written, and no cluster is asked.

mod output;
mod rule_files;
mod templates;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kai_api::{Pod, keys};
use kai_controllers::grouper::{DesiredPodGroup, GroupingOptions, Owner, PodOrigin};
use kai_simulate::scenario::{self, Document, synthetic_uid};
use serde_json::Value;

use crate::grid::printable;
use crate::simulate::files::{Files, read};
use crate::simulate::installation::{Grouped, Installed, RuleSource, ShortNames, plan};
use output::{Group, Report, Skipped};

/// The flags of `kai group`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Manifests of pods and workloads, or folders of them; - is standard input. May be given several times.
    #[arg(short, long = "file", value_name = "PATH", required_unless_present = "check")]
    files: Vec<PathBuf>,
    /// Grouping rules (docs/grouping-rules.md): a file with rules, or with the ConfigMap kai-grouping-rules. May be given several times.
    #[arg(long, value_name = "FILE")]
    rules: Vec<PathBuf>,
    /// Check the rules, and print their mistakes; exit with 1 if there are any.
    #[arg(long, conflicts_with = "files", requires = "rules")]
    check: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For a person.
    Text,
    /// For a program.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Prints the pod groups. The exit code is 0 if all is well, 1 if a workload can't be grouped or a rule has a mistake, and 2 if a file could
/// not be read.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let mut report = Report::default();
    let mut rules = rule_files::read(&arguments.rules)?;
    if arguments.check {
        rules.load(&mut |problem| report.rule_problems.push(problem.clone()));
        report.rules_checked = rules.0.iter().map(|(name, _)| name.clone()).collect();
    } else {
        let sources = scenario::discover(&arguments.files, io::stdin().lock()).map_err(told)?;
        let manifests = scenario::load_objects(&sources).map_err(told)?;
        rules.0.extend(RuleSource::of_documents(&manifests.documents).0);
        let loaded = rules.load(&mut |problem| report.rule_problems.push(problem.clone()));
        let installed = Installed::new()?;
        let options = installed.options(&loaded);
        report.warnings.extend(manifests.warnings.lines());
        Grouping::new(&manifests.documents, &installed, &options).group(&mut report);
    }
    report.print(arguments.output)?;
    Ok(match report.has_problems() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn told(error: kai_simulate::Error) -> anyhow::Error {
    anyhow::anyhow!("{}", printable(&error.to_string()))
}

/// The objects of the files.
struct Grouping<'d> {
    documents: &'d [Document],
    files: Files<'d>,
    installed: &'d Installed,
    options: &'d GroupingOptions,
    short_names: ShortNames,
    /// Groups by namespace and name, to their place in the report.
    groups: BTreeMap<(String, String), usize>,
}

/// A pod, or a template of pods.
struct Candidate {
    pod: Pod,
    origin: PodOrigin,
    /// For people.
    title: String,
    owners: Vec<Owner>,
}

impl<'d> Grouping<'d> {
    fn new(documents: &'d [Document], installed: &'d Installed, options: &'d GroupingOptions) -> Grouping<'d> {
        Grouping {
            documents,
            files: Files::new(documents),
            installed,
            options,
            short_names: ShortNames::default(),
            groups: BTreeMap::new(),
        }
    }

    fn group(&mut self, report: &mut Report) {
        let mut with_pods: BTreeSet<(String, String, String)> = BTreeSet::new();
        for document in self.documents.iter().filter(|document| document.kind == "Pod") {
            let Some(mut pod) = read::<Pod>(&document.object) else {
                report.skip(
                    document.name(),
                    "it can't be read as a pod; check the types of its fields",
                );
                continue;
            };
            if pod.metadata.uid.is_none() {
                pod.metadata.uid = Some(synthetic_uid(&document.name()).as_str().into());
            }
            let owners = self.files.owners_of(&pod);
            with_pods.extend(owners.iter().map(|owner| {
                let kind = scenario::document_kind(&owner.api_version, &owner.kind);
                (kind, document.namespace().to_owned(), owner.name.clone())
            }));
            let candidate = Candidate {
                pod,
                origin: PodOrigin::Pod,
                title: document.name(),
                owners,
            };
            self.add(candidate, report);
        }
        for document in self.documents {
            let name = document
                .object
                .pointer("/metadata/name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let key = (document.kind.clone(), document.namespace().to_owned(), name.to_owned());
            // A workload with pods is grouped by them.
            if document.kind == "Pod" || with_pods.contains(&key) {
                continue;
            }
            for template in templates::of(&document.object) {
                match self.candidate(document, &template) {
                    Some(candidate) => self.add(candidate, report),
                    None => report.skip(
                        format!("{} {}", document.name(), template.path),
                        "it can't be read as the template of a pod; check the types of its fields",
                    ),
                }
            }
        }
    }

    /// The pod that the controller of a workload would make of a template.
    fn candidate(&self, document: &Document, template: &templates::Template) -> Option<Candidate> {
        let mut owner = document.object.clone();
        let metadata = owner.get_mut("metadata")?.as_object_mut()?;
        metadata
            .entry("uid")
            .or_insert_with(|| synthetic_uid(&document.name()).into());
        metadata.insert("namespace".to_owned(), document.namespace().into());
        let owner = Owner::of_object(&owner)?;
        let mut pod = template.pod.clone();
        pod["metadata"]["name"] = owner.name.as_str().into();
        pod["metadata"]["namespace"] = document.namespace().into();
        pod["metadata"]["uid"] = synthetic_uid(&format!("{} {}", document.name(), template.path)).into();
        pod["metadata"]["ownerReferences"] = serde_json::json!([{
            "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid,
        }]);
        let pod: Pod = read(&pod)?;
        // The owner itself may have no uid in the file; its own owners are in the files.
        let mut owners = self.files.owners_of(&pod);
        if let Some(first) = owners.first_mut() {
            *first = owner;
        }
        Some(Candidate {
            pod,
            origin: PodOrigin::Template,
            title: format!("{} of {}", template.path, document.name()),
            owners,
        })
    }

    fn add(&mut self, candidate: Candidate, report: &mut Report) {
        let Candidate {
            pod,
            origin,
            title,
            owners,
        } = candidate;
        let expected = self.installed.scheduler_name();
        if pod.scheduler_name() != expected {
            let reason = format!(
                "spec.schedulerName is {:?}; kai groups pods with {expected}",
                pod.scheduler_name()
            );
            return report.skip(title, &reason);
        }
        if pod.metadata.annotations.text(keys::SKIP_POD_GROUPER) == Some("true") {
            return report.skip(title, "its annotation kai.scheduler/skip-podgrouper turns grouping off");
        }
        if owners.is_empty()
            && let Some(name) = pod.pod_group()
        {
            return report.skip(title, &format!("its annotation pod-group-name names pod group {name}"));
        }
        let grouped = Grouped {
            pod: &pod,
            origin,
            owners: &owners,
        };
        match plan(&grouped, &self.files, self.options) {
            Ok(Some((desired, ignored))) => {
                let desired = self.short_names.shortened(desired);
                self.add_to_group(desired, origin, title, report);
                for problem in ignored.into_iter().map(|ignored| ignored.problem.to_string()) {
                    if !report.warnings.contains(&problem) {
                        report.warnings.push(problem);
                    }
                }
            }
            Ok(None) => report.skip(
                title,
                "an owner's annotation kai.scheduler/skip-podgrouper turns grouping off",
            ),
            Err(refusal) => report.refused.push(Skipped {
                object: title,
                reason: refusal.to_string(),
            }),
        }
    }

    fn add_to_group(&mut self, desired: DesiredPodGroup, origin: PodOrigin, member: String, report: &mut Report) {
        let key = (desired.namespace.clone(), desired.name.clone());
        let at = *self.groups.entry(key).or_insert_with(|| {
            report.groups.push(Group::new(&desired));
            report.groups.len() - 1
        });
        report.groups[at].add_member(desired.sub_group.as_deref(), origin, member);
    }
}
