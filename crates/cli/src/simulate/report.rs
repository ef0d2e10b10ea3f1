//! Prints the runs and decides the exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use kai_simulate::diff::OutcomeDiff;
use kai_simulate::outcome::Outcome;
use kai_simulate::scenario::Source;

use super::junit::{Suite, Verdict};
use super::{diff, explain, table};
use crate::grid::{Screen, printable};

/// The result of one scenario, and with `--diff` its difference from the unchanged one.
pub(super) type Run = Result<(Outcome, Option<OutcomeDiff>), kai_simulate::Error>;

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For a person.
    Table,
    /// For a program.
    Json,
    /// For a CI system.
    Junit,
}

/// Flags that concern all runs together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wishes {
    pub(super) output: Output,
    pub(super) check: bool,
    pub(super) fail_on_pending: bool,
    pub(super) strict: bool,
}

/// Prints the scenarios one by one and counts their results.
pub(super) struct Report {
    wishes: Wishes,
    screen: Screen,
    suite: Suite,
    passed: usize,
    failed: usize,
    unread: usize,
    with_pending: usize,
    warnings: usize,
    /// Scenarios without the pod to explain, and whether one had it.
    unexplained: Vec<String>,
    has_explained: bool,
}

impl Report {
    pub(super) fn new(wishes: Wishes, screen: Screen) -> Report {
        Report {
            wishes,
            screen,
            suite: Suite::default(),
            passed: 0,
            failed: 0,
            unread: 0,
            with_pending: 0,
            warnings: 0,
            unexplained: Vec::new(),
            has_explained: false,
        }
    }

    /// Prints one scenario.
    pub(super) fn add(&mut self, source: &Source, run: Run) -> io::Result<()> {
        let (outcome, diff) = match run {
            Ok(run) => run,
            Err(error) => {
                let error = error.to_string();
                eprintln!("error: {}", printable(&error));
                self.unread += 1;
                self.failed += 1;
                let file = source.path().display().to_string();
                self.suite.add(&file, &file, 0.0, Verdict::Error(error), &[]);
                return Ok(());
            }
        };
        let failures = self.failures(source, &outcome);
        // Notes explain an unexpected outcome.
        if !self.wishes.check || !failures.is_empty() {
            for note in &outcome.notes {
                eprintln!("note: {}", printable(note));
            }
        }
        let warnings: Vec<String> = outcome.warnings.lines().collect();
        for line in &warnings {
            eprintln!("warning: {}", printable(line));
        }
        self.warnings += outcome.warnings.count();
        match &outcome.explanation {
            Some(Ok(_)) => self.has_explained = true,
            Some(Err(error)) => self
                .unexplained
                .push(format!("{}: --explain: {error}", source.path().display())),
            None => {}
        }
        match self.wishes.output {
            Output::Json => {
                let mut out = io::BufWriter::new(io::stdout().lock());
                match &diff {
                    Some(diff) => serde_json::to_writer(&mut out, diff)?,
                    None => serde_json::to_writer(&mut out, &outcome)?,
                }
                writeln!(out)?;
                out.flush()
            }
            Output::Junit => {
                let seconds = outcome.timing.cycle_ms.iter().sum::<f64>() / 1e3;
                let verdict = match failures.is_empty() {
                    true => Verdict::Passed,
                    false => Verdict::Failed(failures),
                };
                self.suite
                    .add(&outcome.file_names(), &outcome.id, seconds, verdict, &warnings);
                Ok(())
            }
            Output::Table => {
                let mut out = io::BufWriter::new(io::stdout().lock());
                for failure in failures {
                    let line = format!("{}: {failure}", source.path().display());
                    writeln!(out, "{}", printable(&line))?;
                }
                match &diff {
                    Some(diff) => diff::write(&mut out, diff, self.screen)?,
                    None if self.wishes.check => {}
                    None => table::write(&mut out, &outcome, self.screen)?,
                }
                if let Some(Ok(explanation)) = &outcome.explanation {
                    explain::write(&mut out, explanation, self.screen)?;
                }
                out.flush()
            }
        }
    }

    /// Counts the outcome, and returns what is wrong with it.
    fn failures(&mut self, source: &Source, outcome: &Outcome) -> Vec<String> {
        let mut failures = Vec::new();
        match &outcome.differences {
            Some(differences) if !differences.is_empty() => {
                self.failed += 1;
                failures.extend(differences.iter().cloned());
            }
            Some(_) => self.passed += 1,
            None => {}
        }
        let (pending, refused) = (outcome.totals.pending, outcome.totals.refused);
        if self.wishes.fail_on_pending && pending + refused > 0 {
            self.with_pending += 1;
            let told = format!("{pending} pods wait without a place, {refused} are refused");
            eprintln!("error: {}: {told}", printable(&source.path().display().to_string()));
            if self.wishes.output == Output::Junit {
                failures.push(told);
            }
        }
        failures
    }

    /// Prints the sum.
    pub(super) fn finish(self) -> io::Result<ExitCode> {
        let Wishes { output, check, .. } = self.wishes;
        if output == Output::Junit {
            crate::print(&self.suite.to_xml())?;
        }
        if check {
            let summary = format!("{} passed, {} failed", self.passed, self.failed);
            match output {
                Output::Table => println!("{summary}"),
                // Standard output is for the JSON.
                Output::Json | Output::Junit => eprintln!("{summary}"),
            }
        }
        // In a folder of scenarios, one of them has the pod.
        let unexplained = !self.has_explained && !self.unexplained.is_empty();
        if unexplained {
            for error in &self.unexplained {
                eprintln!("error: {}", printable(error));
            }
        }
        let strict = self.wishes.strict && self.warnings > 0;
        if strict {
            let count = self.warnings;
            eprintln!(
                "error: {count} warning{} with --strict",
                if count == 1 { "" } else { "s" }
            );
        }
        Ok(match () {
            () if !check && self.unread > 0 => ExitCode::from(2),
            () if unexplained => ExitCode::from(2),
            () if check && self.failed > 0 => ExitCode::from(1),
            () if self.with_pending > 0 => ExitCode::from(1),
            () if strict => ExitCode::from(2),
            () => ExitCode::SUCCESS,
        })
    }
}
