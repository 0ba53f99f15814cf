//! The type of a tensor (shape and element type), and tensors that live on the host.

use std::fmt;
use std::ops::Range;

use half::{bf16, f16};

use crate::dtype::DType;
use crate::error::{GraphError, Operand, Operands};
use crate::infer::infer;
use crate::op::Op;

/// Shape and element type of a value. Dimensions run from the slowest to the fastest; images are
/// `(batch, height, width, channels)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The dimensions, slowest first.
    pub shape: Vec<usize>,
    /// The element type.
    pub dtype: DType,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(shape: impl Into<Vec<usize>>, dtype: DType) -> Self {
        TensorType { shape: shape.into(), dtype }
    }

    /// Number of elements; the largest number for a shape that is beyond counting.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |n: u64, &d| n.saturating_mul(d as u64))
    }

    /// Bytes of the dense tensor.
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.bytes())
    }

    /// The last dimension: channels of an image, width of a token.
    pub fn channels(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all dimensions but the last: pixels or tokens.
    pub fn rows(&self) -> usize {
        self.shape.split_last().map_or(1, |(_, rest)| rest.iter().product())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.shape.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

/// The elements of a [`HostTensor`], by type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are the element types")]
pub enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    I32(Vec<i32>),
}

impl Data {
    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Data::F32(_) => DType::F32,
            Data::F16(_) => DType::F16,
            Data::BF16(_) => DType::BF16,
            Data::I32(_) => DType::I32,
        }
    }

    fn len(&self) -> usize {
        match self {
            Data::F32(v) => v.len(),
            Data::F16(v) => v.len(),
            Data::BF16(v) => v.len(),
            Data::I32(v) => v.len(),
        }
    }
}

/// A tensor in the memory of this process: what goes into a module and what comes out of it.
///
/// ```
/// use impasto_graph::HostTensor;
/// let t = HostTensor::f32([2, 3], vec![1.0; 6])?;
/// assert_eq!(t.ty().to_string(), "f32[2,3]");
/// assert!(HostTensor::f32([2, 3], vec![1.0; 5]).is_err());
/// # Ok::<(), impasto_graph::GraphError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    ty: TensorType,
    data: Data,
}

impl Data {
    /// The elements as files and devices have them, little endian.
    ///
    /// ```
    /// use impasto_graph::Data;
    /// let mut data = Data::I32(vec![0]);
    /// data.fill_from(&Data::I32(vec![258]).to_bytes());
    /// assert_eq!(data.to_bytes(), [2, 1, 0, 0]);
    /// ```
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![];
        self.append_to(&mut bytes);
        bytes
    }

    /// Appends [`Data::to_bytes`] to bytes that are there.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        match self {
            Data::F32(v) => to.extend(v.iter().flat_map(|x| x.to_le_bytes())),
            Data::F16(v) => to.extend(v.iter().flat_map(|x| x.to_le_bytes())),
            Data::BF16(v) => to.extend(v.iter().flat_map(|x| x.to_le_bytes())),
            Data::I32(v) => to.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        }
    }

    /// Copies as many of [`Data::to_bytes`] as `out` has room for, from byte `offset` on; false if there are not so many.
    ///
    /// ```
    /// use impasto_graph::Data;
    /// let mut out = [0; 3];
    /// assert!(Data::I32(vec![258, 7]).copy_bytes(1, &mut out));
    /// assert_eq!(out, [1, 0, 0]);
    /// ```
    pub fn copy_bytes(&self, offset: usize, out: &mut [u8]) -> bool {
        fn each<T: Copy, const N: usize>(from: &[T], offset: usize, out: &mut [u8], bytes: fn(T) -> [u8; N]) -> bool {
            let Some(end) = offset.checked_add(out.len()).filter(|&end| end <= N * from.len()) else { return false };
            let mut at = 0;
            for (i, x) in (offset / N..).zip(&from[offset / N..end.div_ceil(N)]) {
                let (first, last) = (offset.max(N * i) - N * i, (end - N * i).min(N));
                out[at..at + last - first].copy_from_slice(&bytes(*x)[first..last]);
                at += last - first;
            }
            true
        }
        match self {
            Data::F32(v) => each(v, offset, out, f32::to_le_bytes),
            Data::F16(v) => each(v, offset, out, f16::to_le_bytes),
            Data::BF16(v) => each(v, offset, out, bf16::to_le_bytes),
            Data::I32(v) => each(v, offset, out, i32::to_le_bytes),
        }
    }

    /// Sets elements from such bytes, as many as there are of both.
    pub fn fill_from(&mut self, bytes: &[u8]) {
        fn each<T, const N: usize>(to: &mut [T], bytes: &[u8], read: fn([u8; N]) -> T) {
            for (to, from) in to.iter_mut().zip(bytes.chunks_exact(N)) {
                *to = read(from.try_into().expect("chunks are of this length"));
            }
        }
        match self {
            Data::F32(v) => each(v, bytes, f32::from_le_bytes),
            Data::F16(v) => each(v, bytes, f16::from_le_bytes),
            Data::BF16(v) => each(v, bytes, bf16::from_le_bytes),
            Data::I32(v) => each(v, bytes, i32::from_le_bytes),
        }
    }
}

impl HostTensor {
    /// A tensor from its shape and elements; their numbers must agree.
    pub fn new(shape: impl Into<Vec<usize>>, data: Data) -> Result<Self, GraphError> {
        let ty = TensorType::new(shape, data.dtype());
        if ty.elements() != data.len() as u64 {
            return Err(GraphError::WrongLength { ty, given: data.len() });
        }
        Ok(HostTensor { ty, data })
    }

    /// A tensor of 32-bit floats.
    pub fn f32(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Result<Self, GraphError> {
        Self::new(shape, Data::F32(data))
    }

    /// A tensor of integers.
    pub fn i32(shape: impl Into<Vec<usize>>, data: Vec<i32>) -> Result<Self, GraphError> {
        Self::new(shape, Data::I32(data))
    }

    /// A tensor of zeros: the room for a result.
    pub fn zeros(ty: &TensorType) -> Self {
        let n = ty.elements() as usize;
        let data = match ty.dtype {
            DType::F32 => Data::F32(vec![0.0; n]),
            DType::F16 => Data::F16(vec![f16::ZERO; n]),
            DType::BF16 => Data::BF16(vec![bf16::ZERO; n]),
            DType::I32 => Data::I32(vec![0; n]),
        };
        HostTensor { ty: ty.clone(), data }
    }

    /// Shape and element type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The dimensions, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.ty.shape
    }

    /// The elements.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The elements, to be written.
    pub fn data_mut(&mut self) -> &mut Data {
        &mut self.data
    }

    /// A part of an axis.
    ///
    /// ```
    /// use impasto_graph::HostTensor;
    /// let t = HostTensor::i32([2, 3], vec![1, 2, 3, 4, 5, 6])?;
    /// let parts = [t.slice(1, 0..1)?, t.slice(1, 1..3)?];
    /// assert_eq!(parts[1].to_f32(), [2.0, 3.0, 5.0, 6.0]);
    /// assert_eq!(HostTensor::concat(1, &parts)?, t);
    /// # Ok::<(), impasto_graph::GraphError>(())
    /// ```
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Result<Self, GraphError> {
        let mut ty = self.ty.clone();
        let Some(size) = ty.shape.get_mut(axis).filter(|size| range.start <= range.end && range.end <= **size) else {
            return Err(GraphError::NoPart { ty: self.ty.clone(), axis, range });
        };
        *size = range.len();
        let row: usize = self.ty.shape[axis + 1..].iter().product();
        let (line, from, len) = (self.ty.shape[axis] * row, range.start * row, range.len() * row);
        fn part<T: Copy>(all: &[T], line: usize, from: usize, len: usize) -> Vec<T> {
            all.chunks_exact(line.max(1)).flat_map(|line| &line[from..from + len]).copied().collect()
        }
        let data = match &self.data {
            Data::F32(v) => Data::F32(part(v, line, from, len)),
            Data::F16(v) => Data::F16(part(v, line, from, len)),
            Data::BF16(v) => Data::BF16(part(v, line, from, len)),
            Data::I32(v) => Data::I32(part(v, line, from, len)),
        };
        Ok(HostTensor { ty, data })
    }

    /// Tensors one after the other along an axis; they agree in everything else.
    pub fn concat(axis: usize, parts: &[HostTensor]) -> Result<Self, GraphError> {
        let types: Vec<&TensorType> = parts.iter().map(|p| &p.ty).collect();
        let ty = infer(&Op::Concat { axis }, &types, None).map_err(|problem| {
            let operands = parts.iter().map(|p| Operand { role: "part".into(), ty: p.ty.clone() }).collect();
            GraphError::Shape { label: "host tensors".into(), op: "concat", operands: Operands(operands), problem }
        })?;
        let lines: usize = ty.shape[..axis].iter().product();
        fn join<'a, T: Copy + 'a>(lines: usize, parts: &[&'a [T]]) -> Vec<T> {
            let line = |i: usize| parts.iter().flat_map(move |p| p.chunks_exact(p.len() / lines).nth(i).unwrap_or(&[]));
            (0..lines).flat_map(line).copied().collect()
        }
        macro_rules! joined {
            ($kind:ident) => {
                Data::$kind(join(
                    lines,
                    &parts
                        .iter()
                        .filter_map(|p| if let Data::$kind(v) = &p.data { Some(&v[..]) } else { None })
                        .collect::<Vec<_>>(),
                ))
            };
        }
        let data = match ty.dtype {
            DType::F32 => joined!(F32),
            DType::F16 => joined!(F16),
            DType::BF16 => joined!(BF16),
            DType::I32 => joined!(I32),
        };
        Ok(HostTensor { ty, data })
    }

    /// The elements as 32-bit floats, whatever their type.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.data {
            Data::F32(v) => v.clone(),
            Data::F16(v) => v.iter().map(|x| x.to_f32()).collect(),
            Data::BF16(v) => v.iter().map(|x| x.to_f32()).collect(),
            Data::I32(v) => v.iter().map(|&x| x as f32).collect(),
        }
    }

    /// The same values in another element type.
    pub fn cast(&self, dtype: DType) -> Self {
        if dtype == self.ty.dtype {
            return self.clone();
        }
        let values = self.to_f32();
        let data = match dtype {
            DType::F32 => Data::F32(values),
            DType::F16 => Data::F16(values.into_iter().map(f16::from_f32).collect()),
            DType::BF16 => Data::BF16(values.into_iter().map(bf16::from_f32).collect()),
            DType::I32 => Data::I32(values.into_iter().map(|x| x as i32).collect()),
        };
        HostTensor { ty: TensorType::new(self.ty.shape.clone(), dtype), data }
    }
}
