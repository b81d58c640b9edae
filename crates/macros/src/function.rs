//! `#[tool]`, `#[resource]` and `#[prompt]` on a function.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::ext::IdentExt as _;
use syn::{Error, FnArg, Ident, Item, ItemFn, LitStr, Meta, Result};

use crate::attributes::{ToolOptions, metas, texts};
use crate::parameter::{Parameter, Source};
use crate::{emit, parameter};

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let message = "`#[tool]` applies to a function: for methods add `#[tools]` to the `impl` block";
    build(&ToolOptions::parse(options)?, item, message, |_, _| Ok(TokenStream::new()))
}

/// A resource: its parameters are those of its URI pattern.
pub(crate) fn resource(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let wrong = "a resource needs a URI pattern first: write `#[resource(\"notes://{user}\")]`";
    let mut tokens = options.into_iter();
    let pattern: LitStr = match tokens.next() {
        Some(first) => syn::parse2(first.clone().into()).map_err(|_| Error::new(first.span(), wrong))?,
        None => return Err(Error::new(proc_macro2::Span::call_site(), wrong)),
    };
    let rest: TokenStream = tokens.skip(1).collect();
    let mut mime_types = Vec::new();
    let mut others: Vec<Meta> = Vec::new();
    for meta in metas(rest)? {
        if meta.path().is_ident("mime_types") {
            mime_types = texts(&meta)?;
        } else {
            others.push(meta);
        }
    }
    let message = "`#[resource]` applies to a function";
    build(&ToolOptions::parse(quote!(#(#others),*))?, item, message, |identifier, parameters| {
        check_pattern(&pattern, parameters)?;
        Ok(quote! {
            impl ::toolpost::__private::Resource for #identifier {
                fn resource_spec(
                    &self,
                ) -> ::core::result::Result<::toolpost::__private::ResourceSpec, ::toolpost::__private::SpecError> {
                    ::toolpost::__private::resource_spec(
                        &::toolpost::__private::Tool::spec(self),
                        #pattern,
                        &[#(#mime_types),*],
                    )
                }
            }
        })
    })
}

/// Checks that each name in braces is a parameter.
fn check_pattern(pattern: &LitStr, parameters: &[Parameter]) -> Result<()> {
    let text = pattern.value();
    for part in text.split('{').skip(1) {
        let Some((name, _)) = part.split_once('}') else { continue };
        let is_parameter = |parameter: &Parameter| {
            matches!(parameter.source, Source::Argument { .. }) && parameter.name.unraw() == name
        };
        let whole = parameters.iter().any(|parameter| matches!(parameter.source, Source::WholeInput));
        if !whole && !parameters.iter().any(is_parameter) {
            return Err(Error::new(pattern.span(), format!("the function has no parameter `{name}`")));
        }
    }
    Ok(())
}

/// A prompt: its function returns text or messages.
pub(crate) fn prompt(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let message = "`#[prompt]` applies to a function";
    build(&ToolOptions::parse(options)?, item, message, |identifier, _| {
        Ok(quote!(impl ::toolpost::__private::Prompt for #identifier {}))
    })
}

/// Emits the type of a tool, its `Tool` implementation, and the code of `further`.
fn build(
    options: &ToolOptions,
    item: TokenStream,
    message: &str,
    further: impl FnOnce(&Ident, &[Parameter]) -> Result<TokenStream>,
) -> Result<TokenStream> {
    let mut function: ItemFn = match syn::parse2(item)? {
        Item::Fn(function) => function,
        other => return Err(Error::new_spanned(other, message)),
    };
    emit::check_signature(&function.sig)?;
    if let Some(FnArg::Receiver(receiver)) = function.sig.inputs.first() {
        return Err(Error::new_spanned(receiver, "a method needs `#[tools]`: add it to the `impl` block"));
    }
    let parameters = parameter::take_all(&mut function.sig)?;
    parameter::use_names(&parameters, &mut function.block);
    let identifier = function.sig.ident.clone();
    let name = emit::tool_name(options, &identifier);
    let conditions = emit::conditions(&function.attrs);
    let description = emit::description(options, &function.attrs, &identifier)?;
    let spec = emit::spec(&name, &description, &function.sig, &parameters, options)?;
    let body = emit::call_body(&quote!(#identifier::run), &function.sig, &parameters, options)?;
    let methods = [emit::merge(&parameters, options), emit::pre_validate(&parameters, options)];
    let implementation = emit::implementation(&quote!(#identifier), &spec, &body, &methods);
    let mut further = further(&identifier, &parameters)?;
    if !further.is_empty() {
        further = quote!(#(#conditions)* #further);
    }
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
        #[allow(non_camel_case_types, reason = "the type has the name of its function")]
        #[derive(Clone, Copy, Debug)]
        #visibility struct #identifier {}

        #(#conditions)*
        #[allow(clippy::unused_async, reason = "an async tool may have no await")]
        impl #identifier {
            #(#docs)*
            #[allow(unreachable_pub, clippy::too_many_arguments, clippy::needless_pass_by_value, clippy::unnecessary_wraps,
                reason = "a tool owns its arguments and has any number of them")]
            #original
        }

        #(#conditions)*
        #(#docs)*
        #[allow(dead_code, reason = "a tool may be used by its type only")]
        #visibility const fn #identifier() -> #identifier {
            #identifier {}
        }

        #(#conditions)*
        #implementation

        #further
    })
}
