//! What the doctor found: findings with a verdict and the command that fixes them, as a table for a person or JSON for a program.

use std::fmt::Write;

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but somebody should look.
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

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub subject: String,
    /// The verdict.
    pub verdict: Verdict,
    /// What was seen.
    pub saw: String,
    /// What to do about it: a command where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// All findings, in the order they were made.
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

    /// 1 if something will not work.
    pub fn exit_code(&self) -> u8 {
        match self.verdict() {
            Verdict::Ok | Verdict::Warning => 0,
            Verdict::Problem => 1,
        }
    }

    /// For a person.
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
        let count = |wanted: Verdict| self.findings.iter().filter(|finding| finding.verdict == wanted).count();
        let (problems, warnings) = (count(Verdict::Problem), count(Verdict::Warning));
        let _ = writeln!(text, "\n{problems} problem(s), {warnings} warning(s)");
        text
    }

    /// For a program.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is JSON")
    }
}
