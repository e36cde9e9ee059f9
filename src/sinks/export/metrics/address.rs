//! Where metrics are served.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::sinks::export::SettingsError;

/// A socket address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub(super) SocketAddr);

impl Address {
    /// Parses `PORT`, `:PORT` or `IP:PORT`; without a host, listens on loopback only.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let refused = || SettingsError::Address(text.to_owned());
        let local = |port: &str| Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), decimal(port)?));
        let address = match text.rsplit_once(':') {
            None => local(text),
            Some(("" | "localhost", port)) => local(port),
            Some(_) => text.parse().ok(),
        };
        address.map(Self).ok_or_else(refused)
    }

    /// Returns whether other machines can connect.
    pub(super) fn is_open(self) -> bool {
        match self.0.ip() {
            IpAddr::V4(address) => !address.is_loopback(),
            IpAddr::V6(address) => !address.is_loopback(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn decimal(text: &str) -> Option<u16> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_decimal)
}
