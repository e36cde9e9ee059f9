//! The size limit of recordings.

use super::*;

/// Records `count` reports of `stacks` stacks with this limit, and checks the file's size after each.
fn bounded(limit: u64, count: u64, stacks: impl Fn(u64) -> u64) -> (Place, Recorder) {
    let mut place = Place::new();
    place.settings.limit = limit;
    let mut recorder = Recorder::create(&place.settings).unwrap();
    for number in 1..=count {
        recorder.record(number, &grown(stacks(number))).unwrap();
        let length = fs::metadata(place.file()).unwrap().len();
        assert!(length <= limit, "{length} bytes after {number} reports");
    }
    (place, recorder)
}

fn numbers(recording: &Recording) -> Vec<u64> {
    let numbers = 0..recording.count();
    numbers
        .map(|index| recording.summary(index).unwrap().number)
        .collect()
}

/// For any number of reports, the file stays below its limit and has the first and the last, and those
/// between them are evenly spaced. It can be read at any moment.
#[test]
fn thinned_evenly() {
    const COUNT: u64 = 300;
    const LIMIT: u64 = Settings::MIN_LIMIT;
    let (place, recorder) = bounded(LIMIT, COUNT, |_| 40);
    let before_the_end = numbers(&place.open());
    assert_eq!(before_the_end[0], 1);
    recorder.finish().unwrap();
    assert!(fs::metadata(place.file()).unwrap().len() <= LIMIT);
    let recording = place.open();
    assert_eq!(recording.ending(), &Ending::Done { made: COUNT });
    let numbers = numbers(&recording);
    assert_eq!((numbers[0], numbers.last()), (1, Some(&COUNT)));
    let distances: Vec<_> = numbers.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (last, others) = distances.split_last().unwrap();
    assert!(
        others.iter().all(|&distance| distance == others[0]),
        "{numbers:?}"
    );
    assert!(others[0].is_power_of_two() && *last <= others[0], "{numbers:?}");
    assert!(numbers.len() >= 10, "{numbers:?}");
    assert_same(
        &recording.report(recording.count() - 1).unwrap().report,
        &grown(40),
    );
}

/// When the stacks become so many that only one report fits, the last one stays.
#[test]
fn last_report_fits_by_dropping_others() {
    let (place, recorder) = bounded(Settings::MIN_LIMIT, 30, |number| 40 * number);
    recorder.finish().unwrap();
    let recording = place.open();
    assert_eq!(numbers(&recording).last(), Some(&30));
    assert_same(
        &recording.report(recording.count() - 1).unwrap().report,
        &grown(1200),
    );
}

/// A report that is too large by itself is an error, and earlier ones stay readable.
#[test]
fn report_larger_than_the_limit_is_an_error() {
    let (place, mut recorder) = bounded(Settings::MIN_LIMIT, 3, |_| 10);
    let refused = recorder.record(4, &grown(4000)).unwrap_err().to_string();
    assert!(refused.contains("--record-limit allows (64.0 KiB)"), "{refused}");
    assert_eq!(numbers(&place.open()), [1, 2, 3]);
}

/// A trace continues when its recording fails, and gets the error at the end.
#[test]
fn a_trace_outlives_its_recording() {
    use leak_report::render::ReportSink;
    let (place, mut recorder) = bounded(Settings::MIN_LIMIT, 1, |_| 10);
    let large = std::sync::Arc::new(grown(4000));
    recorder.report(&large).unwrap();
    recorder.report(&large).unwrap();
    assert!(
        recorder
            .finish()
            .unwrap_err()
            .to_string()
            .contains("--record-limit")
    );
    assert_eq!(place.open().ending(), &Ending::Done { made: 3 });
}
