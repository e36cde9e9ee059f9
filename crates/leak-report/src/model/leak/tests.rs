//! Tests of grouping and ranking with hand-made snapshots.

use std::collections::BTreeMap;

use super::*;

/// Module 1 is at 0x1000 × (epoch + 1), 0x1000 bytes long. Later readings find module 2 at 0x100000 and code
/// outside all modules at 0x200000; nothing else is mapped.
struct Layout;

impl Resolver<u32> for Layout {
    fn resolve_at(&self, epoch: u32, address: Avma) -> Option<(u32, Svma)> {
        let into = address.get().checked_sub(0x1000 * (u64::from(epoch) + 1))?;
        (into < 0x1000).then_some((1, Svma::new(into)))
    }

    fn resolve_after(&self, _: u32, address: Avma) -> Option<Option<(u32, Svma)>> {
        match address.get() {
            0x10_0000..0x10_1000 => Some(Some((2, Svma::new(address.get() - 0x10_0000)))),
            0x20_0000..0x20_1000 => Some(None),
            _ => None,
        }
    }
}

fn amount(bytes: u64, blocks: u64) -> Amount {
    Amount { bytes, blocks }
}

fn stack(epoch: u32, pcs: &[u64], allocated: Amount) -> StackTotals {
    let frame = |&pc: &u64| Frame {
        pc: Avma::new(pc),
        found_by: FoundBy::Cfi,
        exact: false,
    };
    StackTotals {
        record: 0,
        instance: 1,
        epoch,
        function: 0,
        frames: pcs.iter().map(frame).collect(),
        end: End::Complete,
        end_pc: Avma::new(0x1fff),
        allocated: allocated.into(),
        freed: Amount::default().into(),
        peak: Amount::default(),
        kind: None,
        lost: Amount::default(),
        finished_walks: 0,
        life_spans: LifeSpans::default(),
        python: None,
        left_out: None,
    }
}

/// Stack record without frames.
pub(super) fn totals(record: u32, allocated: Amount, freed: Amount) -> StackTotals {
    StackTotals {
        record,
        freed: freed.into(),
        ..stack(0, &[], allocated)
    }
}

fn sites(stacks: Vec<StackTotals>) -> Vec<Site<u32>> {
    let snapshot = Snapshot {
        stacks,
        ..Snapshot::default()
    };
    group(&snapshot, |_| &Layout, |_| Recent::default())
}

/// Code that is at other addresses in a later epoch is one site, shown at the later addresses.
#[test]
fn epochs_merge() {
    let merged = sites(vec![
        stack(1, &[0x2010, 0x2020], amount(5, 1)),
        stack(0, &[0x1010, 0x1020], amount(100, 2)),
    ]);
    assert_eq!(merged.len(), 1);
    assert_eq!(merged[0].allocated, amount(105, 3).into());
    assert_eq!(merged[0].frames[0].at.pc, Avma::new(0x2010));
    let place = Place {
        module: 1,
        svma: Svma::new(0x10),
    };
    assert_eq!(merged[0].frames[0].at.place, Some(place));
}

/// The growth of a site is the sum over its stacks, even if one of them has joined the site since.
#[test]
fn sites_that_merge_keep_their_growth() {
    let numbered = |record, stack| StackTotals { record, ..stack };
    let snapshot = |second| Snapshot {
        stacks: vec![
            numbered(40, stack(0, &[0x1010], amount(100, 10))),
            numbered(41, stack(1, &[0x2010], second)),
        ],
        ..Snapshot::default()
    };
    let mut growth = Growth::default();
    growth.reported(&snapshot(amount(7, 1)), |_| 0);
    let now = snapshot(amount(9, 2));
    let changes = growth.changes(&now);
    let sites = group(&now, |_| &Layout, |stack| changes.of(stack, None));
    assert_eq!(sites.len(), 1);
    assert_eq!(sites[0].records, [40, 41]);
    assert_eq!(sites[0].recent.since_last.allocated, amount(2, 1).into());
    assert_eq!(sites[0].recent.since_baseline.allocated, amount(109, 12).into());
}

/// Blocks freed while the table was read are not old; those of an ended instance are; with several instances,
/// all blocks not known to be young are old.
#[test]
fn young_blocks_of_ended_and_several_instances() {
    let blocks = crate::model::StackBlocks {
        young: amount(10, 1).into(),
        old: amount(60, 6).into(),
        ..Default::default()
    };
    let of = |blocks, processes| {
        let mut site = sites(vec![stack(0, &[0x1010], amount(100, 10))]).remove(0);
        site.recent.blocks = blocks;
        site.young(processes)
    };
    assert_eq!(
        of(Some(blocks), SiteProcesses::Running),
        Some(amount(40, 4).into())
    );
    assert_eq!(of(Some(blocks), SiteProcesses::Ended), Some(amount(0, 0).into()));
    assert_eq!(
        of(Some(blocks), SiteProcesses::Several),
        Some(amount(10, 1).into())
    );
    assert_eq!(of(None, SiteProcesses::Ended), None);
}

/// Stacks with equal innermost frames are merged and end there; short stacks are unchanged.
#[test]
fn stacks_cut_to_their_innermost_frames_merge() {
    let deep = |outermost, end| StackTotals {
        end,
        ..stack(0, &[0x1010, 0x1020, outermost], amount(10, 1))
    };
    let snapshot = Snapshot {
        stacks: vec![
            deep(0x1030, End::Complete),
            deep(0x1040, End::NoCfi),
            stack(0, &[0x1010, 0x1020], amount(5, 1)),
        ],
        ..Snapshot::default()
    };
    let sites = group(&innermost(&snapshot, 2), |_| &Layout, |_| Recent::default());
    let found: Vec<_> = sites
        .iter()
        .map(|site| (site.allocated.amount, site.end, site.frames.len()))
        .collect();
    let expected = [
        (amount(20, 2), End::DepthLimit, 2),
        (amount(5, 1), End::Complete, 2),
    ];
    assert_eq!(found, expected);
    let end_at = sites[0].end_at.map(|at| at.pc);
    assert_eq!(end_at, Some(Avma::new(0x1020)), "the last frame that is kept");
}

/// Left-out frames count as frames of the stack, as many as are within the limit.
#[test]
fn stacks_with_frames_left_out_are_cut() {
    let deep = StackTotals {
        left_out: Some(LeftOut {
            after: 2,
            frames: 100,
        }),
        ..stack(0, &[0x1010, 0x1020, 0x1030, 0x1040], amount(10, 1))
    };
    let snapshot = Snapshot {
        stacks: vec![deep],
        ..Snapshot::default()
    };
    for (depth, kept, missing) in [
        (1, 1, None),
        (2, 2, None),
        (3, 2, Some(1)),
        (101, 2, Some(99)),
        (102, 2, Some(100)),
        (103, 3, Some(100)),
        (104, 4, Some(100)),
        (1000, 4, Some(100)),
    ] {
        let cut = &innermost(&snapshot, depth).stacks[0];
        let left_out = missing.map(|frames| LeftOut { after: 2, frames });
        assert_eq!(
            (cut.frames.len(), cut.left_out),
            (kept, left_out),
            "{depth} frames"
        );
        let end = match depth < 104 {
            true => End::DepthLimit,
            false => End::Complete,
        };
        assert_eq!(cut.end, end, "{depth} frames");
    }
}

/// An address is different code in another epoch.
#[test]
fn equal_addresses_of_other_epochs_stay_apart() {
    let apart = sites(vec![
        stack(0, &[0x1010], amount(1, 1)),
        stack(1, &[0x1010], amount(1, 1)),
    ]);
    assert_eq!(apart.len(), 2);
}

/// Sites differ if their functions, instances, ends, methods of finding a frame, or places of frames left out
/// differ.
#[test]
fn each_part_of_the_key_tells_sites_apart() {
    let plain = || stack(0, &[0x1010], amount(1, 1));
    let by_fp = Frame {
        pc: Avma::new(0x1010),
        found_by: FoundBy::Fp,
        exact: false,
    };
    let with_left_out = |after, frames| StackTotals {
        left_out: Some(LeftOut { after, frames }),
        ..plain()
    };
    let variants = vec![
        plain(),
        StackTotals {
            function: 1,
            ..plain()
        },
        StackTotals {
            instance: 2,
            ..plain()
        },
        StackTotals {
            end: End::NoCfi,
            ..plain()
        },
        StackTotals {
            frames: vec![by_fp],
            ..plain()
        },
        with_left_out(0, 7),
        with_left_out(1, 7),
    ];
    assert_eq!(sites(variants).len(), 7);
    let of_one_recursion = vec![with_left_out(1, 7), with_left_out(1, 8)];
    assert_eq!(sites(of_one_recursion).len(), 1);
}

/// Walks that ended at garbage are one site, whatever the garbage; walks that ended in a module are one site
/// per place.
#[test]
fn ends_outside_modules_do_not_split_sites() {
    let ending = |end_pc: u64| StackTotals {
        end: End::NoMapping,
        end_pc: Avma::new(end_pc),
        ..stack(0, &[0x1010], amount(1, 1))
    };
    assert_eq!(sites(vec![ending(0xdead_0000), ending(0xbeef_0000)]).len(), 1);
    let without_cfi = |end_pc| StackTotals {
        end: End::NoCfi,
        ..ending(end_pc)
    };
    assert_eq!(sites(vec![without_cfi(0x1100), without_cfi(0x1200)]).len(), 2);
}

/// A complete stack has no end location.
#[test]
fn only_incomplete_stacks_have_an_end_place() {
    assert_eq!(sites(vec![stack(0, &[0x1010], amount(1, 1))])[0].end_at, None);
}

/// A return address just behind its mapping belongs to the call inside it.
#[test]
fn call_at_the_end_of_a_mapping() {
    let site = &sites(vec![stack(0, &[0x2000], amount(1, 1))])[0];
    let place = Place {
        module: 1,
        svma: Svma::new(0x1000),
    };
    assert_eq!(site.frames[0].at.place, Some(place));
}

/// Outstanding is allocated - freed, never below zero.
#[test]
fn outstanding_saturates() {
    let totals = StackTotals {
        freed: amount(30, 4).into(),
        ..stack(0, &[0x1010], amount(50, 3))
    };
    assert_eq!(sites(vec![totals])[0].outstanding(), amount(20, 0).into());
}

/// Sites rank by outstanding bytes, then blocks, then allocated bytes, whatever their input order.
#[test]
fn ranking_is_stable() {
    let freed = |pc, allocated, freed| StackTotals {
        freed,
        ..stack(0, &[pc], allocated)
    };
    let mut stacks = vec![
        stack(0, &[0x1010], amount(10, 1)),
        stack(0, &[0x1020], amount(90, 1)),
        stack(0, &[0x1030], amount(90, 2)),
        freed(0x1040, amount(95, 2), amount(5, 1).into()),
        stack(0, &[0x1050], amount(10, 1)),
    ];
    let order = |stacks: Vec<StackTotals>| -> Vec<u64> {
        sites(stacks)
            .iter()
            .map(|site| site.frames[0].at.pc.get())
            .collect()
    };
    let expected = [0x1030, 0x1040, 0x1020, 0x1010, 0x1050];
    assert_eq!(order(stacks.clone()), expected);
    stacks.reverse();
    assert_eq!(order(stacks), expected);
}

/// Stacks are counted once per site, allocations and frames once per walk.
#[test]
fn completeness_counts_sites_and_walks() {
    let cut = StackTotals {
        end: End::NoCfi,
        ..stack(0, &[0x1010, 0x1020], amount(7, 7))
    };
    let sums = Completeness::of(&sites(vec![stack(0, &[0x1010], amount(30, 3)), cut]));
    assert_eq!(sums.stacks, BTreeMap::from([(End::Complete, 1), (End::NoCfi, 1)]));
    assert_eq!(
        sums.allocations,
        BTreeMap::from([(End::Complete, 3), (End::NoCfi, 7)])
    );
    assert_eq!(sums.frames_by(FoundBy::Cfi), 3 + 2 * 7);
    assert_eq!(sums.frames_by(FoundBy::Fp), 0);
}

/// A walk that ended where code was found later, or whose table was missing, has the end `TableNotLoaded` and
/// the place of that code; where no code was found, the end is unchanged.
#[test]
fn ends_in_code_that_was_new() {
    let ended = |end, end_pc| StackTotals {
        end,
        end_pc: Avma::new(end_pc),
        ..stack(0, &[0x1010], amount(5, 1))
    };
    let place = |svma| {
        Some(Place {
            module: 2,
            svma: Svma::new(svma),
        })
    };
    for (stack, end, at) in [
        (ended(End::NoMapping, 0x10_0010), End::TableNotLoaded, place(0x10)),
        (ended(End::NoMapping, 0x20_0010), End::TableNotLoaded, None),
        (ended(End::NoMapping, 0x30_0010), End::NoMapping, None),
        (
            ended(End::TableNotLoaded, 0x10_0010),
            End::TableNotLoaded,
            place(0x10),
        ),
        // No later reading found code here; the place in its own epoch does not count.
        (ended(End::TableNotLoaded, 0x1020), End::TableNotLoaded, None),
    ] {
        let [site] = &sites(vec![stack])[..] else {
            panic!("one stack is one site")
        };
        assert_eq!(site.end, end);
        assert_eq!(site.end_at.and_then(|end_at| end_at.place), at);
    }
}

/// Ends are grouped by module and reason, most allocations first, each with the most frequent end addresses.
#[test]
fn ends_are_ranked_by_module_and_cause() {
    let ending = |end, end_pc: u64, blocks| StackTotals {
        end,
        end_pc: Avma::new(end_pc),
        ..stack(0, &[0x1010], amount(blocks, blocks))
    };
    let mut stacks: Vec<_> = (1..=10).map(|at| ending(End::NoCfi, 0x1100 + at, at)).collect();
    stacks.push(ending(End::ReadFault, 0x1200, 60));
    stacks.push(ending(End::NoMapping, 0xdead_0000, 2));
    stacks.push(ending(End::ScratchBusy, 0, 1));
    stacks.push(stack(0, &[0x1010], amount(9, 9)));
    let group = |module, end, stacks, allocations, addresses: Vec<u64>| EndGroup {
        module,
        end,
        stacks,
        allocations,
        addresses,
    };
    let expected = [
        group(Some(1), End::ReadFault, 1, 60, vec![0x200]),
        group(Some(1), End::NoCfi, 10, 55, (0x103..=0x10a).rev().collect()),
        group(None, End::NoMapping, 1, 2, vec![0xdead_0000]),
        group(None, End::ScratchBusy, 1, 1, vec![]),
    ];
    assert_eq!(by_module::ends(&sites(stacks)), expected);
}

/// A step counts for the module that was left, once per walk; all modules together have as many steps as
/// there are frames besides the first ones.
#[test]
fn steps_count_for_the_module_that_was_left() {
    let mut by_fp = stack(0, &[0x1010, 0x9000_0000, 0x1030, 0x1040], amount(5, 5));
    by_fp.frames[0].found_by = FoundBy::Probe;
    by_fp.frames[2].found_by = FoundBy::Fp;
    let steps = |module, cfi, fp| ModuleSteps { module, cfi, fp };
    let sites = sites(vec![by_fp]);
    assert_eq!(
        by_module::steps(&sites),
        [steps(Some(1), 10, 0), steps(None, 0, 5)]
    );
    let sums = Completeness::of(&sites);
    assert_eq!(
        (sums.frames_by(FoundBy::Cfi), sums.frames_by(FoundBy::Fp)),
        (10, 5)
    );
}

/// [`stack`] with functions of Python before the frame with this number; their numbers look like code of
/// module 1.
fn with_python(mut stack: StackTotals, at: usize, functions: &[u64]) -> StackTotals {
    let function = |&number| Frame {
        pc: Avma::new(number),
        found_by: FoundBy::Python,
        exact: true,
    };
    stack.frames.splice(at..at, functions.iter().map(function));
    stack
}

/// The number of a function of Python is not resolved, and keeps sites apart; such a frame is neither the end
/// of a walk nor a step.
#[test]
fn functions_of_python_are_in_no_module() {
    let ended = |at, functions: &[u64]| StackTotals {
        end: End::NoCfi,
        end_pc: Avma::new(0x1020),
        ..with_python(stack(0, &[0x1010, 0x1020], amount(5, 5)), at, functions)
    };
    let [one, two, outermost] = [ended(1, &[0x1011]), ended(1, &[0x1012]), ended(2, &[0x1020])];
    let found = sites(vec![one.clone(), two, one, outermost]);
    assert_eq!(found.len(), 3);
    for site in &found {
        assert_eq!(site.end_at.map(|at| at.pc), Some(Avma::new(0x1020)));
        let python = site.frames.iter().filter(|frame| frame.python_code().is_some());
        assert!(python.clone().all(|frame| frame.at.place.is_none()) && python.count() == 1);
    }
    // The last native frame is exact, so its address is looked up unchanged, whatever frame follows it.
    let mut exact = ended(2, &[0x1fff]);
    exact.frames[1].exact = true;
    exact.frames[1].pc = Avma::new(0x1000);
    exact.end_pc = Avma::new(0x1000);
    let end_at = sites(vec![exact])[0].end_at;
    assert_eq!(
        end_at.and_then(|at| at.place).map(|place| place.svma),
        Some(Svma::new(0))
    );
}

/// The caller of a native frame is the next native one, even with functions of Python between them, which are
/// counted separately.
#[test]
fn functions_of_python_are_no_steps() {
    let native = || {
        let mut native = stack(0, &[0x1010, 0x9000_0000, 0x1030, 0x1040], amount(5, 5));
        native.frames[0].found_by = FoundBy::Probe;
        native.frames[2].found_by = FoundBy::Fp;
        native
    };
    let mixed = with_python(with_python(native(), 2, &[7, 8]), 1, &[9]);
    let [native, mixed] = [native(), mixed].map(|stack| sites(vec![stack]));
    assert_eq!(by_module::steps(&mixed), by_module::steps(&native));
    let sums = Completeness::of(&mixed);
    assert_eq!(sums.frames_by(FoundBy::Python), 15);
    assert_eq!(
        sums.frames_by(FoundBy::Cfi),
        Completeness::of(&native).frames_by(FoundBy::Cfi)
    );
}

/// A stack that is cut to its innermost frames ends at a native one: the last that is kept, or else the one
/// that runs the functions of Python.
#[test]
fn stacks_with_functions_of_python_are_cut() {
    let whole = with_python(stack(0, &[0x1010, 0x1020, 0x1030], amount(5, 5)), 1, &[7, 8]);
    let inner = with_python(stack(0, &[0x1010, 0x1020], amount(5, 5)), 0, &[7]);
    for (stack, depth, frames, end) in [
        (&whole, 1, 1, 0x1010),
        (&whole, 2, 2, 0x1010),
        (&whole, 3, 3, 0x1010),
        (&whole, 4, 4, 0x1020),
        (&inner, 1, 1, 0x1010),
    ] {
        let snapshot = Snapshot {
            stacks: vec![stack.clone()],
            ..Snapshot::default()
        };
        let cut = &innermost(&snapshot, depth).stacks[0];
        assert_eq!(
            (cut.frames.len(), cut.end, cut.end_pc),
            (frames, End::DepthLimit, Avma::new(end))
        );
    }
}
