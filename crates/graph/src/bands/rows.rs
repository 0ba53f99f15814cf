//! Which rows of an image a window reads, and how it is padded where the image ends.

use std::ops::Range;

/// A window along the axis that is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) upsample: usize,
    /// Before the first row of the enlarged image; negative takes rows away.
    pub(super) before: isize,
    /// Rows of the image.
    pub(super) rows: usize,
}

/// The rows that some rows of the result need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) rows: Range<usize>,
    /// Padding of these rows, enlarged.
    pub(super) before: isize,
    pub(super) after: isize,
}

impl Window {
    /// What rows `out` of the result are computed from. At least one row is named, also where the window sees padding only.
    pub(super) fn need(&self, out: Range<usize>) -> Need {
        let enlarged = (self.rows * self.upsample) as isize;
        // The rows under the windows, in the enlarged image; outside of it lies padding.
        let first = (out.start * self.stride) as isize - self.before;
        let end = ((out.end - 1) * self.stride + self.kernel) as isize - self.before;
        let start = first.clamp(0, enlarged - 1) as usize / self.upsample;
        let stop = (end.clamp(1, enlarged) as usize).div_ceil(self.upsample).max(start + 1);
        Need {
            before: (start * self.upsample) as isize - first,
            after: end - (stop * self.upsample) as isize,
            rows: start..stop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each row of the result reads, row by row and tap by tap: `None` is padding.
    fn reads(w: &Window, out: Range<usize>) -> Vec<Option<usize>> {
        let tap = |y: usize, tap: usize| {
            let at = (y * w.stride + tap) as isize - w.before;
            (at >= 0 && at < (w.rows * w.upsample) as isize).then(|| at as usize / w.upsample)
        };
        out.flat_map(|y| (0..w.kernel).map(move |t| tap(y, t))).collect()
    }

    #[test]
    fn a_part_reads_what_the_whole_reads() {
        for (kernel, stride, upsample, before, rows) in (1..=5).flat_map(|k| {
            (1..=3).flat_map(move |s| {
                (1..=3).flat_map(move |u| (-3..=4).flat_map(move |b| (1..=7).map(move |r| (k, s, u, b, r))))
            })
        }) {
            let whole = Window { kernel, stride, upsample, before, rows };
            for start in 0..9 {
                for end in start + 1..=10 {
                    let need = whole.need(start..end);
                    assert!(need.rows.end <= rows && !need.rows.is_empty(), "{whole:?} {start}..{end}: {need:?}");
                    let part = Window { before: need.before, rows: need.rows.len(), ..whole };
                    let shifted = reads(&part, 0..end - start).into_iter().map(|row| row.map(|r| r + need.rows.start));
                    assert_eq!(
                        shifted.collect::<Vec<_>>(),
                        reads(&whole, start..end),
                        "{whole:?} {start}..{end}: {need:?}"
                    );
                    // As many rows come out as were asked for.
                    let padded = (need.rows.len() * upsample) as isize + need.before + need.after;
                    assert_eq!((padded - kernel as isize) / stride as isize + 1, (end - start) as isize);
                }
            }
        }
    }
}
