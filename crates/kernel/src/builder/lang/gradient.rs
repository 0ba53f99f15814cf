//! What `#[kernel_fn(grad = ..)]` writes: the results of a function, with the derivatives that another function gives.

use std::marker::PhantomData;

use super::super::types::{Type, Vector};
use super::super::{Builder, Val};
use crate::ir::{Kernel, OpKind, Scalar, Shape, Ty, Value};

/// What a function can be differentiated by: values of f32, alone or in vectors, arrays, structs and tuples. Whole numbers among them have no
/// derivatives.
#[diagnostic::on_unimplemented(
    message = "a function with a gradient of its own is differentiated by values, not by `{Self}`"
)]
pub trait DerivativeInput<'k>: Copy {
    /// Its scalars of f32, in order.
    #[track_caller]
    fn scalars(self, k: &'k Builder, out: &mut Vec<Value>);
}

/// What a function with a gradient of its own can give, when `I` is what it is differentiated by.
#[diagnostic::on_unimplemented(
    message = "a function with a gradient of its own gives `f32`, a vector of them, or a tuple of up to four, not `{Self}`"
)]
pub trait DerivativeOutput<'k, I>: Sized {
    /// For each result its derivatives by `I`, which have the type of `I`.
    type Gradient;
    /// The result with these derivatives.
    #[track_caller]
    fn with(self, k: &'k Builder, by: I, gradient: Self::Gradient) -> Self;
}

/// What a scalar of this type is to a gradient.
enum ScalarRole {
    Float,
    Number,
    /// A float that has no gradients.
    Short,
}

fn role_of(s: Scalar) -> ScalarRole {
    match s {
        Scalar::F32 => ScalarRole::Float,
        s if s.is_float() => ScalarRole::Short,
        _ => ScalarRole::Number,
    }
}

/// The types of the members of a composite; none for a scalar.
fn members(kernel: &Kernel, ty: Ty) -> Vec<Ty> {
    match kernel.shape(ty) {
        Shape::Scalar(_) | Shape::Matrix(_) => Vec::new(),
        _ => (0..kernel.members(ty)).filter_map(|i| kernel.member(ty, i)).collect(),
    }
}

#[track_caller]
fn take_apart(k: &Builder, v: Value, ty: Ty, out: &mut Vec<Value>) {
    match ty.as_scalar().map(role_of) {
        Some(ScalarRole::Float) => out.push(v),
        Some(ScalarRole::Number) => {}
        Some(ScalarRole::Short) => {
            k.fail("a gradient of its own is by f32, and a parameter has floats of 16 bits".to_owned())
        }
        None => {
            let members = members(&k.state.borrow().asm.kernel, ty);
            for (i, ty) in members.into_iter().enumerate() {
                let member = k.here().asm.value(OpKind::Extract(i as u32), &[v], ty);
                take_apart(k, member, ty, out);
            }
        }
    }
}

impl<'k, T: Type> DerivativeInput<'k> for Val<'k, T> {
    fn scalars(self, k: &'k Builder, out: &mut Vec<Value>) {
        take_apart(k, self.id, k.ty_of::<T>(), out);
    }
}

impl<'k, I: DerivativeInput<'k>> DerivativeOutput<'k, I> for Val<'k, f32> {
    type Gradient = I;
    fn with(self, k: &'k Builder, by: I, gradient: I) -> Self {
        let (mut inputs, mut derivatives) = (Vec::new(), Vec::new());
        by.scalars(k, &mut inputs);
        gradient.scalars(k, &mut derivatives);
        let pairs = inputs.into_iter().zip(derivatives).flat_map(|(x, d)| [x, d]);
        k.emit(OpKind::Custom, &std::iter::once(self.id).chain(pairs).collect::<Vec<_>>())
    }
}

macro_rules! results {
    (inputs $($a:ident $n:tt),*) => {
        impl<'k, $($a: DerivativeInput<'k>),*> DerivativeInput<'k> for ($($a,)*) {
            fn scalars(self, k: &'k Builder, out: &mut Vec<Value>) {
                $(self.$n.scalars(k, out);)*
            }
        }
    };
    ($n:literal: $($i:tt $g:ident),*) => {
        impl<'k, I: DerivativeInput<'k>> DerivativeOutput<'k, I> for ($(results!(@ $g),)*) {
            type Gradient = ($(results!(@ I $g),)*);
            fn with(self, k: &'k Builder, by: I, gradient: Self::Gradient) -> Self {
                ($(self.$i.with(k, by, gradient.$i),)*)
            }
        }
        impl<'k, I: DerivativeInput<'k>> DerivativeOutput<'k, I> for Val<'k, Vector<f32, $n>> {
            type Gradient = ($(results!(@ I $g),)*);
            fn with(self, k: &'k Builder, by: I, gradient: Self::Gradient) -> Self {
                let parts = [$(self.component($i).with(k, by, gradient.$i).id),*];
                Val { k, id: k.emit::<Vector<f32, $n>>(OpKind::Make, &parts).id, ty: PhantomData }
            }
        }
    };
    (@ $g:ident) => { Val<'k, f32> };
    (@ I $g:ident) => { I };
}
results!(inputs A 0, B 1);
results!(inputs A 0, B 1, C 2);
results!(inputs A 0, B 1, C 2, D 3);
results!(inputs A 0, B 1, C 2, D 3, E 4);
results!(inputs A 0, B 1, C 2, D 3, E 4, F 5);
results!(2: 0 A, 1 B);
results!(3: 0 A, 1 B, 2 C);
results!(4: 0 A, 1 B, 2 C, 3 D);

/// The result of a function with the derivatives that its gradient gave.
#[track_caller]
pub fn with_gradient<'k, I, O: DerivativeOutput<'k, I>>(k: &'k Builder, result: O, by: I, gradient: O::Gradient) -> O {
    result.with(k, by, gradient)
}
