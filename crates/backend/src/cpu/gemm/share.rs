//! What a product takes of the machine: scratch memory, and how its rows and columns are given to threads.

use std::ops::Range;

use super::drive::{BLOCK_ROWS, LONGEST_ROW};
use super::{Kernel, PANEL, ProductType, TILE_COLUMNS, pack};
use crate::cpu::memory::ALIGNMENT;
use crate::cpu::rows::{Rows, Src};

/// Rows of a block that a matrix kernel takes from the tensor itself.
const PASSING_ROWS: usize = 128;
/// Bytes of panels that stay in L2 while such rows pass by.
const HELD_BYTES: usize = 900 << 10;
/// Bytes of rows, or of their chunks, that stay in L2 while a matrix kernel goes through the panels.
const HELD_ROWS_BYTES: usize = 1000 << 10;
/// Columns whose sums wait for the next chunk of such rows.
const CHUNKED_COLUMNS: usize = 1280;
/// Bytes of rows that a matrix kernel takes from the tensor itself, however many columns they meet.
const SHORT_ROW_BYTES: usize = 2048;

/// A thread's scratch memory for a product, in bytes: rows of A, sums, bias, one after the other.
#[derive(Clone, Copy)]
pub(in super::super) struct Room {
    rows: usize,
    sums: usize,
    bias: usize,
}

impl Room {
    /// Room for `rows` bytes of A and `sums` bytes of sums, and for `biases` of `n` columns.
    pub(in super::super) fn new(rows: usize, sums: usize, biases: usize, n: usize) -> Room {
        let align = |bytes: usize| bytes.next_multiple_of(ALIGNMENT as usize);
        Room { rows: align(rows), sums: align(sums), bias: align(biases * Room::bias_stride(n) * 4) }
    }

    /// Numbers from one bias to the next.
    pub(in super::super) fn bias_stride(n: usize) -> usize {
        n.next_multiple_of(TILE_COLUMNS)
    }

    /// All of it.
    pub(in super::super) fn bytes(&self) -> usize {
        self.rows + self.sums + self.bias
    }

    /// The sums, in a thread's own memory.
    ///
    /// # Safety
    /// `own` has the bytes of this room.
    pub(in super::super) unsafe fn sums(&self, own: *mut u8) -> *mut f32 {
        // SAFETY: the caller's.
        unsafe { own.add(self.rows).cast() }
    }

    /// Load the columns `n` of some biases of `whole` columns that begin at `from`; the result is where column 0 of the first would be.
    ///
    /// # Safety
    /// `own` has the bytes of this room, `from` all columns of so many biases.
    pub(in super::super) unsafe fn bias(
        &self,
        own: *mut u8,
        rows: &Rows,
        from: Src,
        biases: usize,
        whole: usize,
        n: &Range<usize>,
    ) -> *const f32 {
        // SAFETY: the caller's.
        unsafe {
            let room = own.add(self.rows + self.sums).cast::<f32>();
            for i in 0..biases {
                let to = room.add(i * Room::bias_stride(whole) + n.start);
                (rows.load)(from.at(i * whole + n.start), std::slice::from_raw_parts_mut(to, n.len()));
            }
            room
        }
    }

    /// The same for the columns `n` of gated panels, of one bias of `whole` columns.
    ///
    /// # Safety
    /// As [`Room::bias`].
    pub(in super::super) unsafe fn gated_bias(
        &self,
        own: *mut u8,
        rows: &Rows,
        from: Src,
        whole: usize,
        n: &Range<usize>,
    ) -> *const f32 {
        // SAFETY: the caller's; tasks begin with a panel.
        unsafe {
            let room = own.add(self.rows + self.sums).cast::<f32>();
            for panel in n.start / PANEL..n.end.div_ceil(PANEL) {
                let columns = pack::columns_of_panel(panel, whole, true);
                let to = std::slice::from_raw_parts_mut(room.add(panel * PANEL), columns.len());
                (rows.load)(from.at(columns.start), to);
            }
            room
        }
    }
}

/// How the rows and columns of a product are given to threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Partition {
    /// Rows of a block.
    pub(in super::super) rows: usize,
    /// Columns of a task.
    pub(in super::super) columns: usize,
}

impl Partition {
    /// Blocks of rows; where there are too few of them for the threads, columns are divided too. Rows that pass by a matrix kernel come in
    /// small blocks, and meet no more columns, of so many bytes, than L2 holds.
    pub(in super::super) fn new(
        m: usize,
        n: usize,
        column_bytes: usize,
        passing: bool,
        threads: usize,
        kernel: &Kernel,
    ) -> Partition {
        let chunked = kernel.is_matrix() && column_bytes > LONGEST_ROW * ProductType::Bf16.bytes();
        let most = match kernel.is_matrix() {
            true if passing => PASSING_ROWS,
            true if !chunked => (HELD_ROWS_BYTES / kernel.sharing / column_bytes / kernel.rows * kernel.rows)
                .clamp(2 * kernel.rows, 2 * BLOCK_ROWS),
            _ => BLOCK_ROWS,
        };
        let least = kernel.rows * 2;
        // Blocks as equal as possible, in whole tiles.
        let blocks = m.div_ceil(most).max((m / least).min(tasks(threads)).max(1));
        let rows = m.div_ceil(blocks).next_multiple_of(kernel.rows).min(m.max(1));
        let mut columns = Partition::columns(n, m.div_ceil(rows), threads);
        let most = match kernel.is_matrix() {
            true if passing => (HELD_BYTES / kernel.sharing / column_bytes).max(2 * TILE_COLUMNS),
            true if chunked => CHUNKED_COLUMNS,
            _ => n,
        };
        columns = columns.min(n.div_ceil(n.div_ceil(most)).next_multiple_of(TILE_COLUMNS));
        Partition { rows, columns }
    }

    /// Whether rows in the compute type are best taken from the tensor itself: by a matrix kernel short ones, and those that meet few
    /// columns. Of others a block is copied first, which L2 then holds better.
    pub(in super::super) fn passes(n: usize, column_bytes: usize, kernel: &Kernel) -> bool {
        !kernel.is_matrix() || column_bytes <= SHORT_ROW_BYTES || n * column_bytes <= HELD_BYTES / kernel.sharing
    }

    /// The rows of small pictures, all of them together: each task copies them again.
    pub(in super::super) fn small(rows: usize, n: usize, threads: usize) -> Partition {
        Partition { rows, columns: n.div_ceil(threads).next_multiple_of(TILE_COLUMNS).min(CHUNKED_COLUMNS) }
    }

    /// Columns of a task, where so many blocks of rows are to keep the threads busy.
    pub(in super::super) fn columns(n: usize, blocks: usize, threads: usize) -> usize {
        let parts = tasks(threads).div_ceil(blocks).min(n.div_ceil(2 * TILE_COLUMNS)).max(1);
        n.div_ceil(parts).next_multiple_of(TILE_COLUMNS)
    }
}

/// Tasks among which no thread waits long for the others.
fn tasks(threads: usize) -> usize {
    if threads == 1 { 1 } else { 3 * threads }
}
