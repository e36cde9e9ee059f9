//! Reads a hash table of the kernel in batches while programs change it.
//!
//! A batch continues where the last one ended. The kernel keeps that position as a bucket, not an element,
//! and reads each bucket once, under its lock. So no key is seen twice, no element that stays throughout is
//! skipped, and the number of calls is bounded, however busy the programs are. (A walk from key to key
//! guarantees none of these: when the current key is deleted, it starts again.) The meaning of the elements
//! belongs to `collect`.

#![allow(
    unsafe_code,
    reason = "a function of libbpf that libbpf-rs has no safe form of: it fills buffers of ours"
)]

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapHandle};

/// Initial number of elements per call. The kernel's memory for a call does not depend on it.
const ROOM: u32 = 1 << 14;
/// Maximum number of consecutive retries for a bucket whose lock is taken.
const MAX_RETRIES: u32 = 1 << 10;

/// A hash table of the kernel, read in batches.
pub(crate) struct HashTable(MapHandle);

/// Keys and values of a batch, equally many, each packed without gaps.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub(crate) keys: &'a [u8],
    pub(crate) values: &'a [u8],
}

/// State of one walk over the table.
struct Walk<'a> {
    map: &'a MapHandle,
    /// Position that the kernel returned, to continue from; `None` before the first batch.
    position: Option<u32>,
    /// Number of elements that the buffers hold.
    room: u32,
    keys: Vec<u8>,
    values: Vec<u8>,
    retries: u32,
}

impl HashTable {
    pub(super) fn new(map: MapHandle) -> Self {
        Self(map)
    }

    /// Duplicates the handle, for another thread.
    pub(crate) fn try_clone(&self) -> Result<Self, libbpf_rs::Error> {
        MapHandle::try_from(&self.0).map(Self)
    }

    /// Calls `visit` with all elements, batch by batch.
    ///
    /// # Errors
    ///
    /// If a batch cannot be read; the batches visited before are only a part of the table.
    pub(crate) fn walk(&self, visit: impl FnMut(Batch<'_>)) -> Result<(), libbpf_rs::Error> {
        self.walk_by(ROOM, visit)
    }

    fn walk_by(&self, room: u32, mut visit: impl FnMut(Batch<'_>)) -> Result<(), libbpf_rs::Error> {
        let mut walk = Walk::new(&self.0, room);
        while walk.step(&mut visit)? {}
        Ok(())
    }
}

impl<'a> Walk<'a> {
    fn new(map: &'a MapHandle, room: u32) -> Self {
        let mut walk = Self {
            map,
            position: None,
            room,
            keys: Vec::new(),
            values: Vec::new(),
            retries: 0,
        };
        walk.make_room();
        walk
    }

    fn make_room(&mut self) {
        let bytes = |element: u32| self.room as usize * element as usize;
        let (keys, values) = (bytes(self.map.key_size()), bytes(self.map.value_size()));
        self.keys.resize(keys, 0);
        self.values.resize(values, 0);
    }

    /// Visits the next batch; returns whether there may be more.
    fn step(&mut self, visit: &mut impl FnMut(Batch<'_>)) -> Result<bool, libbpf_rs::Error> {
        let (status, count, position) = self.call();
        let ended = match -status {
            0 => false,
            libc::ENOENT => true,
            // The next bucket alone has more elements than the buffers hold, but no more than the table.
            libc::ENOSPC if self.room <= self.map.max_entries() => {
                self.room = self.room.saturating_mul(2);
                self.make_room();
                return Ok(true);
            }
            // The bucket's lock was taken. The elements of the buckets before it have been copied.
            libc::EBUSY | libc::EAGAIN | libc::EINTR if self.retries < MAX_RETRIES => {
                self.retries += 1;
                false
            }
            errno => return Err(libbpf_rs::Error::from_raw_os_error(errno)),
        };
        if status == 0 {
            self.retries = 0;
        }
        self.position = Some(position);
        let bytes = |element: u32| count as usize * element as usize;
        let (keys, values) = (bytes(self.map.key_size()), bytes(self.map.value_size()));
        if let (Some(keys), Some(values)) = (self.keys.get(..keys), self.values.get(..values)) {
            visit(Batch { keys, values });
        }
        Ok(!ended)
    }

    /// Reads one batch: status, number of elements copied, and new position.
    fn call(&mut self) -> (i32, u32, u32) {
        let mut count = self.room;
        let mut before = self.position.unwrap_or_default();
        let mut after = before;
        let before = match self.position {
            None => std::ptr::null_mut(),
            Some(_) => (&raw mut before).cast(),
        };
        // SAFETY: `keys` and `values` have room for `count` elements (`make_room`). The position of a hash
        // table is a `u32`, read from `before` unless that is null and written to `after`. No options are
        // given.
        let status = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                self.map.as_fd().as_raw_fd(),
                before,
                (&raw mut after).cast(),
                self.keys.as_mut_ptr().cast(),
                self.values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        (status, count.min(self.room), after)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use libbpf_rs::{MapFlags, MapType};

    use super::*;

    /// A table with room for `room` keys that holds the keys below `elements`, each with itself as value.
    fn table(room: u32, elements: u32) -> MapHandle {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let map = MapHandle::create(MapType::Hash, Some("batch_test"), 4, 8, room, &options);
        let map = map.expect("a table (as root)");
        for key in 0..elements {
            put(&map, key);
        }
        map
    }

    fn put(map: &MapHandle, key: u32) {
        map.update(&key.to_ne_bytes(), &u64::from(key).to_ne_bytes(), MapFlags::ANY)
            .expect("room for an element");
    }

    /// Times each key is seen, and number of batches.
    fn seen(map: &MapHandle, room: u32, mut between_batches: impl FnMut()) -> (BTreeMap<u32, u32>, u32) {
        let (mut seen, mut batches) = (BTreeMap::new(), 0);
        let table = HashTable::new(MapHandle::try_from(map).expect("a handle"));
        let walked = table.walk_by(room, |batch| {
            batches += 1;
            for (key, value) in batch.keys.chunks_exact(4).zip(batch.values.chunks_exact(8)) {
                let key = u32::from_ne_bytes(key.try_into().expect("four bytes"));
                let value = u64::from_ne_bytes(value.try_into().expect("eight bytes"));
                assert_eq!(u64::from(key), value, "values belong to their keys");
                *seen.entry(key).or_insert(0) += 1;
            }
            between_batches();
        });
        walked.expect("it can be read");
        (seen, batches)
    }

    /// A walk sees each element once: none of an empty table, all of a full one, over several batches.
    #[test]
    fn batches_see_each_element_once_as_root() {
        assert_eq!(seen(&table(16, 0), ROOM, || {}).0, BTreeMap::new());
        let elements = 3 * ROOM;
        let (seen, batches) = seen(&table(elements, elements), ROOM, || {});
        assert!(batches >= 3, "{batches}");
        assert!(seen.values().all(|&times| times == 1));
        assert!(seen.into_keys().eq(0..elements));
    }

    /// Buffers that are smaller than a bucket grow.
    #[test]
    fn a_bucket_larger_than_the_room_as_root() {
        let (seen, batches) = seen(&table(2000, 2000), 1, || {});
        assert!(batches > 10, "{batches}");
        assert!(seen.values().all(|&times| times == 1));
        assert!(seen.into_keys().eq(0..2000));
    }

    /// While keys are added and deleted between batches, seen or not, every key that stays is seen, none
    /// twice, and the walk ends.
    #[test]
    fn batches_of_a_changing_table_as_root() {
        let (stay, churn) = (2 * ROOM, 4 * ROOM);
        let map = table(8 * ROOM, stay + churn);
        let mut next = stay;
        let (seen, _) = seen(&map, ROOM, || {
            for key in (stay..stay + churn).step_by(3) {
                _ = map.delete(&key.to_ne_bytes());
            }
            next += ROOM;
            (next..next + ROOM).for_each(|key| put(&map, key));
        });
        assert!(seen.values().all(|&times| times == 1), "no key twice");
        assert!((0..stay).all(|key| seen.contains_key(&key)), "none skipped");
    }
}
