//! Reads the ages of blocks while the processes are followed.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use super::View;
use super::{Session, Signals};
use crate::bpf::collect::{BlockTable, ListRequest, LiveBlocks, Moment};

/// Time to wait for the block table before the processes are followed again.
const PAUSE: Duration = Duration::from_millis(2);
/// Time to follow the processes between two waits.
const FOLLOW_TIME: Duration = Duration::from_millis(10);

impl Session<'_> {
    /// Reads the blocks of a moment by age; `None` if the view has no age limit.
    ///
    /// Millions of blocks take seconds, so a thread of its own reads them: what the processes do meanwhile, such as
    /// loading a library, must be handled at once.
    pub(super) fn read_blocks(
        &mut self,
        moment: Moment,
        view: &View,
        signals: &Signals,
    ) -> anyhow::Result<Option<LiveBlocks>> {
        let Some(older) = view.older else {
            return Ok(None);
        };
        let began = Instant::now();
        let table = BlockTable::of(&self.live.kernel).context("cannot read the block table")?;
        let list = view.list.map(|limits| ListRequest {
            limits,
            ended: self.live.ended(),
        });
        let (sender, receiver) = channel();
        thread::spawn(move || sender.send(LiveBlocks::read(&table, moment, older, list)));
        let mut ended = false;
        let blocks = loop {
            let waited = match ended {
                true => receiver.recv().map_err(RecvTimeoutError::from),
                false => receiver.recv_timeout(PAUSE),
            };
            match waited {
                Ok(blocks) => break blocks.context("cannot read the block table")?,
                Err(RecvTimeoutError::Timeout) => {
                    ended = self.follow(Instant::now() + FOLLOW_TIME, signals)?
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(anyhow!("the block table was not read to its end"));
                }
            }
        };
        tracing::debug!("block table read in {:.1?}", began.elapsed());
        Ok(Some(blocks))
    }
}
