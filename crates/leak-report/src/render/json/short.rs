//! Names in short.

use std::borrow::Cow;

use crate::model::abbreviated;

/// The abbreviated name; `None` if it is the same.
pub(super) fn short(name: &str) -> Option<String> {
    match abbreviated(name) {
        Cow::Borrowed(_) => None,
        Cow::Owned(short) => Some(short),
    }
}
