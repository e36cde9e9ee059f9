//! Files that were made to do harm: nothing panics, and nothing takes more than there can be.

use proptest::prelude::*;

use super::super::chunk::Kind;
use super::super::schema::{self, List};
use super::*;

/// Does with a file all that can be done with one.
fn exercise(path: &Path) {
    let Ok(recording) = Recording::open(path) else {
        return;
    };
    for index in 0..recording.count() {
        let _ = recording.glance(index);
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

    /// Bytes of a file changed anywhere.
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

    /// Bytes changed, taken out or put in where a checksum says that all is right.
    #[test]
    fn changed_chunks(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..6),
    ) {
        let place = recorded();
        let mut chunks = chunks(place.file());
        let which = which.index(chunks.len());
        let unpacked = &mut chunks[which].1;
        for (at, byte, how) in changes {
            let at = at.index(unpacked.len());
            match how {
                0 => unpacked[at] = byte,
                1 => unpacked.insert(at, byte),
                _ if unpacked.len() > 1 => drop(unpacked.remove(at)),
                _ => {}
            }
        }
        fs::write(place.file(), sealed(&chunks)).unwrap();
        exercise(place.file());
    }

    /// Whole chunks in another order, missing, or twice.
    #[test]
    fn other_orders(order in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let place = recorded();
        let chunks = chunks(place.file());
        let order: Vec<_> = order.iter().map(|at| chunks[at.index(chunks.len())].clone()).collect();
        fs::write(place.file(), sealed(&order)).unwrap();
        exercise(place.file());
    }
}

/// A file with one such chunk in front of all others.
fn with(kind: Kind, payload: &impl serde::Serialize) -> Place {
    let place = recorded();
    let mut chunks = chunks(place.file());
    let mut bytes = Vec::new();
    ciborium::into_writer(payload, &mut bytes).unwrap();
    chunks.insert(0, (kind.letters(), bytes));
    fs::write(place.file(), sealed(&chunks)).unwrap();
    place
}

/// A few bytes that stand for many things are refused before there is memory for them.
#[test]
fn too_many_things() {
    let empty = || ciborium::Value::Map(Vec::new());
    let amounts: Vec<_> = (0..=schema::STACKS_IN_CHUNK).map(|_| empty()).collect();
    let place = with(Kind::Amounts, &amounts);
    let refused = place.open().report(0).unwrap_err().to_string();
    assert!(
        refused.contains("report 1 of") && refused.contains("damaged"),
        "{refused}"
    );
    let sites = ciborium::Value::Array(vec![empty(); (1 << 19) + 1]);
    let definitions = ciborium::Value::Map(vec![("sites".into(), sites)]);
    let place = with(Kind::Definitions, &definitions);
    assert!(Recording::open(place.file()).is_err());
}

/// Names that are referred to again and again cannot take more memory than there can be of names.
#[test]
fn names_that_multiply() {
    let names = schema::Names {
        symbol: Some(0),
        ..schema::Names::default()
    };
    let definitions = |count| schema::Definitions {
        texts: List(vec![schema::Text("x".repeat(1000).into())]),
        names: List(vec![names.clone(); count]),
        ..schema::Definitions::default()
    };
    let add = |count| tables::Tables::with_room_for(50_000).add(definitions(count));
    add(50).unwrap();
    let refused = add(51).unwrap_err();
    assert!(refused.0.contains("more names"), "{refused:?}");
}

/// A long stack that is in a report again and again has only so many frames in all.
#[test]
fn frames_that_multiply() {
    let mut tables = tables::Tables::default();
    let definitions = schema::Definitions {
        texts: List(vec![schema::Text("x".into())]),
        names: List(vec![schema::Names::default()]),
        frames: List(vec![schema::Frame {
            found_by: "cfi".into(),
            ..schema::Frame::default()
        }]),
        paths: (0..1 << 15)
            .map(|at: u32| schema::Path(at.checked_sub(1), 0))
            .collect(),
        sites: List(vec![schema::Site {
            path: Some((1 << 15) - 1),
            end: "complete".into(),
            ..schema::Site::default()
        }]),
        ..schema::Definitions::default()
    };
    tables.add(definitions).unwrap();
    let mut budget = tables::Budget::new(5 << 14, "frames");
    let site = tables.site(0).unwrap();
    for times in 1..=2 {
        let frames = tables.frames(site, &mut budget).unwrap();
        assert_eq!(frames.len(), 1 << 15, "{times}");
    }
    let refused = tables.frames(site, &mut budget).unwrap_err();
    assert!(refused.0.contains("more frames"), "{refused:?}");
}
