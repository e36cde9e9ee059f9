//! State of one instance in a session: a process between two execs.

use std::sync::Arc;
use std::time::Instant;

use super::attachments::{Attachments, Sharers};
use super::beginnings::Beginning;
use super::memory::Memory;
use super::not_announced::NotAnnounced;
use super::python::Interpreter;
use super::reload::Reloads;
use crate::bpf::{Instance, Origin};
use crate::process::{History, JvmCode, LONGEST_JVM_BEGINNING, Mappings, Target};
use leak_report::model::InstanceEnd;
use leak_report::model::TargetFacts;

/// One instance. It is kept after its end, so that its stacks can be named.
pub(super) struct Process {
    /// Attachments of this process alone; empty if probes are attached for all processes.
    pub(super) attached: Attachments,
    /// Processes that share its memory.
    pub(super) sharers: Sharers,
    pub(super) instance: Instance,
    /// `None` if it has ended, or could not be opened.
    pub(super) target: Option<Target>,
    pub(super) facts: TargetFacts,
    pub(super) history: History,
    /// Mappings published last; empty after its end.
    pub(super) mappings: Mappings,
    pub(super) reloads: Reloads,
    pub(super) beginning: Beginning,
    /// Time when its JVM was first seen starting up.
    jvm_seen: Option<Instant>,
    /// True while its JVM starts up.
    pub(super) begins_jvm: bool,
    /// True once a warning was logged that its JVM is of an unknown kind.
    is_jvm_told: bool,
    /// True if the user named the process, while it ran this program or one that this replaced.
    pub(super) is_given: bool,
    /// True if it was selected by a property, and is traced only while it has that.
    pub(super) is_member: bool,
    pub(super) ended: Option<InstanceEnd>,
    pub(super) memory: Memory,
    /// True once a warning was logged that it announces nothing.
    pub(super) is_silence_told: bool,
    pub(super) not_announced: NotAnnounced,
    /// Python's interpreter, if it has one that is known.
    pub(super) python: Option<Arc<Interpreter>>,
}

impl Process {
    /// An instance that has just begun. `history` has the mappings of its addresses until its own are read.
    pub(super) fn new(instance: Instance, target: Option<Target>, history: History) -> Self {
        let facts = facts(&instance, target.as_ref());
        let is_given = instance.origin == Origin::Attached;
        let (memory, not_announced) = (Memory::of(instance.origin), NotAnnounced::of(instance.origin));
        Self {
            attached: Attachments::default(),
            sharers: Sharers::default(),
            instance,
            target,
            facts,
            history,
            mappings: Mappings::default(),
            reloads: Reloads::demanded(),
            beginning: Beginning::now(),
            jvm_seen: None,
            begins_jvm: false,
            is_jvm_told: false,
            is_given,
            is_member: false,
            ended: None,
            memory,
            is_silence_told: false,
            not_announced,
            python: None,
        }
    }

    /// Notes facts read about a JVM's code. Returns whether walks that end in generated code are deferred
    /// until more is known of it: for at most [`LONGEST_JVM_BEGINNING`].
    pub(super) fn note_jvm(&mut self, code: &JvmCode, now: Instant) -> bool {
        if let Some(lacks) = code.lacks.filter(|_| !self.is_jvm_told) {
            self.is_jvm_told = true;
            let pid = self.facts.pid;
            tracing::warn!(
                "{pid}: its JVM does not describe {lacks} in a known way: stacks may end in generated code"
            );
        }
        self.begins_jvm =
            code.begins && now.duration_since(*self.jvm_seen.get_or_insert(now)) < LONGEST_JVM_BEGINNING;
        self.begins_jvm
    }

    pub(super) fn is_live(&self) -> bool {
        self.ended.is_none()
    }

    /// Notes the end, and releases what only a running process needs.
    pub(super) fn end(&mut self, end: InstanceEnd) {
        self.ended = Some(end);
        self.facts.ended = Some(end);
        self.facts.memory = None;
        self.target = None;
        self.mappings = Mappings::default();
        self.attached = Attachments::default();
        self.sharers = Sharers::default();
    }
}

fn facts(instance: &Instance, target: Option<&Target>) -> TargetFacts {
    let comm = match (instance.origin, target) {
        (Origin::Attached, Some(target)) => target.comm().to_owned(),
        _ => instance.comm.clone(),
    };
    let exe = target.filter(|target| target.is_consistent() && is_of_instance(target, &comm));
    TargetFacts {
        pid: instance.pid,
        instance: instance.number,
        parent: instance.parent,
        comm,
        exe: exe.map(|target| target.exe().to_string_lossy().into_owned()),
        ended: None,
        lack: None,
        fragmentation: None,
        memory: None,
    }
}

/// Returns whether an opened process is still the instance whose first thread had the name `comm`: it may
/// have executed another program since. That is named by its file; a script's interpreter keeps the script's
/// name.
fn is_of_instance(target: &Target, comm: &str) -> bool {
    let file = target.exe().file_name().map(|name| name.to_string_lossy());
    let short = |name: &str| name.chars().take(15).collect::<String>();
    target.comm() == comm || file.is_some_and(|file| short(&file) == comm)
}
