//! Templates as they are compiled: operators that could make much of little, and what makes or walks lists, become calls of the
//! filters of [`super::operators`]. No other way leads between the template engine's instructions.

use std::collections::BTreeSet;

use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, BinOpKind, CallArg, CallType, CompareOpKind, Expr, Spanned, Stmt};
use minijinja::value::Value;
use minijinja::{Error, ErrorKind};

use super::methods;
use super::operators::name;

/// The most items of a list, entries of a dict and arguments of a call, as they are written.
const ITEMS_MAX: usize = 4_096;

/// Returns a template to compile, and the variables that it reads before it sets them.
///
/// # Errors
/// It uses what no chat template needs and what could not be counted.
pub(super) fn rewrite<'s>(source: &'s str, template: &Stmt<'s>) -> Result<(Stmt<'s>, BTreeSet<String>), Error> {
    let mut rewriter = Rewriter { source, scopes: vec![vec!["self"]], undeclared: BTreeSet::new() };
    let Stmt::Template(root) = template else { return Err(unsupported("this")) };
    let children = rewriter.body(&root.children)?;
    let template = Stmt::Template(Spanned::new(ast::Template { children }, root.span()));
    Ok((template, rewriter.undeclared))
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::SyntaxError, format!("{what} is not supported"))
}

struct Rewriter<'s> {
    source: &'s str,
    /// Variables that are set, the innermost scope last.
    scopes: Vec<Vec<&'s str>>,
    undeclared: BTreeSet<String>,
}

/// Returns a filter over some values.
fn filter<'s>(name: &'s str, span: Span, values: Vec<Expr<'s>>) -> Result<Expr<'s>, Error> {
    if values.len() > ITEMS_MAX {
        return Err(unsupported(&format!("a list or dict of more than {ITEMS_MAX} values")));
    }
    let mut values = values.into_iter();
    let expr = values.next();
    let args = values.map(CallArg::Pos).collect();
    Ok(Expr::Filter(Spanned::new(ast::Filter { name, expr, args }, span)))
}

fn constant<'s>(value: Value, span: Span) -> Expr<'s> {
    Expr::Const(Spanned::new(ast::Const { value }, span))
}

impl<'s> Rewriter<'s> {
    fn body(&mut self, body: &[Stmt<'s>]) -> Result<Vec<Stmt<'s>>, Error> {
        let mut out = Vec::with_capacity(body.len());
        for stmt in body {
            if let Some(span) = declares_macro(stmt) {
                let expr = filter(name::MACRO, span, vec![constant(Value::from(""), span)])?;
                out.push(Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, span)));
            }
            out.push(self.stmt(stmt)?);
        }
        Ok(out)
    }

    /// Rewrites what has its own variables.
    fn scoped(&mut self, body: &[Stmt<'s>]) -> Result<Vec<Stmt<'s>>, Error> {
        self.scopes.push(Vec::new());
        let body = self.body(body);
        self.scopes.pop();
        body
    }

    fn declare(&mut self, variable: &'s str) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.push(variable);
        }
    }

    fn stmt(&mut self, stmt: &Stmt<'s>) -> Result<Stmt<'s>, Error> {
        Ok(match stmt {
            Stmt::Template(_) => return Err(unsupported("this")),
            Stmt::EmitExpr(node) => {
                let expr = self.expr(&node.expr)?;
                Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, node.span()))
            }
            // Printed like a value, so that it is counted like one.
            Stmt::EmitRaw(node) => {
                let expr = constant(Value::from(node.raw), node.span());
                Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, node.span()))
            }
            Stmt::ForLoop(node) => self.for_loop(node)?,
            Stmt::IfCond(node) => {
                let expr = self.expr(&node.expr)?;
                let true_body = self.scoped(&node.true_body)?;
                let false_body = self.scoped(&node.false_body)?;
                Stmt::IfCond(Spanned::new(ast::IfCond { expr, true_body, false_body }, node.span()))
            }
            Stmt::WithBlock(node) => {
                self.scopes.push(Vec::new());
                let mut assignments = Vec::with_capacity(node.assignments.len());
                for (target, expr) in &node.assignments {
                    assignments.push((self.target(target, false)?, self.expr(expr)?));
                }
                let body = self.body(&node.body)?;
                self.scopes.pop();
                Stmt::WithBlock(Spanned::new(ast::WithBlock { assignments, body }, node.span()))
            }
            Stmt::Set(node) => {
                let target = self.target(&node.target, true)?;
                let mut expr = self.expr(&node.expr)?;
                if !matches!(target, Expr::Var(_)) {
                    expr = filter(name::PLAIN, node.span(), vec![expr])?;
                }
                Stmt::Set(Spanned::new(ast::Set { target, expr }, node.span()))
            }
            Stmt::SetBlock(node) => {
                let target = self.target(&node.target, true)?;
                let filter = node.filter.as_ref().map(|filter| self.expr(filter)).transpose()?;
                let body = self.scoped(&node.body)?;
                Stmt::SetBlock(Spanned::new(ast::SetBlock { target, filter, body }, node.span()))
            }
            Stmt::AutoEscape(node) => {
                let (enabled, body) = (self.expr(&node.enabled)?, self.scoped(&node.body)?);
                Stmt::AutoEscape(Spanned::new(ast::AutoEscape { enabled, body }, node.span()))
            }
            Stmt::FilterBlock(node) => {
                let (filter, body) = (self.expr(&node.filter)?, self.scoped(&node.body)?);
                Stmt::FilterBlock(Spanned::new(ast::FilterBlock { filter, body }, node.span()))
            }
            Stmt::Block(node) => {
                self.scopes.push(vec!["super"]);
                let body = self.body(&node.body)?;
                self.scopes.pop();
                let block = ast::Block { name: node.name, required: node.required, body };
                Stmt::Block(Spanned::new(block, node.span()))
            }
            Stmt::Macro(node) => {
                self.declare(node.name);
                Stmt::Macro(self.macro_of(node)?)
            }
            Stmt::CallBlock(node) => {
                let (call, macro_decl) = (self.call(&node.call)?, self.macro_of(&node.macro_decl)?);
                Stmt::CallBlock(Spanned::new(ast::CallBlock { call, macro_decl }, node.span()))
            }
            Stmt::Do(node) => Stmt::Do(Spanned::new(ast::Do { call: self.call(&node.call)? }, node.span())),
            Stmt::Continue(node) => Stmt::Continue(Spanned::new(ast::Continue, node.span())),
            Stmt::Break(node) => Stmt::Break(Spanned::new(ast::Break, node.span())),
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
                return Err(unsupported("a template that refers to another one"));
            }
        })
    }

    fn for_loop(&mut self, node: &Spanned<ast::ForLoop<'s>>) -> Result<Stmt<'s>, Error> {
        self.scopes.push(vec!["loop"]);
        let iter = filter(name::WALK, node.iter.span(), vec![self.expr(&node.iter)?])?;
        let target = self.target(&node.target, false)?;
        let filter_expr = node.filter_expr.as_ref().map(|expr| self.expr(expr)).transpose()?;
        let body = self.body(&node.body)?;
        self.scopes.pop();
        let else_body = self.scoped(&node.else_body)?;
        let recursive = node.recursive;
        let for_loop = ast::ForLoop { target, iter, filter_expr, recursive, body, else_body };
        Ok(Stmt::ForLoop(Spanned::new(for_loop, node.span())))
    }

    fn macro_of(&mut self, node: &Spanned<ast::Macro<'s>>) -> Result<Spanned<ast::Macro<'s>>, Error> {
        self.scopes.push(vec!["caller"]);
        let args: Result<Vec<_>, Error> = node.args.iter().map(|arg| self.target(arg, false)).collect();
        let defaults: Result<Vec<_>, Error> = node.defaults.iter().map(|default| self.expr(default)).collect();
        let (args, defaults, body) = (args?, defaults?, self.body(&node.body)?);
        self.scopes.pop();
        Ok(Spanned::new(ast::Macro { name: node.name, args, defaults, body }, node.span()))
    }

    /// Rewrites what is assigned to; only `set` may assign to an attribute.
    fn target(&mut self, target: &Expr<'s>, may_be_attribute: bool) -> Result<Expr<'s>, Error> {
        Ok(match target {
            Expr::Var(node) => {
                self.declare(node.id);
                Expr::Var(Spanned::new(ast::Var { id: node.id }, node.span()))
            }
            Expr::List(node) => {
                let items: Result<Vec<_>, Error> =
                    node.items.iter().map(|item| self.target(item, may_be_attribute)).collect();
                Expr::List(Spanned::new(ast::List { items: items? }, node.span()))
            }
            Expr::GetAttr(node) if may_be_attribute => {
                let expr = self.expr(&node.expr)?;
                Expr::GetAttr(Spanned::new(ast::GetAttr { expr, name: node.name }, node.span()))
            }
            _ => return Err(unsupported("to assign to this")),
        })
    }

    fn all(&mut self, exprs: &[Expr<'s>]) -> Result<Vec<Expr<'s>>, Error> {
        exprs.iter().map(|expr| self.expr(expr)).collect()
    }

    fn expr(&mut self, expr: &Expr<'s>) -> Result<Expr<'s>, Error> {
        let span = expr.span();
        Ok(match expr {
            Expr::Var(node) => {
                if !self.scopes.iter().any(|scope| scope.contains(&node.id)) {
                    self.undeclared.insert(node.id.to_owned());
                }
                Expr::Var(Spanned::new(ast::Var { id: node.id }, span))
            }
            Expr::Const(node) => constant(node.value.clone(), span),
            Expr::Slice(node) => {
                let mut values = vec![self.expr(&node.expr)?];
                for bound in [&node.start, &node.stop, &node.step] {
                    values.push(match bound {
                        Some(bound) => self.expr(bound)?,
                        None => constant(Value::from(()), span),
                    });
                }
                filter(name::SLICE, span, values)?
            }
            Expr::UnaryOp(node) => {
                let expr = self.expr(&node.expr)?;
                match node.op {
                    ast::UnaryOpKind::Not => {
                        Expr::UnaryOp(Spanned::new(ast::UnaryOp { op: ast::UnaryOpKind::Not, expr }, span))
                    }
                    ast::UnaryOpKind::Neg => filter(name::NEG, span, vec![expr])?,
                }
            }
            Expr::BinOp(node) => self.binary(node)?,
            Expr::Compare(node) => self.comparison(node)?,
            Expr::IfExpr(node) => {
                let (test_expr, true_expr) = (self.expr(&node.test_expr)?, self.expr(&node.true_expr)?);
                let false_expr = node.false_expr.as_ref().map(|expr| self.expr(expr)).transpose()?;
                Expr::IfExpr(Spanned::new(ast::IfExpr { test_expr, true_expr, false_expr }, span))
            }
            Expr::Filter(node) => {
                let expr = node.expr.as_ref().map(|expr| self.expr(expr)).transpose()?;
                let args = self.args(&node.args, false)?;
                Expr::Filter(Spanned::new(ast::Filter { name: node.name, expr, args }, span))
            }
            Expr::Test(node) => {
                let (expr, args) = (self.expr(&node.expr)?, self.args(&node.args, false)?);
                Expr::Test(Spanned::new(ast::Test { name: node.name, expr, args }, span))
            }
            _ if self.is_negated_before(expr) => self.negated(expr)?,
            Expr::GetAttr(node) => {
                let expr = self.expr(&node.expr)?;
                match methods::is_known(node.name) {
                    true => filter(name::ATTRIBUTE, span, vec![expr, constant(Value::from(node.name), span)])?,
                    false => Expr::GetAttr(Spanned::new(ast::GetAttr { expr, name: node.name }, span)),
                }
            }
            Expr::GetItem(node) => {
                filter(name::ITEM, span, vec![self.expr(&node.expr)?, self.expr(&node.subscript_expr)?])?
            }
            Expr::Call(node) => Expr::Call(self.call(node)?),
            Expr::List(node) => self.list(node)?,
            Expr::Map(node) => {
                let mut values = Vec::with_capacity(2 * node.keys.len());
                for (key, value) in node.keys.iter().zip(&node.values) {
                    values.extend([self.expr(key)?, self.expr(value)?]);
                }
                match values.is_empty() {
                    true => Expr::Map(Spanned::new(ast::Map { keys: Vec::new(), values }, span)),
                    false => filter(name::DICT, span, values)?,
                }
            }
        })
    }

    /// Lists of constants are made once; the engine has no memory of its own for others. Tuples are lists to the parser.
    fn list(&mut self, node: &Spanned<ast::List<'s>>) -> Result<Expr<'s>, Error> {
        let items = self.all(&node.items)?;
        if self.source[node.span().start_offset as usize..].starts_with('(') {
            return match items.is_empty() {
                true => Err(unsupported("an empty tuple")),
                false => filter(name::TUPLE, node.span(), items),
            };
        }
        match items.iter().all(|item| matches!(item, Expr::Const(_))) {
            true => Ok(Expr::List(Spanned::new(ast::List { items }, node.span()))),
            false => filter(name::LIST, node.span(), items),
        }
    }

    fn binary(&mut self, node: &Spanned<ast::BinOp<'s>>) -> Result<Expr<'s>, Error> {
        let (op, left, right) = (node.op, self.expr(&node.left)?, self.expr(&node.right)?);
        let name = match op {
            BinOpKind::Eq => name::EQ,
            BinOpKind::Ne => name::NE,
            BinOpKind::Lt => name::LT,
            BinOpKind::Lte => name::LE,
            BinOpKind::Gt => name::GT,
            BinOpKind::Gte => name::GE,
            BinOpKind::Add => name::ADD,
            BinOpKind::Mul => name::MUL,
            BinOpKind::Concat => name::CONCAT,
            BinOpKind::In => name::IN,
            BinOpKind::Sub => name::SUB,
            BinOpKind::Div => name::DIV,
            BinOpKind::FloorDiv => name::FLOOR_DIV,
            BinOpKind::Rem => name::REM,
            BinOpKind::Pow => name::POW,
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                // The compiler would make a truth value of constants; in Python it is the operand that decides.
                return Ok(match left.as_const().map(|left| left.is_true()) {
                    Some(is_true) if is_true == matches!(op, BinOpKind::ScAnd) => right,
                    Some(_) => left,
                    None => Expr::BinOp(Spanned::new(ast::BinOp { op, left, right }, node.span())),
                });
            }
        };
        filter(name, node.span(), vec![left, right])
    }

    /// Rewrites comparisons in a row; a single one is a binary operator.
    fn comparison(&mut self, node: &Spanned<ast::Compare<'s>>) -> Result<Expr<'s>, Error> {
        let mut values = vec![self.expr(&node.expr)?];
        for compared in &node.ops {
            let name = match compared.op {
                CompareOpKind::Eq => name::EQ,
                CompareOpKind::Ne => name::NE,
                CompareOpKind::Lt => name::LT,
                CompareOpKind::Lte => name::LE,
                CompareOpKind::Gt => name::GT,
                CompareOpKind::Gte => name::GE,
                CompareOpKind::In => name::IN,
                CompareOpKind::NotIn => name::NOT_IN,
            };
            values.extend([constant(Value::from(name), node.span()), self.expr(&compared.expr)?]);
        }
        filter(name::CHAIN, node.span(), values)
    }

    /// Returns whether this is a subscript, attribute or call behind a minus: the parser takes `-x.y` for `(-x).y`.
    fn is_negated_before(&self, expr: &Expr<'s>) -> bool {
        let inner = match expr {
            Expr::GetAttr(node) => &node.expr,
            Expr::GetItem(node) => &node.expr,
            Expr::Call(node) => &node.expr,
            Expr::Slice(node) => &node.expr,
            _ => return false,
        };
        let is_minus = |expr: &Expr<'s>| {
            matches!(expr, Expr::UnaryOp(node) if matches!(node.op, ast::UnaryOpKind::Neg))
                && self.source[expr.span().start_offset as usize..].starts_with('-')
        };
        is_minus(inner) || self.is_negated_before(inner)
    }

    fn negated(&mut self, _: &Expr<'s>) -> Result<Expr<'s>, Error> {
        Err(unsupported("a minus before a subscript, an attribute or a call (put it in brackets)"))
    }

    fn call(&mut self, node: &Spanned<ast::Call<'s>>) -> Result<Spanned<ast::Call<'s>>, Error> {
        let keeps = match node.identify_call() {
            CallType::Method(_, "changed") => true,
            CallType::Method(_, "cycle") if node.args.is_empty() => return Err(unsupported("cycle without values")),
            _ => false,
        };
        let args = self.args(&node.args, keeps)?;
        // Calls of the loop itself walk through what they are given.
        let args = match node.identify_call() {
            CallType::Function("loop") => walked(args)?,
            _ => args,
        };
        Ok(Spanned::new(ast::Call { expr: self.expr(&node.expr)?, args }, node.span()))
    }

    fn args(&mut self, args: &[CallArg<'s>], keeps: bool) -> Result<Vec<CallArg<'s>>, Error> {
        if args.len() > ITEMS_MAX {
            return Err(unsupported(&format!("a call with more than {ITEMS_MAX} arguments")));
        }
        args.iter()
            .map(|arg| match arg {
                CallArg::Pos(expr) if keeps => {
                    let kept = self.expr(expr)?;
                    Ok(CallArg::Pos(filter(name::PLAIN, expr.span(), vec![kept])?))
                }
                CallArg::Pos(expr) => Ok(CallArg::Pos(self.expr(expr)?)),
                CallArg::Kwarg(_, _) if keeps => Err(unsupported("a name for this argument")),
                CallArg::Kwarg(name, expr) => Ok(CallArg::Kwarg(name, self.expr(expr)?)),
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => Err(unsupported("'*' before arguments")),
            })
            .collect()
    }
}

fn walked(args: Vec<CallArg<'_>>) -> Result<Vec<CallArg<'_>>, Error> {
    args.into_iter()
        .map(|arg| match arg {
            CallArg::Pos(expr) => {
                let span = expr.span();
                Ok(CallArg::Pos(filter(name::WALK, span, vec![expr])?))
            }
            arg => Ok(arg),
        })
        .collect()
}

/// Returns where a statement declares a macro, if it does.
fn declares_macro(stmt: &Stmt<'_>) -> Option<Span> {
    match stmt {
        Stmt::Macro(node) => Some(node.span()),
        Stmt::CallBlock(node) => Some(node.span()),
        _ => None,
    }
}
