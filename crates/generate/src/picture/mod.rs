//! A picture in memory, read from files and written to them.

mod exif;
mod jpeg;

use std::io::{self, BufRead, BufReader, BufWriter, Cursor, Read, Seek, Write};
use std::path::{Path, PathBuf};

use image::{DynamicImage, ImageDecoder as _, ImageReader, imageops::FilterType};
use impasto_weights::open_file;
use png::text_metadata::ITXtChunk;

/// What can go wrong with a picture's file.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// It cannot be read.
    #[error("cannot read the picture {path}: {problem}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// It cannot be written.
    #[error("cannot write {path}: {problem}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// A kind of file that we do not write.
    #[error("{path}: its end must be .png, .jpg, .jpeg or .webp, which says how it is written")]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// A picture whose run has not ended.
    #[error(
        "{path} was begun and not finished: impasto resume {} takes the steps that are left; add --force to begin anew, or name another file with -o",
        .state.display()
    )]
    Unfinished {
        /// The file.
        path: PathBuf,
        /// Where its run stands.
        state: PathBuf,
    },
    /// A picture that another process makes.
    #[error("{path} is being made by another process: wait for it, or name another file with -o")]
    BeingMade {
        /// The file.
        path: PathBuf,
    },
    /// A file that is there already.
    #[error("{path} is there already: name another file with -o, or add --force to overwrite it")]
    Exists {
        /// The file.
        path: PathBuf,
    },
}

/// Red, green and blue, a byte each, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// `height * width * 3` bytes.
    pub rgb: Vec<u8>,
}

/// How a picture is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// PNG.
    Png,
    /// JPEG.
    Jpeg,
    /// WebP, without loss.
    WebP,
}

impl Format {
    /// By the end of a file's name.
    pub fn of(path: &Path) -> Result<Format, PictureError> {
        let end = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        match end.as_deref() {
            Some("png") => Ok(Format::Png),
            Some("jpg" | "jpeg") => Ok(Format::Jpeg),
            Some("webp") => Ok(Format::WebP),
            _ => Err(PictureError::Kind { path: path.into() }),
        }
    }
}

impl Picture {
    /// From numbers between -1 and 1, `(height, width, 3)`.
    pub fn from_signed(height: usize, width: usize, values: &[f32]) -> Picture {
        // Round half to even, as diffusers' numpy does.
        let byte = |v: &f32| ((v * 0.5 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
        Picture { width, height, rgb: values.iter().map(byte).collect() }
    }

    /// As numbers between -1 and 1, `(height, width, 3)`.
    pub fn to_signed(&self) -> Vec<f32> {
        self.rgb.iter().map(|&b| 2.0 * (f32::from(b) / 255.0) - 1.0).collect()
    }

    /// Whether all pixels are the same.
    pub fn is_flat(&self) -> bool {
        self.rgb.chunks_exact(3).all(|p| Some(p) == self.rgb.get(..3))
    }

    /// Read a file, cut to the proportions of `width` by `height` around its middle and scaled to that.
    pub fn read(path: &Path, width: usize, height: usize) -> Result<Picture, PictureError> {
        let image = open(path)?.resize_to_fill(width as u32, height as u32, FilterType::Lanczos3);
        Ok(Picture { width, height, rgb: image.into_rgb8().into_raw() })
    }

    /// Read a mask, scaled in the same way: for each pixel whether it is white.
    pub fn read_mask(path: &Path, width: usize, height: usize) -> Result<Vec<bool>, PictureError> {
        let image = open(path)?.resize_to_fill(width as u32, height as u32, FilterType::Nearest);
        Ok(image.into_luma8().into_raw().into_iter().map(|v| v >= 128).collect())
    }

    /// The size of a picture's file, `(width, height)`, without reading the picture.
    pub fn size_of(path: &Path) -> Result<(usize, usize), PictureError> {
        let wrong = |e: &dyn std::fmt::Display| PictureError::Read { path: path.into(), problem: e.to_string() };
        let reader = ImageReader::new(BufReader::new(open_file(path).map_err(|e| wrong(&e))?));
        let (width, height) = reader
            .with_guessed_format()
            .and_then(|reader| reader.into_dimensions().map_err(io::Error::other))
            .map_err(|e| wrong(&e))?;
        Ok((width as usize, height as usize))
    }

    /// Write a file with `parameters` as webui keeps them inside. The file appears whole or not at all.
    pub fn write(&self, path: &Path, parameters: &str, force: bool) -> Result<(), PictureError> {
        let format = Format::of(path)?;
        let wrong = |e: &dyn std::fmt::Display| PictureError::Write { path: path.into(), problem: e.to_string() };
        // What is overwritten is the file that a link leads to, not the link.
        let target = std::fs::canonicalize(path).ok().filter(|_| force && path.is_symlink());
        let path = target.as_deref().unwrap_or(path);
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|e| wrong(&e))?;
        let mut out = BufWriter::new(file.as_file_mut());
        self.encode(format, parameters, &mut out).map_err(|e| wrong(&e))?;
        // The last bytes can fail too; and what replaces the state of a run must be on the disk before that goes.
        out.flush().and_then(|()| out.get_ref().sync_all()).map_err(|e| wrong(&e))?;
        drop(out);
        #[cfg(feature = "faults")]
        if impasto_faults::write() {
            return Err(wrong(&std::io::Error::from(std::io::ErrorKind::StorageFull)));
        }
        readable_as_usual(&file);
        let kept = if force { file.persist(path) } else { file.persist_noclobber(path) };
        match kept {
            Ok(_) => Ok(()),
            Err(e) if e.error.kind() == std::io::ErrorKind::AlreadyExists => {
                Err(PictureError::Exists { path: path.into() })
            }
            Err(e) => Err(wrong(&e.error)),
        }
    }

    /// The bytes of a file with `parameters` as webui keeps them inside.
    pub fn encoded(&self, format: Format, parameters: &str) -> Result<Vec<u8>, PictureError> {
        let mut bytes = vec![];
        let wrong =
            |e: Box<dyn std::error::Error>| PictureError::Write { path: "memory".into(), problem: e.to_string() };
        self.encode(format, parameters, &mut bytes).map_err(wrong)?;
        Ok(bytes)
    }

    fn encode(&self, format: Format, parameters: &str, out: &mut dyn Write) -> Result<(), Box<dyn std::error::Error>> {
        use image::{ExtendedColorType::Rgb8, ImageEncoder, codecs};
        let (width, height) = (u32::try_from(self.width)?, u32::try_from(self.height)?);
        match format {
            Format::Png => {
                let mut png = png::Encoder::new(&mut *out, width, height);
                png.set_color(png::ColorType::Rgb);
                png.set_depth(png::BitDepth::Eight);
                if !parameters.is_empty() {
                    // Latin-1 has its own kind of chunk, which more programs read.
                    if parameters.chars().all(|c| (c as u32) < 256) {
                        png.add_text_chunk("parameters".into(), parameters.into())?;
                    } else {
                        png.add_itxt_chunk("parameters".into(), parameters.into())?;
                    }
                }
                let mut writer = png.write_header()?;
                writer.write_image_data(&self.rgb)?;
                writer.finish()?;
            }
            Format::Jpeg => {
                let mut jpeg = codecs::jpeg::JpegEncoder::new_with_quality(&mut *out, 92);
                jpeg.set_exif_metadata(exif::user_comment(parameters))?;
                jpeg.write_image(&self.rgb, width, height, Rgb8)?;
            }
            Format::WebP => {
                let mut webp = codecs::webp::WebPEncoder::new_lossless(&mut *out);
                webp.set_exif_metadata(exif::user_comment(parameters))?;
                webp.write_image(&self.rgb, width, height, Rgb8)?;
            }
        }
        out.flush()?;
        Ok(())
    }
}

/// Temporary files are their owner's alone; a picture is like any other new file.
fn readable_as_usual(file: &tempfile::NamedTempFile) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Without reading the mask of the process, which cannot be read without changing it: what nearly everybody has.
        let _ = file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644));
    }
    #[cfg(not(unix))]
    let _ = file;
}

/// Longest text read from a picture, in bytes after decompression; a longer one is ignored.
const MOST_TEXT: usize = 1 << 20;

/// What a PNG, JPEG or WebP says of how it was made, where webui keeps that.
pub fn parameters(path: &Path) -> Result<Option<String>, PictureError> {
    let wrong = |e: &dyn std::fmt::Display| PictureError::Read { path: path.into(), problem: e.to_string() };
    let file = BufReader::new(open_file(path).map_err(|e| wrong(&e))?);
    read_parameters(file).map_err(|e| wrong(&e))
}

/// The same for a picture in memory.
pub fn parameters_of(bytes: &[u8]) -> Result<Option<String>, PictureError> {
    let wrong = |e: image::ImageError| PictureError::Read { path: "memory".into(), problem: e.to_string() };
    read_parameters(Cursor::new(bytes)).map_err(wrong)
}

fn read_parameters(file: impl BufRead + Seek) -> Result<Option<String>, image::ImageError> {
    let reader = ImageReader::new(file).with_guessed_format()?;
    if reader.format() == Some(image::ImageFormat::Png) {
        let decoder = png::Decoder::new(reader.into_inner());
        let wrong = |e: png::DecodingError| {
            let hint = image::error::ImageFormatHint::Exact(image::ImageFormat::Png);
            image::ImageError::Decoding(image::error::DecodingError::new(hint, e))
        };
        let reader = decoder.read_info().map_err(wrong)?;
        let info = reader.info();
        let plain = info.uncompressed_latin1_text.iter().find(|t| t.keyword == "parameters").map(|t| t.text.clone());
        let unpacked =
            |mut chunk: ITXtChunk| chunk.decompress_text_with_limit(MOST_TEXT).and_then(|()| chunk.get_text());
        let wide = info.utf8_text.iter().find(|t| t.keyword == "parameters").and_then(|t| unpacked(t.clone()).ok());
        return Ok(plain.or(wide).filter(|text| text.len() <= MOST_TEXT));
    }
    let exif = reader.into_decoder().and_then(|mut decoder| decoder.exif_metadata())?;
    Ok(exif.and_then(|exif| exif::read_user_comment(&exif)).filter(|text| text.len() <= MOST_TEXT))
}

fn open(path: &Path) -> Result<DynamicImage, PictureError> {
    let wrong = |e: &dyn std::fmt::Display| PictureError::Read { path: path.into(), problem: e.to_string() };
    let mut bytes = vec![];
    open_file(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(|e| wrong(&e))?;
    let reader = ImageReader::new(Cursor::new(&bytes)).with_guessed_format().map_err(|e| wrong(&e))?;
    // Its decoder fills what is missing of a JPEG with grey.
    if reader.format() == Some(image::ImageFormat::Jpeg) && !jpeg::is_complete(&bytes) {
        return Err(wrong(&"it is cut off before its end; download or copy it again"));
    }
    reader.decode().map_err(|e| wrong(&e))
}

#[cfg(test)]
mod tests {
    use png::text_metadata::TEXtChunk;

    use super::*;

    /// A compressed text of a few kilobytes could take gigabytes.
    #[test]
    fn a_text_of_more_than_a_mebibyte_is_none() {
        let file = |text: ITXtChunk, is_plain: bool| {
            let mut out = vec![];
            let write = |out: &mut Vec<u8>| {
                let mut writer = png::Encoder::new(out, 1, 1).write_header()?;
                match is_plain {
                    true => writer.write_text_chunk(&TEXtChunk::new("parameters", text.get_text().expect("ours")))?,
                    false => writer.write_text_chunk(&text)?,
                }
                writer.write_image_data(&[0])
            };
            write(&mut out).expect("written to memory");
            out
        };
        let text = |bytes| ITXtChunk::new("parameters", "x".repeat(bytes));
        let plain = |bytes| file(text(bytes), true);
        let packed = |bytes| {
            let mut chunk = text(bytes);
            chunk.compressed = true;
            file(chunk, false)
        };
        for bytes in [plain(MOST_TEXT), packed(MOST_TEXT)] {
            assert_eq!(parameters_of(&bytes).expect("a PNG").map(|text| text.len()), Some(MOST_TEXT));
        }
        for bytes in [plain(MOST_TEXT + 1), packed(MOST_TEXT + 1), packed(64 << 20)] {
            assert_eq!(parameters_of(&bytes).expect("a PNG"), None);
        }
        assert!(packed(64 << 20).len() < 1 << 20);
    }
}
