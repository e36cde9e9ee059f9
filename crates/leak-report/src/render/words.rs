//! Numbers in words, as all text of reports has them: counts with a noun, sizes, shares and rates.

/// A size like [`size`], without the exact number.
pub use crate::units::size as short_size;

/// Formats `count` with the noun, in the plural unless `count` is 1.
pub fn counted(count: u64, noun: &str) -> String {
    let plural = match (count, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {noun}{plural}")
}

/// Formats `part` of `whole` as a percentage that is 100% or 0% only if exact.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0%".to_owned();
    }
    let per_mille = u128::from(part) * 1000 / u128::from(whole);
    match per_mille {
        1000 => "100%".to_owned(),
        0 if part > 0 => "<0.1%".to_owned(),
        0 => "0%".to_owned(),
        _ => format!("{}.{}%", per_mille / 10, per_mille % 10),
    }
}

/// Formats a size in the largest binary unit in which it is at least 1, with the exact number.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => short_size(bytes),
        _ => format!("{} ({bytes} B)", short_size(bytes)),
    }
}

/// Formats a count in at most six columns.
pub(super) fn short_count(count: u64) -> String {
    match count {
        0..1_000_000 => count.to_string(),
        more => rate(more as f64),
    }
}

/// Formats a number with two or three significant digits and a unit prefix.
pub fn rate(number: f64) -> String {
    let (number, unit) = match number {
        small if small < 999.5 => return format!("{small:.0}"),
        thousands if thousands < 999_500.0 => (number / 1e3, "k"),
        millions if millions < 999.5e6 => (number / 1e6, "M"),
        _ => (number / 1e9, "G"),
    };
    match number < 9.95 {
        true => format!("{number:.1} {unit}"),
        false => format!("{number:.0} {unit}"),
    }
}

/// Formats a share of one CPU as a percentage.
pub fn share(share: f64) -> String {
    match share * 100.0 {
        percent if percent >= 9.95 => format!("{percent:.0}%"),
        percent if percent >= 0.1 => format!("{percent:.1}%"),
        percent if percent > 0.0 => "less than 0.1%".to_owned(),
        _ => "0%".to_owned(),
    }
}
