//! JSON of hand-made reports against `docs/report.schema.json`, by an independent validator. For real reports
//! see `tests/formats/json_schema.rs`.

use std::process::{Command, Stdio};

use unwind_tables::walk::LeftOut;

use super::*;
use crate::model::diagnosis::{Among, Growth};
use crate::model::{
    Amount, Fragmentation, InstanceEnd, LookedAt, Measured, MemoryLack, Missing, NotMeasured, Reached,
    ReachedLimit, Reason, TracePart, Unheld, Unjudged,
};

/// A report with all fields, one of samples, and one without stacks.
fn of_everything() -> [Report; 3] {
    let mut everything = full();
    // The schema has only causes of losses that exist.
    everything.losses.causes = [("block_table_full".into(), 9)].into();
    everything.stacks[1].left_out = Some(LeftOut {
        after: 1,
        frames: 3488,
    });
    let reached = |value, pid| Reached {
        condition: "rss>1GiB".to_owned(),
        value,
        pid,
    };
    everything.missing = TracePart::ALL
        .map(|part| Missing {
            part,
            program: "python_code_end".to_owned(),
            reason: "infinite loop detected (verifier, EINVAL)".to_owned(),
        })
        .into();
    everything.targets[0].ended = Some(InstanceEnd::OutOfMemory);
    everything.targets[0].lack = Some(MemoryLack::Cgroup(ReachedLimit {
        cgroup: "/a".to_owned(),
        limit: Some(1 << 30),
        peak: None,
        kills: Some(1),
    }));
    let sampled = Report {
        sampling: Sampling::Bytes(4096),
        reason: Some(Reason::Conditions(vec![
            reached(Measured::Bytes(1 << 31), Some(7)),
            reached(Measured::Percent(80.5), Some(7)),
            reached(Measured::BytesPerSecond(-1.5), None),
        ])),
        ..everything.clone()
    };
    let mut nothing = Report {
        stacks: Vec::new(),
        reason: Some(Reason::End),
        ..everything.clone()
    };
    nothing.targets[0].lack = Some(MemoryLack::System);
    [everything, sampled, nothing]
}

/// Reports with all fields, of samples, without stacks, with a verdict, with holders, and with what blocks
/// pin match the schema.
#[test]
fn made_reports_match_the_schema() {
    let [everything, sampled, nothing] = of_everything();
    let mut judged = crate::samples::judged();
    judged.losses.causes.clear();
    if let Some(judgement) = &mut judged.judgement {
        judgement.stopped = Some(std::time::Duration::from_millis(7));
        judgement.unjudged = Unjudged::ALL.map(|reason| (reason, Amount::default())).into();
    }
    let mut held = crate::samples::held();
    held.losses.causes.clear();
    if let Some(judgement) = &mut held.judgement {
        judgement.unheld = Unheld::ALL.map(|reason| (reason, 1)).into();
    }
    let mut classes = held.clone();
    let looked = LookedAt {
        blocks: 12,
        without: 3,
        of: 20,
    };
    if let Some(held) = &mut classes.stacks[0].held {
        held.looked = Some(looked);
    }
    let python_program = crate::samples::python::python();
    let mut python = Command::new("/usr/bin/python3")
        .args(["tests/validate_json.py", "report.schema.json"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("apt-get install python3 python3-jsonschema");
    let mut input = python.stdin.take().unwrap();
    let mut peaked = crate::samples::peaked();
    peaked.losses.causes.clear();
    let mut diagnosed = crate::samples::diagnosed();
    diagnosed.losses.causes.clear();
    let mut none_grows = diagnosed.clone();
    if let Some(diagnosis) = &mut none_grows.diagnosis {
        let largest = diagnosis.process.take().into_iter().collect();
        let more = std::time::Duration::from_secs(30);
        diagnosis.growth = Growth::NotSure { more };
        diagnosis.causes.clear();
        diagnosis.among = Some(Among {
            processes: 2,
            took: diagnosis.took,
            largest,
        });
    }
    let mut pinning = crate::samples::pinning();
    pinning.losses.causes.clear();
    let not_measured = NotMeasured::ALL.map(|reason| {
        let mut report = nothing.clone();
        report.targets[0].fragmentation = Some(Fragmentation::Unknown(reason));
        report
    });
    let more = not_measured.into_iter().chain([pinning, diagnosed, none_grows]);
    for report in [
        everything,
        sampled,
        nothing,
        judged,
        held,
        classes,
        peaked,
        python_program,
    ]
    .into_iter()
    .chain(more)
    {
        render(&report, Format::Json, &mut input).unwrap();
        render_top_json(&report, 1, &mut input).unwrap();
    }
    drop(input);
    let output = python.wait_with_output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && output_text.contains("28 checked, 0 violations"),
        "{output_text}"
    );
}
