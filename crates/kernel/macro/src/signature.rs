//! Whole functions: parameters, the size of a workgroup, and what the function becomes.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Expr, FnArg, ItemFn, Lifetime, Meta, Pat, ReturnType, Token, Type};

use crate::expr::value_type;
use crate::flow;
use crate::scope::{Binding, BlockValue, Returns, Rewriter, hidden, name_at};

/// Lints that are about the user's habits, not about what is generated from them.
const QUIET: &str = "#[allow(unused_braces, unused_parens, unused_labels, clippy::all, clippy::pedantic)]";

/// What a parameter is.
enum Kind<'a> {
    Comptime,
    Value(&'a Type),
    Buffer(&'a Type),
    BufferMut(&'a Type),
    /// A buffer that is kept as the scalar type that the expression gives.
    Stored(&'a Type, Expr),
    StoredMut(&'a Type, Expr),
    /// A variable of the caller.
    Reference(&'a Type),
}

struct Param<'a> {
    name: &'a Ident,
    mutable: bool,
    ty: &'a Type,
    kind: Kind<'a>,
}

fn quiet() -> syn::Result<Vec<syn::Attribute>> {
    syn::Attribute::parse_outer.parse_str(QUIET)
}

fn param(arg: &FnArg) -> syn::Result<Param<'_>> {
    let arg = match arg {
        FnArg::Typed(arg) => arg,
        FnArg::Receiver(r) => return Err(syn::Error::new_spanned(r, "a kernel has no `self`: write a plain function")),
    };
    let Pat::Ident(pat) = &*arg.pat else {
        return Err(syn::Error::new_spanned(&arg.pat, "a parameter has a name; take tuples apart with `let`"));
    };
    let named = |name: &str| arg.attrs.iter().find(|a| a.path().is_ident(name));
    let known = |a: &&syn::Attribute| a.path().is_ident("comptime") || a.path().is_ident("stored");
    if let Some(other) = arg.attrs.iter().find(|a| !known(a)) {
        let problem = "the attributes of a parameter are `#[comptime]` and `#[stored(..)]`";
        return Err(syn::Error::new_spanned(other, problem));
    }
    let kind = match (&*arg.ty, named("stored")) {
        _ if named("comptime").is_some() => Kind::Comptime,
        (ty, Some(stored)) => stored_kind(ty, stored)?,
        (Type::Reference(r), None) => match (&*r.elem, r.mutability) {
            (Type::Slice(s), None) => Kind::Buffer(&s.elem),
            (Type::Slice(s), Some(_)) => Kind::BufferMut(&s.elem),
            (ty, Some(_)) => Kind::Reference(ty),
            (ty, None) => Kind::Value(ty),
        },
        (ty, None) => Kind::Value(ty),
    };
    Ok(Param { name: &pat.ident, mutable: pat.mutability.is_some(), ty: &arg.ty, kind })
}

/// A buffer with `#[stored(scalar)]`.
fn stored_kind<'a>(ty: &'a Type, attribute: &syn::Attribute) -> syn::Result<Kind<'a>> {
    let scalar: Expr = attribute.parse_args()?;
    if let Type::Reference(r) = ty
        && let Type::Slice(s) = &*r.elem
    {
        let elem = &*s.elem;
        return Ok(if r.mutability.is_some() { Kind::StoredMut(elem, scalar) } else { Kind::Stored(elem, scalar) });
    }
    Err(syn::Error::new_spanned(ty, "`#[stored(..)]` is of a buffer: `&[T]` or `&mut [T]`"))
}

/// The type as which a value of this type is known while a kernel is written.
pub(crate) fn kernel_type(ty: &Type, life: &Lifetime) -> TokenStream {
    match ty {
        Type::Tuple(t) => {
            let all = t.elems.iter().map(|t| kernel_type(t, life));
            quote_spanned!(ty.span()=> (#(#all,)*))
        }
        Type::Paren(p) => kernel_type(&p.elem, life),
        Type::Group(g) => kernel_type(&g.elem, life),
        _ => {
            let inner = value_type(ty);
            quote_spanned!(ty.span()=> ::impasto_kernel::Val<#life, #inner>)
        }
    }
}

fn check(f: &ItemFn) -> syn::Result<()> {
    let s = &f.sig;
    let wrong: [(Option<Span>, &str); 4] = [
        (s.asyncness.map(|t| t.span()), "a kernel is not async"),
        (s.unsafety.map(|t| t.span()), "nothing in a kernel is unsafe"),
        (s.constness.map(|t| t.span()), "a kernel is written when the program runs, so it is not const"),
        (s.variadic.as_ref().map(|t| t.span()), "a kernel has a fixed number of parameters"),
    ];
    match wrong.iter().find_map(|(span, text)| span.map(|s| (s, text))) {
        Some((span, text)) => Err(syn::Error::new(span, text)),
        None => Ok(()),
    }
}

/// What stands in the brackets of an attribute: expressions by name.
struct Options {
    workgroup: Option<Expr>,
    grad: Option<Expr>,
}

fn options(args: TokenStream, known: &[&str], hint: &str) -> syn::Result<Options> {
    let mut found = Options { workgroup: None, grad: None };
    for meta in Punctuated::<Meta, Token![,]>::parse_terminated.parse2(args)? {
        let name = known.iter().find(|n| meta.path().is_ident(n));
        let (Meta::NameValue(m), Some(&name)) = (&meta, name) else {
            return Err(syn::Error::new_spanned(meta, hint));
        };
        let to = if name == "workgroup" { &mut found.workgroup } else { &mut found.grad };
        if to.replace(m.value.clone()).is_some() {
            return Err(syn::Error::new_spanned(meta, format!("`{name}` stands here twice")));
        }
    }
    Ok(found)
}

/// A copy of what a comptime parameter is before the body may change it, for the gradient.
fn copied(name: &Ident, lets: &mut TokenStream) -> Ident {
    let copy = name_at(&format!("{name}_given"), name.span());
    lets.extend(quote_spanned!(name.span()=> let #copy = ::core::clone::Clone::clone(&#name);));
    copy
}

pub(crate) fn kernel(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let f: ItemFn = syn::parse2(item)?;
    check(&f)?;
    if let ReturnType::Type(_, ty) = &f.sig.output {
        return Err(syn::Error::new_spanned(ty, "a kernel gives nothing: store results in a buffer `&mut [T]`"));
    }
    let hint = "write `#[kernel(workgroup = 64)]` or `#[kernel(workgroup = [8, 8, 1])]`, and `grad = backward` for a gradient of its own";
    let options = options(args, &["workgroup", "grad"], hint)?;
    let size = options.workgroup.map_or(quote!(64), |size| quote!(#size));
    let mut rw = Rewriter::new(Returns::Kernel);
    let k = rw.k.clone();
    let (mut plain, mut lets) = (Vec::new(), TokenStream::new());
    let (mut copies, mut given) = (TokenStream::new(), Vec::new());
    for arg in &f.sig.inputs {
        let p = param(arg)?;
        let (name, text) = (p.name, p.name.to_string());
        let span = p.ty.span();
        rw.bind(name, Binding::Value);
        match p.kind {
            Kind::Comptime => {
                let (mutable, ty) = (p.mutable.then(|| quote!(mut)), p.ty);
                plain.push(quote!(#mutable #name: #ty));
                rw.bind(name, Binding::Comptime);
                if options.grad.is_some() {
                    given.push(copied(name, &mut copies));
                }
                continue;
            }
            Kind::Value(ty) => {
                let ty = value_type(ty);
                lets.extend(quote_spanned!(span=> let #name = #k.param::<#ty>(#text);));
            }
            Kind::Buffer(ty) => {
                let ty = value_type(ty);
                lets.extend(quote_spanned!(span=> let #name = #k.buffer::<#ty>(#text);));
            }
            Kind::BufferMut(ty) => {
                let ty = value_type(ty);
                lets.extend(quote_spanned!(span=> let #name = #k.buffer_mut::<#ty>(#text);));
            }
            Kind::Stored(ty, scalar) => {
                let ty = value_type(ty);
                lets.extend(quote_spanned!(span=> let #name = #k.stored::<#ty>(#text, #scalar);));
            }
            Kind::StoredMut(ty, scalar) => {
                let ty = value_type(ty);
                lets.extend(quote_spanned!(span=> let #name = #k.stored_mut::<#ty>(#text, #scalar);));
            }
            Kind::Reference(ty) => {
                return Err(syn::Error::new_spanned(ty, "a kernel writes to buffers: `&mut [T]`"));
            }
        }
        if p.mutable {
            rw.bind(name, Binding::Variable);
            lets.extend(quote_spanned!(span=> let #name = #k.var(#name);));
        }
    }
    let body = rw.block(&f.block, BlockValue::Unit);
    rw.finish()?;
    let (attrs, vis, name, quiet) = (&f.attrs, &f.vis, &f.sig.ident, quiet()?);
    let (generics, _, clause) = split(&f.sig.generics);
    let text = name.to_string();
    let gradient = options.grad.map(|grad| {
        let backward = name_at("backward", grad.span());
        quote_spanned! {grad.span()=>
            .and_then(|kernel| {
                let #backward: ::core::result::Result<::impasto_kernel::Kernel, ::impasto_kernel::KernelError> = #grad(#(#given),*);
                kernel.with_gradient(#backward?)
            })
        }
    });
    Ok(quote! {
        #(#attrs)* #(#quiet)*
        #vis fn #name #generics(#(#plain),*) -> ::core::result::Result<::impasto_kernel::Kernel, ::impasto_kernel::KernelError>
        #clause
        {
            #copies
            ::impasto_kernel::Builder::kernel(#text, ::impasto_kernel::lang::workgroup(#size), |#k| {
                #lets
                #body
            })
            #gradient
        }
    })
}

/// Whether this is the name of a type without derivatives.
fn is_number(ty: &Type) -> bool {
    let names = ["i32", "u32", "i64", "u64", "usize", "bool"];
    matches!(ty, Type::Path(p) if names.iter().any(|n| p.path.is_ident(n)))
}

/// What a function with a gradient of its own reads from memory, and what it writes, would have no derivative.
fn no_memory(p: &Param<'_>) -> syn::Result<()> {
    let why = match p.kind {
        Kind::Buffer(ty) if !is_number(ty) => {
            "its gradient says nothing about what it reads: read it before, and pass the values"
        }
        Kind::BufferMut(_) | Kind::Reference(_) => "its gradient says nothing about what it changes: return it",
        _ => return Ok(()),
    };
    Err(syn::Error::new_spanned(p.ty, format!("a function with a gradient of its own takes values: {why}")))
}

/// The parameters of a kernel function.
#[derive(Default)]
struct Params {
    /// As they stand in the signature of the function that is made.
    params: Vec<TokenStream>,
    /// What makes values of them.
    lets: TokenStream,
    /// What a custom gradient is called with, and of that what the result is differentiated by.
    given: Vec<Ident>,
    by: Vec<Ident>,
}

/// The parameters of a kernel function, which are bound in the rewriter; `custom`: it has a custom gradient.
fn function_params(f: &ItemFn, rw: &mut Rewriter, life: &Lifetime, custom: bool) -> syn::Result<Params> {
    let k = rw.k.clone();
    let mut all = Params::default();
    for arg in &f.sig.inputs {
        let p = param(arg)?;
        let (name, span) = (p.name, p.ty.span());
        rw.bind(name, Binding::Value);
        if custom {
            no_memory(&p)?;
        }
        let mut bring = |ty: TokenStream, how: TokenStream| {
            all.params.push(quote_spanned!(span=> #name: #ty));
            all.lets.extend(quote_spanned!(span=> let #name = #how;));
        };
        match p.kind {
            Kind::Comptime => {
                let (mutable, ty) = (p.mutable.then(|| quote!(mut)), p.ty);
                all.params.push(quote!(#mutable #name: #ty));
                rw.bind(name, Binding::Comptime);
                if custom {
                    let copy = copied(name, &mut all.lets);
                    all.given.push(copy);
                }
                continue;
            }
            Kind::Value(ty @ Type::Tuple(_)) => {
                let ty = kernel_type(ty, life);
                bring(
                    quote!(impl ::impasto_kernel::lang::Lift<#life, #ty>),
                    quote!(::impasto_kernel::lang::lift::<#ty>(#k, #name)),
                );
            }
            Kind::Value(ty) => {
                let ty = value_type(ty);
                bring(
                    quote_spanned!(span=> impl ::impasto_kernel::IntoVal<#life, #ty>),
                    quote!(::impasto_kernel::IntoVal::<#ty>::into_val(#name, #k)),
                );
            }
            Kind::Buffer(ty) => {
                let ty = value_type(ty);
                bring(
                    quote!(impl ::core::convert::Into<::impasto_kernel::Buf<#life, #ty>>),
                    quote!(::core::convert::Into::<::impasto_kernel::Buf<'_, #ty>>::into(#name)),
                );
            }
            Kind::BufferMut(ty) => {
                let ty = value_type(ty);
                bring(quote!(::impasto_kernel::BufMut<#life, #ty>), quote!(#name));
            }
            Kind::Stored(..) | Kind::StoredMut(..) => {
                let problem = "`#[stored(..)]` is of a parameter of a kernel: a function takes what was read from it";
                return Err(syn::Error::new_spanned(p.ty, problem));
            }
            Kind::Reference(ty) => {
                let ty = value_type(ty);
                bring(quote!(::impasto_kernel::Var<#life, #ty>), quote!(#name));
                rw.bind(name, Binding::Reference);
            }
        }
        if custom {
            let before = name_at(&format!("{name}_given"), name.span());
            all.lets.extend(quote_spanned!(span=> let #before = #name;));
            if matches!(p.kind, Kind::Value(ty) if !is_number(ty)) {
                all.by.push(before.clone());
            }
            all.given.push(before);
        }
        if p.mutable {
            rw.bind(name, Binding::Variable);
            all.lets.extend(quote_spanned!(span=> let #name = #k.var(#name);));
        }
    }
    Ok(all)
}

/// The body of a kernel function, which gives `out`.
fn function_body(f: &ItemFn, rw: &mut Rewriter, returned: &Ident, result: &Type, out: &TokenStream) -> TokenStream {
    let k = rw.k.clone();
    let is_unit = matches!(result, Type::Tuple(t) if t.elems.is_empty());
    let diverges = flow::block_diverges(&f.block);
    let body = rw.block(&f.block, if is_unit || diverges { BlockValue::Unit } else { BlockValue::Value });
    let span = match f.block.stmts.last() {
        Some(syn::Stmt::Expr(e, None)) => e.span(),
        _ => result.span(),
    };
    let value = name_at("value", span);
    match (flow::returns(&f.block), is_unit || diverges) {
        (true, true) => {
            let last = (!diverges).then(|| quote!(#returned.leave();));
            quote! {
                let #returned = ::impasto_kernel::lang::Repeat::<#out>::begin(#k);
                #body
                #last
                #returned.end()
            }
        }
        (true, false) => quote_spanned! {span=>
            let #returned = ::impasto_kernel::lang::Repeat::<#out>::begin(#k);
            let #value = #body;
            #returned.leave_with(#value);
            #returned.end()
        },
        (false, true) if is_unit => body,
        (false, true) => quote!(#body ::impasto_kernel::lang::dead(#k)),
        (false, false) => quote_spanned!(span=> ::impasto_kernel::lang::lift::<#out>(#k, #body)),
    }
}

/// Generics as they are declared, also where they are empty.
fn split(g: &syn::Generics) -> (syn::Generics, Vec<&syn::GenericParam>, Option<&syn::WhereClause>) {
    let mut declared = g.clone();
    declared.where_clause = None;
    (declared, g.params.iter().collect(), g.where_clause.as_ref())
}

pub(crate) fn kernel_fn(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let f: ItemFn = syn::parse2(item)?;
    check(&f)?;
    let options = options(args, &["grad"], "`#[kernel_fn]` takes `grad = gradient`, and nothing else")?;
    let returned = hidden("returned");
    let mut rw = Rewriter::new(Returns::Function(returned.clone()));
    let k = rw.k.clone();
    let life = Lifetime::new("'kernel", Span::mixed_site());
    let Params { params, lets, given, by } = function_params(&f, &mut rw, &life, options.grad.is_some())?;
    let unit: Type = syn::parse_quote!(());
    let result = match &f.sig.output {
        ReturnType::Type(_, ty) => &**ty,
        ReturnType::Default => &unit,
    };
    let out = kernel_type(result, &life);
    let body = function_body(&f, &mut rw, &returned, result, &out);
    let body = match options.grad {
        Some(grad) if by.is_empty() => {
            return Err(syn::Error::new_spanned(grad, "none of the parameters is a float, so there is no gradient"));
        }
        Some(grad) => {
            let by = if let [one] = &by[..] { quote!(#one) } else { quote!((#(#by),*)) };
            let value = name_at("result", grad.span());
            quote_spanned! {grad.span()=>
                let #value: #out = { #body };
                ::impasto_kernel::lang::with_gradient(#k, #value, #by, #grad(#k #(, #given)*))
            }
        }
        None => body,
    };
    rw.finish()?;
    let (attrs, vis, name, quiet) = (&f.attrs, &f.vis, &f.sig.ident, quiet()?);
    let (_, generics, clause) = split(&f.sig.generics);
    let text = name.to_string();
    Ok(quote! {
        #(#attrs)* #(#quiet)*
        #vis fn #name<#life #(, #generics)*>(#k: &#life ::impasto_kernel::Builder #(, #params)*) -> #out
        #clause
        {
            let ::core::option::Option::Some(_call) = ::impasto_kernel::lang::enter(#k, #text) else {
                return ::impasto_kernel::lang::dead(#k);
            };
            #lets
            #body
        }
    })
}
