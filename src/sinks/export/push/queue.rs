//! The bounded queue of uploads. Pure.

use std::collections::VecDeque;
use std::time::Instant;

use super::envelope::Upload;

/// Estimated bytes of memory per upload besides its body and target.
const OVERHEAD: usize = 200;

/// A queued upload.
pub(super) struct Item {
    pub(super) upload: Upload,
    pub(super) made: Instant,
    /// Attempts that the server answered with a failure.
    pub(super) attempts: u32,
}

impl Item {
    fn bytes(&self) -> usize {
        self.upload.body.len() + self.upload.target.len() + OVERHEAD
    }
}

/// Uploads, oldest first.
pub(super) struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
    limit: usize,
}

impl Queue {
    /// Creates a queue of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            items: VecDeque::new(),
            bytes: 0,
            limit,
        }
    }

    /// Adds the newest upload; returns the number of profiles dropped to make room.
    pub(super) fn put(&mut self, item: Item) -> u64 {
        self.bytes += item.bytes();
        self.items.push_back(item);
        self.shrink()
    }

    /// Returns the oldest upload to the front; returns the number of profiles dropped to make room.
    pub(super) fn put_back(&mut self, item: Item) -> u64 {
        self.bytes += item.bytes();
        self.items.push_front(item);
        self.shrink()
    }

    /// Removes the oldest upload.
    pub(super) fn take(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        self.bytes -= item.bytes();
        Some(item)
    }

    /// Number of queued profiles.
    pub(super) fn profiles(&self) -> u64 {
        self.items.iter().map(|item| item.upload.profiles).sum()
    }

    fn shrink(&mut self) -> u64 {
        let mut lost = 0;
        while self.bytes > self.limit {
            let Some(oldest) = self.take() else { break };
            lost += oldest.upload.profiles;
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(body: &str, profiles: u64) -> Item {
        Item {
            upload: Upload {
                target: String::new(),
                content_type: "",
                body: body.into(),
                profiles,
            },
            made: Instant::now(),
            attempts: 0,
        }
    }

    /// The oldest upload is dropped first, whether it is new or was put back; an upload larger than the limit
    /// is not kept.
    #[test]
    fn oldest_is_dropped() {
        let mut queue = Queue::new(3 * (OVERHEAD + 1));
        let lost: Vec<u64> = ["a", "b", "c", "d"]
            .iter()
            .zip(1..)
            .map(|(body, profiles)| queue.put(item(body, profiles)))
            .collect();
        assert_eq!((lost, queue.profiles()), (vec![0, 0, 0, 1], 2 + 3 + 4));
        let oldest = queue.take().expect("there are three");
        assert_eq!(oldest.upload.body, b"b");
        assert_eq!(queue.put(item("e", 5)), 0);
        assert_eq!((queue.put_back(oldest), queue.profiles()), (2, 3 + 4 + 5));
        assert_eq!(queue.put(item(&"x".repeat(1000), 9)), 3 + 4 + 5 + 9);
        assert!(queue.take().is_none());
        assert_eq!(queue.bytes, 0);
    }
}
