//! Does a picture show what was asked for? Colour masks and the shapes of drawings, no network: `models/check.py`, in Rust.
//!
//! A colour's mask is where that colour is near, and nearer than the others and the backdrops. An object is looked for by its
//! silhouette: what its drawing has in the asked colour, at several sizes, moved over the mask; the best overlap (intersection
//! over union, 0 to 1) says how well it is found, and where.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use impasto::generate::picture::Picture;
use impasto::weights::Checkpoint;
use serde::Deserialize;

/// Masks are compared at this size.
const GRID: usize = 48;
/// Half the height of a drawing's box in the fixture, in fractions of the picture.
const FILL: f64 = 0.48;
/// Sizes that are tried, from the first one on, each so much larger than the one before.
const SIZES: (usize, f64, f64) = (11, 0.06, 1.18);
/// Distance in OKLab below which a pixel may have a colour.
const NEAR: f32 = 0.075;
/// An overlap from here on counts.
const FOUND: f32 = 0.40;
/// The asked object's overlap against the best of all objects.
const LIKE: f32 = 0.90;
/// Enough to say where something is: others may cover a part of it.
const PLACED: f32 = 0.30;
/// How far apart two things must be for one to be left of the other.
const APART: f32 = 0.04;

/// What a caption asks for.
#[derive(Clone, Debug, Deserialize)]
pub struct Claim {
    /// The time of day.
    pub time: String,
    /// One thing or two, each an object and its colour.
    pub things: Vec<(String, String)>,
    /// How the first stands to the second.
    pub relation: Option<Relation>,
}

/// The first thing is there, seen from the second.
#[derive(Clone, Copy, Debug, Deserialize)]
pub enum Relation {
    #[serde(rename = "left of")]
    Left,
    #[serde(rename = "right of")]
    Right,
    #[serde(rename = "above")]
    Above,
    #[serde(rename = "below")]
    Below,
}

/// How far a measure is above what is needed for a yes; below zero it is a no.
#[derive(Clone, Copy, Debug)]
pub struct Margin(pub f32);

impl Margin {
    pub fn yes(self) -> bool {
        self.0 >= 0.0
    }
}

/// What is said of a picture and a claim.
pub struct Verdict {
    /// Among the masks of all colours, the asked one fits the first thing's silhouette best, and well.
    pub colour: Margin,
    /// No other object's silhouette fits much better. Asked where there is one thing only.
    pub object: Option<Margin>,
    /// Both are found, and the places are as told.
    pub relation: Option<Margin>,
    /// All overlaps that were looked for, by "colour object".
    pub found: BTreeMap<String, f32>,
}

/// What is compared with: made by `models/check_fixtures.py`.
pub struct Check {
    times: Vec<String>,
    colours: Vec<String>,
    objects: Vec<String>,
    /// By time: a colour in OKLab, and whose it is. Backdrops are nobody's, one past the last colour.
    references: Vec<Vec<([f32; 3], usize)>>,
    /// By time, colour and object.
    silhouettes: BTreeMap<[usize; 3], Vec<Grey>>,
}

/// A small grey picture, 0 to 1, row by row.
struct Grey {
    height: usize,
    width: usize,
    cells: Vec<f32>,
}

/// The best place of a silhouette.
#[derive(Clone, Copy, Default)]
struct Best {
    overlap: f32,
    /// Its middle, in fractions of the picture.
    y: f32,
    x: f32,
}

/// A file beside the tests.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The lines of a fixture, one JSON value each.
pub fn lines<T: for<'a> Deserialize<'a>>(name: &str) -> Vec<T> {
    let text = std::fs::read_to_string(fixture(name)).expect("the fixture is in the repository");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"))).collect()
}

impl Check {
    /// From the fixture, and the pictures of the truth that come with it.
    pub fn open() -> (Check, Vec<Picture>) {
        let file = Checkpoint::open(&fixture("check.safetensors.zst")).unwrap_or_else(|e| panic!("{e}"));
        let tensor = |name: &str| file.tensor(name).unwrap_or_else(|| panic!("the fixture has no {name}"));
        let bytes = |name: &str| file.read_all(tensor(name)).expect("the fixture is whole");
        let words = |name: &str| file.metadata()[name].split(' ').map(String::from).collect::<Vec<_>>();
        let times = words("times");

        let number = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let references = times.iter().map(|time| {
            let numbers = bytes(&format!("references.{time}"));
            let points = numbers.chunks_exact(12).map(|p| [number(p), number(&p[4..]), number(&p[8..])]);
            points.zip(bytes(&format!("colours.{time}")).iter().map(|&c| usize::from(c))).collect()
        });

        let mut silhouettes: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let cells = bytes("cells");
        let mut cells = &cells[..];
        for row in bytes("shapes").chunks_exact(5) {
            let [time, colour, object, height, width] = [0, 1, 2, 3, 4].map(|i| usize::from(row[i]));
            let (own, rest) = cells.split_at(height * width);
            cells = rest;
            let shape = Grey { height, width, cells: own.iter().map(|&c| f32::from(c) / 4.0).collect() };
            silhouettes.entry([time, colour, object]).or_default().push(shape);
        }
        assert!(cells.is_empty(), "the fixture's shapes do not fit its cells");

        let [_, height, width, _] = tensor("pictures").shape[..] else { panic!("pictures have four dimensions") };
        let pictures = bytes("pictures");
        let pictures =
            pictures.chunks_exact(height * width * 3).map(|rgb| Picture { width, height, rgb: rgb.to_vec() }).collect();
        let references = references.collect();
        (Check { times, colours: words("colours"), objects: words("objects"), references, silhouettes }, pictures)
    }

    /// Whether the picture shows it.
    pub fn judge(&self, picture: &Picture, claim: &Claim) -> Verdict {
        let at = |names: &[String], name: &str| names.iter().position(|n| n == name).expect("the check knows it");
        let time = at(&self.times, &claim.time);
        let things = claim.things.iter().map(|(object, colour)| (at(&self.objects, object), at(&self.colours, colour)));
        let things: Vec<_> = things.collect();
        let masks = self.masks(picture, time);
        let mut found = BTreeMap::new();
        let mut find = |object: usize, colour: usize| {
            let best = find(&self.silhouettes[&[time, colour, object]], &masks[colour]);
            found.insert(format!("{} {}", self.colours[colour], self.objects[object]), best.overlap);
            best
        };

        let (object, colour) = things[0];
        let own = find(object, colour);
        let others = (0..self.colours.len()).filter(|&c| c != colour).map(|c| find(object, c).overlap);
        let rival = others.fold(0.0, f32::max);
        let mut verdict = Verdict {
            colour: Margin((own.overlap - FOUND).min(own.overlap - rival)),
            object: None,
            relation: None,
            found: BTreeMap::new(),
        };
        if let (Some(relation), Some(&(object, colour))) = (claim.relation, things.get(1)) {
            let other = find(object, colour);
            let ahead = match relation {
                Relation::Left => other.x - own.x,
                Relation::Right => own.x - other.x,
                Relation::Above => other.y - own.y,
                Relation::Below => own.y - other.y,
            };
            verdict.relation = Some(Margin((ahead - APART).min(own.overlap.min(other.overlap) - PLACED)));
        } else {
            let all = (0..self.objects.len()).map(|o| find(o, colour).overlap).fold(0.0, f32::max);
            verdict.object = Some(Margin(own.overlap - LIKE * all));
        }
        Verdict { found, ..verdict }
    }

    /// How much of each cell has each colour, (colours, GRID, GRID).
    fn masks(&self, picture: &Picture, time: usize) -> Vec<Grey> {
        let nobody = self.colours.len();
        let whose = |rgb: &[u8]| {
            let seen = oklab(rgb);
            let square = |to: &[f32; 3]| (0..3).map(|i| (seen[i] - to[i]).powi(2)).sum::<f32>();
            let mut nearest = (NEAR * NEAR, nobody);
            for (known, whose) in &self.references[time] {
                let distance = square(known);
                if distance < nearest.0 {
                    nearest = (distance, *whose);
                }
            }
            nearest.1
        };
        let owners: Vec<usize> = picture.rgb.chunks_exact(3).map(whose).collect();
        let mut masks: Vec<Grey> =
            (0..nobody).map(|_| Grey { height: GRID, width: GRID, cells: vec![0.0; GRID * GRID] }).collect();
        for i in 0..GRID * GRID {
            let (rows, columns) = (bin(i / GRID, picture.height, GRID), bin(i % GRID, picture.width, GRID));
            let share = 1.0 / (rows.len() * columns.len()) as f32;
            for y in rows {
                for &owner in &owners[y * picture.width..][columns.clone()] {
                    if owner < nobody {
                        masks[owner].cells[i] += share;
                    }
                }
            }
        }
        masks
    }
}

/// The numbers whose mean is cell `i` of `cells`, as torch's adaptive pooling has them: neighbours may share one.
fn bin(i: usize, numbers: usize, cells: usize) -> std::ops::Range<usize> {
    i * numbers / cells..((i + 1) * numbers).div_ceil(cells)
}

/// Perceptual coordinates of a pixel.
fn oklab(rgb: &[u8]) -> [f32; 3] {
    let linear = |b: u8| {
        let v = f32::from(b) / 255.0;
        if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }
    };
    let mix = |m: [[f32; 3]; 3], v: [f32; 3]| m.map(|row| row[0] * v[0] + row[1] * v[1] + row[2] * v[2]);
    let lms = mix(
        [
            [0.412_221_46, 0.536_332_55, 0.051_445_995],
            [0.211_903_5, 0.680_699_5, 0.107_396_96],
            [0.088_302_46, 0.281_718_85, 0.629_978_7],
        ],
        [linear(rgb[0]), linear(rgb[1]), linear(rgb[2])],
    );
    mix(
        [
            [0.210_454_26, 0.793_617_8, -0.004_072_047],
            [1.977_998_5, -2.428_592_2, 0.450_593_7],
            [0.025_904_037, 0.782_771_77, -0.808_675_77],
        ],
        lms.map(|v| v.max(0.0).cbrt()),
    )
}

impl Grey {
    /// Smaller, each cell the mean of those that it stands for.
    fn scaled(&self, height: usize, width: usize) -> Grey {
        let mean = |i: usize| {
            let (rows, columns) = (bin(i / width, self.height, height), bin(i % width, self.width, width));
            let count = (rows.len() * columns.len()) as f32;
            rows.flat_map(|y| &self.cells[y * self.width..][columns.clone()]).sum::<f32>() / count
        };
        Grey { height, width, cells: (0..height * width).map(mean).collect() }
    }
}

/// Sums over rectangles of a mask, each in a few additions.
struct Sums(Vec<f32>);

impl Sums {
    fn of(mask: &Grey) -> Sums {
        let mut sums = vec![0.0; (GRID + 1) * (GRID + 1)];
        for y in 0..GRID {
            let mut row = 0.0;
            for x in 0..GRID {
                row += mask.cells[y * GRID + x];
                sums[(y + 1) * (GRID + 1) + x + 1] = sums[y * (GRID + 1) + x + 1] + row;
            }
        }
        Sums(sums)
    }

    /// Outside of the picture there is nothing.
    fn within(&self, [y, x]: [isize; 2], [height, width]: [usize; 2]) -> f32 {
        let inside = |n: isize| n.clamp(0, GRID as isize) as usize;
        let (top, left) = (inside(y), inside(x));
        let (bottom, right) = (inside(y + height as isize), inside(x + width as isize));
        let at = |y: usize, x: usize| self.0[y * (GRID + 1) + x];
        (at(bottom, right) - at(top, right) - at(bottom, left) + at(top, left)).max(0.0)
    }
}

/// The silhouettes moved over the mask of a colour, at all sizes.
fn find(silhouettes: &[Grey], mask: &Grey) -> Best {
    let sums = Sums::of(mask);
    let (count, first, step) = SIZES;
    let mut best = Best::default();
    for shape in silhouettes {
        for size in (0..count).map(|i| first * step.powi(i as i32)) {
            let scaled = |n: usize| ((n as f64 * size / FILL).round_ties_even() as usize).max(3);
            let (height, width) = (scaled(shape.height), scaled(shape.width));
            if height.max(width) <= GRID {
                move_over(&shape.scaled(height, width), mask, &sums, &mut best);
            }
        }
    }
    best
}

/// One silhouette moved over the mask, if it can be better than the best one so far.
fn move_over(shape: &Grey, mask: &Grey, sums: &Sums, best: &mut Best) {
    let size = [shape.height, shape.width];
    let area: f32 = shape.cells.iter().sum();
    // Around it, the colour should be absent.
    let frame = 1 + (0.35 * size[0].max(size[1]) as f64).round_ties_even() as usize;
    let overlap = |common: f32, [y, x]: [isize; 2]| {
        let start = [y - frame as isize, x - frame as isize];
        let window = sums.within(start, size.map(|n| n + 2 * frame));
        common / (area + window - common)
    };
    // What is common is neither more than the shape nor more than the mask where the shape's box lies. Few places pass that.
    let bound = |at: [isize; 2]| overlap(area.min(sums.within(at, size)), at);
    let places = |n: usize| 1 - n as isize..GRID as isize;
    let mut promising: Vec<(f32, [isize; 2])> = places(size[0])
        .flat_map(|y| places(size[1]).map(move |x| [y, x]))
        .map(|at| (bound(at), at))
        .filter(|&(bound, _)| bound > best.overlap)
        .collect();
    promising.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (bound, at) in promising {
        if bound <= best.overlap {
            break;
        }
        let found = overlap(common(shape, mask, at), at);
        if found > best.overlap {
            let middle = |i: usize| (at[i] as f32 + size[i] as f32 / 2.0) / GRID as f32;
            *best = Best { overlap: found, y: middle(0), x: middle(1) };
        }
    }
}

/// The sum of the products of a shape and the mask below it.
fn common(shape: &Grey, mask: &Grey, at: [isize; 2]) -> f32 {
    let part = |start: isize, n: usize| {
        let from = (-start).max(0) as usize;
        let to = (GRID as isize - start).clamp(0, n as isize) as usize;
        (from..to, (start + from as isize) as usize)
    };
    let (rows, y) = part(at[0], shape.height);
    let (columns, x) = part(at[1], shape.width);
    let mut sum = 0.0;
    for (i, row) in rows.enumerate() {
        let shape = &shape.cells[row * shape.width..][columns.clone()];
        let mask = &mask.cells[(y + i) * GRID + x..][..columns.len()];
        sum += shape.iter().zip(mask).map(|(s, m)| s * m).sum::<f32>();
    }
    sum
}
