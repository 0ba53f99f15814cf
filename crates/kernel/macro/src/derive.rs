//! `#[derive(KernelStruct)]`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Fields};

pub(crate) fn kernel_struct(item: TokenStream) -> syn::Result<TokenStream> {
    let item: DeriveInput = syn::parse2(item)?;
    let fields = match &item.data {
        Data::Struct(s) => match &s.fields {
            Fields::Named(f) if !f.named.is_empty() => &f.named,
            _ => return Err(syn::Error::new_spanned(&item.ident, "a struct of a kernel has members, with names")),
        },
        _ => return Err(syn::Error::new_spanned(&item.ident, "only a struct with named members is a type of kernels")),
    };
    if let Some(l) = item.generics.lifetimes().next() {
        return Err(syn::Error::new_spanned(l, "a struct of a kernel refers to nothing: it has no lifetimes"));
    }
    let name = &item.ident;
    let members = format_ident!("{name}Members");
    let mut generics = item.generics.clone();
    for p in generics.type_params_mut() {
        p.bounds.push(syn::parse_quote!(::impasto_kernel::Type));
    }
    let (declared, used, clause) = generics.split_for_impl();
    let names: Vec<_> = fields.iter().filter_map(|f| f.ident.as_ref()).collect();
    let types: Vec<_> = fields.iter().map(|f| &f.ty).collect();
    let texts = names.iter().map(|n| n.to_string());
    let numbers = 0..names.len() as u32;
    Ok(quote! {
        const _: () = {
            #[doc(hidden)]
            pub struct #members #declared #clause {
                #(pub #names: ::impasto_kernel::lang::Member<#name #used, #types>,)*
            }
            // A kernel reads members by their numbers; this tells rustc that they are read.
            #[allow(dead_code)]
            fn read #declared(s: #name #used) #clause {
                let _ = (#(s.#names,)*);
            }
            impl #declared ::impasto_kernel::Type for #name #used #clause {
                type Bool = bool;
                fn ty(kernel: &mut ::impasto_kernel::Kernel) -> ::impasto_kernel::Ty {
                    let members = ::std::vec![#(<#types as ::impasto_kernel::Type>::ty(kernel)),*];
                    ::impasto_kernel::lang::struct_type(kernel, members)
                }
            }
            impl #declared ::impasto_kernel::lang::KernelStruct for #name #used #clause {
                type Members = #members #used;
                const MEMBERS: Self::Members = #members { #(#names: ::impasto_kernel::lang::Member::new(#numbers)),* };
                const NAMES: &'static [&'static str] = &[#(#texts),*];
            }
        };
    })
}
