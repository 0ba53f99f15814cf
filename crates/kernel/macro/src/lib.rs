//! `#[kernel]`: a subset of Rust, rewritten into calls of `impasto_kernel`'s builder. The macro knows syntax and nothing else: types,
//! inference and messages about them are rustc's, and every token of the user keeps its place in the source.

mod control;
mod derive;
mod expr;
mod flow;
mod place;
mod scope;
mod signature;
mod stmt;

use proc_macro::TokenStream;

/// Makes a function a kernel: what it computes is written by the builder when the function is called.
///
/// ```
/// use impasto_kernel::prelude::*;
/// #[kernel]
/// fn saxpy(n: u32, a: f32, x: &[f32], y: &mut [f32]) {
///     let i = global_id(0);
///     if i < n {
///         y[i] = a * x[i] + y[i];
///     }
/// }
/// let kernel: Kernel = saxpy()?;
/// # Ok::<(), KernelError>(())
/// ```
///
/// The function then takes its `#[comptime]` parameters, and gives a `Result<Kernel, KernelError>`. The others are what a launch
/// gives: scalars, buffers that are read (`&[T]`) and buffers that are written (`&mut [T]`).
///
/// `#[stored(scalar)] x: &[f32]` is a buffer that is kept as another type, which is known when the kernel is written (a `Scalar` of the
/// crate, from comptime parameters): what is read from it is converted to `f32`, what is written into it from `f32`.
///
/// ```
/// use impasto_kernel::prelude::*;
/// #[kernel]
/// fn double(#[comptime] from: Scalar, #[stored(from)] x: &[f32], #[stored(Scalar::F16)] y: &mut [f32]) {
///     let i = global_id(0);
///     y[i] = x[i] * 2.0;
/// }
/// assert!(double(Scalar::Bf16)?.to_string().contains("buffer x: bf16"));
/// # Ok::<(), KernelError>(())
/// ```
///
/// `#[kernel(workgroup = 128)]`, `#[kernel(workgroup = [tile, tile, 1])]`: the size of a workgroup, by default 64; any expression of Rust,
/// also of comptime parameters.
///
/// `#[kernel(grad = backward)]`: another kernel, with the same workgroup, parameters and comptime parameters, is its adjoint, and differentiation gives that one.
/// Its buffers are told apart by their names, as `Kernel::with_gradient` says; one that does not fit is an error when the kernel is made.
///
/// ```
/// use impasto_kernel::prelude::*;
/// // The largest of each row, by an atomic, which has no derivative of its own.
/// #[kernel(workgroup = 32, grad = row_max_back)]
/// fn row_max(columns: u32, x: &[f32], y: &mut [f32]) {
///     let row = global_id(0);
///     let mut most = x[row * columns];
///     for i in 1..columns {
///         most = most.max(x[row * columns + i]);
///     }
///     y[row] = most;
/// }
///
/// // All that are as large get the whole adjoint.
/// #[kernel(workgroup = 32)]
/// fn row_max_back(columns: u32, x: &[f32], d_x: &mut [f32], d_y: &[f32]) {
///     let row = global_id(0);
///     let mut most = x[row * columns];
///     for i in 1..columns {
///         most = most.max(x[row * columns + i]);
///     }
///     for i in 0..columns {
///         if x[row * columns + i] == most {
///             d_x[row * columns + i] += d_y[row];
///         }
///     }
/// }
/// assert_eq!(row_max()?.gradient().unwrap().name, "row_max_back");
/// # Ok::<(), KernelError>(())
/// ```
///
/// # The language
///
/// It is Rust with the types `f32 f16 bf16 i32 u32 i64 u64 bool`, vectors (`Vec4<f32>`, written `vec4(a, b, c, d)`, with members `x y z w`),
/// arrays `[T; N]`, and structs with `#[derive(KernelStruct)]`. `usize` is another name for `u32`, which is what an index is.
/// Control flow is Rust's: `if` and `match` on integers also as expressions, `for` over `a..b`, `(a..b).step_by(n)` and `(a..b).rev()`,
/// `while`, `loop`, `break` and `continue` with labels, early `return`; `&&` and `||` compute the right side only if it counts.
/// Arithmetic has a result for every operand: integers wrap, and `x / 0` is `x`.
///
/// - `f(x)` calls a function of the language: those of `impasto_kernel::prelude`, and those marked `#[kernel_fn]`. `f16::from_f32(x)`, a
///   path through a type, is plain Rust, and so are methods of plain numbers.
/// - `let mut s = shared::<f32>(64);` is memory of the workgroup, `private::<f32>(8)` an array of the invocation that can be indexed by
///   what the kernel computes; an array value `[0.0; 8]` is indexed by constants.
///
/// # Comptime
///
/// What Rust knows while the kernel is written is plain Rust: literals, constants, `#[comptime]` parameters, and what is computed
/// from those alone with `let`. An `if` on a plain `bool` and a `match` on a plain number are decided then, and only the arm that is taken is
/// written. `comptime!{ .. }` is any Rust expression, left as it is. `#[comptime]` before `let`, `for`, `while`, `loop`, `if` and `match`
/// makes the statement itself Rust's (a loop is then unrolled); what its body does is the kernel's still. A `#[comptime] let mut` changes as
/// the kernel is written, from top to bottom, whichever way the kernel will go.
///
/// ```
/// use impasto_kernel::prelude::*;
/// #[kernel(workgroup = size)]
/// fn sum(#[comptime] size: u32, x: &[f32], y: &mut [f32]) {
///     let mut s = shared::<f32>(size);
///     let l = local_id(0);
///     s[l] = x[global_id(0)];
///     barrier();
///     #[comptime]
///     let mut step = size / 2;
///     #[comptime]
///     while step > 0 {
///         if l < step {
///             s[l] += s[l + step];
///         }
///         barrier();
///         step /= 2;
///     }
///     if l == 0 {
///         y[workgroup_id(0)] = s[0];
///     }
/// }
/// let kernel = sum(128)?;
/// # Ok::<(), KernelError>(())
/// ```
#[proc_macro_attribute]
pub fn kernel(args: TokenStream, item: TokenStream) -> TokenStream {
    signature::kernel(args.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a function one of the language: kernels call it, and it is written into them where it is called.
///
/// ```
/// use impasto_kernel::prelude::*;
/// #[kernel_fn]
/// fn gelu(x: f32) -> f32 {
///     if x < -8.0 {
///         return 0.0;
///     }
///     0.5 * x * (1.0 + (0.7978846 * (x + 0.044715 * x * x * x)).tanh())
/// }
///
/// #[kernel_fn]
/// fn dot<T: Float + Lit>(#[comptime] n: u32, a: &[T], b: &[T]) -> T {
///     let mut sum = lit::<T>(0.0);
///     for i in 0..n {
///         sum += a[i] * b[i];
///     }
///     sum
/// }
///
/// #[kernel]
/// fn layer(a: &[f32], b: &[f32], y: &mut [f32]) {
///     y[0] = gelu(dot(16, a, b));
/// }
/// layer()?;
/// # Ok::<(), KernelError>(())
/// ```
///
/// Parameters are values, tuples of values, buffers and arrays in memory (`&[T]`, `&mut [T]`), variables of the caller (`&mut f32`), and
/// `#[comptime]` values. Recursion must end while the kernel is written, so by a comptime parameter.
///
/// `#[kernel_fn(grad = gradient)]`: derivatives of the function are what another function says, which is called with the same arguments and gives the derivative
/// by each of them that is no integer, as a tuple if there are several. Both modes of differentiation use it, and it is differentiated in
/// turn where a derivative of a derivative is asked for. A function with several results (a tuple, a vector) has such a gradient for each.
/// Buffers and `&mut` are no parameters of such a function, since nothing would be said about them.
///
/// ```
/// use impasto_kernel::prelude::*;
/// /// sin(x) / x, whose derivative would be 0 / 0 at 0.
/// #[kernel_fn(grad = sinc_gradient)]
/// fn sinc(x: f32) -> f32 {
///     if x.abs() < 1e-3 { 1.0 - x * x / 6.0 } else { x.sin() / x }
/// }
///
/// #[kernel_fn]
/// fn sinc_gradient(x: f32) -> f32 {
///     if x.abs() < 1e-3 { x / -3.0 } else { (x * x.cos() - x.sin()) / (x * x) }
/// }
///
/// /// A pull towards the middle whose gradient is limited.
/// #[kernel_fn(grad = pull_gradient)]
/// fn pull(x: Vec2<f32>, strength: f32) -> f32 {
///     strength * (x.x * x.x + x.y * x.y)
/// }
///
/// #[kernel_fn]
/// fn pull_gradient(x: Vec2<f32>, strength: f32) -> (Vec2<f32>, f32) {
///     let by_x = (2.0 * strength * x.x).min(1.0).max(-1.0);
///     let by_y = (2.0 * strength * x.y).min(1.0).max(-1.0);
///     (vec2(by_x, by_y), x.x * x.x + x.y * x.y)
/// }
///
/// #[kernel]
/// fn energies(x: &[Vec2<f32>], y: &mut [f32]) {
///     let i = global_id(0);
///     y[i] = pull(x[i], 0.5) + sinc(x[i].x);
/// }
/// assert!(energies()?.to_string().contains("custom"));
/// # Ok::<(), KernelError>(())
/// ```
#[proc_macro_attribute]
pub fn kernel_fn(args: TokenStream, item: TokenStream) -> TokenStream {
    signature::kernel_fn(args.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a struct with named members a type of the language; it must be `Copy`.
#[proc_macro_derive(KernelStruct)]
pub fn kernel_struct(item: TokenStream) -> TokenStream {
    derive::kernel_struct(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
