//! Allocator calls reported to user space one by one: a setting of an object that is not loaded yet.

use super::load::LoadError;
use super::skeleton::{OpenMemleakSkel, types};
use leak_report::model::CallTrace;

/// Sets which calls are reported, except those of the process `except`.
pub(super) fn set(
    calls: CallTrace,
    object: &mut OpenMemleakSkel<'_>,
    except: Option<u32>,
) -> Result<(), LoadError> {
    let missing = || libbpf_rs::Error::from_raw_os_error(libc::ENOENT);
    let knobs = object.maps.rodata_data.as_deref_mut().ok_or_else(missing)?;
    knobs.call_trace = match calls {
        CallTrace::Off => types::call_trace::CALL_TRACE_OFF.0,
        CallTrace::Ends => types::call_trace::CALL_TRACE_ENDS.0,
        CallTrace::All => types::call_trace::CALL_TRACE_ALL.0,
    };
    if let Some(process) = except {
        knobs.call_trace_except = process;
    }
    if calls == CallTrace::Off {
        object.maps.call_events.set_autocreate(false)?;
    }
    Ok(())
}
