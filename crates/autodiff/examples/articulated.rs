//! A chain of rigid bodies is thrown so that its end meets a target: its first velocities are found by following the gradient that
//! the adjoint of the simulation gives.
//!
//! ```text
//! cargo run --release -p impasto-autodiff --example articulated -- picture.png
//! ```

#[path = "../tests/derivatives/articulated.rs"]
mod articulated;

use impasto_autodiff::Differentiate;
use impasto_kernel::{BufferData, Launch, execute};

const BODIES: usize = 8;
const STEPS: u32 = 60;
const TARGET: [f32; 3] = [2.4, 0.0, 1.6];
const ROUNDS: usize = 80;

type Failure = Box<dyn std::error::Error>;

fn launch(start: &[f32], steps: u32) -> Launch {
    let ends = BufferData::from(&[0f32; 3 * (BODIES + 1)][..]);
    Launch::new([1, 1, 1], vec![start.into(), [steps][..].into(), ends])
}

/// Where the ends of the bodies are after some steps.
fn ends(kernel: &impasto_kernel::Kernel, start: &[f32], steps: u32) -> Result<Vec<f32>, Failure> {
    let mut l = launch(start, steps);
    execute(kernel, &mut l)?;
    Ok(l.buffers[2].to_f32().unwrap_or_default())
}

fn main() -> Result<(), Failure> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "articulated.png".to_owned());
    let kernel = articulated::kernel(BODIES)?;
    let grad = kernel.grad()?;
    print!("{}", grad.report);
    let first: Vec<f32> = articulated::start(BODIES).iter().map(|&x| x as f32).collect();
    let mut start = first.clone();
    let slots = grad.slots(&launch(&start, STEPS))?;
    println!("{} bytes of tape for {STEPS} steps", grad.tape_bytes([1, 1, 1], slots));
    // Adam, on the velocities alone.
    let velocities: Vec<usize> = (7..articulated::BASE).chain(articulated::BASE + BODIES - 1..start.len()).collect();
    let (mut m, mut v) = (vec![0f32; start.len()], vec![0f32; start.len()]);
    for round in 0..ROUNDS {
        let y = ends(&kernel, &start, STEPS)?;
        let miss: Vec<f32> = y[3 * BODIES..].iter().zip(TARGET).map(|(a, b)| a - b).collect();
        let distance = miss.iter().map(|d| d * d).sum::<f32>().sqrt();
        if round % 10 == 0 || round + 1 == ROUNDS {
            println!("round {round}: the end misses the target by {distance:.4} m");
        }
        let mut seed = vec![0f32; y.len()];
        seed[3 * BODIES..].iter_mut().zip(&miss).for_each(|(s, d)| *s = 2.0 * d);
        let adjoints = grad.execute(&launch(&start, STEPS), &[(2, seed[..].into())])?;
        let slope = adjoints.of(0).and_then(BufferData::to_f32).ok_or("no adjoint of the state")?;
        let t = round as i32 + 1;
        for &i in &velocities {
            m[i] = 0.9 * m[i] + 0.1 * slope[i];
            v[i] = 0.99 * v[i] + 0.01 * slope[i] * slope[i];
            let (mean, spread) = (m[i] / (1.0 - 0.9f32.powi(t)), v[i] / (1.0 - 0.99f32.powi(t)));
            start[i] -= 0.08 * mean / (spread.sqrt() + 1e-8);
        }
    }
    let mut picture = Picture::new(960, 640);
    let ground = [[-1.0, 0.0], [5.0, 0.0]];
    picture.line(&ground, 0.012, [110, 110, 110]);
    for (start, colour) in [(&first, [205, 120, 90]), (&start, [60, 110, 190])] {
        for steps in [0, STEPS / 3, 2 * STEPS / 3, STEPS] {
            let y = ends(&kernel, start, steps)?;
            let points: Vec<[f32; 2]> = y.chunks_exact(3).map(|p| [p[0], p[2]]).collect();
            // What was earlier is paler.
            let pale = |c: u8| (255.0 - (255.0 - f32::from(c)) * (0.25 + 0.75 * steps as f32 / STEPS as f32)) as u8;
            picture.line(&points, 0.028, colour.map(pale));
        }
    }
    picture.dot([TARGET[0], TARGET[2]], 0.07, [30, 140, 60]);
    picture.write(&path)?;
    println!("{path}: before in red, after in blue, the target in green");
    Ok(())
}

struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<[f32; 3]>,
}

impl Picture {
    fn new(width: usize, height: usize) -> Picture {
        Picture { width, height, pixels: vec![[255.0; 3]; width * height] }
    }

    /// The place of a pixel, in metres: x to the right, z up.
    fn place(&self, x: usize, y: usize) -> [f32; 2] {
        let scale = 4.8 / self.width as f32;
        [x as f32 * scale - 0.6, (self.height as f32 - y as f32) * scale - 0.6]
    }

    fn paint(&mut self, colour: [u8; 3], distance: impl Fn([f32; 2]) -> f32) {
        let blur = 4.8 / self.width as f32;
        for y in 0..self.height {
            for x in 0..self.width {
                let cover = (0.5 - distance(self.place(x, y)) / blur).clamp(0.0, 1.0);
                let pixel = &mut self.pixels[y * self.width + x];
                pixel.iter_mut().zip(colour).for_each(|(p, c)| *p += (f32::from(c) - *p) * cover);
            }
        }
    }

    fn line(&mut self, points: &[[f32; 2]], half: f32, colour: [u8; 3]) {
        for pair in points.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            let along = [b[0] - a[0], b[1] - a[1]];
            let square = (along[0] * along[0] + along[1] * along[1]).max(1e-9);
            self.paint(colour, |p| {
                let from = [p[0] - a[0], p[1] - a[1]];
                let t = ((from[0] * along[0] + from[1] * along[1]) / square).clamp(0.0, 1.0);
                ((from[0] - t * along[0]).powi(2) + (from[1] - t * along[1]).powi(2)).sqrt() - half
            });
            self.dot(b, half * 1.35, colour);
        }
    }

    fn dot(&mut self, at: [f32; 2], radius: f32, colour: [u8; 3]) {
        self.paint(colour, |p| ((p[0] - at[0]).powi(2) + (p[1] - at[1]).powi(2)).sqrt() - radius);
    }

    fn write(&self, path: &str) -> Result<(), Failure> {
        let mut encoder = png::Encoder::new(std::fs::File::create(path)?, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let bytes: Vec<u8> = self.pixels.iter().flatten().map(|&c| c.round() as u8).collect();
        encoder.write_header()?.write_image_data(&bytes)?;
        Ok(())
    }
}
