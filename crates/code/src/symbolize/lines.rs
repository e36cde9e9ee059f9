//! Functions, inlined functions and lines from DWARF.

use std::cell::RefCell;
use std::sync::Arc;

use addr2line::{Context, LookupContinuation, LookupResult};
use gimli::Dwarf;

use super::demangle::demangle;
use super::elf::malformed;
use super::live_code::{LiveCode, Survey};
use super::reader::Reader;
use super::split::SplitUnits;
use leak_report::model::{Gap, InlinedFrame};

/// Maximum number of inlined functions per address.
const MAX_INLINED: usize = 128;

/// Debug information of an object.
pub(super) struct Lines {
    context: Context<Reader>,
    split: RefCell<SplitUnits>,
    /// Reason why names may be missing, if a file other than the object could not be read.
    gap: Option<Gap>,
}

/// Debug information for an address.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LineInfo {
    /// Function whose machine code contains the address, demangled.
    pub(super) function: Option<Arc<str>>,
    /// Source file of the call in that function.
    pub(super) file: Option<Arc<str>>,
    /// Line of the call in that file.
    pub(super) line: Option<u32>,
    /// Functions inlined there, innermost first.
    pub(super) inlined: Vec<InlinedFrame>,
    /// Reason why names may be missing, if they are in another file.
    pub(super) gap: Option<Gap>,
}

impl Lines {
    /// Prepares lookups in `dwarf` and its split units; `gap` is why part of it may be unavailable.
    pub(super) fn new(
        dwarf: Dwarf<Reader>,
        code: &LiveCode,
        split: SplitUnits,
        gap: Option<Gap>,
    ) -> Result<Self, Gap> {
        code.know(Survey::of(&dwarf, code).map_err(malformed)?);
        Ok(Self {
            context: Context::from_dwarf(dwarf).map_err(malformed)?,
            split: RefCell::new(split),
            gap,
        })
    }

    /// Looks up the code at `address`.
    pub(super) fn find(&self, address: u64) -> Result<LineInfo, Gap> {
        if address == u64::MAX {
            // No code ends behind this address, and addr2line would compute the next one.
            return Ok(LineInfo::default());
        }
        let mut lookup = self.context.find_frames(address);
        let frames = loop {
            match lookup {
                LookupResult::Output(frames) => break frames,
                LookupResult::Load { load, continuation } => {
                    let unit = self.split.borrow_mut().load(&load);
                    lookup = continuation.resume(unit);
                }
            }
        };
        let mut frames = frames.map_err(malformed)?;
        let mut chain = Vec::new();
        while let Some(frame) = frames.next().map_err(malformed)? {
            if chain.len() > MAX_INLINED {
                break;
            }
            let name = frame
                .function
                .as_ref()
                .and_then(|function| function.raw_name().ok());
            let location = frame.location;
            chain.push(InlinedFrame {
                symbol: name.map(|name| demangle(name.as_bytes()).into()),
                file: location
                    .as_ref()
                    .and_then(|location| location.file)
                    .map(Into::into),
                // Line 0 means code that belongs to no line.
                line: location
                    .and_then(|location| location.line)
                    .filter(|&line| line > 0),
            });
        }
        let is_named = chain.iter().all(|frame| frame.symbol.is_some());
        let gap = match is_named {
            true => None,
            false => self.split.borrow().gap().or(self.gap),
        };
        let outermost = chain.pop();
        let outermost = outermost.map(|frame| (frame.symbol, frame.file, frame.line));
        let (function, file, line) = outermost.unwrap_or_default();
        Ok(LineInfo {
            function,
            file,
            line,
            inlined: chain,
            gap,
        })
    }

    /// Approximate memory use in bytes.
    pub(super) fn memory(&self) -> usize {
        let sections = usize::try_from(self.split.borrow().taken()).unwrap_or(usize::MAX);
        // Parsed units and line rows take about as much again.
        sections.saturating_mul(2)
    }
}
