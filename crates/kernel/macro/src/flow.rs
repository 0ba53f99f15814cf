//! Questions about control flow that syntax answers.

use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, Lifetime, Stmt};

#[derive(Default)]
struct ExitFinder {
    /// The loops inside of what is looked at.
    inside: Vec<Option<String>>,
    returns: bool,
    exits: Vec<Exit>,
}

/// A `break` or `continue` that leaves what is looked at; without a label, the loop directly around takes it.
struct Exit {
    breaks: bool,
    label: Option<String>,
    value: bool,
}

impl ExitFinder {
    fn is_inside(&self, label: Option<&Lifetime>) -> bool {
        match label {
            None => !self.inside.is_empty(),
            Some(l) => self.inside.iter().flatten().any(|i| l.ident == i),
        }
    }

    fn within(&mut self, label: Option<&syn::Label>, look: impl FnOnce(&mut Self)) {
        self.inside.push(label.map(|l| l.name.ident.to_string()));
        look(self);
        self.inside.pop();
    }
}

impl<'a> Visit<'a> for ExitFinder {
    fn visit_expr_return(&mut self, e: &'a syn::ExprReturn) {
        self.returns = true;
        visit::visit_expr_return(self, e);
    }
    fn visit_expr_break(&mut self, e: &'a syn::ExprBreak) {
        if !self.is_inside(e.label.as_ref()) {
            let label = e.label.as_ref().map(|l| l.ident.to_string());
            self.exits.push(Exit { breaks: true, label, value: e.expr.is_some() });
        }
        visit::visit_expr_break(self, e);
    }
    fn visit_expr_continue(&mut self, e: &'a syn::ExprContinue) {
        if !self.is_inside(e.label.as_ref()) {
            let label = e.label.as_ref().map(|l| l.ident.to_string());
            self.exits.push(Exit { breaks: false, label, value: false });
        }
    }
    fn visit_expr_loop(&mut self, e: &'a syn::ExprLoop) {
        self.within(e.label.as_ref(), |s| visit::visit_expr_loop(s, e));
    }
    fn visit_expr_while(&mut self, e: &'a syn::ExprWhile) {
        self.within(e.label.as_ref(), |s| visit::visit_expr_while(s, e));
    }
    fn visit_expr_for_loop(&mut self, e: &'a syn::ExprForLoop) {
        self.within(e.label.as_ref(), |s| visit::visit_expr_for_loop(s, e));
    }
    fn visit_expr_closure(&mut self, _: &'a syn::ExprClosure) {}
    fn visit_item(&mut self, _: &'a syn::Item) {}
}

/// Whether control may go elsewhere than to what follows this statement.
pub(crate) fn may_leave(stmt: &Stmt) -> bool {
    let mut l = ExitFinder::default();
    l.visit_stmt(stmt);
    l.returns || !l.exits.is_empty()
}

/// Whether a `return` stands in here.
pub(crate) fn returns(block: &Block) -> bool {
    let mut l = ExitFinder::default();
    l.visit_block(block);
    l.returns
}

/// What the body of a loop does to that loop: whether it breaks, breaks with a value, continues.
pub(crate) struct Uses {
    pub(crate) breaks: bool,
    pub(crate) break_value: bool,
    pub(crate) continues: bool,
}

pub(crate) fn uses(label: Option<&syn::Label>, body: &Block) -> Uses {
    let mut l = ExitFinder::default();
    l.visit_block(body);
    let name = label.map(|l| l.name.ident.to_string());
    let own: Vec<&Exit> = l.exits.iter().filter(|e| e.label.is_none() || e.label == name).collect();
    Uses {
        breaks: own.iter().any(|e| e.breaks),
        break_value: own.iter().any(|e| e.value),
        continues: own.iter().any(|e| !e.breaks),
    }
}

/// Whether control never comes to the end of this.
pub(crate) fn diverges(e: &Expr) -> bool {
    match e {
        Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => true,
        Expr::Paren(p) => diverges(&p.expr),
        Expr::Group(g) => diverges(&g.expr),
        Expr::Block(b) => block_diverges(&b.block),
        Expr::If(i) => block_diverges(&i.then_branch) && i.else_branch.as_ref().is_some_and(|(_, e)| diverges(e)),
        Expr::Match(m) => !m.arms.is_empty() && m.arms.iter().all(|a| diverges(&a.body)),
        Expr::Loop(l) => !uses(l.label.as_ref(), &l.body).breaks,
        _ => false,
    }
}

pub(crate) fn block_diverges(b: &Block) -> bool {
    b.stmts.iter().any(|s| matches!(s, Stmt::Expr(e, _) if diverges(e)))
}

/// Whether this has no effects and reads no memory, so that it may be computed where its value does not count.
pub(crate) fn pure(e: &Expr) -> bool {
    match e {
        Expr::Lit(_) | Expr::Path(_) => true,
        Expr::Paren(e) => pure(&e.expr),
        Expr::Group(e) => pure(&e.expr),
        Expr::Cast(e) => pure(&e.expr),
        Expr::Field(e) => pure(&e.base),
        Expr::Unary(e) => pure(&e.expr),
        Expr::Binary(e) => !assigns(&e.op) && pure(&e.left) && pure(&e.right),
        Expr::MethodCall(e) => {
            let name = e.method.to_string();
            let reads = ["load", "store", "get", "set"].contains(&name.as_str());
            let together = name.starts_with("atomic_") || name.starts_with("subgroup_");
            !reads && !together && pure(&e.receiver) && e.args.iter().all(pure)
        }
        _ => false,
    }
}

/// Whether this is `+=` or one of its kind.
pub(crate) fn assigns(op: &BinOp) -> bool {
    matches!(
        op,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_)
    )
}
