//! Which calls user space is told of, one by one.

use super::load::LoadError;
use super::skeleton::{OpenMemleakSkel, types};

/// What is told of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Telling {
    /// Nothing: the programs are as if there were no such thing.
    #[default]
    Nothing,
    /// What became of them.
    Ends,
    /// That they begin, too.
    All,
}

impl Telling {
    /// Sets it for an object that is not loaded yet. `except`: a process that is not told of.
    pub(super) fn set(self, object: &mut OpenMemleakSkel<'_>, except: Option<u32>) -> Result<(), LoadError> {
        let missing = || libbpf_rs::Error::from_raw_os_error(libc::ENOENT);
        let knobs = object.maps.rodata_data.as_deref_mut().ok_or_else(missing)?;
        knobs.tell_calls = match self {
            Self::Nothing => types::telling::TELL_NOTHING.0,
            Self::Ends => types::telling::TELL_ENDS.0,
            Self::All => types::telling::TELL_ALL.0,
        };
        if let Some(process) = except {
            knobs.untold_tgid = process;
        }
        if self == Self::Nothing {
            object.maps.call_events.set_autocreate(false)?;
        }
        Ok(())
    }
}
