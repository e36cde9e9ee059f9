//! Empty programs at the sites that a trace would choose for `malloc` and `free`: they show the kernel's own
//! part of a probe's cost, which no tool can avoid.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use libbpf_rs::{Link, ObjectBuilder, UprobeMultiOpts};
use memleak::allocator::{Catalog, ProbeSite, Selection, discover};
use memleak::process::{Modules, Target};

/// Empty programs that are attached; dropping it detaches.
pub(crate) struct Bare(#[allow(dead_code, reason = "held for its drop")] [Link; 2]);

impl Bare {
    /// Attaches to process `pid`; also to the return of `malloc` if `returns` is set.
    pub(crate) fn attach(pid: u32, returns: bool) -> anyhow::Result<Self> {
        let entry = if returns { "both" } else { "entry_alone" };
        Self::attach_programs(pid, "bare", entry, "release")
    }

    /// Attaches programs of `NAME.bpf.c` to process `pid`: a session program to `malloc`, another to `free`.
    pub(crate) fn attach_programs(pid: u32, file: &str, entry: &str, release: &str) -> anyhow::Result<Self> {
        let object = ObjectBuilder::default().open_file(compile(file)?)?;
        let object = object.load().context("session probes need Linux 6.13")?;
        // Keeps the mapped files open.
        let mut modules = Modules::new();
        Target::open(pid)?.read_mappings(&mut modules)?;
        let attach = |program: &str, function: &str| {
            let (path, offset) = site(&modules, function)?;
            let mut programs = object.progs_mut();
            let program = programs.find(|candidate| candidate.name() == program);
            let options = UprobeMultiOpts {
                offsets: vec![offset],
                session: function == "malloc",
                ..Default::default()
            };
            let program = program.context("the file has it")?;
            anyhow::Ok(program.attach_uprobe_multi_with_opts(pid.cast_signed(), path, "", options)?)
        };
        Ok(Self([attach(entry, "malloc")?, attach(release, "free")?]))
    }
}

/// Finds the place, file and offset, where a trace would probe a function of a process that has mapped
/// `modules`.
fn site(modules: &Modules, function: &str) -> anyhow::Result<(PathBuf, usize)> {
    let discovery = discover(modules.iter(), &mut Catalog::new(Selection::default()));
    let is_named = |site: &&ProbeSite| *site.function.name == *function;
    let site = discovery.sites.iter().find(is_named).context("it is there")?;
    let module = modules.get(site.module).context("a site has a module")?;
    let path = module.probe_path().context("it has a file")?;
    Ok((path, usize::try_from(site.offset.get())?))
}

fn compile(name: &str) -> anyhow::Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("benches/probe_cost/{name}.bpf.c"));
    let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.bpf.o"));
    let mut compiler = Command::new("clang");
    compiler
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-c", "-o"])
        .arg(&object);
    let status = compiler
        .arg(source)
        .status()
        .context("cannot run clang (apt-get install clang)")?;
    ensure!(status.success(), "clang could not compile the empty programs");
    Ok(object)
}
