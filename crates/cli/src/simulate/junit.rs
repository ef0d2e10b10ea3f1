//! The runs as a JUnit report, which CI systems show: a test case per scenario.

use std::fmt::Write as _;

use crate::grid::printable;

/// How a scenario went.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// As it should.
    Passed,
    /// Otherwise than it should; a line for each difference.
    Failed(Vec<String>),
    /// It could not be run.
    Error(String),
}

/// A report in the making.
#[derive(Clone, Debug, Default)]
pub(super) struct Suite {
    cases: String,
    tests: usize,
    failures: usize,
    errors: usize,
}

impl Suite {
    /// Adds a scenario.
    pub(super) fn add(&mut self, file: &str, name: &str, seconds: f64, verdict: Verdict, warnings: &[String]) {
        self.tests += 1;
        let (file, name) = (escaped(file), escaped(name));
        let xml = &mut self.cases;
        let _ = writeln!(
            xml,
            "    <testcase classname=\"{file}\" name=\"{name}\" time=\"{seconds:.6}\">"
        );
        let (element, lines) = match verdict {
            Verdict::Passed => ("", Vec::new()),
            Verdict::Failed(lines) => {
                self.failures += 1;
                ("failure", lines)
            }
            Verdict::Error(line) => {
                self.errors += 1;
                ("error", vec![line])
            }
        };
        if let Some(first) = lines.first() {
            let (message, text) = (escaped(first), joined(&lines));
            let _ = writeln!(xml, "      <{element} message=\"{message}\">{text}</{element}>");
        }
        if !warnings.is_empty() {
            let _ = writeln!(xml, "      <system-err>{}</system-err>", joined(warnings));
        }
        xml.push_str("    </testcase>\n");
    }

    /// The whole report.
    pub(super) fn to_xml(&self) -> String {
        let Suite {
            cases,
            tests,
            failures,
            errors,
        } = self;
        let counts = format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\"");
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n  <testsuite name=\"kai simulate\" {counts}>\n{cases}  \
             </testsuite>\n</testsuites>\n"
        )
    }
}

fn joined(lines: &[String]) -> String {
    lines.iter().map(|line| escaped(line)).collect::<Vec<_>>().join("\n")
}

/// The text as XML takes it. Characters that no XML document may have are control characters, and shown as escapes, but for
/// the last two of the basic plane.
fn escaped(text: &str) -> String {
    let mut xml = String::with_capacity(text.len());
    for character in printable(text).chars() {
        match character {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' => xml.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => xml.push('\u{fffd}'),
            other => xml.push(other),
        }
    }
    xml
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_a_case_per_scenario_and_is_escaped() {
        let mut suite = Suite::default();
        suite.add("a.yaml", "a", 0.5, Verdict::Passed, &["b.yaml: <odd>".to_owned()]);
        let failed = vec!["pod \"x\" & \u{1b}[0m".to_owned(), "second]]>".to_owned()];
        suite.add("b.yaml", "b", 0.0, Verdict::Failed(failed), &[]);
        suite.add("c.yaml", "c.yaml", 0.0, Verdict::Error("is no text".to_owned()), &[]);
        insta::assert_snapshot!(suite.to_xml(), @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites tests="3" failures="1" errors="1">
          <testsuite name="kai simulate" tests="3" failures="1" errors="1">
            <testcase classname="a.yaml" name="a" time="0.500000">
              <system-err>b.yaml: &lt;odd&gt;</system-err>
            </testcase>
            <testcase classname="b.yaml" name="b" time="0.000000">
              <failure message="pod &quot;x&quot; &amp; \u{1b}[0m">pod &quot;x&quot; &amp; \u{1b}[0m
        second]]&gt;</failure>
            </testcase>
            <testcase classname="c.yaml" name="c.yaml" time="0.000000">
              <error message="is no text">is no text</error>
            </testcase>
          </testsuite>
        </testsuites>
        "#);
    }
}
