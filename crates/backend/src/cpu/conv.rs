//! Convolutions over channels-last images, without unfolding the image.
//!
//! Two ways to feed the product, chosen by shape:
//!
//! - **bands**: the input rows that a block of output rows needs are copied once, converted, enlarged and padded, into
//!   scratch memory. There the pixels under one tap of the kernel are equally distant rows of A, so that each tap is a
//!   segment of `k` at its own offset.
//! - **gathered**: for few channels or narrow images, each output pixel's window is copied into one row.

use std::ops::Range;

use impasto_graph::{Graph, Value};

use super::Cpu;
use super::blocks::Decoding;
use super::gemm::drive::{BLOCK_ROWS, Block, Product, Target, convert, spread, sums_bytes};
use super::gemm::pack::{self, Order};
use super::gemm::share::{Partition, Room};
use super::gemm::{Kernel, ProductType};
use super::pool::Pool;
use super::rows::{Dst, Src};
use super::session::{Env, Ptr, Run};
use crate::shapes::{Window, epilogue};

/// How the rows of A come about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Feed {
    /// As they lie in the tensor.
    Direct,
    Bands,
    Gathered,
}

#[derive(Clone, Copy)]
struct ConvPlan {
    feed: Feed,
    number: ProductType,
    kernel: Kernel,
    /// Pictures of a block: small ones are multiplied together, since the panels would come by for each of them again.
    pictures: usize,
    /// Output rows and columns of a block; of gathered rows, pictures and pixels.
    block: [usize; 2],
    /// Columns of the product in one task.
    columns: usize,
    /// Bytes of one pixel of a band, of one line of it, or of one gathered row.
    pixel_bytes: usize,
    line_bytes: usize,
    /// Numbers of a segment of `k`.
    segment_k: usize,
    order: Order,
    /// Scratch memory of a thread.
    room: Room,
}

/// Bytes of a band that stays in L2 while a matrix kernel goes through the panels.
const BAND_BYTES: usize = 1000 << 10;

/// Output rows and columns of a block whose band stays in L2, of a shape that copies few pixels twice and fills the tiles.
fn band_block(s: &Window, pixel_bytes: usize, bytes: usize) -> [usize; 2] {
    if s.under(s.out_height, 0) * s.under(s.out_width, 1) * pixel_bytes <= bytes {
        return [s.out_height, s.out_width];
    }
    let shapes = (1..=s.out_width.div_ceil(64)).map(|parts| {
        let width = s.out_width.div_ceil(parts).next_multiple_of(32).min(s.out_width);
        let lines = bytes / (s.under(width, 1) * pixel_bytes);
        let height = ((lines + s.stride).saturating_sub(s.kernel[0]) / s.stride).clamp(1, s.out_height);
        // As equal as possible.
        [s.out_height.div_ceil(s.out_height.div_ceil(height)), width]
    });
    let copied = |&[height, width]: &[usize; 2]| {
        s.under(height, 0) * s.under(width, 1) * 1024 / (height * width) * width.next_multiple_of(16) / width
    };
    shapes.min_by_key(copied).unwrap_or([1, s.out_width])
}

impl ConvPlan {
    fn new(cpu: &Cpu, s: &Window) -> ConvPlan {
        let number = cpu.number();
        let kernel = cpu.kernel();
        let whole_channels = s.channels.is_multiple_of(32);
        // Matrix tiles have 16 rows; a line that fills them badly wastes what gathering costs.
        let fills = !kernel.is_matrix() || s.out_width.next_multiple_of(16) * 8 <= s.out_width * 9;
        let column_bytes = pack::padded_k(s.k(), number) * number.bytes();
        let passes = number.dtype() == s.x_type && whole_channels && Partition::passes(s.n, column_bytes, &kernel);
        let feed = match () {
            () if s.is_pointwise() && passes => Feed::Direct,
            () if s.is_pointwise() || !whole_channels || !fills || s.out_width < 4 => Feed::Gathered,
            () => Feed::Bands,
        };
        let pixels = s.out_height * s.out_width;
        let threads = cpu.threads().div_ceil(s.batch);
        let small = kernel.is_matrix() && feed == Feed::Gathered && s.batch * pixels <= BLOCK_ROWS;
        let pictures = if small { s.batch } else { 1 };
        let partition = match small {
            true => Partition::small(pixels, s.n, cpu.threads()),
            false => Partition::new(pixels, s.n, column_bytes, feed == Feed::Direct, threads, &kernel),
        };
        let mut columns = partition.columns;
        let order = Order::new(&kernel, s.kernel, s.channels);
        let (segments, segment_k) = match feed {
            Feed::Bands => (order.segments().count(), order.block),
            _ => (1, pack::padded_k(s.k(), number)),
        };
        let (block, pixel_bytes, line_bytes, band_bytes);
        match feed {
            Feed::Direct | Feed::Gathered => {
                block = [pictures, partition.rows];
                pixel_bytes =
                    if feed == Feed::Direct { s.k() * number.bytes() } else { spread(segment_k * number.bytes()) };
                line_bytes = partition.rows * pixel_bytes;
                band_bytes = if feed == Feed::Direct { 0 } else { pictures * line_bytes };
            }
            Feed::Bands => {
                pixel_bytes = s.channels * number.bytes();
                block = if kernel.is_matrix() {
                    let block = band_block(s, pixel_bytes, BAND_BYTES / kernel.sharing);
                    // Where there are too few blocks for the threads, columns are divided: all rows share a block's panels.
                    let blocks = s.out_height.div_ceil(block[0]) * s.out_width.div_ceil(block[1]);
                    columns = Partition::columns(s.n, blocks, threads);
                    block
                } else {
                    let width = s.out_width.div_ceil(s.out_width.div_ceil(2 * BLOCK_ROWS));
                    [(partition.rows / width).clamp(1, s.out_height), width]
                };
                line_bytes = spread(s.under(block[1], 1) * pixel_bytes);
                band_bytes = s.under(block[0], 0) * line_bytes;
            }
        }
        ConvPlan {
            feed,
            number,
            kernel,
            pictures,
            block,
            columns,
            pixel_bytes,
            line_bytes,
            segment_k,
            order,
            room: Room::new(
                band_bytes,
                sums_bytes(&kernel, number, block, columns, segments, segment_k),
                pictures,
                s.n,
            ),
        }
    }
}

pub(super) fn scratch_bytes(cpu: &Cpu, graph: &Graph, value: Value) -> u64 {
    let plan = ConvPlan::new(cpu, &Window::of(graph, value));
    let decoded = decoding(cpu, graph, value).map_or(0, |decoding| decoding.bytes());
    (decoded + plan.room.bytes() * cpu.threads()) as u64
}

/// How the weights of a convolution are decoded first, if they are in blocks: all at once, since a window of one pixel has few.
fn decoding(cpu: &Cpu, graph: &Graph, value: Value) -> Option<Decoding> {
    Decoding::new(cpu, graph, graph.node(value).inputs[1], false, usize::MAX)
}

pub(super) fn prepare(env: &Env, value: Value) -> Run {
    let mut conv = Convolution::new(env, value);
    let Some(decoding) = decoding(env.cpu, env.graph, value) else {
        conv.product.panels = env.panels(env.graph.node(value).inputs[1], false);
        return Box::new(move |pool| conv.run(pool));
    };
    let (decoder, panels) = (decoding.of(env, env.graph.node(value).inputs[1]), conv.scratch);
    // SAFETY: panels, then a room for each thread, as `scratch_bytes` has planned.
    conv.scratch = Ptr::new(unsafe { panels.add(decoding.bytes()) });
    conv.product.panels = panels.get();
    Box::new(move |pool| {
        // SAFETY: the panels have their place, and the steps before are done.
        unsafe { decoder.panels(pool, &conv.product, 0, panels) };
        conv.run(pool);
    })
}

/// A convolution that is ready to run.
struct Convolution {
    s: Window,
    plan: ConvPlan,
    product: Product,
    x: Src,
    out: Dst,
    residual: Option<Src>,
    scratch: Ptr,
    bias: Option<Src>,
    /// Numbers from the bias of one picture to the next; zero where all have the same.
    bias_stride: usize,
    /// Where the segments begin in a band, from the first pixel of a window.
    segments: Vec<usize>,
    /// Lines and pixels that are cut into blocks; without bands a picture is one long line, and small pictures are lines of one.
    lines: usize,
    pixels: usize,
    /// Tasks by columns, pictures, lines and pixels.
    counts: [usize; 4],
}

/// What one task computes.
struct TaskBlock {
    picture: usize,
    /// The first line and pixel, and how many.
    start: [usize; 2],
    size: [usize; 2],
    columns: Range<usize>,
}

impl Convolution {
    fn new(env: &Env, value: Value) -> Convolution {
        let node = env.graph.node(value);
        let s = Window::of(env.graph, value);
        let plan = ConvPlan::new(env.cpu, &s);
        let (bias, residual) = epilogue(env.graph, value, s.fused);
        let bias_stride = bias.map_or(0, |b| if env.graph.ty(b).shape.len() == 2 { s.n } else { 0 });
        let product = Product {
            kernel: plan.kernel,
            rows: env.cpu.rows(),
            number: plan.number,
            // They are found, or decoded, when it is known which.
            panels: std::ptr::null(),
            k: s.k(),
        };
        let place = |tap: usize| tap / s.kernel[1] * plan.line_bytes + tap % s.kernel[1] * plan.pixel_bytes;
        let segments = match plan.feed {
            Feed::Bands => plan.order.segments().map(|(tap, c)| place(tap) + c * plan.number.bytes()).collect(),
            _ => vec![0],
        };
        let (lines, pixels) = match plan.feed {
            Feed::Bands => (s.out_height, s.out_width),
            _ => (plan.pictures, s.out_height * s.out_width),
        };
        Convolution {
            s,
            plan,
            product,
            x: env.src(node.inputs[0]),
            out: env.dst(value),
            residual: residual.map(|r| env.src(r)),
            scratch: env.scratch(),
            bias: bias.map(|b| env.src(b)),
            bias_stride,
            segments,
            lines,
            pixels,
            counts: [
                s.n.div_ceil(plan.columns),
                s.batch / plan.pictures,
                lines.div_ceil(plan.block[0]),
                pixels.div_ceil(plan.block[1]),
            ],
        }
    }

    /// Computes it.
    fn run(&self, pool: &Pool) {
        pool.each(self.counts.iter().product(), &|thread, task| {
            // SAFETY: a task has its own pixels and columns of the result, a thread its own scratch memory; sizes are
            // those that `scratch_bytes` and the plan agreed on.
            unsafe { self.compute(thread, task) };
        });
    }

    /// Neighbouring tasks share their columns: the panels are still in the cache.
    fn block_of(&self, task: usize) -> TaskBlock {
        let (s, plan) = (&self.s, &self.plan);
        let [_, pictures, down, across] = self.counts;
        let (columns, task) = (task / (pictures * down * across), task % (pictures * down * across));
        let (picture, task) = (task / (down * across), task % (down * across));
        let start = [task / across * plan.block[0], task % across * plan.block[1]];
        let size = [plan.block[0].min(self.lines - start[0]), plan.block[1].min(self.pixels - start[1])];
        let columns = columns * plan.columns..s.n.min((columns + 1) * plan.columns);
        TaskBlock { picture, start, size, columns }
    }

    /// Computes the block of a task.
    ///
    /// # Safety
    /// Nobody else computes it now, or uses this thread's scratch memory.
    unsafe fn compute(&self, thread: usize, task: usize) {
        let (s, plan) = (&self.s, &self.plan);
        let block = self.block_of(task);
        let ([y0, x0], [height, width]) = (block.start, block.size);
        let first = (block.picture * self.lines + y0) * self.pixels + x0;
        // Biases of a block, one for each of its lines if there is more than one.
        let biases = if self.bias_stride > 0 { plan.pictures } else { 1 };
        // From one row of A to the next: bands have all pixels, the others only those that are needed.
        let stride = if plan.feed == Feed::Bands { s.stride } else { 1 };
        // SAFETY: the caller's.
        unsafe {
            let scratch = self.scratch.add(thread * plan.room.bytes());
            let bias = self.bias.map(|bias| {
                let bias = bias.at(block.picture * self.bias_stride);
                plan.room.bias(scratch, self.product.rows, bias, biases, s.n, &block.columns)
            });
            let rows = Block {
                ptr: self.feed(&block, scratch),
                row_stride: plan.pixel_bytes * stride,
                lines: height,
                line_rows: width,
                line_stride: plan.line_bytes * stride,
                segments: &self.segments,
                segment_k: plan.segment_k,
                passing: plan.feed == Feed::Direct,
            };
            let target = Target {
                bias,
                bias_stride: if biases > 1 { Room::bias_stride(s.n) } else { 0 },
                activation: s.fused.activation,
                residual: self.residual.map(|r| r.at(first * s.n)),
                out: self.out.at(first * s.n),
                row_stride: s.n,
                line_stride: self.pixels * s.n,
                gated: false,
                streamed: false,
            };
            self.product.block(&rows, block.columns, plan.room.sums(scratch), &target);
        }
    }

    /// Where the rows of A of a block begin: in the image, or in scratch memory, where they are brought.
    ///
    /// # Safety
    /// As [`Convolution::compute`], for the thread that has this scratch memory.
    unsafe fn feed(&self, block: &TaskBlock, scratch: *mut u8) -> *const u8 {
        let (s, plan, product) = (&self.s, &self.plan, &self.product);
        let ([_, x0], [height, width]) = (block.start, block.size);
        // SAFETY: the caller's.
        unsafe {
            let image = self.x.at(block.picture * s.height * s.width * s.channels);
            match plan.feed {
                Feed::Direct => return image.at(x0 * s.channels).ptr,
                Feed::Bands => fill_band(s, plan, product, image, block.start, block.size, scratch),
                Feed::Gathered => {
                    for i in 0..height * width {
                        let image = image.at(i / width * s.height * s.width * s.channels);
                        gather(s, plan.order, product, image, x0 + i % width, scratch.add(i * plan.pixel_bytes));
                    }
                }
            }
        }
        scratch
    }
}

/// Copy the input pixels that a block of the result needs, converted, with zeros where the image ends.
///
/// # Safety
/// `image` is a whole picture, `to` has the bytes of the plan.
unsafe fn fill_band(
    s: &Window,
    plan: &ConvPlan,
    product: &Product,
    image: Src,
    [y0, x0]: [usize; 2],
    [height, width]: [usize; 2],
    to: *mut u8,
) {
    let (top, left) = (y0 * s.stride, x0 * s.stride);
    let across = s.under(width, 1);
    // SAFETY: `source` yields pixels of the picture, and the band has this many lines and pixels.
    unsafe {
        for line in 0..s.under(height, 0) {
            let to = to.add(line * plan.line_bytes);
            let y = top + line;
            // Pixels of one input row that follow each other are converted in one go.
            let inside = |x: usize| s.source(y, left + x);
            let mut x = 0;
            while x < across {
                let at = to.add(x * plan.pixel_bytes);
                let Some(pixel) = inside(x) else {
                    at.write_bytes(0, plan.pixel_bytes);
                    x += 1;
                    continue;
                };
                let run = match s.upsample {
                    1 => (across - x).min(s.width - pixel % s.width),
                    _ => 1,
                };
                convert(product.rows, product.number, image.at(pixel * s.channels), run * s.channels, at);
                // An enlarged pixel is repeated, not converted again.
                let repeats = (1..s.upsample).take_while(|i| x + i < across && inside(x + i) == Some(pixel)).count();
                for i in 1..=repeats {
                    at.add(i * plan.pixel_bytes).copy_from_nonoverlapping(at, plan.pixel_bytes);
                }
                x += run + repeats;
            }
        }
    }
}

/// Copy the window of one output pixel into a row.
///
/// # Safety
/// `image` is a whole picture, `to` has room for a padded row.
unsafe fn gather(s: &Window, order: Order, product: &Product, image: Src, pixel: usize, to: *mut u8) {
    let (y, x) = (pixel / s.out_width * s.stride, pixel % s.out_width * s.stride);
    let bytes = product.number.bytes();
    // SAFETY: `source` yields pixels of the picture; the row has taps x channels numbers and its padding.
    unsafe {
        for (segment, (tap, first)) in order.segments().enumerate() {
            let to = to.add(segment * order.block * bytes);
            match s.source(y + tap / s.kernel[1], x + tap % s.kernel[1]) {
                None => to.write_bytes(0, order.block * bytes),
                Some(source) => {
                    convert(product.rows, product.number, image.at(source * s.channels + first), order.block, to);
                }
            }
        }
        let padding = pack::padded_k(s.k(), product.number) - s.k();
        to.add(s.k() * bytes).write_bytes(0, padding * bytes);
    }
}
