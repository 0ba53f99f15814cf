//! Branches and loops.

use proc_macro2::{Ident, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Block, Expr, Label, Lit, Pat, RangeLimits, Stmt};

use crate::flow;
use crate::scope::{BlockValue, EnclosingLoop, LoopKind, Returns, Rewriter, name_at};

impl Rewriter {
    /// What an arm contains, and its end. `mixed` says that some arms give literals and others do not.
    fn arm(&mut self, branch: &Ident, body: &Expr, want: BlockValue, mixed: bool) -> TokenStream {
        if want == BlockValue::Unit || flow::diverges(body) {
            let (span, body) = (body.span(), self.statement(body));
            return quote_spanned!(span=> { #body #branch.leave(); });
        }
        let (tokens, value) = (self.expr(body), name_at("value", body.span()));
        let give = if mixed && literal(body) { quote!(give_literal) } else { quote!(give) };
        quote_spanned!(body.span()=> { let #value = #tokens; #branch.#give(#value); })
    }

    /// The beginning and the end of a branch whose arms are these.
    fn branch(&mut self, want: BlockValue, bodies: &[&Expr], from: &Expr) -> (TokenStream, TokenStream) {
        let k = self.k.clone();
        let leaving = bodies.iter().filter(|b| flow::diverges(b)).count();
        match want {
            BlockValue::Unit => (quote_spanned!(from.span()=> ::<_, ()>), quote_spanned!(from.span()=> end();)),
            // Nobody gives, so there is nothing to have.
            BlockValue::Value if leaving == bodies.len() => (
                quote_spanned!(from.span()=> ::<_, ()>),
                quote_spanned!(from.span()=> end(); ::impasto_kernel::lang::dead(#k)),
            ),
            BlockValue::Value if leaving > 0 => (TokenStream::new(), quote!(finish_some())),
            BlockValue::Value => (TokenStream::new(), quote!(finish())),
        }
    }

    pub(crate) fn if_(&mut self, i: &syn::ExprIf, want: BlockValue) -> TokenStream {
        if self.comptime(&i.attrs) {
            return self.comptime_if(i, want);
        }
        let k = self.k.clone();
        let want = if i.else_branch.is_none() { BlockValue::Unit } else { want };
        let condition = self.expr(&i.cond);
        let branch = self.fresh("branch", i.cond.span());
        let then_body = Expr::Block(syn::ExprBlock { attrs: Vec::new(), label: None, block: i.then_branch.clone() });
        let mut bodies = vec![&then_body];
        bodies.extend(i.else_branch.as_ref().map(|(_, e)| &**e));
        let (begin, end) = self.branch(want, &bodies, &i.cond);
        let mixed = bodies.iter().any(|b| !literal(b));
        let then = self.arm(&branch, &then_body, want, mixed);
        let otherwise = match &i.else_branch {
            Some((_, e)) => self.arm(&branch, e, want, mixed),
            None => quote!({ #branch.leave(); }),
        };
        quote_spanned!(i.cond.span()=> {
            let mut #branch = ::impasto_kernel::lang::Branch #begin::when(#k, #condition);
            if #branch.then() #then
            if #branch.default() #otherwise
            #branch.#end
        })
    }

    /// A body in a branch of Rust's own.
    fn plain_arm(&mut self, body: &Expr, want: BlockValue) -> TokenStream {
        let k = self.k.clone();
        match want {
            BlockValue::Value if !flow::diverges(body) => self.expr(body),
            BlockValue::Value => {
                let body = self.statement(body);
                quote!({ #body ::impasto_kernel::lang::dead(#k) })
            }
            BlockValue::Unit => self.statement(body),
        }
    }

    fn comptime_if(&mut self, i: &syn::ExprIf, want: BlockValue) -> TokenStream {
        let condition = &i.cond;
        self.open();
        if let Expr::Let(l) = &**condition {
            self.bind_comptime(&l.pat);
        }
        let body = Expr::Block(syn::ExprBlock { attrs: Vec::new(), label: None, block: i.then_branch.clone() });
        let then = self.plain_arm(&body, want);
        self.close();
        let otherwise = i.else_branch.as_ref().map(|(_, e)| {
            let tokens = match &**e {
                Expr::If(i) => self.comptime_if(i, want),
                e => self.plain_arm(e, want),
            };
            quote!(else { #tokens })
        });
        quote_spanned!(i.span()=> if #condition { #then } #otherwise)
    }

    pub(crate) fn match_(&mut self, m: &syn::ExprMatch, want: BlockValue) -> TokenStream {
        if self.comptime(&m.attrs) {
            let on = &m.expr;
            let mut arms = TokenStream::new();
            for a in &m.arms {
                self.open();
                self.bind_comptime(&a.pat);
                let body = self.plain_arm(&a.body, want);
                self.close();
                let (pat, guard) = (&a.pat, a.guard.as_ref().map(|(i, g)| quote!(#i #g)));
                arms.extend(quote!(#pat #guard => { #body }));
            }
            return quote_spanned!(m.span()=> match #on { #arms });
        }
        let k = self.k.clone();
        let (on, branch, selector) =
            (self.expr(&m.expr), self.fresh("branch", m.expr.span()), name_at("selector", m.expr.span()));
        let bodies: Vec<&Expr> = m.arms.iter().map(|a| &*a.body).collect();
        let (begin, end) = self.branch(want, &bodies, &m.expr);
        let mixed = bodies.iter().any(|b| !literal(b));
        let (mut arms, mut complete) = (TokenStream::new(), false);
        for a in &m.arms {
            if let Some((_, guard)) = &a.guard {
                self.fail(guard, "an arm has no guard here: write an `if` in the arm");
            }
            if complete {
                self.fail(&a.pat, "the arm before this one takes every value");
            }
            self.open();
            let (mut patterns, mut bind) = (Vec::new(), TokenStream::new());
            match &a.pat {
                Pat::Wild(_) => complete = true,
                Pat::Ident(p) if p.subpat.is_none() && p.by_ref.is_none() && !constant(&p.ident) => {
                    complete = true;
                    let (mut variables, pat) = (Vec::new(), &a.pat);
                    let name = self.pattern(pat, &mut variables);
                    bind = quote!(let #name = #selector;);
                    bind.extend(variables.iter().map(|v| quote!(let #v = #k.var(#v);)));
                }
                pat => self.cases(pat, &mut patterns),
            }
            let body = self.arm(&branch, &a.body, want, mixed);
            self.close();
            arms.extend(match complete {
                true => quote!(if #branch.default() { #bind #body }),
                false => quote_spanned!(a.pat.span()=> if #branch.arm(&[#(#patterns),*]) #body),
            });
        }
        if !complete {
            self.fail(m.match_token, "add an arm `_ => ..` for the other values");
        }
        quote_spanned!(m.expr.span()=> {
            let #selector = #on;
            let mut #branch = ::impasto_kernel::lang::Branch #begin::on(#k, #selector);
            #arms
            #branch.#end
        })
    }

    /// The values of a pattern, as ranges.
    fn cases(&mut self, pat: &Pat, out: &mut Vec<TokenStream>) {
        let number = |e: &Expr| match e {
            Expr::Lit(l) => matches!(l.lit, Lit::Int(_) | Lit::Bool(_)),
            Expr::Unary(u) => matches!(&*u.expr, Expr::Lit(_)),
            Expr::Path(_) => true,
            _ => false,
        };
        match pat {
            Pat::Or(p) => p.cases.iter().for_each(|p| self.cases(p, out)),
            Pat::Paren(p) => self.cases(&p.pat, out),
            Pat::Lit(p) if matches!(p.lit, Lit::Int(_) | Lit::Bool(_)) => out.push(quote_spanned!(p.span()=> #p..=#p)),
            Pat::Path(p) => out.push(quote_spanned!(p.span()=> #p..=#p)),
            Pat::Ident(p) if constant(&p.ident) => out.push(quote_spanned!(p.span()=> #p..=#p)),
            Pat::Range(r) => match (&r.start, &r.limits, &r.end) {
                (Some(a), RangeLimits::Closed(_), Some(b)) if number(a) && number(b) => {
                    out.push(quote_spanned!(r.span()=> #a..=#b));
                }
                _ => {
                    self.fail(r, "a range of a pattern has both ends, and includes them: `1..=4`");
                }
            },
            _ => {
                self.fail(
                    pat,
                    "a pattern here is an integer, a constant, a range `1..=4`, several of them with `|`, a name or `_`; \
                     `#[comptime]` before the `match` makes it Rust's",
                );
            }
        }
    }

    /// The body of a loop.
    fn body(&mut self, label: Option<&Label>, kind: LoopKind, body: &Block) -> TokenStream {
        self.loops.push(EnclosingLoop { label: label.map(|l| l.name.ident.to_string()), kind });
        let tokens = self.block(body, BlockValue::Unit);
        self.loops.pop();
        tokens
    }

    pub(crate) fn loop_(&mut self, l: &syn::ExprLoop, want: BlockValue) -> TokenStream {
        if self.comptime(&l.attrs) {
            return self.unrolled(l.label.as_ref(), &l.body, |body| quote!(loop { #body }));
        }
        let span = l.loop_token.span();
        let (k, repeat) = (self.k.clone(), self.fresh("repeat", span));
        let uses = flow::uses(l.label.as_ref(), &l.body);
        let body = self.body(l.label.as_ref(), LoopKind::Runs(repeat.clone()), &l.body);
        let unit = (want == BlockValue::Unit || !uses.break_value).then(|| quote!(::<()>));
        let end = match want {
            BlockValue::Unit => quote_spanned!(span=> #repeat.end();),
            BlockValue::Value if !uses.breaks => quote_spanned!(span=> #repeat.end(); ::impasto_kernel::lang::dead(#k)),
            BlockValue::Value => quote_spanned!(span=> #repeat.end()),
        };
        quote_spanned!(span=> {
            let #repeat = ::impasto_kernel::lang::Repeat #unit::begin(#k);
            #body
            #end
        })
    }

    pub(crate) fn while_(&mut self, w: &syn::ExprWhile) -> TokenStream {
        if self.comptime(&w.attrs) {
            let condition = &w.cond;
            self.open();
            if let Expr::Let(l) = &**condition {
                self.bind_comptime(&l.pat);
            }
            let tokens = self.unrolled(w.label.as_ref(), &w.body, |body| quote!(while #condition { #body }));
            self.close();
            return tokens;
        }
        let (k, repeat) = (self.k.clone(), self.fresh("repeat", w.cond.span()));
        let condition = self.expr(&w.cond);
        let body = self.body(w.label.as_ref(), LoopKind::Runs(repeat.clone()), &w.body);
        quote_spanned!(w.cond.span()=> {
            let #repeat = ::impasto_kernel::lang::Repeat::<()>::begin(#k);
            #repeat.only_if(#condition);
            if !#k.ended() { #body }
            #repeat.end();
        })
    }

    pub(crate) fn for_(&mut self, f: &syn::ExprForLoop) -> TokenStream {
        if self.comptime(&f.attrs) {
            let (pat, over) = (&f.pat, &f.expr);
            self.open();
            self.bind_comptime(pat);
            let tokens = self.unrolled(f.label.as_ref(), &f.body, |body| quote!(for #pat in #over { #body }));
            self.close();
            return tokens;
        }
        let (k, repeat) = (self.k.clone(), self.fresh("repeat", f.expr.span()));
        let Some(begin) = self.range(&f.expr) else {
            return self.fail(
                &f.expr,
                "a loop of a kernel goes over `a..b`, `(a..b).step_by(n)` or `(a..b).rev()`; `#[comptime]` before the `for` makes it \
                 Rust's, over anything",
            );
        };
        self.open();
        let mut variables = Vec::new();
        let index = self.pattern(&f.pat, &mut variables);
        let body = self.body(f.label.as_ref(), LoopKind::Runs(repeat.clone()), &f.body);
        self.close();
        let variables = variables.iter().map(|v| quote!(let #v = #k.var(#v);));
        quote_spanned!(f.expr.span()=> {
            let (#repeat, #index) = ::impasto_kernel::lang::Repeat::#begin;
            #(#variables)*
            #body
            #repeat.end();
        })
    }

    /// The call that begins a loop over this range.
    fn range(&mut self, e: &Expr) -> Option<TokenStream> {
        let k = self.k.clone();
        match e {
            Expr::Paren(p) => self.range(&p.expr),
            Expr::Group(g) => self.range(&g.expr),
            Expr::Range(syn::ExprRange { start: Some(a), limits: RangeLimits::HalfOpen(_), end: Some(b), .. }) => {
                let (a, b) = (self.expr(a), self.expr(b));
                Some(quote_spanned!(e.span()=> range(#k, #a, #b, 1)))
            }
            Expr::MethodCall(m) => {
                let Expr::Range(syn::ExprRange {
                    start: Some(a), limits: RangeLimits::HalfOpen(_), end: Some(b), ..
                }) = unwrap(&m.receiver)
                else {
                    return None;
                };
                let (a, b) = (self.expr(a), self.expr(b));
                match m.args.first() {
                    Some(n) if m.method == "step_by" => {
                        let n = self.expr(n);
                        Some(quote_spanned!(e.span()=> range(#k, #a, #b, #n)))
                    }
                    None if m.method == "rev" => Some(quote_spanned!(e.span()=> backwards(#k, #a, #b))),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// A loop of Rust around what a kernel does. What `break` and `continue` leave is written only if they are.
    fn unrolled(
        &mut self,
        label: Option<&Label>,
        body: &Block,
        repeat: impl FnOnce(TokenStream) -> TokenStream,
    ) -> TokenStream {
        let k = self.k.clone();
        let span = body.span();
        let (all, iteration) = (self.fresh("repeat", span), self.fresh("repeat", span));
        let uses = flow::uses(label, body);
        let mut body = self.body(label, LoopKind::Unrolled { all: all.clone(), iteration: iteration.clone() }, body);
        let once = |name: &Ident, tokens: TokenStream| {
            quote! {
                let #name = ::impasto_kernel::lang::Repeat::<()>::begin(#k);
                #tokens
                #name.leave();
                #name.end();
            }
        };
        if uses.continues {
            body = once(&iteration, body);
        }
        let tokens = repeat(quote!(#body if #k.ended() { break; }));
        let tokens = if uses.breaks { once(&all, tokens) } else { tokens };
        quote!({ #tokens })
    }

    /// `return`, `break` and `continue`.
    pub(crate) fn leave(&mut self, e: &Expr) -> TokenStream {
        let k = self.k.clone();
        match e {
            Expr::Return(r) => {
                let value = r.expr.as_ref().map(|e| self.expr(e));
                match (&self.returns, value) {
                    (Returns::Kernel, None) => quote_spanned!(r.span()=> #k.return_();),
                    (Returns::Kernel, Some(_)) => self.fail(&r.expr, "a kernel gives nothing: store it in a buffer"),
                    (Returns::Function(f), None) => quote_spanned!(r.span()=> #f.leave();),
                    (Returns::Function(f), Some(x)) => quote_spanned!(r.expr.span()=> #f.leave_with(#x);),
                }
            }
            Expr::Break(b) => {
                let value = b.expr.as_ref().map(|e| self.expr(e));
                let handle = match self.target(b.label.as_ref()) {
                    Some(LoopKind::Runs(repeat)) => repeat.clone(),
                    Some(LoopKind::Unrolled { all, .. }) => all.clone(),
                    None => return self.fail(b, "there is no such loop around this"),
                };
                match value {
                    Some(x) => quote_spanned!(b.expr.span()=> #handle.leave_with(#x);),
                    None => quote_spanned!(b.span()=> #handle.leave();),
                }
            }
            Expr::Continue(c) => match self.target(c.label.as_ref()) {
                Some(LoopKind::Runs(repeat)) => quote_spanned!(c.span()=> #repeat.next();),
                Some(LoopKind::Unrolled { iteration, .. }) => quote_spanned!(c.span()=> #iteration.leave();),
                None => self.fail(c, "there is no such loop around this"),
            },
            _ => TokenStream::new(),
        }
    }

    fn target(&self, label: Option<&syn::Lifetime>) -> Option<&LoopKind> {
        let name = label.map(|l| l.ident.to_string());
        self.loops.iter().rev().find(|l| name.is_none() || l.label == name).map(|l| &l.kind)
    }
}

/// Whether this is a number or a bool as it is written.
fn literal(e: &Expr) -> bool {
    match e {
        Expr::Lit(_) => true,
        Expr::Unary(u) => literal(&u.expr),
        Expr::Paren(p) => literal(&p.expr),
        Expr::Group(g) => literal(&g.expr),
        Expr::Block(b) => matches!(&b.block.stmts[..], [Stmt::Expr(e, None)] if literal(e)),
        _ => false,
    }
}

/// Without parentheses.
fn unwrap(e: &Expr) -> &Expr {
    match e {
        Expr::Paren(p) => unwrap(&p.expr),
        Expr::Group(g) => unwrap(&g.expr),
        e => e,
    }
}

/// Whether a name in a pattern is that of a constant, by how it is written.
fn constant(name: &Ident) -> bool {
    name.to_string().starts_with(|c: char| c.is_ascii_uppercase())
}
