//! The tools, and their answers: JSON in a text of at most [`MAX_ANSWER`] bytes. Entries that do not fit are
//! summed up as `others`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::document::{Amount, Document, Frame, Function, Stack, Verdict};
use leak_report::render::write_json;

/// Maximum number of bytes of an answer's text.
pub(super) const MAX_ANSWER: usize = 48 << 10;
/// Bytes of an answer that are reserved for everything outside its list.
const REST: usize = 2 << 10;
/// Maximum number of bytes of a stack's frames.
const MAX_FRAMES: usize = 12 << 10;
/// Maximum number of characters of a name.
const MAX_NAME: usize = 200;
/// Maximum number of processes in a list.
const MAX_PROCESSES: usize = 20;
/// Maximum number of reports in a list, the latest.
const MAX_REPORTS: usize = 200;
/// Default and maximum number of entries of a list.
const TOP: (u64, u64) = (10, 50);

/// Reports that can be asked about.
pub trait Reports {
    /// Numbers of the reports, ascending.
    fn numbers(&mut self) -> Vec<u64>;

    /// Returns the origin of a report, without reading all of it.
    fn about(&mut self, number: u64) -> Listed;

    /// State of the source in words: recorded, or a trace that goes on or is over.
    fn state(&mut self) -> &'static str;

    /// Reads a report. An error is text for the tool's result.
    ///
    /// # Errors
    ///
    /// Fails if there is no report with this number, or it cannot be read.
    fn get(&mut self, number: u64) -> Result<Arc<Document>, String>;
}

/// A report in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// File that it is in.
    pub file: Option<String>,
    /// Local time at which it was made.
    pub time: Option<String>,
}

type Arguments = Map<String, Value>;
type Answer = Result<String, String>;

/// A tool, and its parameters with their descriptions.
struct Tool {
    name: &'static str,
    description: &'static str,
    parameters: &'static [(&'static str, &'static str, &'static str)],
    required: &'static [&'static str],
    answer: fn(&Arguments, &mut dyn Reports) -> Answer,
}

const REPORT: (&str, &str, &str) = (
    "report",
    "integer",
    "Number of the report; -1 is the last, -2 the one before. Default: the last.",
);
const LIMIT: (&str, &str, &str) = (
    "top",
    "integer",
    "Number of entries to list: 10 by default, at most 50.",
);

const TOOLS: [Tool; 4] = [
    Tool {
        name: "reports",
        description: "Lists the available reports with their numbers. Of a running trace, these are the \
                      first report and the latest ones.",
        parameters: &[],
        required: &[],
        answer: reports,
    },
    Tool {
        name: "summary",
        description: "Sums up a report: processes, outstanding memory, how complete it is, and the sites \
                      with most outstanding memory, without their stacks.",
        parameters: &[REPORT, LIMIT],
        required: &[],
        answer: summary,
    },
    Tool {
        name: "stacks",
        description: "Shows whole calling stacks, innermost frame first: those of one site, or those with \
                      most outstanding memory.",
        parameters: &[
            REPORT,
            ("site", "string", "The 16 digits of a site of a summary."),
            LIMIT,
        ],
        required: &[],
        answer: stacks,
    },
    Tool {
        name: "diff",
        description: "Shows which sites grew and which shrank between two reports, the largest change first.",
        parameters: &[
            (
                "before",
                "integer",
                "Number of the earlier report, or -2 for the last but one.",
            ),
            (
                "after",
                "integer",
                "Number of the later report. Default: the last.",
            ),
            LIMIT,
        ],
        required: &["before"],
        answer: diff,
    },
];

/// Descriptions of the tools for the client.
pub(super) fn list() -> Value {
    let tool = |tool: &Tool| {
        let property = |(name, kind, description): &(&str, &str, &str)| {
            (
                (*name).to_owned(),
                json!({"type": kind, "description": description}),
            )
        };
        let properties: Map<String, Value> = tool.parameters.iter().map(property).collect();
        json!({
            "name": tool.name,
            "description": tool.description,
            "inputSchema": {
                "type": "object",
                "properties": properties,
                "required": tool.required,
                "additionalProperties": false,
            },
            "annotations": {"readOnlyHint": true, "openWorldHint": false},
        })
    };
    TOOLS.iter().map(tool).collect()
}

/// Calls a tool; `None` if there is no tool of this name. An error is text for the tool's result.
pub(super) fn call(name: &str, arguments: &Arguments, reports: &mut dyn Reports) -> Option<Answer> {
    let tool = TOOLS.iter().find(|tool| tool.name == name)?;
    let is_known = |name: &String| tool.parameters.iter().any(|(known, ..)| known == name);
    if let Some(name) = arguments.keys().find(|name| !is_known(name)) {
        return Some(Err(format!(
            "`{}` has no parameter `{}`",
            tool.name,
            shortened(name)
        )));
    }
    Some((tool.answer)(arguments, reports))
}

/// Cuts a text of any length after [`MAX_NAME`] characters.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn text_of(value: &Value) -> String {
    let mut text = Vec::new();
    // Writing to memory cannot fail, and JSON is UTF-8.
    _ = write_json(value, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// Resolves a report's number as clients give it: negative numbers count back from the last report.
fn number(arguments: &Arguments, name: &str, reports: &mut dyn Reports) -> Result<u64, String> {
    let known = reports.numbers();
    let Some(&last) = known.last() else {
        return Err(
            "there is no report yet: the first one is made after the trace's interval; ask again later"
                .to_owned(),
        );
    };
    let wanted = match arguments.get(name) {
        None | Some(Value::Null) => return Ok(last),
        Some(value) => value
            .as_i64()
            .ok_or_else(|| format!("`{name}` is not a whole number"))?,
    };
    let back = usize::try_from(wanted.unsigned_abs()).unwrap_or(usize::MAX);
    let found = match wanted < 0 {
        true => known.len().checked_sub(back).and_then(|index| known.get(index)),
        false => known.iter().find(|&&number| i64::try_from(number) == Ok(wanted)),
    };
    found.copied().ok_or_else(|| {
        let (first, count) = (known.first().copied().unwrap_or(last), known.len());
        format!("there is no report {wanted}: there are {count}, from {first} to {last}")
    })
}

fn top(arguments: &Arguments) -> Result<usize, String> {
    let (default, most) = TOP;
    let wanted = match arguments.get("top") {
        None | Some(Value::Null) => default,
        Some(value) => value.as_u64().ok_or("`top` is not a number of entries")?,
    };
    Ok(usize::try_from(wanted.min(most)).unwrap_or(usize::MAX))
}

/// Text of `head` with a list of as many entries as are wanted and fit, and with the number and sum of the
/// others.
fn bounded(mut head: Value, key: &str, entries: impl Iterator<Item = (Value, Amount)>, top: usize) -> String {
    let mut room = MAX_ANSWER.saturating_sub(REST + text_of(&head).len());
    let (mut list, mut others, mut sum) = (Vec::new(), 0_u64, Amount::default());
    for (entry, amount) in entries {
        let length = text_of(&entry).len() + 1;
        if others == 0 && list.len() < top && length <= room {
            room -= length;
            list.push(entry);
        } else {
            others += 1;
            sum.add(amount);
        }
    }
    head[key] = Value::Array(list);
    if others > 0 {
        head["others"] = json!({"entries": others, "bytes": sum.bytes, "blocks": sum.blocks});
    }
    text_of(&head)
}

fn reports(_: &Arguments, reports: &mut dyn Reports) -> Answer {
    let numbers = reports.numbers();
    let head = json!({"state": reports.state(), "count": numbers.len()});
    let latest = numbers.iter().rev().take(MAX_REPORTS);
    let entry = |&number: &u64| {
        let Listed { file, time } = reports.about(number);
        let file = file.as_deref().map(shortened);
        (
            json!({"report": number, "time": time, "file": file}),
            Amount::default(),
        )
    };
    let entries: Vec<_> = latest.map(entry).collect();
    Ok(bounded(head, "latest_first", entries.into_iter(), MAX_REPORTS))
}

/// All stacks of a site.
#[derive(Default)]
struct Site<'a> {
    stacks: Vec<&'a Stack>,
    shown: Amount,
    allocated: Amount,
    definitely_lost: Option<Amount>,
}

impl Site<'_> {
    fn rank(&self) -> (u64, u64, u64) {
        let lost = self.definitely_lost.unwrap_or_default().bytes;
        (lost, self.shown.bytes, self.shown.blocks)
    }

    /// The site without its frames.
    fn in_short(&self, site: &str) -> Map<String, Value> {
        let mut entry = Map::new();
        let mut put = |name: &str, value: Value| _ = entry.insert(name.to_owned(), value);
        put("site", json!(shortened(site)));
        put("bytes", json!(self.shown.bytes));
        put("blocks", json!(self.shown.blocks));
        let Some(stack) = self.stacks.first() else {
            return entry;
        };
        let responsible = stack.responsible.as_ref();
        put(
            "function",
            json!(responsible.map(|responsible| shortened(&responsible.symbol))),
        );
        if let Some(at) = stack.responsible_function().and_then(source_of) {
            put("at", json!(at));
        }
        put("allocator", json!(shortened(&stack.allocator)));
        put("allocated_bytes", json!(self.allocated.bytes));
        let pids: BTreeSet<u32> = self.stacks.iter().map(|stack| stack.pid).collect();
        put("pids", pids.into_iter().take(MAX_PROCESSES).collect());
        let suspicions = self.stacks.iter().filter_map(|stack| stack.suspicion.as_ref());
        if let Some(suspicion) = suspicions.max_by_key(|suspicion| suspicion.score) {
            put("suspicion_of_10", json!(suspicion.score));
            put("growth_bytes_per_second", json!(suspicion.bytes_per_second));
        }
        if let Some(Amount { bytes, blocks }) = self.definitely_lost {
            put("definitely_lost", json!({"bytes": bytes, "blocks": blocks}));
        }
        entry
    }
}

/// Sites of a report by their numbers, without suppressed stacks.
fn sites(document: &Document) -> BTreeMap<&str, Site<'_>> {
    let mut sites: BTreeMap<&str, Site<'_>> = BTreeMap::new();
    for stack in document
        .stacks
        .iter()
        .filter(|stack| stack.suppressed_by.is_none())
    {
        let site = sites.entry(&stack.site).or_default();
        site.shown.add(stack.shown());
        site.allocated.add(stack.allocated);
        if let Some(verdict) = stack.verdict {
            site.definitely_lost
                .get_or_insert_default()
                .add(verdict.definitely_lost);
        }
        site.stacks.push(stack);
    }
    sites
}

/// Sites with lost or outstanding blocks, sorted by definitely lost bytes, then by outstanding bytes and
/// blocks.
fn ranked(document: &Document) -> Vec<(&str, Site<'_>)> {
    let mut sites: Vec<_> = sites(document).into_iter().collect();
    sites.retain(|(_, site)| site.rank() > (0, 0, 0));
    sites.sort_by_key(|(_, site)| std::cmp::Reverse(site.rank()));
    sites
}

fn amount(Amount { bytes, blocks }: Amount) -> Value {
    json!({"bytes": bytes, "blocks": blocks})
}

/// Beginning of every answer about a report.
fn head(number: u64, document: &Document) -> Value {
    let mut head = json!({"report": number, "seconds_since_attach": seconds(document.duration_ns)});
    if let Some(others) = document.others.as_ref().filter(|others| others.stacks > 0) {
        head["not_in_the_file"] = json!({"stacks": others.stacks, "outstanding": amount(others.outstanding)});
    }
    head
}

#[allow(clippy::cast_precision_loss, reason = "a time for people")]
fn seconds(nanoseconds: u64) -> f64 {
    (nanoseconds / 1_000_000) as f64 / 1e3
}

fn summary(arguments: &Arguments, reports: &mut dyn Reports) -> Answer {
    let (number, top) = (number(arguments, "report", reports)?, top(arguments)?);
    let document = reports.get(number)?;
    let ranked = ranked(&document);
    let mut shown = Amount::default();
    ranked.iter().for_each(|(_, site)| shown.add(site.shown));
    let processes = document.targets.iter().take(MAX_PROCESSES).map(|target| {
        json!({
            "pid": target.pid,
            "name": shortened(&target.comm),
            "executable": target.exe.as_deref().map(shortened),
            "ended": target.ended.as_deref().map(shortened),
        })
    });
    let walks = document
        .unwinding
        .allocations
        .values()
        .fold(0_u64, |sum, &count| sum.saturating_add(count));
    let mut head = head(number, &document);
    head["source"] = json!(shortened(&document.source));
    head["processes"] = processes.collect();
    head["all_processes"] = json!(document.targets.len());
    head["outstanding"] = amount(document.outstanding);
    head["outstanding_without_young"] = amount(shown);
    head["allocated"] = amount(document.allocated);
    head["lost"] = amount(document.lost);
    head["complete_stacks"] = json!({
        "allocations": document.unwinding.allocations.get("complete").copied().unwrap_or(0),
        "of": walks,
    });
    if document.sampling.is_some() {
        head["amounts_are_estimates"] = json!(true);
    }
    if let Some(Verdict {
        definitely_lost,
        indirectly_lost,
        reachable,
        unknown,
    }) = document.verdict
    {
        head["verdict"] = json!({
            "definitely_lost": amount(definitely_lost),
            "indirectly_lost": amount(indirectly_lost),
            "reachable": amount(reachable),
            "unknown": amount(unknown),
        });
    }
    let entries = ranked
        .iter()
        .map(|(site, of)| (Value::Object(of.in_short(site)), of.shown));
    Ok(bounded(head, "sites", entries, top))
}

fn stacks(arguments: &Arguments, reports: &mut dyn Reports) -> Answer {
    let (number, top) = (number(arguments, "report", reports)?, top(arguments)?);
    let wanted = match arguments.get("site") {
        None | Some(Value::Null) => None,
        Some(Value::String(site)) => Some(site.as_str()),
        Some(_) => return Err("`site` is not a text".to_owned()),
    };
    let document = reports.get(number)?;
    let mut stacks: Vec<&Stack> = match wanted {
        None => document
            .stacks
            .iter()
            .filter(|stack| stack.suppressed_by.is_none())
            .collect(),
        Some(site) => document
            .stacks
            .iter()
            .filter(|stack| stack.site == site)
            .collect(),
    };
    if let (Some(site), true) = (wanted, stacks.is_empty()) {
        let site = shortened(site);
        return Err(format!(
            "report {number} has no site `{site}`: `summary` lists the largest sites"
        ));
    }
    stacks.sort_by_key(|stack| std::cmp::Reverse((stack.shown().bytes, stack.shown().blocks)));
    let entries = stacks.iter().map(|stack| {
        let Amount { bytes, blocks } = stack.shown();
        let (frames, left_out) = frames(stack);
        let mut entry = json!({
            "site": shortened(&stack.site),
            "pid": stack.pid,
            "bytes": bytes,
            "blocks": blocks,
            "allocator": shortened(&stack.allocator),
            "frames": frames,
            "end": shortened(&stack.end),
        });
        if left_out > 0 {
            entry["frames_left_out"] = json!(left_out);
        }
        (entry, stack.shown())
    });
    Ok(bounded(head(number, &document), "stacks", entries, top))
}

/// Functions of a stack, innermost first, as many as fit, and the number of frames that do not.
fn frames(stack: &Stack) -> (Vec<String>, usize) {
    let (mut names, mut room) = (Vec::new(), MAX_FRAMES);
    for (number, frame) in stack.frames.iter().enumerate() {
        let functions = lines_of(frame);
        let length: usize = functions.iter().map(|name| text_of(&json!(name)).len() + 1).sum();
        if length > room {
            return (names, stack.frames.len() - number);
        }
        room -= length;
        names.extend(functions);
    }
    (names, 0)
}

/// File and line of a function, as far as they are known.
fn source_of(function: &Function) -> Option<String> {
    let file = shortened(function.file.as_deref()?);
    Some(match function.line {
        Some(line) => format!("{file}:{line}"),
        None => file,
    })
}

/// A line for each function of a frame, those inlined first.
fn lines_of(frame: &Frame) -> Vec<String> {
    let module = frame
        .module
        .as_deref()
        .map(|path| path.rsplit('/').next().unwrap_or(path));
    let place = |function: &Function| source_of(function).map_or_else(String::new, |at| format!(" {at}"));
    let inlined = frame.inlined.iter().map(|function| {
        let name = function.name().map_or_else(|| "[unknown]".to_owned(), shortened);
        format!("{name} (inlined){}", place(function))
    });
    let name = match (frame.function.name(), &frame.address) {
        (Some(name), _) => shortened(name),
        (None, Some(address)) => shortened(address),
        (None, None) => shortened(&frame.pc),
    };
    let module = module.map_or_else(String::new, |module| format!(" [{}]", shortened(module)));
    inlined
        .chain([format!("{name}{module}{}", place(&frame.function))])
        .collect()
}

fn diff(arguments: &Arguments, reports: &mut dyn Reports) -> Answer {
    if !arguments.contains_key("before") {
        return Err("`before` is missing: the number of the earlier report".to_owned());
    }
    let top = top(arguments)?;
    let [before, after] = [
        number(arguments, "before", reports)?,
        number(arguments, "after", reports)?,
    ];
    let (earlier, later) = (reports.get(before)?, reports.get(after)?);
    let (was, is) = (sites(&earlier), sites(&later));
    let none = Site::default();
    let all: BTreeSet<&str> = was.keys().chain(is.keys()).copied().collect();
    let growth = |is: u64, was: u64| i128::from(is) - i128::from(was);
    let mut changed = Vec::new();
    let (mut bytes, mut blocks) = (0, 0);
    for site in all {
        let (before, after) = (was.get(site).unwrap_or(&none), is.get(site).unwrap_or(&none));
        let by = growth(after.shown.bytes, before.shown.bytes);
        let by_blocks = growth(after.shown.blocks, before.shown.blocks);
        (bytes, blocks) = (bytes + by, blocks + by_blocks);
        if (by, by_blocks) != (0, 0) {
            changed.push((by, by_blocks, site, before, after));
        }
    }
    changed.sort_by_key(|(by, by_blocks, site, ..)| (std::cmp::Reverse((by.abs(), by_blocks.abs())), *site));
    let entries = changed.iter().map(|(by, by_blocks, site, before, after)| {
        let known = if after.stacks.is_empty() { before } else { after };
        let mut entry = known.in_short(site);
        entry.insert("bytes".to_owned(), json!(after.shown.bytes));
        entry.insert("blocks".to_owned(), json!(after.shown.blocks));
        entry.insert(
            "grown_by".to_owned(),
            json!({"bytes": as_i64(*by), "blocks": as_i64(*by_blocks)}),
        );
        (Value::Object(entry), after.shown)
    });
    let head = json!({
        "before": head(before, &earlier),
        "after": head(after, &later),
        "grown_by": {"bytes": as_i64(bytes), "blocks": as_i64(blocks)},
        "changed_sites": changed.len(),
    });
    Ok(bounded(head, "sites", entries, top))
}

/// Converts a sum to a number that readers of JSON accept; saturates.
fn as_i64(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })
}
