//! Formats rates, shares and sites for messages.

use crate::base::condition::Per;
use leak_report::model::NameStyle;
use leak_report::model::site_name::{SiteName, SiteNames};
use leak_report::render::titles::shortened;

/// Maximum number of functions that describe a site.
const MAX_NAMES: usize = 4;
/// Maximum number of characters of a function name. Names of C++ templates can have thousands.
const MAX_CHARACTERS: usize = 100;

/// Describes a site by its innermost functions, from the responsible one outwards.
pub(super) fn described(names: &SiteNames, key: &SiteName, style: NameStyle) -> String {
    let Some(allocator) = names.functions(key).next() else {
        return String::new();
    };
    let first = names.callers(key).position(|(_, is_own)| is_own).unwrap_or(0);
    let callers: Vec<_> = names
        .callers(key)
        .skip(first)
        .map(|(name, _)| style.show(name))
        .collect();
    let Some(last) = callers
        .get(..MAX_NAMES.min(callers.len()))
        .filter(|some| !some.is_empty())
    else {
        return format!("{allocator}, by an unknown stack");
    };
    let more = if callers.len() > last.len() { " < …" } else { "" };
    let short: Vec<_> = last.iter().map(|name| shortened(name, MAX_CHARACTERS)).collect();
    format!("{}{more}", short.join(" < "))
}

/// Formats a rate with its sign, in the condition's unit of time.
pub(super) fn rate(bytes_per_second: f64, per: Per) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut amount = bytes_per_second * f64::from(per.seconds);
    let mut unit = 0;
    while amount.abs() >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:+.1} {}/{}", UNITS[unit], per.name)
}

/// Formats a percentage; a positive one is never shown as 0.
pub(super) fn share(percent: f64) -> String {
    if percent > 0.0 && percent < 0.001 {
        return "less than 0.001%".to_owned();
    }
    let digits = format!("{percent:.3}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}%")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A site is described by its responsible function and its callers, in one line of bounded length.
    #[test]
    fn sites() {
        let long = "x".repeat(1000);
        let shortened = format!("{}…", "x".repeat(100));
        for (names, expected) in [
            (&["malloc", "grow", "main"][..], "grow < main"),
            (
                &[
                    "malloc",
                    "operator new(unsigned long)",
                    "std::string::reserve()",
                    "Pool::grow()",
                    "main",
                ],
                "Pool::grow() < main",
            ),
            (
                &["malloc", "operator new(unsigned long)"],
                "operator new(unsigned long)",
            ),
            (&["malloc", "a", "b", "c", "d", "e"], "a < b < c < d < …"),
            (&["malloc", &long], &shortened),
            (&["calloc"], "calloc, by an unknown stack"),
            (&[], ""),
        ] {
            let mut numbers = SiteNames::default();
            let key = numbers.site(names.iter().copied());
            assert_eq!(described(&numbers, &key, NameStyle::default()), expected);
        }
    }

    /// A rate is shown with its sign, a unit, and the condition's unit of time.
    #[test]
    fn rates() {
        let (second, minute) = (
            Per {
                name: "s",
                seconds: 1,
            },
            Per {
                name: "min",
                seconds: 60,
            },
        );
        assert_eq!(rate(0.0, second), "+0.0 B/s");
        assert_eq!(rate(1024.0, second), "+1.0 KiB/s");
        assert_eq!(rate(1024.0, minute), "+60.0 KiB/min");
        assert_eq!(rate(-0.5, minute), "-30.0 B/min");
        assert_eq!(rate(f64::MAX, second).split('.').count(), 2);
    }

    /// A positive share is not rounded to 0.
    #[test]
    fn shares() {
        for (percent, expected) in [
            (0.0, "0%"),
            (1e-9, "less than 0.001%"),
            (0.1, "0.1%"),
            (12.3456, "12.346%"),
            (100.0, "100%"),
        ] {
            assert_eq!(share(percent), expected);
        }
    }
}
