//! Blocks, statements and `let`.

use proc_macro2::{Ident, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Block, Expr, Item, Lifetime, Local, Pat, Stmt, Type};

use crate::flow;
use crate::scope::{Binding, BlockValue, Rewriter};
use crate::signature::kernel_type;

impl Rewriter {
    /// A block, with its braces.
    pub(crate) fn block(&mut self, b: &Block, want: BlockValue) -> TokenStream {
        self.open();
        let body = self.statements(&b.stmts, want);
        self.close();
        body
    }

    /// Statements as a block; the caller opens the scope.
    pub(crate) fn statements(&mut self, stmts: &[Stmt], want: BlockValue) -> TokenStream {
        let k = self.k.clone();
        let (mut out, mut label) = (TokenStream::new(), None);
        for (i, stmt) in stmts.iter().enumerate() {
            let last = i + 1 == stmts.len();
            out.extend(match stmt {
                Stmt::Local(l) => self.local(l),
                Stmt::Item(item @ (Item::Const(_) | Item::Use(_))) => quote!(#item),
                Stmt::Item(item) => self.fail(item, "declare this outside of the kernel"),
                Stmt::Expr(e, None) if last && want == BlockValue::Value => self.expr(e),
                Stmt::Expr(e, _) => self.statement(e),
                Stmt::Macro(m) => {
                    let tokens = self.comptime_macro(&m.mac);
                    match m.semi_token {
                        None if last && want == BlockValue::Value => tokens,
                        _ => quote_spanned!(m.span()=> #tokens;),
                    }
                }
            });
            // Where Rust knows that nothing after this runs, nothing after this is written: so ends recursion, and so do
            // loops of Rust.
            if !last && flow::may_leave(stmt) {
                let label = label.get_or_insert_with(|| self.fresh_label());
                out.extend(match want {
                    BlockValue::Unit => quote!(if #k.ended() { break #label; }),
                    BlockValue::Value => quote!(if #k.ended() { break #label ::impasto_kernel::lang::dead(#k); }),
                });
            }
        }
        match label {
            Some(label) => quote!(#label: { #out }),
            None => quote!({ #out }),
        }
    }

    /// An expression whose value does not count.
    pub(crate) fn statement(&mut self, e: &Expr) -> TokenStream {
        match e {
            Expr::If(i) => self.if_(i, BlockValue::Unit),
            Expr::Match(m) => self.match_(m, BlockValue::Unit),
            Expr::Loop(l) => self.loop_(l, BlockValue::Unit),
            Expr::While(w) => self.while_(w),
            Expr::ForLoop(f) => self.for_(f),
            Expr::Block(b) if b.label.is_none() => self.block(&b.block, BlockValue::Unit),
            Expr::Assign(a) => self.assign(&a.left, None, &a.right),
            Expr::Binary(b) if flow::assigns(&b.op) => self.assign(&b.left, Some(&b.op), &b.right),
            Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => self.leave(e),
            Expr::Group(g) => self.statement(&g.expr),
            _ => {
                let tokens = self.expr(e);
                quote_spanned!(e.span()=> #tokens;)
            }
        }
    }

    fn local(&mut self, l: &Local) -> TokenStream {
        if self.comptime(&l.attrs) {
            self.bind_comptime(&l.pat);
            let (pat, init) = (&l.pat, l.init.as_ref().map(|i| (&i.eq_token, &i.expr)));
            return match init {
                Some((eq, init)) => quote!(let #pat #eq #init;),
                None => quote!(let #pat;),
            };
        }
        let Some(init) = &l.init else {
            return self.fail(l, "give it a first value: `let mut x = ..;`");
        };
        if let Some((_, otherwise)) = &init.diverge {
            return self.fail(otherwise, "there is no `let .. else` in a kernel: every pattern fits");
        }
        let (pat, ty) = match &l.pat {
            Pat::Type(t) => (&*t.pat, Some(&*t.ty)),
            pat => (pat, None),
        };
        let k = self.k.clone();
        if let (Pat::Ident(name), Some(call)) = (pat, memory(&init.expr)) {
            let (tokens, name, text) = (self.expr(call), &name.ident, name.ident.to_string());
            self.bind(name, Binding::Value);
            return quote_spanned!(l.span()=> let #name = ::impasto_kernel::lang::named(#tokens, #text););
        }
        let value = self.expr(&init.expr);
        let span = init.expr.span();
        if let Pat::Ident(p) = pat
            && p.mutability.is_some()
        {
            let name = &p.ident;
            self.bind(name, Binding::Variable);
            let ty = ty.map(|t| {
                let t = crate::expr::value_type(t);
                quote!(::<#t>)
            });
            return quote_spanned!(span=> let #name = #k.var #ty(#value););
        }
        let mut variables = Vec::new();
        let pat = self.pattern(pat, &mut variables);
        let bound = match ty {
            None => quote_spanned!(span=> let #pat = #value;),
            Some(ty @ Type::Tuple(_)) => {
                let ty = kernel_type(ty, &Lifetime::new("'_", l.span()));
                quote_spanned!(span=> let #pat: #ty = ::impasto_kernel::lang::lift(#k, #value);)
            }
            Some(ty) => {
                let ty = crate::expr::value_type(ty);
                quote_spanned!(span=> let #pat = ::impasto_kernel::IntoVal::<#ty>::into_val(#value, #k);)
            }
        };
        let variables = variables.iter().map(|v| quote_spanned!(v.span()=> let #v = #k.var(#v);));
        quote!(#bound #(#variables)*)
    }

    /// A pattern that always fits, without its `mut`s, which it adds to the list.
    pub(crate) fn pattern(&mut self, pat: &Pat, variables: &mut Vec<Ident>) -> TokenStream {
        match pat {
            Pat::Wild(_) => quote!(#pat),
            Pat::Paren(p) => self.pattern(&p.pat, variables),
            Pat::Ident(p) if p.subpat.is_none() && p.by_ref.is_none() => {
                let name = &p.ident;
                if p.mutability.is_some() {
                    variables.push(name.clone());
                    self.bind(name, Binding::Variable);
                } else {
                    self.bind(name, Binding::Value);
                }
                quote!(#name)
            }
            Pat::Tuple(t) => {
                let all: Vec<TokenStream> = t.elems.iter().map(|p| self.pattern(p, variables)).collect();
                quote_spanned!(t.span()=> (#(#all,)*))
            }
            _ => self.fail(pat, "a pattern here is a name, `_`, or a tuple of patterns; read members with `x.name`"),
        }
    }
}

/// A call that makes memory, which is no variable although it can be written.
fn memory(e: &Expr) -> Option<&Expr> {
    match e {
        Expr::Call(c) => match &*c.func {
            Expr::Path(p) => p.path.segments.last().filter(|s| s.ident == "shared" || s.ident == "private").map(|_| e),
            _ => None,
        },
        Expr::Paren(p) => memory(&p.expr),
        Expr::Group(g) => memory(&g.expr),
        _ => None,
    }
}
