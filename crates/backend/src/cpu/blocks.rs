//! Parameters that stay in the blocks of their file. Weights of products are decoded into panels just before they are multiplied, some columns at
//! a time, so that the panels are still in the cache when the rows come by; of tables, the rows that are looked up.

use std::cell::RefCell;

use impasto_graph::{DType, Graph, Storage, Value};

use super::Cpu;
use super::gemm::drive::Product;
use super::gemm::pack::{self, Order};
use super::gemm::{PANEL, ProductType};
use super::memory::ALIGNMENT;
use super::pool::Pool;
use super::rows::{PanelRows, Rows, Src};
use super::session::{Env, Ptr};
use super::weights::CpuLayout;
use crate::shapes::product_shape;
use crate::stored::{has_scales, kept_blocks, scales_offset};

/// Bytes of panels that are decoded at a time, unless one task needs more.
const DECODED_BYTES: usize = 8 << 20;
/// Numbers of a row that are decoded at a time: whole blocks of every storage.
const PIECE: usize = 256;

/// How the weights of a product that are in blocks become panels. None of those that are panels already.
#[derive(Clone, Copy)]
pub(super) struct Decoding {
    storage: Storage,
    /// Columns of the weights, and whether half of them are gates.
    n: usize,
    gated: bool,
    k: usize,
    number: ProductType,
    /// Columns of the panels that are decoded at a time.
    pub(super) columns: usize,
}

impl Decoding {
    /// For the weights of a product whose tasks take so many columns each.
    pub(super) fn new(cpu: &Cpu, graph: &Graph, param: Value, gated: bool, task_columns: usize) -> Option<Decoding> {
        let storage = kept_blocks(graph, param)?;
        let (n, k) = product_shape(graph.ty(param));
        let number = cpu.number();
        let all = pack::columns(n, gated);
        let task = task_columns.min(all).max(1);
        let tasks = (DECODED_BYTES / (task.div_ceil(PANEL) * pack::panel_bytes(k, number)).max(1)).max(1);
        Some(Decoding { storage, n, gated, k, number, columns: (tasks * task).min(all) })
    }

    /// Scratch memory for the panels.
    pub(super) fn bytes(&self) -> usize {
        pack::packed_bytes(self.columns, self.k, self.number).next_multiple_of(ALIGNMENT as usize)
    }

    /// The weights of a step.
    pub(super) fn of(self, env: &Env, param: Value) -> Decoder {
        Decoder { decoding: self, rows: BlockRows::new(env, param, self.storage) }
    }
}

/// Rows in blocks, where they lie.
#[derive(Clone, Copy)]
pub(super) struct BlockRows {
    storage: Storage,
    row_bytes: usize,
    blocks: *const u8,
    scales: Option<*const f32>,
    rows: &'static Rows,
}

// SAFETY: what the pointers point to is read only.
unsafe impl Send for BlockRows {}
// SAFETY: as above.
unsafe impl Sync for BlockRows {}

impl BlockRows {
    /// Those of a parameter that stays so.
    pub(super) fn new(env: &Env, param: Value, storage: Storage) -> BlockRows {
        let (ty, blocks) = (env.graph.ty(param), env.weight(param, CpuLayout::Blocks).ptr);
        let scales = has_scales(storage).then(|| {
            // SAFETY: the layout has its scales there.
            unsafe { blocks.add(scales_offset(ty, storage)) }.cast::<f32>()
        });
        let row_bytes = block_bytes(storage, product_shape(ty).1);
        BlockRows { storage, row_bytes, blocks, scales, rows: env.cpu.rows() }
    }

    /// Decodes numbers of a row from `at` on.
    ///
    /// # Safety
    /// There is such a row with so many numbers, and they are whole blocks.
    pub(super) unsafe fn decode(&self, row: usize, at: usize, out: &mut [f32]) {
        let offset = row * self.row_bytes + block_bytes(self.storage, at);
        // SAFETY: the caller's.
        unsafe {
            let blocks = std::slice::from_raw_parts(self.blocks.add(offset), block_bytes(self.storage, out.len()));
            (self.rows.decode)(self.storage, blocks, out);
            if let Some(scales) = self.scales {
                (self.rows.scale)(out, *scales.add(row));
            }
        }
    }
}

/// Bytes of so many numbers in whole blocks.
fn block_bytes(storage: Storage, numbers: usize) -> usize {
    numbers / storage.block_elements() as usize * storage.block_bytes() as usize
}

/// The weights of a product in blocks.
#[derive(Clone, Copy)]
pub(super) struct Decoder {
    pub(super) decoding: Decoding,
    rows: BlockRows,
}

thread_local! {
    /// A piece of the rows of a panel.
    static ROWS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Decoder {
    /// Decodes the panels of the columns from `first` on, as many as are decoded at a time, into `to`: the product with those panels, in which they
    /// have their own places.
    ///
    /// # Safety
    /// `to` has the bytes of the decoding, and nobody uses them now.
    pub(super) unsafe fn panels(&self, pool: &Pool, product: &Product, first: usize, to: Ptr) -> Product {
        let Decoding { n, gated, k, number, columns, .. } = self.decoding;
        let size = pack::panel_bytes(k, number);
        let panels = first / PANEL..(first + columns).min(pack::columns(n, gated)).div_ceil(PANEL);
        pool.each(panels.len(), &|_, i| {
            // SAFETY: the caller's; each panel has its own place.
            unsafe { self.panel(product, panels.start + i, to.add(i * size)) };
        });
        Product { panels: to.get().cast_const().wrapping_sub(panels.start * size), ..*product }
    }

    /// Decodes a panel.
    ///
    /// # Safety
    /// `to` is good for a panel.
    unsafe fn panel(&self, product: &Product, panel: usize, to: *mut u8) {
        let Decoding { n, gated, k, number, .. } = self.decoding;
        let columns = pack::columns_of_panel(panel, n, gated);
        ROWS.with_borrow_mut(|rows| {
            rows.resize(PANEL * PIECE, 0.0);
            for at in (0..k).step_by(PIECE) {
                let width = PIECE.min(k - at);
                for (row, out) in columns.clone().zip(rows.chunks_exact_mut(width)) {
                    // SAFETY: the row is one of the weights, and the piece is of whole blocks.
                    unsafe { self.rows.decode(row, at, out) };
                }
                let src = Src { ptr: rows.as_ptr().cast(), dtype: DType::F32 };
                let piece = PanelRows { src, columns: columns.len(), order: Order::plain(width), number };
                // SAFETY: the rows are there, and a panel's `k` lies in the order of its numbers.
                unsafe { (product.rows.panel)(&piece, to.add(at * PANEL * number.bytes())) };
            }
            // SAFETY: the caller's.
            unsafe { pack::zero_padding(to, number, columns.len(), k) };
        });
    }
}
