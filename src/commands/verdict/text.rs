//! The verdict for people.

use std::io::{self, Write};

use super::Group;
use crate::reach::free::Allocator;
use crate::session::InUse;
use leak_report::render::{counted, printable, short_size, verdict_lines};

/// Maximum number of groups that are shown.
const MOST_GROUPS: usize = 20;

pub(super) fn render(found: &InUse, groups: &[Group], list: bool, out: &mut dyn Write) -> io::Result<()> {
    let (pid, name) = (found.target.pid(), printable(found.target.comm()));
    let allocators = found.allocators.iter().map(|allocator| match allocator {
        Allocator::Glibc => "glibc's malloc",
        Allocator::Jemalloc => "jemalloc",
        Allocator::Mimalloc => "mimalloc",
        Allocator::Musl => "musl's malloc",
        Allocator::Tcmalloc => "gperftools' tcmalloc",
    });
    let allocators = allocators.collect::<Vec<_>>().join(" and ");
    writeln!(out, "Blocks of {allocators} in process {pid} ({name})")?;
    for line in verdict_lines(&found.verdict, &found.facts) {
        writeln!(out, "  {line}")?;
    }
    if found.left > 0 {
        let left = short_size(found.left);
        let why = match found.facts.stopped {
            Some(_) => "a thread was stopped in the middle of a change, or no pointer leads there",
            None => {
                "it changed while it was read, or no pointer leads there; `--stop` stops the process first"
            }
        };
        writeln!(out, "  {left} of the allocator's memory is not listed: {why}")?;
    }
    if groups.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n    BLOCKS      BYTES       EACH  LOST        CLASS")?;
    for group in groups.iter().take(MOST_GROUPS) {
        let how = if group.is_definite {
            "definitely"
        } else {
            "indirectly"
        };
        let bytes = short_size(group.amount.bytes);
        let class = group.class.as_deref().map_or("-".to_owned(), printable);
        writeln!(
            out,
            "{:>10} {bytes:>10} {:>10}  {how}  {class}",
            group.amount.blocks, group.size
        )?;
        let addresses = group.addresses.iter().filter(|_| list);
        for address in addresses {
            writeln!(out, "             {address:#x}")?;
        }
    }
    let rest = groups.get(MOST_GROUPS..).unwrap_or_default();
    let blocks = rest.iter().map(|group| group.amount.blocks).sum();
    if blocks > 0 {
        writeln!(
            out,
            "and {} of {} other kinds",
            counted(blocks, "block"),
            rest.len()
        )?;
    }
    writeln!(
        out,
        "\nTo find the stacks that allocate such blocks from now on: memleak --verdict -p {pid}"
    )
}
