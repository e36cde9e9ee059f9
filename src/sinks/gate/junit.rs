//! Writes findings as a JUnit test suite, one test case per condition. Pure.
//!
//! Only elements and attributes that all readers support are used (Jenkins' `junit-10.xsd`): an exceeded
//! condition has a `failure`, an inconclusive one an `error`.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, TimeDelta, Utc};
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};

use super::outcome::{Culprit, Finding, Outcome};

/// Name of the suite and class name of its test cases.
const SUITE: &str = "memleak";

/// Attributes of the suite.
pub(super) struct Run {
    /// Start in ISO 8601 (UTC), without a zone.
    pub(super) timestamp: String,
    /// Duration of the trace.
    pub(super) time: Duration,
}

impl Run {
    /// The attributes for a last report at `ended`, `time` after the start. Both may come from a recording
    /// and have any value.
    pub(super) fn new(ended: SystemTime, time: Duration) -> Self {
        let ended = DateTime::<Utc>::from(ended);
        let elapsed = TimeDelta::from_std(time).ok();
        let began = elapsed.and_then(|elapsed| ended.checked_sub_signed(elapsed));
        let timestamp = began.unwrap_or(ended).format("%Y-%m-%dT%H:%M:%S").to_string();
        Self { timestamp, time }
    }
}

/// Writes the document.
pub(super) fn write(findings: &[Finding], run: &Run, out: &mut dyn Write) -> io::Result<()> {
    let is_failure = |finding: &&Finding| finding.outcome == Outcome::Exceeded;
    let is_error = |finding: &&Finding| matches!(finding.outcome, Outcome::Inconclusive(_));
    let numbers = [
        ("tests", findings.len().to_string()),
        ("failures", findings.iter().filter(is_failure).count().to_string()),
        ("errors", findings.iter().filter(is_error).count().to_string()),
        ("time", seconds(run.time)),
    ];
    let numbers = || numbers.iter().map(|(name, value)| (*name, value.as_str()));
    let mut writer = Writer::new_with_indent(out, b' ', 2);
    writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    let suites = writer
        .create_element("testsuites")
        .with_attribute(("name", SUITE));
    suites.with_attributes(numbers()).write_inner_content(|writer| {
        let suite = writer
            .create_element("testsuite")
            .with_attribute(("name", SUITE))
            .with_attributes(numbers())
            .with_attribute(("skipped", "0"))
            .with_attribute(("timestamp", run.timestamp.as_str()));
        suite.write_inner_content(|writer| {
            findings
                .iter()
                .try_for_each(|finding| write_case(finding, run, writer))
        })?;
        Ok(())
    })?;
    writeln!(writer.into_inner())
}

fn write_case(finding: &Finding, run: &Run, writer: &mut Writer<&mut dyn Write>) -> io::Result<()> {
    let (name, time) = (finding.condition.to_string(), seconds(run.time));
    let case = writer
        .create_element("testcase")
        .with_attribute(("classname", SUITE))
        .with_attribute(("name", sound(&name).as_str()))
        .with_attribute(("time", time.as_str()));
    let (element, kind, message) = match &finding.outcome {
        Outcome::Passed => return case.write_empty().map(drop),
        Outcome::Exceeded => ("failure", "exceeded", finding.found.clone()),
        Outcome::Inconclusive(reason) => ("error", "unreliable", format!("inconclusive: {reason}")),
    };
    let sites: String = finding.culprits.iter().map(line_of).collect();
    case.write_inner_content(|writer| {
        let element = writer
            .create_element(element)
            .with_attribute(("message", sound(&message).as_str()))
            .with_attribute(("type", kind));
        let text = sound(&format!("{name}: {message}\n{sites}"));
        element.write_text_content(BytesText::new(&text)).map(drop)
    })
    .map(drop)
}

fn line_of(culprit: &Culprit) -> String {
    let source = culprit.source.as_ref();
    let place = source.map_or_else(String::new, |source| {
        format!(" ({}:{})", source.file, source.line)
    });
    format!("{}: {}{place}\n", culprit.amount, culprit.site)
}

fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}

/// Replaces characters that XML does not allow even escaped (XML 1.0, 2.2).
fn sound(text: &str) -> String {
    let is_allowed = |&character: &char| {
        matches!(character, '\t' | '\n' | '\r')
            || character >= ' ' && !matches!(character, '\u{fffe}' | '\u{ffff}')
    };
    let replace = |character| {
        if is_allowed(&character) {
            character
        } else {
            '\u{fffd}'
        }
    };
    text.chars().map(replace).collect()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::super::condition::parse;
    use super::super::workspace::Source;
    use super::*;

    fn finding(condition: &str, outcome: Outcome) -> Finding {
        Finding {
            condition: parse(condition).expect("a condition"),
            outcome,
            found: "480 B in 12 blocks".to_owned(),
            is_untried: false,
            culprits: vec![Culprit {
                amount: "480 B".to_owned(),
                site: "f<\"a\" & 'b'>\u{1b} < main".to_owned(),
                source: Some(Source {
                    file: "src/a.c".to_owned(),
                    line: 7,
                }),
            }],
        }
    }

    /// The whole document, with a passed, an exceeded and an inconclusive condition.
    #[test]
    fn suite() {
        let findings = [
            finding("blocks>100", Outcome::Passed),
            finding("outstanding>0", Outcome::Exceeded),
            finding("growth>1/s", Outcome::Inconclusive("2 reports < 3".to_owned())),
        ];
        let ended = UNIX_EPOCH + Duration::from_secs(1_795_336_607);
        let run = Run::new(ended, Duration::from_millis(1500));
        let mut out = Vec::new();
        write(&findings, &run, &mut out).expect("to memory");
        insta::assert_snapshot!(String::from_utf8(out).expect("text"), @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites name="memleak" tests="3" failures="1" errors="1" time="1.500">
          <testsuite name="memleak" tests="3" failures="1" errors="1" time="1.500" skipped="0" timestamp="2026-11-22T08:36:45">
            <testcase classname="memleak" name="blocks&gt;100" time="1.500"/>
            <testcase classname="memleak" name="outstanding&gt;0" time="1.500">
              <failure message="480 B in 12 blocks" type="exceeded">outstanding&gt;0: 480 B in 12 blocks
        480 B: f&lt;&quot;a&quot; &amp; &apos;b&apos;&gt;� &lt; main (src/a.c:7)
        </failure>
            </testcase>
            <testcase classname="memleak" name="growth&gt;1/s" time="1.500">
              <error message="inconclusive: 2 reports &lt; 3" type="unreliable">growth&gt;1/s: inconclusive: 2 reports &lt; 3
        480 B: f&lt;&quot;a&quot; &amp; &apos;b&apos;&gt;� &lt; main (src/a.c:7)
        </error>
            </testcase>
          </testsuite>
        </testsuites>
        "#);
    }

    /// Any time can be written.
    #[test]
    fn times() {
        let latest = UNIX_EPOCH + Duration::from_nanos(u64::MAX);
        for time in [Duration::ZERO, Duration::from_secs(1 << 50), Duration::MAX] {
            assert_eq!(Run::new(UNIX_EPOCH, time).timestamp, "1970-01-01T00:00:00");
            assert_eq!(Run::new(latest, time).timestamp, "2554-07-21T23:34:33");
        }
    }
}
