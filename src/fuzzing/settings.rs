//! Claims about the user's text: settings, conditions, suppressions. It is untrusted, too: root reads the
//! user's files.

use crate::cli::settings;
use crate::sinks::gate;

/// Any text is accepted, or refused with a message that is short and without control characters.
pub(super) fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let refused = [
        settings::check_text(text).err().map(|error| error.to_string()),
        gate::parse(text).err().map(|error| error.to_string()),
        gate::check_suppressions(text)
            .err()
            .map(|error| error.to_string()),
    ];
    for refused in refused.iter().flatten() {
        let breaks = |shown: char| shown.is_control();
        assert!(!refused.contains(breaks), "{refused:?}");
        assert!(refused.len() <= 4096 + 8 * bytes.len(), "{} bytes", refused.len());
    }
}
