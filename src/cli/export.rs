//! Flags for pushing reports and serving metrics.

use std::path::PathBuf;

use clap::Args;

use super::config::ConfigError;
use crate::sinks::export::metrics::{self, Address};
use crate::sinks::export::push::Api;
use crate::sinks::export::{Settings, SettingsError};

/// Flags about a fleet.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Push each report as profiles to a profile store or an OpenTelemetry collector.
    ///
    /// Stores are Pyroscope, Grafana Cloud Profiles, Alloy and Parca. Each process is a series with the
    /// labels service_name and comm (its name), pid, exe and hostname. Outstanding amounts are those at the
    /// report, allocated amounts the difference to the previous report. While the server is unreachable, up
    /// to 32 MiB are kept and sent later.
    #[arg(long, value_name = "URL")]
    pub push: Option<String>,
    /// Protocol of the server that --push names.
    ///
    /// [default: pyroscope]
    #[arg(long, value_enum, value_name = "API")]
    pub push_api: Option<Api>,
    /// Add a label to all profiles pushed, or replace one of memleak's; can be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub push_label: Vec<String>,
    /// Tenant to push for (X-Scope-OrgID).
    #[arg(long, value_name = "TENANT")]
    pub push_tenant: Option<String>,
    /// Add a header to all requests; can be repeated.
    ///
    /// Everyone on this machine can read it: put secrets into the files of --push-header-file or
    /// --push-token-file, or into the environment variable MEMLEAK_PUSH_TOKEN.
    #[arg(long, value_name = "NAME: VALUE")]
    pub push_header: Vec<String>,
    /// Add headers from this file, one per line; lines that begin with `#` are skipped.
    #[arg(long, value_name = "FILE")]
    pub push_header_file: Option<PathBuf>,
    /// Authenticate with the token in this file, which is read again for each request.
    #[arg(long, value_name = "FILE")]
    pub push_token_file: Option<PathBuf>,
    /// Authenticate with this user name, and with the token as password (HTTP Basic).
    #[arg(long, value_name = "NAME")]
    pub push_user: Option<String>,
    /// Trust servers with certificates signed by one in this file (PEM), instead of those the system trusts.
    #[arg(long, value_name = "FILE")]
    pub push_ca: Option<PathBuf>,
    /// Serve the numbers of the last report at http://ADDRESS/metrics, for Prometheus.
    ///
    /// ADDRESS is PORT or :PORT for this machine alone, or IP:PORT. Also serves profiles at /debug/pprof/heap
    /// and /debug/pprof/allocs, for `go tool pprof` and other scrapers of pprof.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// Number of sites with their own metrics, largest first; all others share one.
    ///
    /// [default: 20]
    #[arg(long, value_name = "N")]
    pub metrics_sites: Option<usize>,
}

impl ExportArgs {
    /// Default number of sites with metrics.
    const DEFAULT_SITES: usize = 20;

    /// Checks the flags. `has_reports`: the trace makes reports.
    pub(super) fn check(self, has_reports: bool) -> Result<Settings, ConfigError> {
        let pushing = self.flags_of_push().next();
        if let Some(flag) = pushing.filter(|_| !cfg!(feature = "net")) {
            return Err(ConfigError::without_net(flag));
        }
        let settings = Settings {
            metrics: self.metrics()?,
            #[cfg(feature = "net")]
            push: self.push()?,
            #[cfg(not(feature = "net"))]
            push: None,
        };
        match has_reports || settings.is_empty() {
            true => Ok(settings),
            false => Err(SettingsError::NoReports.into()),
        }
    }

    /// Flags about pushing that are given.
    pub(super) fn flags_of_push(&self) -> impl Iterator<Item = &'static str> + use<> {
        let given = [
            ("--push", self.push.is_some()),
            ("--push-api", self.push_api.is_some()),
            ("--push-label", !self.push_label.is_empty()),
            ("--push-tenant", self.push_tenant.is_some()),
            ("--push-header", !self.push_header.is_empty()),
            ("--push-header-file", self.push_header_file.is_some()),
            ("--push-token-file", self.push_token_file.is_some()),
            ("--push-user", self.push_user.is_some()),
            ("--push-ca", self.push_ca.is_some()),
        ];
        given
            .into_iter()
            .filter(|&(_, given)| given)
            .map(|(flag, _)| flag)
    }

    fn metrics(&self) -> Result<Option<metrics::Settings>, SettingsError> {
        let Some(address) = &self.metrics else {
            return match self.metrics_sites {
                Some(_) => Err(SettingsError::NothingServed("--metrics-sites")),
                None => Ok(None),
            };
        };
        Ok(Some(metrics::Settings {
            address: Address::parse(address)?,
            sites: self.metrics_sites.unwrap_or(Self::DEFAULT_SITES),
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::{Parser, ValueEnum};

    use super::*;
    use crate::cli::Cli;
    use crate::cli::Config;
    use crate::sinks::export::push::{self, Given};

    fn exported(arguments: &str) -> Result<Settings, ConfigError> {
        let arguments = ["memleak", "-p", "1"]
            .into_iter()
            .chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        Config::try_from(cli.trace).map(|config| config.sinks.export)
    }

    /// Values of `--push-api` are the names of the protocols.
    #[test]
    fn names() {
        for api in Api::value_variants() {
            let value = api.to_possible_value().expect("none is left out");
            assert_eq!(api.name(), value.get_name());
        }
        assert_eq!(Api::value_variants().len(), Api::ALL.len());
    }

    /// Metrics are served on this machine only, unless an address is given.
    #[test]
    fn metrics() {
        let metrics = |arguments: &str| exported(arguments).expect("it makes sense").metrics;
        for (text, address) in [
            ("9464", "127.0.0.1:9464"),
            (":9464", "127.0.0.1:9464"),
            ("localhost:9464", "127.0.0.1:9464"),
            ("0.0.0.0:9464", "0.0.0.0:9464"),
            ("[::1]:0", "[::1]:0"),
        ] {
            let settings = metrics(&format!("--metrics {text}")).expect("there are some");
            assert_eq!(
                (settings.address.to_string().as_str(), settings.sites),
                (address, 20)
            );
        }
        assert_eq!(metrics("").map(|settings| settings.sites), None);
        let sites = metrics("--metrics 1 --metrics-sites 0").map(|settings| settings.sites);
        assert_eq!(sites, Some(0));
    }

    /// A server, its protocol and labels are taken from the flags.
    #[test]
    fn push() {
        let settings =
            exported("--push http://h:4040 --push-api parca --push-label env=dev --push-label a=b");
        let settings = settings.expect("it makes sense").push.expect("it is pushed");
        assert_eq!(
            (settings.api, settings.server.as_str()),
            (Api::Parca, "http://h:4040")
        );
        assert_eq!(settings.labels.len(), 2);
        let settings = exported("--push http://h:4040").expect("it makes sense").push;
        assert_eq!(settings.map(|settings| settings.api), Some(Api::Pyroscope));
        assert_eq!(exported(""), Ok(Settings::default()));
    }

    /// Headers in a file equal those on the command line.
    #[test]
    fn header_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("headers");
        let arguments = format!("--push http://h --push-header-file {}", path.display());
        assert!(matches!(
            exported(&arguments),
            Err(ConfigError::Export(SettingsError::HeaderFile { .. }))
        ));
        std::fs::write(&path, "# secret\n\n X-Key: a b \n").expect("written");
        let from_file = exported(&arguments).expect("it makes sense");
        let given = Given {
            url: "http://h".to_owned(),
            headers: vec!["X-Key: a b".to_owned()],
            ..Given::default()
        };
        assert_eq!(from_file.push, push::Settings::new(given).ok());
        std::fs::write(&path, "X-Key").expect("written");
        let error = exported(&arguments).expect_err("no header");
        assert!(matches!(error, ConfigError::Export(SettingsError::Header(_))));
    }

    /// Each mistake is refused with its own reason.
    #[test]
    fn invalid_command_lines_are_refused() {
        for (arguments, error) in [
            ("--push h:4040", SettingsError::Url),
            ("--push-label a=b", SettingsError::NothingPushed("--push-label")),
            ("--push-ca f", SettingsError::NothingPushed("--push-ca")),
            ("--push-api parca", SettingsError::NothingPushed("--push-api")),
            (
                "--metrics-sites 5",
                SettingsError::NothingServed("--metrics-sites"),
            ),
            ("--metrics host:1", SettingsError::Address("host:1".to_owned())),
            ("--metrics :+1", SettingsError::Address(":+1".to_owned())),
            ("--metrics 65536", SettingsError::Address("65536".to_owned())),
            ("--metrics ::1", SettingsError::Address("::1".to_owned())),
            ("-t --format bcc --metrics 1", SettingsError::NoReports),
        ] {
            assert_eq!(
                exported(arguments),
                Err(ConfigError::Export(error)),
                "{arguments}"
            );
        }
    }
}
