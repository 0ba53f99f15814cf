//! The adapter of one module: what its tensors are together, checked against each other by their shapes.

use std::collections::BTreeMap;

use super::names::Role;
use crate::format::TensorInfo;

/// Two matrices whose product is meant, by the names of their tensors.
#[derive(Clone, Debug)]
pub(super) struct Factors {
    /// `(rows, rank)`, or turned where there is a core.
    pub left: String,
    /// `(rank, columns)`.
    pub right: String,
    /// `(rank, rank, height, width)`.
    pub core: Option<String>,
    /// Whether `left` is `(rank, rows)`.
    pub turned: bool,
    /// Columns of `left`.
    pub rank: usize,
    /// Rows of `right`.
    pub inner: usize,
    pub rows: usize,
    pub columns: usize,
}

/// One side of a Kronecker product.
#[derive(Clone, Debug)]
pub(super) enum Side {
    Whole { name: String, rows: usize, columns: usize },
    Product(Factors),
}

impl Side {
    pub(super) fn size(&self) -> (usize, usize) {
        match self {
            Side::Whole { rows, columns, .. } => (*rows, *columns),
            Side::Product(factors) => (factors.rows, factors.columns),
        }
    }
}

/// How the difference of a weight is written.
#[derive(Clone, Debug)]
pub(super) enum Form {
    LowRank(Factors),
    /// The element-wise product of two products (LoHa).
    Hadamard([Factors; 2]),
    /// LoKr.
    Kronecker([Side; 2]),
    Full(String),
}

/// The difference of a weight, seen as a matrix of the weight's rows.
#[derive(Clone, Debug)]
pub(super) struct WeightDelta {
    pub form: Form,
    pub rows: usize,
    pub columns: usize,
    /// What the product is multiplied with.
    pub scale: f32,
    /// DoRA: the lengths that rows or columns should have, and the shape of that tensor.
    pub lengths: Option<(String, Vec<usize>)>,
}

/// What a file has for one module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adapter {
    pub(super) weight: Option<WeightDelta>,
    /// The difference of the bias, and its numbers.
    pub(super) bias: Option<(String, usize)>,
}

/// The tensors of a module by their roles.
pub(super) struct ModuleTensors<'a> {
    pub module: &'a str,
    pub tensors: BTreeMap<Role, &'a TensorInfo>,
    /// The scale of products of this rank.
    pub scale: &'a dyn Fn(usize) -> f32,
}

/// Rows, and what is in each.
fn matrix(tensor: &TensorInfo) -> (usize, usize) {
    let rows = tensor.shape.first().copied().unwrap_or(1);
    (rows, tensor.shape.iter().skip(1).product())
}

impl ModuleTensors<'_> {
    fn get(&self, role: Role) -> Option<&TensorInfo> {
        self.tensors.get(&role).copied()
    }

    fn need(&self, role: Role, other: &TensorInfo) -> Result<&TensorInfo, String> {
        self.get(role)
            .ok_or_else(|| format!("module '{}' has '{}' and no tensor that completes it", self.module, other.name))
    }

    /// The adapter that these tensors are, or why they are none.
    pub(super) fn adapter(&self) -> Result<Adapter, String> {
        if let Some(empty) = self.tensors.values().find(|tensor| tensor.elements() == 0) {
            let (module, name, shape) = (self.module, &empty.name, &empty.shape);
            return Err(format!("module '{module}' has rank 0: tensor '{name}' has the shape {shape:?}"));
        }
        let bias = self.get(Role::DiffBias).map(|tensor| (tensor.name.clone(), tensor.elements() as usize));
        Ok(Adapter { weight: self.weight()?, bias })
    }

    fn weight(&self) -> Result<Option<WeightDelta>, String> {
        let lengths = self.get(Role::Lengths).map(|tensor| {
            // PEFT has lengths of rows only, which for a convolution stand in the second dimension.
            let rows = tensor.name.contains("lora_magnitude_vector");
            let shape = if rows { vec![tensor.elements() as usize] } else { tensor.shape.clone() };
            (tensor.name.clone(), shape)
        });
        let found = match [Role::Down, Role::Up, Role::HadaW1A, Role::Diff].map(|role| self.get(role)) {
            [Some(one), ..] | [None, Some(one), ..] => Some(self.low_rank(one)?),
            [_, _, Some(one), _] => Some(self.hadamard(one)?),
            [.., Some(diff)] => {
                let (rows, columns) = matrix(diff);
                Some((Form::Full(diff.name.clone()), rows, columns, 1.0))
            }
            _ => self.kronecker()?,
        };
        let delta = |(form, rows, columns, scale)| WeightDelta { form, rows, columns, scale, lengths };
        Ok(found.map(delta))
    }

    fn low_rank(&self, one: &TensorInfo) -> Result<(Form, usize, usize, f32), String> {
        let (down, up) = (self.need(Role::Down, one)?, self.need(Role::Up, one)?);
        let factors = self.factors(up, down, self.get(Role::Mid), false)?;
        let (rows, columns) = (factors.rows, factors.columns);
        Ok((Form::LowRank(factors), rows, columns, (self.scale)(matrix(down).0)))
    }

    fn hadamard(&self, one: &TensorInfo) -> Result<(Form, usize, usize, f32), String> {
        let (right, cores) = (self.need(Role::HadaW1B, one)?, [Role::HadaT1, Role::HadaT2].map(|role| self.get(role)));
        let first = self.factors(one, right, cores[0], cores[0].is_some())?;
        let (left, other) = (self.need(Role::HadaW2A, one)?, self.need(Role::HadaW2B, one)?);
        let second = self.factors(left, other, cores[1], cores[1].is_some())?;
        if (first.rows, first.columns) != (second.rows, second.columns) {
            return Err(format!("module '{}' has two products of different shapes", self.module));
        }
        let (rows, columns, scale) = (first.rows, first.columns, (self.scale)(matrix(right).0));
        Ok((Form::Hadamard([first, second]), rows, columns, scale))
    }

    fn kronecker(&self) -> Result<Option<(Form, usize, usize, f32)>, String> {
        let known = [Role::LokrW1, Role::LokrW1A, Role::LokrW2, Role::LokrW2A];
        let Some(one) = known.into_iter().find_map(|role| self.get(role)) else { return Ok(None) };
        let side = |whole: Role, left: Role, right: Role, core: Option<&TensorInfo>| match self.get(whole) {
            Some(tensor) => {
                let (rows, columns) = matrix(tensor);
                Ok((Side::Whole { name: tensor.name.clone(), rows, columns }, None))
            }
            None => {
                let (left, right) = (self.need(left, one)?, self.need(right, one)?);
                let factors = self.factors(left, right, core, core.is_some())?;
                Ok::<_, String>((Side::Product(factors), Some(matrix(right).0)))
            }
        };
        let (first, first_rank) = side(Role::LokrW1, Role::LokrW1A, Role::LokrW1B, None)?;
        let (second, second_rank) = side(Role::LokrW2, Role::LokrW2A, Role::LokrW2B, self.get(Role::LokrT2))?;
        let (a, b) = (first.size(), second.size());
        let scale = second_rank.or(first_rank).map_or(1.0, |rank| (self.scale)(rank));
        let (rows, columns) = (a.0.saturating_mul(b.0), a.1.saturating_mul(b.1));
        Ok(Some((Form::Kronecker([first, second]), rows, columns, scale)))
    }

    /// Two tensors, and perhaps a core between them, that can be multiplied.
    fn factors(
        &self,
        left: &TensorInfo,
        right: &TensorInfo,
        core: Option<&TensorInfo>,
        turned: bool,
    ) -> Result<Factors, String> {
        let ((mut rows, mut rank), (right_rank, mut columns)) = (matrix(left), matrix(right));
        if turned {
            (rows, rank) = (rank, rows);
        }
        let mut fits = rank == right_rank;
        if let Some(core) = core {
            let kernel: usize = core.shape.iter().skip(2).product();
            fits = core.shape.len() >= 2 && core.shape[..2] == [rank, right_rank];
            columns = columns.saturating_mul(kernel);
        }
        if !fits {
            let shapes: Vec<String> =
                [Some(left), core, Some(right)].into_iter().flatten().map(|t| format!("{:?}", t.shape)).collect();
            return Err(format!("module '{}': {} cannot be multiplied", self.module, shapes.join(" and ")));
        }
        let core = core.map(|core| core.name.clone());
        Ok(Factors {
            left: left.name.clone(),
            right: right.name.clone(),
            core,
            turned,
            rank,
            inner: right_rank,
            rows,
            columns,
        })
    }
}

impl Adapter {
    /// The tensors that change a weight, or a bias.
    pub(super) fn tensors(&self, bias: bool) -> Vec<&str> {
        fn of<'a>(factors: &'a Factors, names: &mut Vec<&'a str>) {
            names.extend([&*factors.left, &*factors.right].into_iter().chain(factors.core.as_deref()));
        }
        let mut names = vec![];
        let (Some(delta), false) = (&self.weight, bias) else {
            return self.bias.iter().filter(|_| bias).map(|(name, _)| &**name).collect();
        };
        match &delta.form {
            Form::LowRank(factors) => of(factors, &mut names),
            Form::Hadamard(both) => both.iter().for_each(|factors| of(factors, &mut names)),
            Form::Full(name) => names.push(name),
            Form::Kronecker(sides) => sides.iter().for_each(|side| match side {
                Side::Whole { name, .. } => names.push(name),
                Side::Product(factors) => of(factors, &mut names),
            }),
        }
        names.extend(delta.lengths.iter().map(|(name, _)| &**name));
        names
    }

    /// The rank of the product that changes a weight, if nothing but one does.
    pub(super) fn rank(&self) -> Option<usize> {
        match self.weight.as_ref()? {
            WeightDelta { form: Form::LowRank(factors), lengths: None, .. } => Some(factors.rank),
            _ => None,
        }
    }

    /// Whether it changes one of `parts` equal parts of what it was made for, of this shape; or why not.
    pub(super) fn fits(&self, bias: bool, shape: &[usize], parts: usize) -> Result<(), String> {
        let (rows, columns) = (shape.first().copied().unwrap_or(1), shape.iter().skip(1).product::<usize>());
        let wanted = (rows.saturating_mul(parts), columns);
        let (found, lengths) = match (bias, &self.weight, &self.bias) {
            (true, _, Some((_, numbers))) => ((*numbers, 1), &None),
            (false, Some(delta), _) => ((delta.rows, delta.columns), &delta.lengths),
            _ => return Err("nothing is said of it".into()),
        };
        // A vector may stand as one row.
        let vector = shape.len() == 1 && found == (1, wanted.0);
        if found != wanted && !vector {
            let (rows, columns) = found;
            return Err(format!("it is for {rows} x {columns} numbers, the model has {} x {}", wanted.0, wanted.1));
        }
        let axis = lengths.as_ref().map(|(_, lengths)| LengthAxis::of(lengths, wanted.0, shape, parts));
        match axis {
            Some(None) => Err("its dora_scale has as many numbers as neither its rows nor its columns".into()),
            _ => Ok(()),
        }
    }
}

/// Of what DoRA has lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LengthAxis {
    Rows,
    /// Inputs: the second dimension of a weight.
    Columns,
}

impl LengthAxis {
    /// By the shape of the lengths: rows of all parts, and the shape of one.
    pub(super) fn of(lengths: &[usize], rows: usize, shape: &[usize], parts: usize) -> Option<LengthAxis> {
        let (count, first) = (lengths.iter().product::<usize>(), lengths.first().copied().unwrap_or(1));
        match () {
            () if count == rows && first == rows => Some(LengthAxis::Rows),
            // The length of a column of some rows says nothing of the column.
            () if parts == 1 && shape.get(1) == Some(&count) => Some(LengthAxis::Columns),
            () => None,
        }
    }
}
