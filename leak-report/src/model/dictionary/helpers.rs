//! Nameless code that several functions call, as the paths of a dictionary show.
//!
//! A stripped library has names only for what it exports. A helper that was seen below one of its exported functions, and below another
//! function, works for others: below a third caller, which can be in another library, it does so too.

use std::collections::HashMap;

use super::{ModuleId, PathId, TextId};
use crate::model::Place;

/// First function with a name outwards of code in a module.
#[derive(Clone, Copy, Debug)]
enum Caller {
    /// The module's own, or the code itself.
    Own(TextId),
    /// In another module, which has called into this one.
    Foreign,
}

/// Functions with names that nameless code was seen below.
#[derive(Clone, Copy, Debug, Default)]
struct Callers {
    own: Option<TextId>,
    /// True if there are others than `own`.
    several: bool,
}

/// Callers of nameless code.
#[derive(Clone, Debug, Default)]
pub(super) struct Helpers {
    /// By path: the module of its innermost frame, and who called into that.
    called_by: Vec<Option<(ModuleId, Caller)>>,
    callers: HashMap<Place<ModuleId>, Callers>,
}

impl Helpers {
    /// Adds the next path, given its innermost frame, the name of that, and the path of its caller.
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

    /// True for nameless code that was seen below a function of its module that has a name, and below another one.
    pub(super) fn is_shared(&self, place: Place<ModuleId>) -> bool {
        let callers = self.callers.get(&place);
        callers.is_some_and(|callers| callers.own.is_some() && callers.several)
    }
}
