//! Expressions.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{BinOp, Expr, Lit, Member, Path, Type, UnOp};

use crate::flow;
use crate::scope::{Binding, BlockValue, Rewriter};

/// Whether the path leads through a type (`f16::from_f32`) or names a constructor (`Some`): then a call is plain Rust.
fn plain_call(path: &Path) -> bool {
    let capital = |i: &Ident| i.to_string().starts_with(|c: char| c.is_ascii_uppercase());
    let names: Vec<&Ident> = path.segments.iter().map(|s| &s.ident).collect();
    let Some((last, before)) = names.split_last() else { return false };
    let primitive = |i: &Ident| {
        let numbers = "f16 bf16 f32 f64 i8 u8 i16 u16 i32 u32 i64 u64 isize usize bool";
        numbers.split(' ').any(|n| i == n)
    };
    capital(last) || before.last().is_some_and(|i| capital(i) || primitive(i))
}

/// A type of the language as rustc shall see it: `usize` is an index, so a `u32`.
pub(crate) fn value_type(ty: &Type) -> TokenStream {
    match ty {
        Type::Path(p) if p.path.is_ident("usize") => quote_spanned!(ty.span()=> u32),
        Type::Paren(p) => value_type(&p.elem),
        Type::Group(g) => value_type(&g.elem),
        Type::Array(a) => {
            let (elem, len) = (value_type(&a.elem), &a.len);
            quote_spanned!(ty.span()=> [#elem; #len])
        }
        _ => ty.to_token_stream(),
    }
}

/// What an operand looks like to the operator beside it.
fn operand(tokens: TokenStream, e: &Expr) -> TokenStream {
    match e {
        Expr::Lit(_) | Expr::Path(_) | Expr::Paren(_) | Expr::Call(_) | Expr::MethodCall(_) => tokens,
        _ => quote_spanned!(e.span()=> (#tokens)),
    }
}

impl Rewriter {
    /// An expression whose value counts.
    pub(crate) fn expr(&mut self, e: &Expr) -> TokenStream {
        let (k, span) = (self.k.clone(), e.span());
        match e {
            Expr::Lit(l) => match &l.lit {
                Lit::Int(_) | Lit::Float(_) | Lit::Bool(_) => quote!(#l),
                _ => self.fail(
                    e,
                    "a kernel computes with numbers and truth values; write other literals in `comptime!(..)`",
                ),
            },
            Expr::Path(p) => match p.path.get_ident().map(|i| (i, self.lookup(i))) {
                Some((name, Some(Binding::Variable))) => quote_spanned!(span=> #name.get()),
                _ => quote!(#p),
            },
            Expr::Paren(p) => {
                let inner = self.expr(&p.expr);
                quote_spanned!(span=> (#inner))
            }
            Expr::Group(g) => self.expr(&g.expr),
            Expr::Unary(u) => self.unary(u),
            Expr::Binary(b) if flow::assigns(&b.op) => self.assign(&b.left, Some(&b.op), &b.right),
            Expr::Binary(b) => self.binary(b),
            Expr::Assign(a) => self.assign(&a.left, None, &a.right),
            Expr::Cast(c) => {
                if matches!(&*c.ty, Type::Path(p) if p.path.is_ident("bool")) {
                    return self.fail(&c.ty, "no number becomes a `bool`: compare it, `x != 0`");
                }
                let (x, ty) = (self.expr(&c.expr), value_type(&c.ty));
                quote_spanned!(c.ty.span()=> ::impasto_kernel::lang::cast::<#ty, _>(#x))
            }
            Expr::Call(c) => self.call(c),
            Expr::MethodCall(m) => {
                let receiver = self.receiver(&m.receiver);
                let args: Vec<TokenStream> = m.args.iter().map(|a| self.expr(a)).collect();
                let (method, turbofish) = (&m.method, &m.turbofish);
                quote_spanned!(span=> #receiver.#method #turbofish(#(#args),*))
            }
            Expr::Field(_) | Expr::Index(_) if self.comptime_rooted(e) => quote!(#e),
            Expr::Field(f) => {
                let base = self.receiver(&f.base);
                match &f.member {
                    Member::Named(name) => {
                        quote_spanned!(name.span()=> ::impasto_kernel::lang::member(#base, |m| m.#name))
                    }
                    Member::Unnamed(number) => quote_spanned!(span=> #base.#number),
                }
            }
            Expr::Index(i) => {
                if matches!(&*i.index, Expr::Range(_)) {
                    return self.fail(&i.index, "there are no slices of slices: pass the first index as a parameter");
                }
                let (base, index) = (self.receiver(&i.expr), self.expr(&i.index));
                quote_spanned!(i.index.span()=> ::impasto_kernel::lang::at(#k, #base, #index))
            }
            Expr::Tuple(t) => {
                let all: Vec<TokenStream> = t.elems.iter().map(|e| self.expr(e)).collect();
                quote_spanned!(span=> (#(#all,)*))
            }
            Expr::Array(a) => {
                let all: Vec<TokenStream> = a.elems.iter().map(|e| self.value(e)).collect();
                quote_spanned!(span=> ::impasto_kernel::lang::array(#k, [#(#all),*]))
            }
            Expr::Repeat(r) => {
                let (x, n) = (self.value(&r.expr), &r.len);
                quote_spanned!(span=> ::impasto_kernel::lang::array(#k, [#x; #n]))
            }
            Expr::Struct(s) => self.structure(s),
            Expr::Reference(r) => self.reference(r),
            Expr::Macro(m) => self.comptime_macro(&m.mac),
            Expr::If(i) => self.if_(i, BlockValue::Value),
            Expr::Match(m) => self.match_(m, BlockValue::Value),
            Expr::Loop(l) => self.loop_(l, BlockValue::Value),
            Expr::While(_) | Expr::ForLoop(_) | Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => {
                let statement = self.statement(e);
                quote_spanned!(span=> { #statement })
            }
            Expr::Block(b) if b.label.is_none() => self.block(&b.block, BlockValue::Value),
            Expr::Block(b) => {
                self.fail(&b.label, "a block has no label here; write a `#[kernel_fn]` and return from it")
            }
            Expr::Closure(c) => self.fail(c, "a kernel has no closures; write a function with `#[kernel_fn]`"),
            Expr::Range(r) => self.fail(r, "a range stands in `for i in a..b` only"),
            Expr::Let(l) => {
                self.fail(l, "`let` in a condition is Rust's: write `#[comptime]` before the `if` or `while`")
            }
            Expr::Try(t) => self.fail(t, "a kernel has no `?`; check before, or in `comptime!(..)`"),
            Expr::Unsafe(u) => self.fail(u, "nothing in a kernel is unsafe: remove the block"),
            _ => self.fail(e, "a kernel cannot say this; plain Rust stands in `comptime!(..)`"),
        }
    }

    /// An expression as a value of the kernel, so that plain numbers may stand beside others.
    fn value(&mut self, e: &Expr) -> TokenStream {
        let (k, x) = (self.k.clone(), self.expr(e));
        quote_spanned!(e.span()=> ::impasto_kernel::IntoVal::into_val(#x, #k))
    }

    /// An expression before a `.` or `[`; a parameter `&mut T` is looked through, as in Rust.
    fn receiver(&mut self, e: &Expr) -> TokenStream {
        if let Expr::Path(p) = e
            && let Some(name) = p.path.get_ident()
            && self.lookup(name) == Some(Binding::Reference)
        {
            return quote_spanned!(name.span()=> #name.get());
        }
        let tokens = self.expr(e);
        operand(tokens, e)
    }

    fn unary(&mut self, u: &syn::ExprUnary) -> TokenStream {
        if !matches!(u.op, UnOp::Deref(_)) {
            let x = self.expr(&u.expr);
            let (op, x) = (&u.op, operand(x, &u.expr));
            return quote_spanned!(u.span()=> #op #x);
        }
        match &*u.expr {
            Expr::Path(p) => match p.path.get_ident().map(|i| (i, self.lookup(i))) {
                Some((name, Some(Binding::Reference))) => quote_spanned!(u.span()=> #name.get()),
                Some((_, Some(Binding::Comptime))) => quote!(#u),
                _ => self.fail(u, "only a parameter `&mut T` is read with `*`"),
            },
            _ => self.fail(u, "only a parameter `&mut T` is read with `*`"),
        }
    }

    fn binary(&mut self, b: &syn::ExprBinary) -> TokenStream {
        let k = self.k.clone();
        let (left, right) = (self.expr(&b.left), self.expr(&b.right));
        let op_span = b.op.span();
        let compare = match &b.op {
            BinOp::Eq(_) => "eq",
            BinOp::Ne(_) => "ne",
            BinOp::Lt(_) => "lt",
            BinOp::Le(_) => "le",
            BinOp::Gt(_) => "gt",
            BinOp::Ge(_) => "ge",
            BinOp::And(_) | BinOp::Or(_) => {
                let name = Ident::new(if matches!(b.op, BinOp::And(_)) { "and" } else { "or" }, op_span);
                let pure = flow::pure(&b.right);
                return quote_spanned!(op_span=> ::impasto_kernel::lang::#name(#k, #left, #pure, || #right));
            }
            op => {
                let (left, right) = (operand(left, &b.left), operand(right, &b.right));
                return quote_spanned!(b.span()=> #left #op #right);
            }
        };
        let name = Ident::new(compare, op_span);
        quote_spanned!(op_span=> ::impasto_kernel::lang::#name(#left, #right))
    }

    fn call(&mut self, c: &syn::ExprCall) -> TokenStream {
        let Expr::Path(path) = &*c.func else {
            return self.fail(&c.func, "call a function by its name");
        };
        let args: Vec<TokenStream> = c.args.iter().map(|a| self.expr(a)).collect();
        if plain_call(&path.path) {
            return quote_spanned!(c.span()=> #path(#(#args),*));
        }
        let k = self.k.clone();
        quote_spanned!(c.span()=> #path(#k #(, #args)*))
    }

    fn structure(&mut self, s: &syn::ExprStruct) -> TokenStream {
        if let Some(rest) = &s.rest {
            return self.fail(rest, "name every member");
        }
        let k = self.k.clone();
        let (mut lets, mut fields, mut values) = (TokenStream::new(), Vec::new(), Vec::new());
        for f in &s.fields {
            let Member::Named(name) = &f.member else {
                return self.fail(f, "members have names");
            };
            let x = self.value(&f.expr);
            let member = self.fresh("member", f.expr.span());
            let text = name.to_string();
            lets.extend(quote_spanned!(f.expr.span()=> let #member = #x;));
            fields.push(quote_spanned!(name.span()=> #name: ::impasto_kernel::lang::type_of(#member)));
            values.push(quote!((#text, ::impasto_kernel::lang::id(#member))));
        }
        let path = &s.path;
        quote_spanned!(s.span()=> {
            #lets
            ::impasto_kernel::lang::make(#k, || #path { #(#fields),* }, &[#(#values),*])
        })
    }

    /// `&x` is `x`: values are copied and memory is referred to anyway. `&mut x` of a variable is the variable.
    fn reference(&mut self, r: &syn::ExprReference) -> TokenStream {
        let name = match &*r.expr {
            Expr::Path(p) => p.path.get_ident(),
            _ => None,
        };
        match name.map(|n| (n, self.lookup(n))) {
            Some((name, Some(Binding::Variable))) if r.mutability.is_some() => quote!(#name),
            None if r.mutability.is_some() => self.fail(r, "`&mut` is of a variable or of memory, by its name"),
            _ => self.expr(&r.expr),
        }
    }

    /// `comptime!(..)`, and nothing else.
    pub(crate) fn comptime_macro(&mut self, m: &syn::Macro) -> TokenStream {
        if !m.path.is_ident("comptime") {
            return self.fail(&m.path, "the only macro in a kernel is `comptime!(..)`, and others may stand in it");
        }
        let tokens = &m.tokens;
        quote_spanned!(m.span()=> { #tokens })
    }

    /// Whether this is something of Rust, followed by members, elements and methods.
    pub(crate) fn comptime_rooted(&self, e: &Expr) -> bool {
        match e {
            Expr::Field(f) => self.comptime_rooted(&f.base),
            Expr::Index(i) => self.comptime_rooted(&i.expr),
            Expr::MethodCall(m) => self.comptime_rooted(&m.receiver),
            Expr::Paren(p) => self.comptime_rooted(&p.expr),
            Expr::Group(g) => self.comptime_rooted(&g.expr),
            Expr::Macro(_) => true,
            Expr::Path(p) => match p.path.get_ident() {
                // What no pattern here binds is a constant.
                Some(name) => matches!(self.lookup(name), None | Some(Binding::Comptime)),
                None => true,
            },
            _ => false,
        }
    }
}
