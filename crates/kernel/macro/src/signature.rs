//! Whole functions: parameters, the size of a workgroup, and what the function becomes.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{Expr, FnArg, ItemFn, Lifetime, Meta, Pat, ReturnType, Type};

use crate::expr::value_type;
use crate::flow;
use crate::scope::{Binding, Returns, Rewriter, Want, hidden, name_at};

/// Lints that are about the user's habits, not about what is generated from them.
const QUIET: &str = "#[allow(unused_braces, unused_parens, unused_labels, clippy::all, clippy::pedantic)]";

/// What a parameter is.
enum Kind<'a> {
    Comptime,
    Value(&'a Type),
    Buffer(&'a Type),
    BufferMut(&'a Type),
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
    let comptime = arg.attrs.iter().any(|a| a.path().is_ident("comptime"));
    if let Some(other) = arg.attrs.iter().find(|a| !a.path().is_ident("comptime")) {
        return Err(syn::Error::new_spanned(other, "the only attribute of a parameter is `#[comptime]`"));
    }
    let kind = match &*arg.ty {
        _ if comptime => Kind::Comptime,
        Type::Reference(r) => match (&*r.elem, r.mutability) {
            (Type::Slice(s), None) => Kind::Buffer(&s.elem),
            (Type::Slice(s), Some(_)) => Kind::BufferMut(&s.elem),
            (ty, Some(_)) => Kind::Reference(ty),
            (ty, None) => Kind::Value(ty),
        },
        ty => Kind::Value(ty),
    };
    Ok(Param { name: &pat.ident, mutable: pat.mutability.is_some(), ty: &arg.ty, kind })
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

fn workgroup(args: TokenStream) -> syn::Result<TokenStream> {
    if args.is_empty() {
        return Ok(quote!(64));
    }
    let hint = "write `#[kernel(workgroup = 64)]` or `#[kernel(workgroup = [8, 8, 1])]`";
    match syn::parse2::<Meta>(args)? {
        Meta::NameValue(m) if m.path.is_ident("workgroup") => {
            let value: &Expr = &m.value;
            Ok(quote!(#value))
        }
        other => Err(syn::Error::new_spanned(other, hint)),
    }
}

pub(crate) fn kernel(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let f: ItemFn = syn::parse2(item)?;
    check(&f)?;
    if let ReturnType::Type(_, ty) = &f.sig.output {
        return Err(syn::Error::new_spanned(ty, "a kernel gives nothing: store results in a buffer `&mut [T]`"));
    }
    let size = workgroup(args)?;
    let mut rw = Rewriter::new(Returns::Kernel);
    let k = rw.k.clone();
    let (mut plain, mut lets) = (Vec::new(), TokenStream::new());
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
            Kind::Reference(ty) => {
                return Err(syn::Error::new_spanned(ty, "a kernel writes to buffers: `&mut [T]`"));
            }
        }
        if p.mutable {
            rw.bind(name, Binding::Variable);
            lets.extend(quote_spanned!(span=> let #name = #k.var(#name);));
        }
    }
    let body = rw.block(&f.block, Want::Unit);
    rw.finish()?;
    let (attrs, vis, name, quiet) = (&f.attrs, &f.vis, &f.sig.ident, quiet()?);
    let (generics, _, clause) = split(&f.sig.generics);
    let text = name.to_string();
    Ok(quote! {
        #(#attrs)* #(#quiet)*
        #vis fn #name #generics(#(#plain),*) -> ::core::result::Result<::impasto_kernel::Kernel, ::impasto_kernel::KernelError>
        #clause
        {
            ::impasto_kernel::Builder::kernel(#text, ::impasto_kernel::lang::workgroup(#size), |#k| {
                #lets
                #body
            })
        }
    })
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
    if !args.is_empty() {
        return Err(syn::Error::new_spanned(args, "`#[kernel_fn]` takes nothing"));
    }
    let returned = hidden("returned");
    let mut rw = Rewriter::new(Returns::Function(returned.clone()));
    let k = rw.k.clone();
    let life = Lifetime::new("'kernel", Span::mixed_site());
    let (mut params, mut lets) = (Vec::new(), TokenStream::new());
    for arg in &f.sig.inputs {
        let p = param(arg)?;
        let (name, span) = (p.name, p.ty.span());
        rw.bind(name, Binding::Value);
        let mut bring = |ty: TokenStream, how: TokenStream| {
            params.push(quote_spanned!(span=> #name: #ty));
            lets.extend(quote_spanned!(span=> let #name = #how;));
        };
        match p.kind {
            Kind::Comptime => {
                let (mutable, ty) = (p.mutable.then(|| quote!(mut)), p.ty);
                params.push(quote!(#mutable #name: #ty));
                rw.bind(name, Binding::Comptime);
                continue;
            }
            Kind::Value(ty @ Type::Tuple(_)) => {
                let ty = kernel_type(ty, &life);
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
            Kind::Reference(ty) => {
                let ty = value_type(ty);
                bring(quote!(::impasto_kernel::Var<#life, #ty>), quote!(#name));
                rw.bind(name, Binding::Reference);
            }
        }
        if p.mutable {
            rw.bind(name, Binding::Variable);
            lets.extend(quote_spanned!(span=> let #name = #k.var(#name);));
        }
    }
    let unit: Type = syn::parse_quote!(());
    let result = match &f.sig.output {
        ReturnType::Type(_, ty) => &**ty,
        ReturnType::Default => &unit,
    };
    let is_unit = matches!(result, Type::Tuple(t) if t.elems.is_empty());
    let diverges = flow::block_diverges(&f.block);
    let out = kernel_type(result, &life);
    let body = rw.block(&f.block, if is_unit || diverges { Want::Unit } else { Want::Value });
    let span = match f.block.stmts.last() {
        Some(syn::Stmt::Expr(e, None)) => e.span(),
        _ => result.span(),
    };
    let value = name_at("value", span);
    let body = match (flow::returns(&f.block), is_unit || diverges) {
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
