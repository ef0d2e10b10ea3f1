//! The doctor's report: findings with a verdict and a fix, as a table or as JSON.

use std::fmt::Write;

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The subject works.
    Ok,
    /// The subject works, but an operator should check it.
    Warning,
    /// Something will not work.
    Problem,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Problem => "problem",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked, in a word or two.
    pub subject: String,
    /// The verdict.
    pub verdict: Verdict,
    /// What the doctor found.
    pub saw: String,
    /// How to repair it: a command, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// All findings, in the order of the checks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The findings.
    pub findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn ok(&mut self, subject: &str, saw: impl Into<String>) {
        self.add(subject, Verdict::Ok, saw.into(), None);
    }

    pub(crate) fn warning(&mut self, subject: &str, saw: impl Into<String>, fix: impl Into<String>) {
        self.add(subject, Verdict::Warning, saw.into(), Some(fix.into()));
    }

    pub(crate) fn problem(&mut self, subject: &str, saw: impl Into<String>, fix: impl Into<String>) {
        self.add(subject, Verdict::Problem, saw.into(), Some(fix.into()));
    }

    fn add(&mut self, subject: &str, verdict: Verdict, saw: String, fix: Option<String>) {
        self.findings.push(Finding {
            subject: subject.to_owned(),
            verdict,
            saw,
            fix,
        });
    }

    /// The worst verdict.
    pub fn verdict(&self) -> Verdict {
        self.findings
            .iter()
            .map(|finding| finding.verdict)
            .max()
            .unwrap_or(Verdict::Ok)
    }

    /// How many findings have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.verdict == verdict)
            .count()
    }

    /// 1 if there is a problem, else 0.
    pub fn exit_code(&self) -> u8 {
        match self.verdict() {
            Verdict::Ok | Verdict::Warning => 0,
            Verdict::Problem => 1,
        }
    }

    /// The report as a table, for people.
    pub fn table(&self) -> String {
        let width = self
            .findings
            .iter()
            .map(|finding| finding.subject.len())
            .max()
            .unwrap_or(0);
        let mut text = String::new();
        for Finding {
            subject,
            verdict,
            saw,
            fix,
        } in &self.findings
        {
            let _ = writeln!(text, "{:7}  {subject:width$}  {saw}", verdict.word());
            if let Some(fix) = fix {
                let _ = writeln!(text, "{:7}  {:width$}    fix: {fix}", "", "");
            }
        }
        let (problems, warnings) = (self.count(Verdict::Problem), self.count(Verdict::Warning));
        let _ = writeln!(text, "\n{problems} problem(s), {warnings} warning(s)");
        text
    }

    /// The report as JSON, for programs.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is JSON")
    }
}
