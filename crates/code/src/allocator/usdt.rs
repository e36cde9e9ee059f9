//! USDT probes: instructions that a program offers to tracers, each described by a note in its file
//! (`.note.stapsdt`, as SystemTap's `sys/sdt.h` writes it).
//!
//! Pure: ELF bytes in. The probes read are those of OpenTelemetry's contract for memory profiling: a process
//! that samples its allocations announces each sampled block by [`ALLOCATION`], and its free by [`FREE`].

use object::LittleEndian;
use object::elf::{FileHeader64, NoteType};
use object::read::elf::NoteIterator;
use thiserror::Error;
use unwind_tables::Architecture;
use unwind_tables::addr::{FileOffset, Svma};
use unwind_tables::elf::ElfView;

/// Provider of the contract's probes.
pub const PROVIDER: &str = "otel_memory";
/// `(pointer, size, weighted_bytes)`: a block that stands for `weighted_bytes` bytes of allocations.
pub const ALLOCATION: &str = "otel_memory:alloc";
/// `(pointer)`: a block that was announced is about to be freed.
pub const FREE: &str = "otel_memory:free";
/// Further probes for allocations, of providers that offer a choice of distances. Each has its distance: the
/// mean number of bytes between the blocks that it announces. The tracer chooses by attaching to one of them,
/// or to [`ALLOCATION`].
const OF_OTHER_DISTANCES: [(&str, u64); 2] = [
    ("otel_memory:alloc_64k", 64 << 10),
    ("otel_memory:alloc_4m", 4 << 20),
];
/// Distance of [`ALLOCATION`] of a provider that offers a choice.
pub const DEFAULT_DISTANCE: u64 = 512 << 10;

/// Type of a note that describes a probe, by the owner `stapsdt`.
const NOTE_TYPE: NoteType = NoteType(3);
/// Maximum number of notes that are read from one file, and of the contract's probes among them.
const MAX_NOTES: usize = 1 << 16;
const MAX_PROBES: usize = 64;

/// Distances of a provider that offers a choice, ascending.
pub const DISTANCES: [u64; 3] = [OF_OTHER_DISTANCES[0].1, DEFAULT_DISTANCE, OF_OTHER_DISTANCES[1].1];

/// Returns the distance in [`DISTANCES`] that is nearest to `wanted` bytes, by ratio; `None` if all are much
/// larger.
pub fn distance_near(wanted: u64) -> Option<u64> {
    let ratio = |distance: u64| (distance as f64 / wanted as f64).ln().abs();
    let nearest = DISTANCES
        .into_iter()
        .min_by(|one, other| ratio(*one).total_cmp(&ratio(*other)));
    nearest.filter(|_| wanted >= DISTANCES[0] / 2)
}

/// A USDT probe of [`PROVIDER`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtProbe {
    /// Provider and name, as in [`ALLOCATION`].
    pub name: String,
    /// Address of the instruction.
    pub svma: Svma,
    /// Address of a 16-bit counter of attached tracers: while it is 0, the program announces nothing. `None`
    /// if it always does.
    pub semaphore: Option<Svma>,
    /// Places of the arguments, as the compiler wrote them: `8@%rdi -4@12(%rsp)`.
    pub arguments: String,
    /// Mean number of bytes between the blocks that it announces, if that is known.
    pub distance: Option<u64>,
}

/// Returns the contract's probes in a file that a process has mapped; empty if it has none that can be read.
pub fn probes(bytes: &[u8], elf: &ElfView<'_>) -> Vec<UsdtProbe> {
    let Some(section) = elf
        .section_range(b".note.stapsdt")
        .and_then(|range| slice(bytes, range))
    else {
        return Vec::new();
    };
    // If an object was moved after it was linked (prelink), this section was moved, too, but its notes have
    // the old address.
    let base = elf
        .section_range(b".stapsdt.base")
        .and_then(|range| elf.svma_of(range.start));
    let Ok(notes) = NoteIterator::<FileHeader64<LittleEndian>>::new(LittleEndian, 4, section) else {
        return Vec::new();
    };
    let notes = notes.take(MAX_NOTES).map_while(Result::ok);
    let wanted = notes.filter(|note| note.name() == b"stapsdt" && note.n_type(LittleEndian) == NOTE_TYPE);
    let probes = wanted.filter_map(|note| probe(note.desc(), base));
    with_distances(probes.take(MAX_PROBES).collect())
}

/// Gives probes of other distances the name of [`ALLOCATION`], and each probe its distance if there is a
/// choice.
fn with_distances(mut probes: Vec<UsdtProbe>) -> Vec<UsdtProbe> {
    let other = |name: &str| OF_OTHER_DISTANCES.into_iter().find(|(known, _)| *known == name);
    let has_choice = probes.iter().any(|probe| other(&probe.name).is_some());
    for probe in &mut probes {
        if let Some((_, distance)) = other(&probe.name) {
            ALLOCATION.clone_into(&mut probe.name);
            probe.distance = Some(distance);
        } else if has_choice && probe.name == ALLOCATION {
            probe.distance = Some(DEFAULT_DISTANCE);
        }
    }
    probes
}

fn slice(bytes: &[u8], range: std::ops::Range<FileOffset>) -> Option<&[u8]> {
    let start = usize::try_from(range.start.get()).ok()?;
    let end = usize::try_from(range.end.get()).ok()?;
    bytes.get(start..end)
}

/// Reads a note: three addresses (probe, base, semaphore), then provider, name and arguments, each ended by a
/// zero.
fn probe(note: &[u8], base: Option<Svma>) -> Option<UsdtProbe> {
    let (words, texts) = note.split_at_checked(24)?;
    let mut words = words
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word));
    let (svma, old_base, semaphore) = (words.next()?, words.next()?, words.next()?);
    let moved = base.map_or(0, |base| base.get().wrapping_sub(old_base));
    let mut texts = texts.split(|&byte| byte == 0).map(str::from_utf8);
    let (provider, name, arguments) = (texts.next()?.ok()?, texts.next()?.ok()?, texts.next()?.ok()?);
    (provider == PROVIDER).then(|| UsdtProbe {
        name: format!("{provider}:{name}"),
        svma: Svma::new(svma.wrapping_add(moved)),
        semaphore: (semaphore != 0).then(|| Svma::new(semaphore.wrapping_add(moved))),
        arguments: arguments.to_owned(),
        distance: None,
    })
}

/// Place of an argument when the probe is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Argument {
    pub place: Place,
    /// Width in bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    pub is_signed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Constant(i64),
    Register(Register),
    /// Memory at `base + displacement`, plus the index, shifted to the left by the number of bits beside it.
    Memory {
        base: Register,
        displacement: i64,
        index: Option<(Register, u8)>,
    },
}

/// A register, by its offset in the kernel's `struct pt_regs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register(pub u16);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArgumentError {
    #[error("argument `{0}` is in a place that cannot be read by a probe")]
    Unsupported(String),
    #[error("it has {found} arguments, expected {wanted}")]
    Missing { found: usize, wanted: usize },
}

/// Reads the places of the first `wanted` arguments.
pub fn arguments(
    text: &str,
    architecture: Architecture,
    wanted: usize,
) -> Result<Vec<Argument>, ArgumentError> {
    let arguments = split(text);
    if arguments.len() < wanted {
        let found = arguments.len();
        return Err(ArgumentError::Missing { found, wanted });
    }
    let read =
        |text: &str| argument(text, architecture).ok_or_else(|| ArgumentError::Unsupported(text.to_owned()));
    arguments.into_iter().take(wanted).map(read).collect()
}

/// Splits a list of arguments at spaces, except for spaces within brackets, as in `8@[sp, 16]`.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let parts = text.split(|character| {
        match character {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ' ' && depth == 0
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// Reads `WIDTH@PLACE`; a width below 0 is a signed argument's.
fn argument(text: &str, architecture: Architecture) -> Option<Argument> {
    let (width, place) = text.split_once('@').unwrap_or(("8", text));
    let width: i8 = width.parse().ok()?;
    let bytes = width.unsigned_abs();
    let place = match architecture {
        Architecture::X86_64 => x86_64_place(place),
        Architecture::Aarch64 => aarch64_place(place),
    };
    [1, 2, 4, 8].contains(&bytes).then_some(Argument {
        place: place?,
        bytes,
        is_signed: width < 0,
    })
}

/// Reads an operand as GNU as writes it: `$12`, `%rdi`, `-8(%rbp)`, `16(%rax,%rbx,4)`.
fn x86_64_place(text: &str) -> Option<Place> {
    if let Some(constant) = text.strip_prefix('$') {
        return number(constant).map(Place::Constant);
    }
    if let Some(name) = text.strip_prefix('%') {
        return x86_64_register(name).map(Place::Register);
    }
    let (displacement, operand) = text.strip_suffix(')')?.split_once('(')?;
    let mut registers = operand.split(',').map(str::trim);
    let mut register = || x86_64_register(registers.next()?.strip_prefix('%')?);
    let base = register()?;
    let index = register();
    let scale = registers
        .next()
        .map_or(Some(1), |scale| scale.parse::<u8>().ok())?;
    let shift = [(1, 0), (2, 1), (4, 2), (8, 3)]
        .into_iter()
        .find(|&(known, _)| known == scale)?
        .1;
    Some(Place::Memory {
        base,
        displacement: if displacement.is_empty() {
            0
        } else {
            number(displacement)?
        },
        index: index.map(|index| (index, shift)),
    })
}

/// Finds a general register of x86-64 by any of its names, except for those of second bytes (`%ah`), whose
/// values are shifted.
fn x86_64_register(name: &str) -> Option<Register> {
    /// Names without the letters that give a width, in the order of `struct pt_regs`; empty for fields that
    /// are no general register.
    const NAMES: [&str; 20] = [
        "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di", "",
        "", "", "", "sp",
    ];
    let whole = match name.as_bytes() {
        // %r8 to %r15, with d, w or b for a part.
        [b'r', digit, ..] if digit.is_ascii_digit() => name.trim_end_matches(['d', 'w', 'b']),
        [b'r' | b'e', _, _] => name.get(1..)?,
        [.., b'l'] if name.len() == 3 => name.get(..2)?,
        [letter @ b'a'..=b'd', b'l'] => match letter {
            b'a' => "ax",
            b'b' => "bx",
            b'c' => "cx",
            _ => "dx",
        },
        _ => name,
    };
    let place = NAMES
        .iter()
        .position(|known| !known.is_empty() && *known == whole)?;
    Some(Register(u16::try_from(place * 8).ok()?))
}

/// Reads an operand as GNU as writes it: `12`, `x0`, `[sp, 16]`, `[x0]`.
fn aarch64_place(text: &str) -> Option<Place> {
    if let Some(memory) = text.strip_prefix('[') {
        let mut parts = memory.strip_suffix(']')?.split(',').map(str::trim);
        let base = aarch64_register(parts.next()?)?;
        let displacement = parts
            .next()
            .map_or(Some(0), |text| number(text.trim_start_matches('#')))?;
        return parts.next().is_none().then_some(Place::Memory {
            base,
            displacement,
            index: None,
        });
    }
    match aarch64_register(text) {
        Some(register) => Some(Place::Register(register)),
        None => number(text.trim_start_matches('#')).map(Place::Constant),
    }
}

fn aarch64_register(name: &str) -> Option<Register> {
    /// Offset of the stack pointer in `struct pt_regs`, behind 31 registers.
    const SP: u16 = 31 * 8;
    if name == "sp" {
        return Some(Register(SP));
    }
    let number: u16 = name.strip_prefix(['x', 'w'])?.parse().ok()?;
    (number < 31).then_some(Register(number * 8))
}

fn number(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hexadecimal) => i64::from_str_radix(hexadecimal, 16),
        None => digits.parse(),
    };
    value.ok().map(|value| sign * value)
}

#[cfg(test)]
mod tests;
