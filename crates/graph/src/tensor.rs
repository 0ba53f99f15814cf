//! The type of a tensor (shape and element type), and tensors that live on the host.

use std::fmt;

use half::{bf16, f16};

use crate::dtype::DType;
use crate::error::GraphError;

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
