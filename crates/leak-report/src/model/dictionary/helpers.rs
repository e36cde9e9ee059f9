//! Helpers: nameless code that several functions call, according to the paths of a dictionary.
//!
//! A stripped library has names only for its exports. Nameless code that was seen below one of its exported
//! functions, and below another function, is a helper: below a third caller, even in another library, it
//! works for that caller, too.

use std::collections::HashMap;

use super::{ModuleId, PathId, TextId};
use crate::model::Place;

/// Nearest named function from a module's code outwards, including the code itself.
#[derive(Clone, Copy, Debug)]
enum Caller {
    /// Function of the same module, possibly the code itself.
    Own(TextId),
    /// Function of another module, which called into this one: no function of this module in between has a
    /// name.
    Foreign,
}

/// Named functions that nameless code was seen below.
#[derive(Clone, Copy, Debug, Default)]
struct Callers {
    own: Option<TextId>,
    /// True if there are functions other than `own`.
    several: bool,
}

/// Callers of nameless code.
#[derive(Clone, Debug, Default)]
pub(super) struct Helpers {
    /// Module of the innermost frame, and nearest named function, by path.
    called_by: Vec<Option<(ModuleId, Caller)>>,
    callers: HashMap<Place<ModuleId>, Callers>,
}

impl Helpers {
    /// Adds the next path, given the place and name of its innermost frame, and the path of its caller.
    pub(super) fn add(
        &mut self,
        place: Option<Place<ModuleId>>,
        name: Option<TextId>,
        caller: Option<PathId>,
    ) {
        let outer = caller.and_then(|caller| self.called_by.get(caller.index()).copied().flatten());
        let called_by = place.and_then(|Place { module, .. }| match (name, outer) {
            (Some(name), _) => Some((module, Caller::Own(name))),
            (None, Some((of, caller))) if of == module => Some((module, caller)),
            (None, Some(_)) => Some((module, Caller::Foreign)),
            (None, None) => None,
        });
        self.called_by.push(called_by);
        if let (Some(place), None, Some((_, caller))) = (place, name, called_by) {
            let known = self.callers.entry(place).or_default();
            match (caller, known.own) {
                (Caller::Own(own), None) => known.own = Some(own),
                (Caller::Own(own), Some(first)) => known.several |= own != first,
                (Caller::Foreign, _) => known.several = true,
            }
        }
    }

    /// True for nameless code that was seen below a named function of its module, and below another function.
    pub(super) fn is_shared(&self, place: Place<ModuleId>) -> bool {
        let callers = self.callers.get(&place);
        callers.is_some_and(|callers| callers.own.is_some() && callers.several)
    }
}
