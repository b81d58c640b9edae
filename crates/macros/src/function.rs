//! `#[tool]` on a function.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Error, FnArg, Item, ItemFn, Result};

use crate::attributes::{ToolOptions, doc_text};
use crate::{emit, parameter};

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let mut function: ItemFn = match syn::parse2(item)? {
        Item::Fn(function) => function,
        other => {
            let message = "`#[tool]` goes on a function; for methods put `#[tools]` on the `impl` block";
            return Err(Error::new_spanned(other, message));
        }
    };
    let options = ToolOptions::parse(options)?;
    emit::check_signature(&function.sig)?;
    if let Some(FnArg::Receiver(receiver)) = function.sig.inputs.first() {
        return Err(Error::new_spanned(
            receiver,
            "a method is a tool of its type: put `#[tools]` on the `impl` block",
        ));
    }
    let parameters = parameter::take_all(&mut function.sig)?;
    let identifier = function.sig.ident.clone();
    let name = emit::tool_name(&options, &identifier);
    let conditions = emit::conditions(&function.attrs);
    let description = match &options.description {
        Some(text) => text.value(),
        None => doc_text(&function.attrs),
    };
    if description.trim().is_empty() {
        let message =
            "a tool needs a description: write a doc comment that says what it does and when to use it";
        return Err(Error::new_spanned(&function.sig.ident, message));
    }
    let spec = emit::spec(&name, &description, &function.sig, &parameters, &options)?;
    let body = emit::call_body(&quote!(#identifier::run), &function.sig, &parameters, &options)?;
    let merge = emit::merge(&parameters, &options);
    let implementation = emit::implementation(&quote!(#identifier), &spec, &body, merge.as_ref());
    let visibility = function.vis.clone();
    let attributes = function.attrs.clone();
    let (docs, others): (Vec<_>, Vec<_>) =
        attributes.into_iter().partition(|attribute| attribute.path().is_ident("doc"));
    let mut original = function.clone();
    original.sig.ident = format_ident!("run");
    original.vis = syn::parse_quote!(pub);
    original.attrs = others;
    Ok(quote! {
        #(#conditions)*
        #(#docs)*
        #[allow(non_camel_case_types, reason = "the tool bears the name of its function")]
        #[derive(Clone, Copy, Debug)]
        #visibility struct #identifier {}

        #(#conditions)*
        #[allow(clippy::unused_async, reason = "a tool may answer without waiting")]
        impl #identifier {
            #(#docs)*
            #[allow(unreachable_pub, clippy::too_many_arguments, clippy::needless_pass_by_value, clippy::unnecessary_wraps,
                reason = "a tool owns its arguments, and has as many as it needs")]
            #original
        }

        #(#conditions)*
        #(#docs)*
        #[allow(dead_code, reason = "a tool may be used by its type alone")]
        #visibility const fn #identifier() -> #identifier {
            #identifier {}
        }

        #(#conditions)*
        #implementation
    })
}
