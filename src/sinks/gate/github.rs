//! Formats findings as GitHub's workflow commands, which its runner turns into annotations. Pure.
//!
//! A command is a line on stdout or stderr of a step. (Workflow commands for GitHub Actions, "Setting an
//! error message"; the first ten errors of each step are shown.)

use super::outcome::{Culprit, Finding, Outcome};

/// Maximum number of annotations of one kind that are shown for a step.
const MAX: usize = 10;

/// One line for each named site whose file is known, or else one for the condition; none for passed
/// conditions.
pub(super) fn lines(findings: &[Finding]) -> Vec<String> {
    let lines = findings.iter().flat_map(of_finding);
    lines.take(MAX).collect()
}

fn of_finding(finding: &Finding) -> Vec<String> {
    let Finding { condition, found, .. } = finding;
    let title = format!("memleak: {condition}");
    let reason = match &finding.outcome {
        Outcome::Passed => return Vec::new(),
        Outcome::Inconclusive(reason) => {
            return vec![command(None, &title, &format!("inconclusive: {reason}"))];
        }
        Outcome::Exceeded => format!("{condition} is exceeded: {found}"),
    };
    let located: Vec<_> = finding
        .culprits
        .iter()
        .filter(|culprit| culprit.source.is_some())
        .collect();
    if located.is_empty() {
        let sites = finding.culprits.iter().map(site);
        let text: Vec<_> = std::iter::once(reason).chain(sites).collect();
        return vec![command(None, &title, &text.join("\n"))];
    }
    let of_site =
        |culprit: &&Culprit| command(Some(culprit), &title, &format!("{}\n{reason}", site(culprit)));
    located.iter().map(of_site).collect()
}

fn site(culprit: &Culprit) -> String {
    format!("{}: {}", culprit.amount, culprit.site)
}

fn command(place: Option<&Culprit>, title: &str, message: &str) -> String {
    let source = place.and_then(|culprit| culprit.source.as_ref());
    let place = source.map(|source| format!("file={},line={},", property(&source.file), source.line));
    format!(
        "::error {}title={}::{}",
        place.unwrap_or_default(),
        property(title),
        data(message)
    )
}

/// Escapes the characters that would end a message.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property's value, which colons and commas would end, too.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::super::condition::parse;
    use super::super::workspace::Source;
    use super::*;

    fn culprit(site: &str, file: Option<&str>) -> Culprit {
        Culprit {
            amount: "480 B in 12 blocks".to_owned(),
            site: site.to_owned(),
            source: file.map(|file| Source {
                file: file.to_owned(),
                line: 7,
            }),
        }
    }

    fn finding(outcome: Outcome, culprits: Vec<Culprit>) -> Finding {
        Finding {
            condition: parse("lost>0.1%").expect("a condition"),
            outcome,
            found: "50%".to_owned(),
            is_untried: false,
            culprits,
        }
    }

    /// A site with a known file gets its own annotation, the others share one, and passed conditions get
    /// none.
    #[test]
    fn annotations() {
        let findings = [
            finding(Outcome::Passed, vec![culprit("a", Some("a.c"))]),
            finding(
                Outcome::Exceeded,
                vec![culprit("f(int, char)", Some("a,b:c.c")), culprit("g", None)],
            ),
            finding(
                Outcome::Exceeded,
                vec![culprit("f", None), culprit("g\r\n::error::h", None)],
            ),
            finding(Outcome::Inconclusive("100% lost".to_owned()), Vec::new()),
        ];
        let expected = [
            "::error file=a%2Cb%3Ac.c,line=7,title=memleak%3A lost>0.1%25::480 B in 12 blocks: f(int, char)%0A\
             lost>0.1%25 is exceeded: 50%25",
            "::error title=memleak%3A lost>0.1%25::lost>0.1%25 is exceeded: 50%25%0A480 B in 12 blocks: f%0A\
             480 B in 12 blocks: g%0D%0A::error::h",
            "::error title=memleak%3A lost>0.1%25::inconclusive: 100%25 lost",
        ];
        assert_eq!(lines(&findings), expected);
    }

    /// At most ten annotations are written, as no more are shown.
    #[test]
    fn at_most_ten_annotations() {
        let many = vec![finding(Outcome::Exceeded, Vec::new()); 12];
        assert_eq!(lines(&many).len(), MAX);
    }
}
