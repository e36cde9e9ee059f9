//! Words about who holds blocks: `g_sessions (app.cpp:31)`, and the chains from there.

use super::counted;
use super::titles::short_title;
use super::words::short_size;
use crate::model::printable::Printable;
use crate::model::{
    Amount, Held, Holder, LookedAt, NameStyle, Report, Root, RootKind, StackRef, StepStacks, TextId,
};

/// A root in a few words: the variable with its declaration, or else the facts known about its place.
pub fn root_in_words(root: &Root<TextId>, report: &Report) -> String {
    let root = root.map(|_, &text| report.dictionary.text(text));
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let thread = root.thread.as_ref().map(|thread| match thread.name {
        "" => format!("thread {}", thread.tid),
        name => format!("thread {} ({})", thread.tid, Printable(name)),
    });
    if let Some(symbol) = root.symbol {
        let symbol = report.names.show(symbol);
        let declared = match (root.file, root.line) {
            (Some(file), Some(line)) => format!(" ({}:{line})", Printable(&base(file))),
            (Some(_) | None, None | Some(_)) => match root.object {
                Some(object) => format!(" [{}]", Printable(&base(object))),
                None => String::new(),
            },
        };
        let owner = thread.map_or_else(String::new, |thread| format!(" of {thread}"));
        return format!("{}{declared}{owner}", Printable(&symbol));
    }
    match (root.kind, root.object, thread) {
        (RootKind::Data, Some(object), _) => format!(
            "{} of {}+{:#x}",
            Printable(root.section.unwrap_or("data")),
            Printable(&base(object)),
            root.offset
        ),
        (RootKind::Mapped, Some(object), _) => format!("mapped memory of {}", Printable(&base(object))),
        (RootKind::Data | RootKind::Mapped, None, _) => root.kind.words().to_owned(),
        (RootKind::ThreadLocal | RootKind::Stack | RootKind::Registers, _, Some(thread)) => {
            format!("{} of {thread}", root.kind.words())
        }
        (
            RootKind::ThreadLocal
            | RootKind::Stack
            | RootKind::Registers
            | RootKind::Kernel
            | RootKind::Untraced,
            _,
            _,
        ) => root.kind.words().to_owned(),
    }
}

/// Text that follows "still reachable": the root that holds most of a stack, and whether there are others, as
/// in ` from g_sessions (app.cpp:31)`. Empty if no root is known.
pub(super) fn from(held: Option<&Held>, report: &Report) -> String {
    let Some(first) = held.and_then(|held| held.by.first()) else {
        return String::new();
    };
    let roots = held.into_iter().flat_map(|held| &held.by);
    let more = roots.filter(|holder| holder.root != first.root).count();
    let more = more + usize::from(held.is_some_and(|held| held.others.blocks > 0));
    let others = if more > 0 { " and others" } else { "" };
    format!(" from {}{others}", root_in_words(&first.root, report))
}

/// A chain from its root on, by sites: `g_sessions (app.cpp:31) → Cache::insert app.cpp:12 (several) → …`.
pub fn chain_in_words(holder: &Holder, report: &Report, stacks: &StepStacks<'_>) -> String {
    chain(holder, report, stacks).join(" → ")
}

/// Root and sites of a chain in words.
pub(super) fn chain(holder: &Holder, report: &Report, stacks: &StepStacks<'_>) -> Vec<String> {
    let mut parts = vec![root_in_words(&holder.root, report)];
    for step in &holder.via {
        let title = match stacks.get(step) {
            Some(stack) => short_title(stack, report),
            None => Printable(report.dictionary.text(step.allocator)).to_string(),
        };
        let several = if step.repeats { " (several)" } else { "" };
        parts.push(format!("{title}{several}"));
    }
    if holder.is_cut {
        parts.push("…".to_owned());
    }
    parts
}

/// Lines about the holders of a stack's blocks, the amount that would be lost with these, and their classes.
/// With `all`, includes every chain, and also stacks of which little is reachable.
pub fn holder_lines(stack: StackRef<'_>, stacks: &StepStacks<'_>, all: bool) -> Vec<String> {
    let report = stack.report();
    let Some(held) = &stack.get().held else {
        return Vec::new();
    };
    let verdict = stack.judged();
    let is_held = all || verdict.reachable.bytes > verdict.definitely_lost.bytes;
    let mut lines = Vec::new();
    let chains = if all { held.by.len() } else { usize::from(is_held) };
    for holder in held
        .by
        .iter()
        .take(chains)
        .filter(|holder| all || !holder.via.is_empty())
    {
        let amount = match held.by.len() {
            1 => String::new(),
            _ => format!(" ({})", counted(holder.amount.blocks, "block")),
        };
        lines.push(format!(
            "held by {}{amount}",
            chain_in_words(holder, report, stacks)
        ));
    }
    if all && held.others.blocks > 0 {
        lines.push(format!(
            "held by others: {}",
            counted(held.others.blocks, "block")
        ));
    }
    let own = held.by.iter().map(|holder| holder.amount).sum::<Amount>() + held.others;
    if let Some(retained) = held
        .retained
        .filter(|retained| is_held && (all || retained.bytes > own.bytes))
    {
        lines.push(format!(
            "retains at least {} in {}",
            short_size(retained.bytes),
            counted(retained.blocks, "block")
        ));
    }
    lines.extend(classes(held, report));
    lines
}

/// Number of blocks without a class, and the number of blocks looked at if that is not all of them.
fn of_looked(looked: LookedAt) -> String {
    let LookedAt { blocks, without, of } = looked;
    let without = match without {
        0 => String::new(),
        _ => format!(", {} without", counted(without, "block")),
    };
    match blocks < of {
        true => format!("{without}; {blocks} of {of} blocks looked at"),
        false => without,
    }
}

/// The classes of a stack's blocks in one line; `None` if there are none.
fn classes(held: &Held, report: &Report) -> Option<String> {
    let name = |class: TextId| {
        let name = report.dictionary.text(class);
        let names: NameStyle = report.names;
        Printable(&names.show(name)).to_string()
    };
    let classes = held.classes.iter();
    let classes: Vec<_> = classes
        .map(|class| format!("{} ({})", name(class.name), counted(class.amount.blocks, "block")))
        .collect();
    if held.looked.is_some_and(LookedAt::is_none) {
        return Some("classes unknown: too many blocks to examine".to_owned());
    }
    let noun = if classes.len() == 1 { "class" } else { "classes" };
    let looked = held.looked.map_or_else(String::new, of_looked);
    (!classes.is_empty()).then(|| format!("{noun} {}{looked}", classes.join(", ")))
}
