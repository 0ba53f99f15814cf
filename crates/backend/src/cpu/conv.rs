//! Convolutions over channels-last images, without unfolding the image.
//!
//! Two ways to feed the product, chosen by shape:
//!
//! - **bands**: the input rows that a block of output rows needs are copied once, converted, enlarged and padded, into
//!   scratch memory. There the pixels under one tap of the kernel are equally distant rows of A, so that each tap is a
//!   segment of `k` at its own offset.
//! - **gathered**: for few channels or narrow images, each output pixel's window is copied into one row.

use impasto_graph::{DType, Graph, Op, Value};

use super::Cpu;
use super::gemm::ahead::{Ahead, Stretch};
use super::gemm::drive::{BLOCK_ROWS, Block, Product, Target, spread, sums_bytes};
use super::gemm::share::{Partition, Room};
use super::gemm::{Kernel, Number, pack};
use super::rows::Src;
use super::session::{Env, Run, size};
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
struct Way {
    feed: Feed,
    number: Number,
    kernel: Kernel,
    /// Pictures of a block: small ones are multiplied together, since the panels would come by for each of them again.
    pictures: usize,
    /// Output rows and columns of a block; of gathered rows, pictures and pixels.
    block: [usize; 2],
    /// Columns of the product in one task.
    columns: usize,
    /// Blocks of a task: while one band is multiplied the next is filled.
    series: usize,
    /// Bytes of one pixel of a band, of one line of it, or of one gathered row.
    pixel_bytes: usize,
    line_bytes: usize,
    /// Numbers of a segment of `k`.
    segment_k: usize,
    /// Scratch memory of a thread.
    room: Room,
}

/// Bytes of a band that stays in the second cache while a matrix kernel goes through the panels.
const BAND_BYTES: usize = 1000 << 10;
/// The same where the next band is filled meanwhile. That is done if there are few panels: many of them are better met by large bands.
const AHEAD_BYTES: usize = 640 << 10;
const AHEAD_PANEL_BYTES: usize = 6 << 20;

/// Output rows and columns of a block whose band stays in the second cache, of a shape that copies few pixels twice and fills the tiles.
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

impl Way {
    fn new(cpu: &Cpu, s: &Window) -> Way {
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
        let (mut columns, mut series) = (partition.columns, 1);
        let segments = if feed == Feed::Bands { s.taps() } else { 1 };
        let segment_k = if feed == Feed::Bands { s.channels } else { pack::padded_k(s.k(), number) };
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
                    let ahead = matches!(s.x_type, DType::BF16 | DType::F32) && s.n * column_bytes <= AHEAD_PANEL_BYTES;
                    let bytes = if ahead { AHEAD_BYTES } else { BAND_BYTES };
                    let block = band_block(s, pixel_bytes, bytes / kernel.sharing);
                    // Where there are too few blocks for the threads, columns are divided: all rows share a block's panels.
                    let blocks = s.out_height.div_ceil(block[0]) * s.out_width.div_ceil(block[1]);
                    columns = Partition::columns(s.n, blocks, threads);
                    if ahead {
                        series = Partition::series(s.batch * blocks, s.n.div_ceil(columns), cpu.threads());
                    }
                    block
                } else {
                    let width = s.out_width.div_ceil(s.out_width.div_ceil(2 * BLOCK_ROWS));
                    [(partition.rows / width).clamp(1, s.out_height), width]
                };
                line_bytes = spread(s.under(block[1], 1) * pixel_bytes);
                band_bytes = s.under(block[0], 0) * line_bytes;
            }
        }
        Way {
            feed,
            number,
            kernel,
            pictures,
            block,
            columns,
            series,
            pixel_bytes,
            line_bytes,
            segment_k,
            room: Room::new(
                series.min(2) * band_bytes,
                sums_bytes(&kernel, number, block, columns, segments, segment_k),
                pictures,
                s.n,
            ),
        }
    }
}

pub(super) fn scratch_bytes(cpu: &Cpu, graph: &Graph, value: Value) -> u64 {
    (Way::new(cpu, &Window::of(graph, value)).room.bytes() * cpu.threads()) as u64
}

pub(super) fn prepare(env: &Env, value: Value) -> Run {
    let node = env.graph.node(value);
    let s = Window::of(env.graph, value);
    let way = Way::new(env.cpu, &s);
    let (bias, residual) = epilogue(env.graph, value, s.fused);
    let bias_stride = bias.map_or(0, |b| if env.graph.ty(b).shape.len() == 2 { s.n } else { 0 });
    let bias = bias.map(|b| env.src(b));
    let residual = residual.map(|r| env.src(r));
    let (x, out, scratch) = (env.src(node.inputs[0]), env.dst(value), env.scratch());
    let product = Product {
        kernel: way.kernel,
        rows: env.cpu.rows(),
        number: way.number,
        panels: env.panels(node.inputs[1], false),
        k: s.k(),
    };

    // Where the taps begin in a band, from the first pixel of a window.
    let segments: Vec<usize> = match way.feed {
        Feed::Bands => {
            (0..s.taps()).map(|t| t / s.kernel[1] * way.line_bytes + t % s.kernel[1] * way.pixel_bytes).collect()
        }
        _ => vec![0],
    };
    // Lines and pixels that are cut into blocks; without bands a picture is one long line, and small pictures are lines of one.
    let (lines, pixels) = match way.feed {
        Feed::Bands => (s.out_height, s.out_width),
        _ => (way.pictures, s.out_height * s.out_width),
    };
    // Biases of a block, one for each of its lines if there is more than one.
    let biases = if bias_stride > 0 { way.pictures } else { 1 };
    let line_bias = if biases > 1 { Room::bias_stride(s.n) } else { 0 };
    // From one row of A to the next: bands have all pixels, the others only those that are needed.
    let stride = if way.feed == Feed::Bands { s.stride } else { 1 };
    let parts = s.n.div_ceil(way.columns);
    let counts = [s.batch / way.pictures, lines.div_ceil(way.block[0]), pixels.div_ceil(way.block[1])];
    let blocks: usize = counts.iter().product();
    // The place of a block: picture, line and pixel; its lines and pixels.
    let place = move |block: usize| {
        let (y0, x0) = (block / counts[2] % counts[1] * way.block[0], block % counts[2] * way.block[1]);
        let size = [way.block[0].min(lines - y0), way.block[1].min(pixels - x0)];
        (block / counts[2] / counts[1], [y0, x0], size)
    };
    let band_bytes = s.under(way.block[0], 0) * way.line_bytes;
    Box::new(move |pool| {
        let series = blocks.div_ceil(way.series);
        pool.each(parts * series, &|thread, task| {
            // Neighbouring tasks share their columns: the panels are still in the cache.
            let (columns, first_block) = (task / series, task % series * way.series);
            let last_block = blocks.min(first_block + way.series) - 1;
            let n = columns * way.columns..s.n.min((columns + 1) * way.columns);
            // SAFETY: a task has its own pixels and columns of the result, a thread its own scratch memory; sizes are
            // those that `scratch_bytes` and the plan agreed on.
            unsafe {
                let scratch = scratch.add(thread * way.room.bytes());
                let image = |picture: usize| x.at(picture * s.height * s.width * s.channels);
                // Every second band of a series has the same room.
                let room = |block: usize| scratch.add((block - first_block) % 2 * band_bytes);
                let band = |block: usize| {
                    let (picture, at, size) = place(block);
                    Band::new(&s, &way, image(picture), at, size, room(block))
                };
                for block in first_block..=last_block {
                    let (picture, [y0, x0], [height, width]) = place(block);
                    let first = (picture * lines + y0) * pixels + x0;
                    let bias = bias
                        .map(|b| way.room.bias(scratch, product.rows, b.at(picture * bias_stride), biases, s.n, &n));
                    let mut next = None;
                    let ptr = match way.feed {
                        Feed::Direct => image(picture).at(x0 * s.channels).ptr,
                        Feed::Bands => {
                            if block == first_block {
                                band(block).for_each(|run| run.copy(product.rows, product.number));
                            }
                            next = (block < last_block).then(|| band(block + 1));
                            room(block).cast_const()
                        }
                        Feed::Gathered => {
                            for i in 0..height * width {
                                let image = image(picture).at(i / width * s.height * s.width * s.channels);
                                gather(&s, &product, image, x0 + i % width, scratch.add(i * way.pixel_bytes));
                            }
                            scratch.cast_const()
                        }
                    };
                    let a = Block {
                        ptr,
                        row_stride: way.pixel_bytes * stride,
                        lines: height,
                        line_rows: width,
                        line_stride: way.line_bytes * stride,
                        segments: &segments,
                        segment_k: way.segment_k,
                        passing: way.feed == Feed::Direct,
                    };
                    let target = Target {
                        bias,
                        bias_stride: line_bias,
                        activation: s.fused.activation,
                        residual: residual.map(|r| r.at(first * s.n)),
                        out: out.at(first * s.n),
                        row_stride: s.n,
                        line_stride: pixels * s.n,
                        gated: false,
                        streamed: false,
                    };
                    let numbers = next.as_ref().map_or(0, Band::numbers);
                    let mut runs = next.into_iter().flatten();
                    let mut ahead = Ahead::new(&mut runs, numbers, product.steps(&a, &n));
                    product.block(&a, n.clone(), way.room.sums(scratch), &target, &mut ahead);
                    ahead.finish(product.rows);
                }
            }
        });
    })
}

/// The input pixels that a block of the result needs, run by run, into a band; zeros where the image ends are written on the way.
struct Band<'a> {
    s: &'a Window,
    way: &'a Way,
    image: Src,
    /// The first pixel of the enlarged, padded input.
    first: [usize; 2],
    /// Lines of the band, and pixels of a line.
    size: [usize; 2],
    to: *mut u8,
    /// The next pixel.
    line: usize,
    pixel: usize,
}

impl<'a> Band<'a> {
    /// The band of a block of the result of some lines and pixels.
    ///
    /// # Safety
    /// As long as this: `image` is a whole picture, `to` has the bytes of a band.
    unsafe fn new(
        s: &'a Window,
        way: &'a Way,
        image: Src,
        at: [usize; 2],
        [height, width]: [usize; 2],
        to: *mut u8,
    ) -> Band<'a> {
        let size = [s.under(height, 0), s.under(width, 1)];
        Band { s, way, image, first: at.map(|x| x * s.stride), size, to, line: 0, pixel: 0 }
    }

    /// As many numbers as this, or some fewer.
    fn numbers(&self) -> usize {
        self.size[0] * self.size[1] * self.s.channels
    }
}

impl Iterator for Band<'_> {
    type Item = Stretch;

    fn next(&mut self) -> Option<Stretch> {
        while self.line < self.size[0] {
            while self.pixel < self.size[1] {
                let at = self.line * self.way.line_bytes + self.pixel * self.way.pixel_bytes;
                // SAFETY: the band has this many lines and pixels.
                let to = unsafe { self.to.add(at) };
                let Some(source) = self.s.source(self.first[0] + self.line, self.first[1] + self.pixel) else {
                    // SAFETY: as above.
                    unsafe { to.write_bytes(0, self.way.pixel_bytes) };
                    self.pixel += 1;
                    continue;
                };
                // Pixels of one input row that follow each other; an enlarged image has each of them several times.
                let run = match self.s.upsample {
                    1 => (self.size[1] - self.pixel).min(self.s.width - source % self.s.width),
                    _ => 1,
                };
                self.pixel += run;
                // SAFETY: `source` yields pixels of the picture.
                let from = unsafe { self.image.at(source * self.s.channels) };
                return Some(Stretch { from, to, numbers: run * self.s.channels });
            }
            (self.line, self.pixel) = (self.line + 1, 0);
        }
        None
    }
}

/// Copy the window of one output pixel into a row.
///
/// # Safety
/// `image` is a whole picture, `to` has room for a padded row.
unsafe fn gather(s: &Window, product: &Product, image: Src, pixel: usize, to: *mut u8) {
    let (y, x) = (pixel / s.out_width * s.stride, pixel % s.out_width * s.stride);
    let bytes = product.number.bytes();
    // SAFETY: `source` yields pixels of the picture; the row has taps x channels numbers and its padding.
    unsafe {
        for tap in 0..s.taps() {
            let to = to.add(tap * s.channels * bytes);
            match s.source(y + tap / s.kernel[1], x + tap % s.kernel[1]) {
                None => to.write_bytes(0, s.channels * bytes),
                Some(source) => {
                    Stretch { from: image.at(source * s.channels), to, numbers: s.channels }
                        .copy(product.rows, product.number);
                }
            }
        }
        let padding = pack::padded_k(s.k(), product.number) - s.k();
        to.add(s.k() * bytes).write_bytes(0, padding * bytes);
    }
}

/// An operand may be overwritten only if it is read element by element, at the same place as it is written.
pub(super) fn may_overwrite(graph: &Graph, value: Value, operand: usize) -> bool {
    let node = graph.node(value);
    let (Op::Conv2d { fused, .. } | Op::Linear { fused, .. }) = node.op else { return false };
    let residual = fused.residual && operand + 1 == node.inputs.len();
    residual && size(graph.ty(node.inputs[operand]).dtype) == size(node.ty.dtype)
}
