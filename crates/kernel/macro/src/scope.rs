//! What the names in a function stand for, and where `break`, `continue` and `return` go.

use std::collections::HashMap;

use proc_macro2::{Ident, Span, TokenStream};
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Attribute, Lifetime, Pat};

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binding {
    /// A value, or memory.
    Value,
    /// A variable of the kernel: `let mut`.
    Variable,
    /// A variable of a caller: a parameter `&mut T`.
    Reference,
    /// Something of Rust.
    Comptime,
}

/// A loop around what is rewritten.
pub(crate) struct EnclosingLoop {
    pub(crate) label: Option<String>,
    pub(crate) kind: LoopKind,
}

pub(crate) enum LoopKind {
    /// A loop of the kernel, by its handle.
    Runs(Ident),
    /// A loop of Rust. What `break` and `continue` leave are loops of the kernel that run once.
    Unrolled { all: Ident, iteration: Ident },
}

/// Where `return` goes.
pub(crate) enum Returns {
    /// Out of the kernel.
    Kernel,
    /// Out of the loop that stands for the function.
    Function(Ident),
}

/// One function that is being rewritten.
pub(crate) struct Rewriter {
    frames: Vec<HashMap<String, Binding>>,
    pub(crate) loops: Vec<EnclosingLoop>,
    pub(crate) returns: Returns,
    /// The builder.
    pub(crate) k: Ident,
    fresh: usize,
    errors: Option<syn::Error>,
}

/// Whether a rewritten block or branch must have a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockValue {
    Unit,
    Value,
}

/// A name that the user's names cannot meet.
pub(crate) fn hidden(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// A name for what stands here. It is no hidden one, since rustc points at the whole macro instead of those; so it is one that nobody
/// writes.
pub(crate) fn name_at(name: &str, span: Span) -> Ident {
    Ident::new(&format!("__{name}"), span)
}

impl Rewriter {
    pub(crate) fn new(returns: Returns) -> Rewriter {
        Rewriter { frames: vec![HashMap::new()], loops: Vec::new(), returns, k: hidden("k"), fresh: 0, errors: None }
    }

    /// The first mistakes of the user, if there are any.
    pub(crate) fn finish(self) -> syn::Result<()> {
        self.errors.map_or(Ok(()), Err)
    }

    /// Notes a mistake of the user. What comes out instead is never used.
    pub(crate) fn fail(&mut self, at: impl ToTokens, message: &str) -> TokenStream {
        let error = syn::Error::new_spanned(at, message);
        match &mut self.errors {
            Some(all) => all.combine(error),
            none => *none = Some(error),
        }
        TokenStream::new()
    }

    pub(crate) fn open(&mut self) {
        self.frames.push(HashMap::new());
    }

    pub(crate) fn close(&mut self) {
        self.frames.pop();
    }

    pub(crate) fn bind(&mut self, name: &Ident, binding: Binding) {
        if let Some(frame) = self.frames.last_mut() {
            frame.insert(name.to_string(), binding);
        }
    }

    pub(crate) fn lookup(&self, name: &Ident) -> Option<Binding> {
        let name = name.to_string();
        self.frames.iter().rev().find_map(|f| f.get(&name)).copied()
    }

    /// Everything that a pattern binds is Rust's.
    pub(crate) fn bind_comptime(&mut self, pat: &Pat) {
        struct Names<'a>(&'a mut Rewriter);
        impl Visit<'_> for Names<'_> {
            fn visit_pat_ident(&mut self, p: &syn::PatIdent) {
                self.0.bind(&p.ident, Binding::Comptime);
                visit::visit_pat_ident(self, p);
            }
        }
        Names(self).visit_pat(pat);
    }

    /// A name like this that is used once.
    pub(crate) fn fresh(&mut self, name: &str, span: Span) -> Ident {
        self.fresh += 1;
        name_at(&format!("{name}{}", self.fresh), span)
    }

    pub(crate) fn fresh_label(&mut self) -> Lifetime {
        self.fresh += 1;
        Lifetime::new(&format!("'live{}", self.fresh), Span::mixed_site())
    }

    /// Whether `#[comptime]` stands here. Attributes that only quiet lints are dropped, others have no meaning.
    pub(crate) fn comptime(&mut self, attrs: &[Attribute]) -> bool {
        let mut comptime = false;
        for a in attrs {
            if a.path().is_ident("comptime") {
                comptime = true;
            } else if !["allow", "expect", "doc"].iter().any(|n| a.path().is_ident(n))
                && a.path().segments.first().is_none_or(|s| s.ident != "rustfmt")
            {
                self.fail(a, "the only attribute in a kernel is `#[comptime]`");
            }
        }
        comptime
    }
}
