//! Reads blocks while the processes are followed.

use std::sync::mpsc::{TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use super::View;
use super::verdict::Judging;
use super::{Session, Signals};
use crate::bpf::collect::{Block, BlockTable, Judged, ListRequest, LiveBlocks, Moment};

/// Longest time for which events are awaited before it is seen whether the blocks are read.
const LONGEST_WAIT: Duration = Duration::from_millis(10);

impl Session<'_> {
    /// Reads the blocks of a moment by age; `None` if the view has no age limit.
    ///
    /// With `judging`, each gets its verdict.
    pub(super) fn read_blocks(
        &mut self,
        moment: Moment,
        view: &View,
        signals: &Signals,
        judging: Option<Judging>,
    ) -> anyhow::Result<(Option<LiveBlocks>, Option<Judging>)> {
        // A verdict needs the blocks, too.
        let older = view.older.or(judging.as_ref().map(|_| Duration::ZERO));
        let Some(older) = older else {
            return Ok((None, None));
        };
        let began = Instant::now();
        let table = BlockTable::of(&self.live.kernel).context("cannot read the block table")?;
        let list = view.list.map(|limits| ListRequest {
            limits,
            ended: self.live.roster.ended(),
        });
        let mut judging = judging;
        let read = move || {
            let mut judge = judging.as_mut().map(|judging| |block: &Block| judging.see(block));
            let judge = judge
                .as_mut()
                .map(|judge| judge as &mut dyn FnMut(&Block) -> Judged);
            let blocks = LiveBlocks::read(&table, moment, older, list, judge);
            (blocks, judging)
        };
        let (blocks, judging) = self.meanwhile(signals, read)?;
        tracing::debug!("block table read in {:.1?}", began.elapsed());
        Ok((Some(blocks.context("cannot read the block table")?), judging))
    }

    /// Runs `work` in another thread, and reacts to events meanwhile: reading millions of blocks takes
    /// seconds, and events in that time, such as the load of a library, must be handled at once.
    pub(super) fn meanwhile<T: Send + 'static>(
        &mut self,
        signals: &Signals,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let (sender, receiver) = channel();
        thread::spawn(move || sender.send(work()));
        let mut wait = Some(LONGEST_WAIT);
        loop {
            let received = match wait {
                Some(_) => receiver.try_recv(),
                None => receiver.recv().map_err(TryRecvError::from),
            };
            match (received, wait) {
                (Ok(result), _) => return Ok(result),
                (Err(TryRecvError::Empty), Some(longest)) => {
                    let next = self.react(longest.min(LONGEST_WAIT), signals)?;
                    wait = next.continue_value();
                }
                (Err(_), _) => return Err(anyhow!("the blocks were not read to their end")),
            }
        }
    }
}
