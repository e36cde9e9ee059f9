//! The verdict as one JSON object on one line, schema version 1. Fields are only ever added.

use std::io::{self, Write};

use serde::Serialize;

use super::Group;
use crate::session::InUse;
use leak_report::render::{JudgementJson, write_json};

const SCHEMA_VERSION: u32 = 1;

pub(super) fn render(found: &InUse, groups: &[Group], list: bool, out: &mut dyn Write) -> io::Result<()> {
    let lost = groups.iter().map(|group| LostJson {
        verdict: if group.is_definite {
            "definitely_lost"
        } else {
            "indirectly_lost"
        },
        size: group.size,
        class: group.class.clone(),
        blocks: group.amount.blocks,
        bytes: group.amount.bytes,
        addresses: list.then(|| {
            let addresses = group.addresses.iter();
            addresses.map(|address| format!("{address:#x}")).collect()
        }),
    });
    let json = VerdictJson {
        schema_version: SCHEMA_VERSION,
        memleak: env!("CARGO_PKG_VERSION"),
        pid: found.target.pid(),
        comm: found.target.comm().to_owned(),
        allocators: found
            .allocators
            .iter()
            .map(|allocator| allocator.name())
            .collect(),
        not_listed_bytes: found.left,
        verdict: JudgementJson::new(found.verdict, &found.facts),
        lost: lost.collect(),
    };
    write_json(&json, out)?;
    writeln!(out)
}

#[derive(Serialize)]
struct VerdictJson {
    schema_version: u32,
    memleak: &'static str,
    pid: u32,
    comm: String,
    /// Allocators whose blocks these are.
    allocators: Vec<&'static str>,
    /// Bytes of the allocators' memory that could not be listed; the maximum over all listings.
    not_listed_bytes: u64,
    verdict: JudgementJson,
    /// Lost blocks, summed by verdict, size and class.
    lost: Vec<LostJson>,
}

#[derive(Serialize)]
struct LostJson {
    verdict: &'static str,
    /// Size of each block in bytes.
    size: u64,
    /// C++ class; null if it is not known.
    class: Option<String>,
    blocks: u64,
    bytes: u64,
    /// Addresses of the blocks, if they are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    addresses: Option<Vec<String>>,
}
