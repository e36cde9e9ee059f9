//! Malicious files cause no panic and no unbounded use of memory.

use proptest::prelude::*;

use super::super::chunk::Kind;
use super::*;
use leak_report::model::dictionary::{Definitions, Invalid, Limits, Sizes};
use leak_report::model::{Dictionary, Frame, Location, Symbolized, Text, TextKind};

/// Uses every reading operation on a file.
fn exercise(path: &Path) {
    let Ok(recording) = Recording::open(path) else {
        return;
    };
    for index in 0..recording.count() {
        let _ = recording.summary(index);
        if let Ok(recorded) = recording.report(index) {
            formats(&recorded.report);
        }
    }
}

/// The chunks of a file: kind and CBOR.
fn chunks(path: &Path) -> Vec<([u8; 4], Vec<u8>)> {
    let bytes = fs::read(path).unwrap();
    let mut at = HEADER;
    let mut chunks = Vec::new();
    while at < bytes.len() {
        let number = |from: usize| u32::from_le_bytes(*bytes[at + from..].first_chunk().unwrap()) as usize;
        let stored = &bytes[at + 16..][..number(8)];
        let mut unpacked = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::ZlibDecoder::new(stored), &mut unpacked).unwrap();
        assert_eq!(unpacked.len(), number(4));
        chunks.push((*bytes[at..].first_chunk().unwrap(), unpacked));
        at += 16 + number(8);
    }
    chunks
}

fn recorded() -> Place {
    let place = Place::new();
    place.record(&[rich(), sample::of_the_kernel()]);
    place
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Bytes of the file are changed anywhere.
    #[test]
    fn changed_files(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let place = recorded();
        let mut bytes = fs::read(place.file()).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        fs::write(place.file(), bytes).unwrap();
        exercise(place.file());
    }

    /// Bytes are changed, removed or inserted within chunks whose checksum is valid.
    #[test]
    fn changed_chunks(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..6),
    ) {
        let place = recorded();
        let mut chunks = chunks(place.file());
        let which = which.index(chunks.len());
        let unpacked = &mut chunks[which].1;
        for (at, byte, change) in changes {
            let at = at.index(unpacked.len());
            match change {
                0 => unpacked[at] = byte,
                1 => unpacked.insert(at, byte),
                _ if unpacked.len() > 1 => drop(unpacked.remove(at)),
                _ => {}
            }
        }
        fs::write(place.file(), sealed(&chunks)).unwrap();
        exercise(place.file());
    }

    /// Whole chunks are reordered, missing or repeated.
    #[test]
    fn other_orders(order in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let place = recorded();
        let chunks = chunks(place.file());
        let order: Vec<_> = order.iter().map(|at| chunks[at.index(chunks.len())].clone()).collect();
        fs::write(place.file(), sealed(&order)).unwrap();
        exercise(place.file());
    }
}

/// A reference to a missing definition is refused, with the number of the report that has it.
#[test]
fn undefined_references_are_refused() {
    let place = recorded();
    let mut chunks = chunks(place.file());
    chunks.retain(|(kind, _)| *kind != Kind::Definitions.letters());
    fs::write(place.file(), sealed(&chunks)).unwrap();
    let refused = place.open().report(0).unwrap_err().to_string();
    assert!(
        refused.contains("report 1 of") && refused.contains("text number") && refused.contains("not defined"),
        "{refused}"
    );
    // A repeated definition would shift the numbers of those that follow.
    let mut chunks = self::chunks(recorded().file());
    let is_definitions = |(kind, _): &([u8; 4], Vec<u8>)| *kind == Kind::Definitions.letters();
    let definitions = chunks.iter().position(is_definitions).unwrap();
    chunks.insert(definitions, chunks[definitions].clone());
    let refused = place.refused(&sealed(&chunks));
    assert!(refused.contains("no complete report"), "{refused}");
}

fn dictionary(paths: u32) -> Definitions {
    let mut dictionary = Dictionary::default();
    let names = dictionary.add_names(&Symbolized::default());
    let frame = dictionary.add_frame(Frame {
        at: Location {
            pc: unwind_tables::addr::Avma::new(16),
            place: None,
        },
        exact: false,
        found_by: unwind_tables::walk::FoundBy::Cfi,
        names,
    });
    dictionary.add_stack((0..paths).map(|_| frame));
    dictionary.added_since(Sizes::default(), usize::MAX).remove(0)
}

/// Texts, entries and frames of a stack are bounded, and definitions refer only to earlier ones.
#[test]
fn definitions_are_bounded() {
    let limits = Limits {
        entries: 100,
        text_bytes: 10,
        depth: 50,
    };
    let define = |definitions| Dictionary::default().define(definitions, limits);
    define(dictionary(50)).unwrap();
    assert_eq!(
        define(dictionary(51)).unwrap_err(),
        Invalid::TooMany("frames of one stack")
    );
    let text = |text: &str| Definitions {
        texts: vec![Text {
            kind: TextKind::Function,
            text: text.into(),
        }],
        ..Definitions::default()
    };
    define(text("0123456789")).unwrap();
    assert_eq!(
        define(text("0123456789a")).unwrap_err(),
        Invalid::TooMany("texts")
    );
    let mut known = Dictionary::default();
    known.define(text("a"), limits).unwrap();
    assert_eq!(
        known.define(text("a"), limits).unwrap_err(),
        Invalid::Repeated("text")
    );
    let mut later = dictionary(3);
    later.paths.reverse();
    assert!(matches!(define(later), Err(Invalid::Undefined("path", _))));
    let mut nameless = dictionary(1);
    nameless.names.clear();
    assert_eq!(define(nameless).unwrap_err(), Invalid::Undefined("name", 0));
}
