//! Assignment: to a variable, to an element of memory, and to members and elements inside of either.

use proc_macro2::{Ident, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{BinOp, Expr, Member, UnOp};

use crate::scope::{Binding, Rewriter, name_at};

/// One step from a composite to a part of it.
enum Step<'a> {
    Member(&'a Ident),
    Index(&'a Expr),
}

impl Step<'_> {
    /// Reads the part `to` of the composite `from`.
    fn read(&self, k: &Ident, from: &Ident, index: &Ident, to: &Ident) -> TokenStream {
        match self {
            Step::Index(e) => quote_spanned!(e.span()=> let #to = ::impasto_kernel::lang::at(#k, #from, #index);),
            Step::Member(name) => {
                quote_spanned!(name.span()=> let #to = ::impasto_kernel::lang::member(#from, |m| m.#name);)
            }
        }
    }

    /// Makes of `new`, a part of the composite `from`, that composite.
    fn write(&self, k: &Ident, from: &Ident, index: &Ident, new: &Ident) -> TokenStream {
        match self {
            Step::Index(e) => {
                quote_spanned!(e.span()=> let #new = ::impasto_kernel::lang::put(#k, #from, #index, #new);)
            }
            Step::Member(name) => quote_spanned!(name.span()=>
                let #new = ::impasto_kernel::lang::with_member(#from, |m| m.#name, #new);),
        }
    }
}

/// The operator of a compound assignment.
fn operator(op: &BinOp) -> Option<TokenStream> {
    let span = op.span();
    Some(match op {
        BinOp::AddAssign(_) => quote_spanned!(span=> +),
        BinOp::SubAssign(_) => quote_spanned!(span=> -),
        BinOp::MulAssign(_) => quote_spanned!(span=> *),
        BinOp::DivAssign(_) => quote_spanned!(span=> /),
        BinOp::RemAssign(_) => quote_spanned!(span=> %),
        BinOp::BitXorAssign(_) => quote_spanned!(span=> ^),
        BinOp::BitAndAssign(_) => quote_spanned!(span=> &),
        BinOp::BitOrAssign(_) => quote_spanned!(span=> |),
        BinOp::ShlAssign(_) => quote_spanned!(span=> <<),
        BinOp::ShrAssign(_) => quote_spanned!(span=> >>),
        _ => return None,
    })
}

/// The name that a place starts from, and the way from there.
fn parts<'a>(e: &'a Expr, steps: &mut Vec<Step<'a>>) -> Option<&'a Ident> {
    match e {
        Expr::Path(p) => p.path.get_ident(),
        Expr::Paren(p) => parts(&p.expr, steps),
        Expr::Group(g) => parts(&g.expr, steps),
        Expr::Unary(u) if matches!(u.op, UnOp::Deref(_)) => parts(&u.expr, steps),
        Expr::Field(f) => {
            let root = parts(&f.base, steps);
            let Member::Named(name) = &f.member else { return None };
            steps.push(Step::Member(name));
            root
        }
        Expr::Index(i) => {
            let root = parts(&i.expr, steps);
            steps.push(Step::Index(&i.index));
            root
        }
        _ => None,
    }
}

impl Rewriter {
    /// `place = value`, or `place op= value`.
    pub(crate) fn assign(&mut self, place: &Expr, op: Option<&BinOp>, value: &Expr) -> TokenStream {
        let mut steps = Vec::new();
        let Some(root) = parts(place, &mut steps) else {
            return match place {
                Expr::Infer(_) => {
                    let value = self.expr(value);
                    quote_spanned!(value.span()=> let _ = #value;)
                }
                Expr::Tuple(_) => self.fail(place, "assign to one place at a time"),
                _ => self.fail(place, "this cannot be assigned to; a place is `x`, `x[i]`, `x.name`, or `*x`"),
            };
        };
        let binding = self.lookup(root);
        if binding == Some(Binding::Comptime) {
            let value = self.expr(value);
            return match op {
                None => quote!(#place = #value;),
                Some(op) => quote!(#place #op #value;),
            };
        }
        let variable = matches!(binding, Some(Binding::Variable | Binding::Reference));
        if steps.is_empty() && !variable {
            return self.fail(place, "this cannot be assigned to: declare it with `let mut`");
        }
        let k = self.k.clone();
        // As in Rust, the value is computed first, then the place.
        let new = name_at("new", value.span());
        let value_tokens = self.expr(value);
        let mut out = quote_spanned!(value.span()=> let #new = #value_tokens;);
        let root_value = if variable { quote_spanned!(root.span()=> #root.get()) } else { quote!(#root) };
        let name = |(i, step): (usize, &Step)| match step {
            Step::Index(e) => name_at(&format!("index{i}"), e.span()),
            Step::Member(m) => name_at(&format!("index{i}"), m.span()),
        };
        let indices: Vec<Ident> = steps.iter().enumerate().map(name).collect();
        for (step, name) in steps.iter().zip(&indices) {
            if let Step::Index(index) = step {
                let tokens = self.expr(index);
                out.extend(quote_spanned!(index.span()=> let #name = #tokens;));
            }
        }
        // The composites on the way, outermost first, and the old value if it is needed.
        let inner: Vec<Ident> = (0..=steps.len()).map(|i| name_at(&format!("inner{i}"), root.span())).collect();
        if !steps.is_empty() || op.is_some() {
            let first = &inner[0];
            out.extend(quote_spanned!(root.span()=> let #first = #root_value;));
        }
        let reads = if op.is_some() { steps.len() } else { steps.len().saturating_sub(1) };
        for (i, step) in steps.iter().enumerate().take(reads) {
            let (from, to, index) = (&inner[i], &inner[i + 1], &indices[i]);
            out.extend(step.read(&k, from, index, to));
        }
        if let Some(op) = op.and_then(operator) {
            let old = &inner[steps.len()];
            out.extend(quote_spanned!(place.span()=> let #new = #old #op #new;));
        }
        // From the inside out, each composite with its new part.
        for (i, step) in steps.iter().enumerate().rev() {
            out.extend(step.write(&k, &inner[i], &indices[i], &new));
        }
        if variable {
            out.extend(quote_spanned!(value.span()=> #root.set(#new);));
        } else if matches!(steps.first(), Some(Step::Member(_))) {
            return self.fail(place, "this cannot be assigned to: declare it with `let mut`");
        } else {
            // Only memory gives nothing here: the elements of a value that is no variable do not change.
            out.extend(quote_spanned!(root.span()=> let () = #new;));
        }
        quote!({ #out })
    }
}
