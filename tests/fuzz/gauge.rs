//! What one input costs: memory by a counting allocator, time by the processor's clock of the thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    /// Bytes that this thread holds, and the most it held. Bytes that another thread frees are not taken off; bodies use one thread.
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

/// Counts by thread, so that tests that run beside one another do not see each other.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: i64) {
    // A thread that is ending has no counters left.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

#[expect(unsafe_code, reason = "an allocator is unsafe by definition; it counts and passes on")]
// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing (the thread's counters need no destructor).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What a call took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// Largest growth of memory meanwhile, bytes.
    pub(crate) bytes: u64,
    /// Time on a processor; where the system does not say, time on the clock.
    pub(crate) time: Duration,
}

/// Measures `call` on this thread.
pub(crate) fn measure(call: impl FnOnce()) -> Cost {
    let (held, clock, busy) = (HELD.get(), Instant::now(), on_processor());
    MOST.set(held);
    call();
    let bytes = u64::try_from(MOST.get() - held).unwrap_or(0);
    let time = match (busy, on_processor()) {
        (Some(before), Some(after)) => after.saturating_sub(before),
        _ => clock.elapsed(),
    };
    Cost { bytes, time }
}

/// Time that this thread has been on a processor: a loaded machine must not fail a test.
pub(crate) fn on_processor() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}
