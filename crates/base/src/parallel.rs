//! Work on all cores, and locks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Calls `work` for each of `items`, the last item first, on as many cores as this process may use. The
/// results are in no particular order.
///
/// # Panics
///
/// If `work` panics.
pub fn for_each<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let workers = thread::available_parallelism().map_or(1, |cores| cores.get().min(items.len()));
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let queue = Mutex::new(items);
    // Cannot be poisoned: nothing panics while it holds one of the locks.
    let next = || lock(&queue).pop();
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(item) = next() {
                    let result = work(item);
                    lock(&done).push(result);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex even if it is poisoned: for data that no update under the lock leaves inconsistent.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each item is processed once, however few there are.
    #[test]
    fn each_item_is_processed_once() {
        for count in [0, 1, 2, 1000] {
            let mut squares = for_each((0..count).collect(), |number: u64| number * number);
            squares.sort_unstable();
            assert_eq!(
                squares,
                (0..count).map(|number| number * number).collect::<Vec<_>>()
            );
        }
    }
}
