//! A diagnosis, and the report that is recorded with it: the last one of the trace about the first cause.

use std::time::SystemTime;

use leak_report::model::diagnosis::Diagnosis;
use leak_report::model::{Report, TargetFacts};
use memleak_why::Trace;

use crate::commands::replay::DEFAULT_TOP;
use crate::process::Target;
use crate::session::time_of_day;
use crate::sinks::recording::{RecordError, Recorder};

/// The answer, in words and in stacks.
pub(super) struct Found {
    pub(super) diagnosis: Diagnosis,
    /// Without the diagnosis.
    report: Report,
}

impl Found {
    /// A diagnosis with the last report of a trace.
    pub(super) fn traced(diagnosis: Diagnosis, report: Report) -> Self {
        Self { diagnosis, report }
    }

    /// A diagnosis that needed no trace; `target` is the process that it is about.
    pub(super) fn untraced(diagnosis: Diagnosis, target: Option<&Target>) -> Self {
        let facts = target.map(|target| TargetFacts {
            pid: target.pid(),
            instance: 1,
            parent: None,
            comm: target.comm().to_owned(),
            exe: Some(target.exe().display().to_string()),
            ended: None,
            lack: None,
            memory: None,
            fragmentation: None,
        });
        let targets = facts.into_iter().collect();
        let report = Report::without_trace(time_of_day(), SystemTime::now(), targets);
        Self::traced(diagnosis, report)
    }

    /// Records the report with the diagnosis in it.
    ///
    /// # Errors
    ///
    /// Fails if the recording cannot be written.
    pub(super) fn record(self, mut recorder: Recorder) -> Result<(), RecordError> {
        let report = Report {
            top: DEFAULT_TOP,
            diagnosis: Some(Box::new(self.diagnosis)),
            ..self.report
        };
        recorder.record(1, &report)?;
        recorder.finish()
    }
}

/// Number of the trace about the first cause: the one that has its place, else the first one, which is about
/// the region that grows fastest.
pub(super) fn decisive(diagnosis: &Diagnosis, traces: &[Trace]) -> Option<usize> {
    let place = diagnosis.causes.first().and_then(|cause| cause.site.as_ref());
    let has_place = |trace: &Trace| trace.sites.iter().any(|site| Some(&site.place) == place);
    let found = traces.iter().position(has_place);
    found.or_else(|| (!traces.is_empty()).then_some(0))
}

#[cfg(test)]
mod tests {
    use leak_report::model::Amount;
    use leak_report::model::diagnosis::Place;
    use leak_report::samples;
    use memleak_why::{Site, Took};

    use super::*;
    use crate::sinks::recording::{Recording, Settings};

    fn trace(place: Place) -> Trace {
        let site = Site {
            place,
            took: Took::Block,
            outstanding: Amount::default(),
            before: Amount::default(),
            lost: Amount::default(),
            pinned: Amount::default(),
            holder: None,
        };
        Trace {
            sites: vec![site],
            ..Trace::default()
        }
    }

    /// The trace with the place of the first cause is recorded, or the first one if no trace has it.
    #[test]
    fn decisive_traces() {
        let diagnosis = samples::diagnosis();
        let place = diagnosis.causes[0].site.clone().expect("a place");
        let other = trace(Place::default());
        let traces = [other.clone(), trace(place)];
        assert_eq!(decisive(&diagnosis, &traces), Some(1));
        assert_eq!(decisive(&diagnosis, &traces[..1]), Some(0));
        assert_eq!(decisive(&diagnosis, &[]), None);
    }

    /// A recording has the report with the diagnosis in it, also if nothing was traced.
    #[test]
    fn recordings() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("why.memleak");
        let settings = Settings {
            file: file.clone(),
            overwrite: true,
            limit: Settings::DEFAULT_LIMIT,
            anonymize: false,
        };
        let traced = Found::traced(samples::diagnosis(), samples::full());
        for (found, stacks) in [(traced, 3), (Found::untraced(samples::diagnosis(), None), 0)] {
            found
                .record(Recorder::create(&settings).expect("made"))
                .expect("recorded");
            let recording = Recording::open(&file).expect("a recording");
            let report = recording.report(0).expect("a report").report;
            assert_eq!((recording.count(), report.stacks.len()), (1, stacks));
            assert_eq!(report.diagnosis.as_deref(), Some(&samples::diagnosis()));
        }
    }
}
