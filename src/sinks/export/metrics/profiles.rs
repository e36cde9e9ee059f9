//! Profiles of the last report at the paths, and with the headers, that Go's `net/http/pprof` has for them
//! (<https://pkg.go.dev/net/http/pprof>).
//!
//! A profile is made at the first request for it, and kept until the next report. Without requests, it costs
//! nothing.

use std::sync::{Arc, OnceLock};

use super::server::{Answer, Request};
use leak_report::model::Report;
use leak_report::render::{Shown, pulled};

/// Value of `Retry-After`, in seconds, before the first report.
const RETRY_AFTER: &str = "5";

/// The profiles of one report.
pub(super) struct Profiles {
    report: Arc<Report>,
    heap: OnceLock<Option<Arc<[u8]>>>,
    allocs: OnceLock<Option<Arc<[u8]>>>,
}

impl Profiles {
    pub(super) fn of(report: Arc<Report>) -> Self {
        Self {
            report,
            heap: OnceLock::new(),
            allocs: OnceLock::new(),
        }
    }

    /// The compressed profile; `None` if it could not be compressed.
    pub(super) fn profile(&self, shown: Shown) -> Option<Arc<[u8]>> {
        let made = match shown {
            Shown::Outstanding => &self.heap,
            Shown::Allocated => &self.allocs,
        };
        let make = || pulled(&self.report, shown).ok().map(Arc::from);
        made.get_or_init(make).clone()
    }
}

/// Answers a request for a profile; `None` for other paths. Calls `last` only for a valid request.
pub(super) fn answer(request: &Request<'_>, last: impl FnOnce() -> Option<Arc<Profiles>>) -> Option<Answer> {
    let (name, shown) = match request.path {
        "/debug/pprof/heap" => ("heap", Shown::Outstanding),
        "/debug/pprof/allocs" => ("allocs", Shown::Allocated),
        _ => return None,
    };
    let asks_for = |name| {
        let value = request.parameter(name);
        value.is_some_and(|value| !matches!(value, "" | "0"))
    };
    let refused = |why| Some(Answer::refusal(400, "Bad Request", why));
    if asks_for("seconds") {
        return refused(
            "Profiles show the last report, counted from the attach: leave `seconds` out, and compare two \
             profiles.",
        );
    }
    if asks_for("debug") {
        return refused("Profiles are protocol buffers, not text: leave `debug` out.");
    }
    let Some(profiles) = last() else {
        let refusal = Answer::refusal(503, "Service Unavailable", "There is no report yet.");
        return Some(refusal.with("Retry-After", RETRY_AFTER));
    };
    let answer = match profiles.profile(shown) {
        Some(bytes) => Answer::page("application/octet-stream", bytes)
            .with("Content-Disposition", &format!("attachment; filename=\"{name}\"")),
        None => Answer::refusal(500, "Internal Server Error", "The profile cannot be made."),
    };
    Some(answer)
}
