//! Memory for a program that lives for a millisecond: one block that is filled piece by piece. musl's
//! allocator asks the system for each of its size classes, which costs such a program more time
//! than its work.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Enough for one invocation. A wrapper that runs for days goes on with the system's allocator.
const SIZE: usize = 256 * 1024;

/// The sizes of pieces for which musl can call mmap(2) and munmap(2) each time. `list` needs one for each lock.
const MAPPED_ALONE: std::ops::Range<usize> = 1024..16 * 1024;

/// The least alignment of a piece of the system, whatever alignment was asked for: malloc(3).
const ALIGNED: usize = 8;

#[repr(align(64))]
struct Block(UnsafeCell<[u8; SIZE]>);

/// An allocator that hands out a block of 256 KiB piece by piece, and then the system's memory. The counter
/// is on the page of the first pieces: behind the block it would be on one of its own.
#[repr(C)]
pub struct Arena {
    used: AtomicUsize,
    block: Block,
    /// A freed piece of the system, kept for the next allocation of the same size. Its first bytes are its size.
    spare: AtomicPtr<usize>,
}

// SAFETY: a piece of the block is handed out by the counter, and again only after it was freed;
// nothing else touches it.
unsafe impl Sync for Arena {}

impl Arena {
    /// Empty.
    #[must_use]
    #[allow(
        clippy::new_without_default,
        clippy::large_stack_arrays,
        reason = "there is one, and it is static"
    )]
    pub const fn new() -> Self {
        Self {
            used: AtomicUsize::new(0),
            block: Block(UnsafeCell::new([0; SIZE])),
            spare: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn base(&self) -> *mut u8 {
        self.block.0.get().cast()
    }

    fn is_inside(&self, piece: *mut u8) -> bool {
        (self.base() as usize..self.base() as usize + SIZE).contains(&(piece as usize))
    }

    /// The spare piece, if it is of this layout.
    fn take_spare(&self, layout: Layout) -> Option<*mut u8> {
        if !may_be_spare(layout) {
            return None;
        }
        let spare = self.spare.swap(std::ptr::null_mut(), Ordering::Acquire);
        // SAFETY: the swap made this thread its only owner, and `keep_spare` got it with its size in its first bytes.
        if spare.is_null() || unsafe { *spare } == layout.size() {
            return (!spare.is_null()).then_some(spare.cast());
        }
        self.keep_spare(spare);
        None
    }

    /// Keeps a piece whose size is in its first bytes, and gives the one before back to the system.
    fn keep_spare(&self, piece: *mut usize) {
        let before = self.spare.swap(piece, Ordering::AcqRel);
        if !before.is_null() {
            // SAFETY: the swap made this thread its only owner. `System` allocated it with this size, and its alignment
            // is that of all pieces for which `may_be_spare` is true.
            unsafe {
                let layout = Layout::from_size_align_unchecked(*before, ALIGNED);
                System.dealloc(before.cast(), layout);
            }
        }
    }
}

fn may_be_spare(layout: Layout) -> bool {
    MAPPED_ALONE.contains(&layout.size()) && layout.align() <= ALIGNED
}

// SAFETY: pieces do not overlap, are aligned as asked, since the block is aligned to 64 and larger
// alignments are the system's, and stay valid as long as the program.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let aligned = |used: usize| (used + layout.align() - 1) & !(layout.align() - 1);
        let taken = self
            .used
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |used| {
                aligned(used)
                    .checked_add(layout.size())
                    .filter(|end| *end <= SIZE && layout.align() <= 64)
            });
        match taken {
            // SAFETY: it ends within the block.
            Ok(used) => unsafe { self.base().add(aligned(used)) },
            Err(_) => self
                .take_spare(layout)
                // SAFETY: the caller's layout.
                .unwrap_or_else(|| unsafe { System.alloc(layout) }),
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if !self.is_inside(piece) {
            if may_be_spare(layout) {
                #[allow(clippy::cast_ptr_alignment, reason = "see `ALIGNED`")]
                let piece = piece.cast::<usize>();
                // SAFETY: the caller gives the piece up. It is larger than a size and aligned for one: see `ALIGNED`.
                unsafe { piece.write(layout.size()) };
                return self.keep_spare(piece);
            }
            // SAFETY: it came from there.
            return unsafe { System.dealloc(piece, layout) };
        }
        let begins = piece as usize - self.base() as usize;
        let ends = begins + layout.size();
        // The last piece is handed out again: fewer pages are touched. What its owner wrote comes
        // before what the next one writes, also if that is another thread.
        if self.used.load(Ordering::Relaxed) == ends {
            let _ = self
                .used
                .compare_exchange(ends, begins, Ordering::Release, Ordering::Relaxed);
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.is_inside(piece) {
            // SAFETY: it came from there.
            return unsafe { System.realloc(piece, layout, size) };
        }
        let begins = piece as usize - self.base() as usize;
        let (ends, wanted) = (begins + layout.size(), begins + size);
        let is_last = wanted <= SIZE
            && self
                .used
                .compare_exchange(ends, wanted, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if is_last {
            return piece;
        }
        // SAFETY: the new size is the caller's, and the smaller of both can be copied.
        unsafe {
            let Ok(new) = Layout::from_size_align(size, layout.align()) else {
                return std::ptr::null_mut();
            };
            let moved = self.alloc(new);
            if !moved.is_null() {
                std::ptr::copy_nonoverlapping(piece, moved, layout.size().min(size));
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_do_not_overlap_and_end_where_the_block_ends() {
        let arena: &'static Arena = Box::leak(Box::new(Arena::new()));
        let mut pieces: Vec<(usize, usize)> = Vec::new();
        for round in 0..4000_usize {
            let layout = Layout::from_size_align(1 + round % 200, 1 << (round % 7)).expect("fits");
            // SAFETY: no size is zero.
            let piece = unsafe { arena.alloc(layout) };
            assert_eq!(piece as usize % layout.align(), 0);
            pieces.push((piece as usize, layout.size()));
            // SAFETY: it is as large as that.
            unsafe { piece.write_bytes(0xAA, layout.size()) };
        }
        pieces.sort_unstable();
        assert!(pieces.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
        let inside = |piece: &&(usize, usize)| arena.is_inside(piece.0 as *mut u8);
        assert!((1..4000).contains(&pieces.iter().filter(inside).count()));
    }

    #[test]
    fn the_last_piece_grows_in_place_and_others_move_with_their_content() {
        let arena: &'static Arena = Box::leak(Box::new(Arena::new()));
        let layout = Layout::from_size_align(8, 8).expect("fits");
        // SAFETY: sizes are not zero, layouts are those of the pieces.
        unsafe {
            let first = arena.alloc(layout);
            first.write_bytes(7, 8);
            assert_eq!(arena.realloc(first, layout, 16), first);
            let grown = Layout::from_size_align(16, 8).expect("fits");
            let second = arena.alloc(layout);
            let moved = arena.realloc(first, grown, 32);
            assert!(moved != first && moved != second);
            assert_eq!(moved.read(), 7);
            arena.dealloc(moved, layout);
        }
    }

    #[test]
    fn large_piece_that_is_freed_is_handed_out_again_to_who_needs_as_much() {
        let arena: &'static Arena = Box::leak(Box::new(Arena::new()));
        let layout = |size| Layout::from_size_align(size, 8).expect("fits");
        // SAFETY: sizes are not zero, layouts are those of the pieces.
        unsafe {
            assert!(arena.is_inside(arena.alloc(layout(SIZE))));
            let first = arena.alloc(layout(2000));
            arena.dealloc(first, layout(2000));
            let larger = arena.alloc(layout(2008));
            assert_ne!(larger, first);
            let again = arena.alloc(layout(2000));
            assert_eq!(again, first);
            assert_ne!(arena.alloc(layout(2000)), first);
        }
    }
}
