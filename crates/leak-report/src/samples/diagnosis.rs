//! Report with a diagnosis.

use std::time::Duration;

use crate::model::diagnosis::{Cause, CauseKind, Certainty, Diagnosis, Growth, Holding, Place, Step};
use crate::model::{Amount, Report};

/// Growth by blocks that something holds, and free memory that does not grow.
pub fn diagnosis() -> Diagnosis {
    let kept = Cause {
        kind: CauseKind::Kept,
        share: 0.95,
        bytes_per_second: 1_022_873.6,
        amount: Amount {
            bytes: 16 << 20,
            blocks: 262_144,
        },
        certainty: Certainty::Likely,
        site: Some(Place {
            function: "remember".into(),
            file: Some("/src/app.cpp".into()),
            line: Some(54),
            module: Some("/usr/bin/server".into()),
        }),
        holder: Some("sessions (app.cpp:49)".to_owned()),
        meaning: "no leak by the program's pointers".to_owned(),
        next: "give sessions (app.cpp:49) a bound".to_owned(),
    };
    let free = Cause {
        kind: CauseKind::FreeInAllocator,
        share: 0.0,
        bytes_per_second: 0.0,
        amount: Amount {
            bytes: 5 << 20,
            blocks: 0,
        },
        certainty: Certainty::Certain,
        site: None,
        holder: None,
        meaning: "the allocator keeps their memory for later".to_owned(),
        next: "tell the allocator to give memory back".to_owned(),
    };
    Diagnosis {
        process: Some(Holding {
            pid: 4242,
            comm: "server".to_owned(),
            bytes: 59 << 19,
        }),
        among: None,
        took: Duration::from_secs(60),
        growth: Growth::Grows,
        bytes_per_second: 1_076_709.0,
        causes: vec![kept, free],
        steps: vec![
            Step::of("readings", Duration::from_secs(18)),
            Step {
                cost: Some(0.004),
                ..Step::of("blocks", Duration::from_secs(42))
            },
        ],
    }
}

/// [`full`](super::full()) with a diagnosis.
pub fn diagnosed() -> Report {
    Report {
        diagnosis: Some(Box::new(diagnosis())),
        ..super::full()
    }
}
