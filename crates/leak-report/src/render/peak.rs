//! The moment of the highest total as text.

use std::time::Duration;

use super::words::{counted, short_size, size};
use crate::model::{Amount, Order, Peak, Report, Sampling, StackRef};

/// Excess of the peak over the outstanding amount, in per cent, below which it is not worth a line.
const WORTH_TELLING: u64 = 5;
/// Uncertainty in per cent above which the line gives the limit.
const NEARLY_CERTAIN: u64 = 5;

/// The peak in one line. `None` if it was not followed, or if it hardly exceeds the outstanding amount and
/// stacks are not in the order of the peak.
pub(super) fn line(report: &Report) -> Option<String> {
    let peak = report.peak.as_ref()?;
    let is_told = report.order == Some(Order::Peak) || telling(report).is_some();
    is_told.then(|| format!("peak: {}", in_words(peak, report.sampling)))
}

/// The peak, if it notably exceeds the outstanding amount of running programs.
pub fn telling(report: &Report) -> Option<&Peak> {
    let running = report.stacks.iter().filter(|stack| stack.ended.is_none());
    let outstanding: Amount = running.map(|stack| stack.outstanding.amount).sum();
    let peak = report.peak.as_ref();
    peak.filter(|peak| is_above(peak.total, outstanding))
}

/// The peak, however little it says; `None` if it was not followed.
pub(super) fn always(report: &Report) -> Option<String> {
    let peak = report.peak.as_ref()?;
    let looks = counted(peak.looks, "look");
    Some(format!(
        "{}; {looks} at the totals",
        in_words(peak, report.sampling)
    ))
}

/// The peak in words.
pub(super) fn in_words(peak: &Peak, sampling: Sampling) -> String {
    let Amount { bytes, blocks } = peak.total;
    let about = if sampling == Sampling::All { "" } else { "about " };
    let uncertainty = peak.uncertainty();
    let limit = if uncertainty <= NEARLY_CERTAIN {
        format!("true peak at most {uncertainty}% higher")
    } else {
        format!(
            "true peak between two looks at most {}",
            short_size(peak.never_above)
        )
    };
    format!(
        "{about}{} in {}, {} after the attach ({limit})",
        size(bytes),
        counted(blocks, "block"),
        since(peak.elapsed)
    )
}

/// Amount of a stack at the peak, if it notably differs from the outstanding amount.
pub(super) fn of_stack(stack: StackRef<'_>) -> Option<String> {
    let report = stack.report();
    report.peak.as_ref()?;
    let (then, now) = (stack.peak, stack.outstanding.amount);
    let differs = is_above(then, now) || is_above(now, then);
    differs.then(|| {
        format!(
            "at the peak: {} in {}",
            size(then.bytes),
            counted(then.blocks, "block")
        )
    })
}

fn is_above(one: Amount, other: Amount) -> bool {
    let margin = u128::from(other.bytes) * u128::from(100 + WORTH_TELLING);
    u128::from(one.bytes) * 100 > margin
}

/// Time since the attach: seconds with a digit, from two minutes on in minutes, from two hours on in hours.
fn since(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    match seconds {
        0..120 => format!("{:.1} s", elapsed.as_secs_f64()),
        120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}
