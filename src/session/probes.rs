//! From the probe sites that discovery chose to the probes that the kernel side attaches.

use crate::allocator::{FUNCTIONS, ProbeSite, ResultAt, Role, Shape, SizeAt};
use crate::bpf::{Cookie, Probe, ProbeRole};
use crate::target::Modules;

/// The probe at `site`; `None` when its module has no file to probe.
pub(super) fn probe(site: &ProbeSite, modules: &Modules) -> Option<Probe> {
    let function = FUNCTIONS.get(site.function)?;
    let module = modules.get(site.module)?;
    let cookie = cookie(u8::try_from(site.function).ok()?, function.role, function.shape);
    Some(Probe {
        path: module.probe_path()?,
        file: match &module.build_id {
            Some(build_id) => format!("{} (build {build_id})", module.path.display()),
            None => module.path.display().to_string(),
        },
        offset: site.offset,
        cookie,
        frees: function.role == Role::Free,
        name: site.symbol.clone(),
    })
}

fn cookie(function: u8, role: Role, shape: Shape) -> Cookie {
    let (size, count) = match shape.size {
        SizeAt::Nowhere => (None, None),
        SizeAt::Argument(size) => (Some(size), None),
        SizeAt::Product(size, count) => (Some(size), Some(count)),
    };
    let result = match shape.result {
        ResultAt::Nowhere | ResultAt::Returned => None,
        ResultAt::StoredThrough(argument) => Some(argument),
    };
    let role = match role {
        Role::Allocate => ProbeRole::Allocate,
        Role::Resize => ProbeRole::Resize,
        Role::Free => ProbeRole::Free,
    };
    Cookie {
        function,
        role,
        size,
        count,
        block: shape.block,
        result,
    }
}
