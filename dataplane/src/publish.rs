//! Publishes snapshots to workers without locks: the publisher swaps a pointer, and each worker sees it at its next
//! burst.
//!
//! There is one [`Publisher`] (control side) and one [`Reader`] per worker. A value reaches each worker through its own
//! inbox with one entry. A value that a worker releases returns through its own outbox, and the publisher drops it.
//! [`Reader::refresh`] costs one acquire load of a line that only the publisher writes. A sleeping worker delays only
//! the release of its own old value: the inbox keeps only the newest one.
//!
//! Invariant: no value is dropped on a worker while the publisher exists, and none while a worker can still read it. An
//! `Arc` owns it; the protocol only determines *where* the last reference is dropped.
//! Invariant: a reader's generation never decreases.
//!
//! Checked by loom (`tests/loom_publish.rs`), which models the order of atomics and of whole queue operations. It can't
//! see inside the queues: under loom, they are mutex-protected one-entry boxes. We rely on crossbeam's lock-free queues
//! to behave like these boxes; `tests/publish.rs` exercises them with real threads.

use crossbeam::utils::CachePadded;

use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering, Queue};

/// Capacity of an outbox. Two values can arrive between two calls of the publisher.
const OUTBOX_CAPACITY: usize = 4;

/// The side that creates values. One thread owns it, or the control plane's lock protects it.
#[derive(Debug)]
pub struct Publisher<T> {
    current: Arc<T>,
    generation: Arc<CachePadded<AtomicU64>>,
    channels: Vec<Arc<Channel<T>>>,
}

/// A worker's view. It is moved to the worker's thread.
///
/// ```
/// use tidegate_dataplane::publish::Publisher;
///
/// let mut publisher = Publisher::new(1, "first");
/// let mut worker = publisher.reader();
/// assert_eq!(*worker.get(), "first");
/// publisher.publish(2, "second");
/// assert_eq!(publisher.applied_generation(), 1);
/// assert!(worker.refresh());
/// assert_eq!((*worker.get(), publisher.applied_generation()), ("second", 2));
/// ```
#[derive(Debug)]
pub struct Reader<T> {
    current: Option<Arc<T>>,
    seen: u64,
    generation: Arc<CachePadded<AtomicU64>>,
    channel: Arc<Channel<T>>,
}

#[derive(Debug)]
struct Channel<T> {
    inbox: Queue<(u64, Arc<T>)>,
    outbox: Queue<Arc<T>>,
    /// The generation that the worker uses. Only the worker writes it.
    applied: CachePadded<AtomicU64>,
    /// Cleared when the reader is dropped, even by a panic.
    alive: AtomicBool,
}

impl<T> Publisher<T> {
    /// A publisher whose readers begin with `value`.
    pub fn new(generation: u64, value: T) -> Self {
        let current = Arc::new(value);
        Self {
            current,
            generation: Arc::new(CachePadded::new(AtomicU64::new(generation))),
            channels: Vec::new(),
        }
    }

    /// Creates another reader, which starts with the current value.
    pub fn reader(&mut self) -> Reader<T> {
        let seen = self.generation();
        let channel = Arc::new(Channel {
            inbox: Queue::new(1),
            outbox: Queue::new(OUTBOX_CAPACITY),
            applied: CachePadded::new(AtomicU64::new(seen)),
            alive: AtomicBool::new(true),
        });
        self.channels.push(Arc::clone(&channel));
        Reader {
            current: Some(Arc::clone(&self.current)),
            seen,
            generation: Arc::clone(&self.generation),
            channel,
        }
    }

    /// The value published last.
    #[must_use]
    pub fn current(&self) -> &T {
        &self.current
    }

    /// The value published last, to be kept for longer. A worker is never its last owner, because it returns its
    /// reference to the publisher.
    #[must_use]
    pub fn share(&self) -> Arc<T> {
        Arc::clone(&self.current)
    }

    /// The generation published last.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Passes `value` to every live reader. Returns at once; see [`Self::applied_generation`].
    ///
    /// # Panics
    /// If `generation` doesn't exceed the previous one: readers distinguish values by generation.
    pub fn publish(&mut self, generation: u64, value: T) {
        assert!(generation > self.generation(), "generations of published values increase");
        self.reclaim();
        self.current = Arc::new(value);
        for channel in self.live() {
            // A value that the worker never took returns here and is dropped here.
            drop(channel.inbox.force_push((generation, Arc::clone(&self.current))));
        }
        // Stored after the pushes: a reader that sees the generation finds the value in its inbox.
        self.generation.store(generation, Ordering::Release);
    }

    /// Drops, on this thread, the values that workers have returned, and removes dropped readers. Call it regularly;
    /// [`Self::publish`] does it too.
    pub fn reclaim(&mut self) {
        self.channels.retain(|channel| {
            // Read before the drain: a reader returns everything before it clears the flag.
            let alive = channel.alive.load(Ordering::Acquire);
            while let Some(old) = channel.outbox.pop() {
                drop(old);
            }
            if !alive {
                drop(channel.inbox.pop());
            }
            alive
        });
    }

    /// The oldest generation that a live reader uses; the published one if there is no live reader.
    #[must_use]
    pub fn applied_generation(&self) -> u64 {
        self.live()
            .map(|channel| channel.applied.load(Ordering::Acquire))
            .min()
            .unwrap_or_else(|| self.generation())
    }

    /// The number of live readers.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.live().count()
    }

    fn live(&self) -> impl Iterator<Item = &Arc<Channel<T>>> {
        self.channels.iter().filter(|channel| channel.alive.load(Ordering::Acquire))
    }
}

impl<T> Reader<T> {
    /// The value in use. It doesn't change before the next [`Self::refresh`].
    #[inline]
    #[must_use]
    pub fn get(&self) -> &T {
        self.current.as_ref().expect("only drop takes the value away")
    }

    /// The generation in use.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.seen
    }

    /// Takes a newer value, if any. Returns whether there was one. Costs one load if there isn't.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        self.generation.load(Ordering::Acquire) != self.seen && self.take()
    }

    #[cold]
    fn take(&mut self) -> bool {
        if self.channel.outbox.is_full() {
            // The outbox is full. The value in use stays until the publisher empties it.
            return false;
        }
        // Empty if the value was taken together with an earlier one, before its generation was stored.
        let Some((generation, value)) = self.channel.inbox.pop() else { return false };
        if let Some(old) = self.current.replace(value) {
            self.channel.give_back(old);
        }
        self.seen = generation;
        self.channel.applied.store(generation, Ordering::Release);
        true
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        if let Some(value) = self.current.take() {
            self.channel.give_back(value);
        }
        self.channel.alive.store(false, Ordering::Release);
    }
}

impl<T> Channel<T> {
    /// Returns a value to the publisher, which drops it. If the outbox is full when the worker ends, the value is
    /// dropped here.
    fn give_back(&self, value: Arc<T>) {
        drop(self.outbox.push(value));
    }
}
