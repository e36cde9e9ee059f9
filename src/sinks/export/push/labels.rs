//! The labels of a process's profiles.

use std::collections::BTreeMap;
use std::fs;

use super::{Api, Settings};
use leak_report::model::{Report, TargetFacts};
use leak_report::render::printable;

/// Maximum number of bytes of a value. (Pyroscope accepts 2048: `-validation.max-length-label-value`.)
const MAX_BYTES: usize = 1024;
/// `service_name` of memory that belongs to no single process.
const SEVERAL: &str = "several-processes";
/// `service_name` of kernel memory.
const KERNEL: &str = "linux";

/// Labels that all processes share.
pub(super) struct Labeller {
    api: Api,
    hostname: Option<String>,
    /// Labels from `--push-label`, which override the others.
    given: BTreeMap<String, String>,
}

impl Labeller {
    pub(super) fn new(settings: &Settings) -> Self {
        let hostname = fs::read_to_string("/proc/sys/kernel/hostname");
        let hostname = hostname.map(|name| name.trim().to_owned());
        Self {
            api: settings.api,
            hostname: hostname.ok().filter(|name| !name.is_empty()),
            given: settings.labels.clone(),
        }
    }

    /// Drops the hostname, so that tests are equal on all machines.
    #[cfg(test)]
    pub(super) fn forget_hostname(&mut self) {
        self.hostname = None;
    }

    /// The labels of `target`, or of memory that belongs to no single process.
    pub(super) fn labels(&self, report: &Report, target: Option<&TargetFacts>) -> BTreeMap<String, String> {
        let service = match (target, &report.kernel) {
            (Some(target), _) => target.comm.as_str(),
            (None, Some(_)) => KERNEL,
            (None, None) => SEVERAL,
        };
        let exe = target.and_then(|target| target.exe.clone());
        // The second name is for collectors: it follows OpenTelemetry's conventions for resources.
        let own = [
            ("service_name", "service.name", Some(service.to_owned())),
            ("hostname", "host.name", self.hostname.clone()),
            (
                "comm",
                "process.executable.name",
                target.map(|target| target.comm.clone()),
            ),
            ("pid", "process.pid", target.map(|target| target.pid.to_string())),
            ("exe", "process.executable.path", exe),
            (
                "kernel",
                "os.version",
                report.kernel.as_ref().map(|kernel| kernel.release.clone()),
            ),
        ];
        let mut labels = BTreeMap::new();
        for (name, convention, value) in own {
            let name = match self.api {
                Api::Pyroscope | Api::PyroscopeIngest | Api::Parca => name,
                Api::Otlp => convention,
            };
            // Prometheus treats an empty label as a missing one.
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                labels.insert(name.to_owned(), value);
            }
        }
        labels.extend(self.given.clone());
        labels.values_mut().for_each(|value| *value = shortened(value));
        labels
    }
}

/// Escapes control characters and cuts at [`MAX_BYTES`].
fn shortened(value: &str) -> String {
    let value = printable(value);
    let end = (0..=MAX_BYTES.min(value.len()))
        .rev()
        .find(|&end| value.is_char_boundary(end));
    value[..end.unwrap_or(0)].to_owned()
}
