//! `#[tools]` on an `impl` block.

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::{ToTokens as _, format_ident, quote};
use syn::ext::IdentExt as _;
use syn::{Error, FnArg, ImplItem, ImplItemFn, Item, ItemImpl, ReceiverKind, Result};

use crate::attributes::{ToolOptions, metas, text};
use crate::parameter::last_segment;
use crate::{emit, parameter};

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let mut shared = Vec::new();
    let spec = emit::local("spec");
    for meta in metas(options)? {
        let path = meta.path();
        if !path.is_ident("category") && !path.is_ident("group") {
            return Err(Error::new_spanned(path, "unknown key: expected `category` or `group`"));
        }
        let value = text(&meta)?;
        shared.push(quote!(#spec.#path = ::core::option::Option::Some(#value.into());));
    }
    let mut block: ItemImpl = match syn::parse2(item)? {
        Item::Impl(block) => block,
        other => return Err(Error::new_spanned(other, "`#[tools]` applies to an `impl` block")),
    };
    if let Some((path, _)) = &block.trait_ {
        return Err(Error::new_spanned(
            path,
            "`#[tools]` does not apply to a trait: move the methods to an `impl` block of the type",
        ));
    }
    if !block.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &block.generics,
            "a type with tools cannot be generic: remove the parameters",
        ));
    }
    let owner = block.self_ty.clone();
    let owner_name = last_segment(&owner)
        .map(|segment| segment.ident.clone())
        .ok_or_else(|| Error::new_spanned(&owner, "expected the name of a type"))?;
    let mut tools = Vec::new();
    for item in &mut block.items {
        let ImplItem::Fn(method) = item else { continue };
        let Some(position) = method.attrs.iter().position(|attribute| attribute.path().is_ident("tool"))
        else {
            continue;
        };
        let attribute = method.attrs.remove(position);
        let tokens = match &attribute.meta {
            syn::Meta::Path(_) => TokenStream::new(),
            meta => meta.require_list()?.tokens.clone(),
        };
        let mut options = ToolOptions::parse(without_self(tokens, &owner))?;
        options.changes.splice(0..0, shared.iter().cloned());
        method.attrs.push(syn::parse_quote!(#[allow(
            clippy::unused_async,
            clippy::too_many_arguments,
            clippy::needless_pass_by_value,
            clippy::unnecessary_wraps,
            reason = "a tool owns its arguments and may have no await"
        )]));
        tools.push(expand_method(method, &owner, &owner_name, &options)?);
    }
    if tools.is_empty() {
        let message = "the block has no tool: add `#[tool]` to a method";
        return Err(Error::new_spanned(&block.self_ty, message));
    }
    let definitions = tools.iter().map(|tool| &tool.definition);
    let elements = tools.iter().map(|MethodTool { name, conditions, .. }| {
        quote! {
            #(#conditions)*
            (::toolpost::__private::Arc::new(#name(::toolpost::__private::Arc::clone(&owner)))
                as ::toolpost::__private::Arc<dyn ::toolpost::__private::Tool>)
        }
    });
    Ok(quote! {
        #block

        const _: () = {
            #(#definitions)*

            impl ::toolpost::__private::ToolGroup for #owner {
                fn into_tools(self) -> ::std::vec::Vec<::toolpost::__private::Arc<dyn ::toolpost::__private::Tool>> {
                    let owner = ::toolpost::__private::Arc::new(self);
                    let _ = &owner;
                    // The elements of an array may have `#[cfg]`, those of `vec!` may not.
                    ::std::vec::Vec::from([#(#elements),*])
                }
            }
        };
    })
}

/// One method as a tool.
struct MethodTool {
    name: syn::Ident,
    /// The `#[cfg]`s of the method.
    conditions: Vec<syn::Attribute>,
    /// The type and its `impl Tool`.
    definition: TokenStream,
}

/// Replaces `Self` by the type, for code outside of the `impl` block.
fn without_self(tokens: TokenStream, owner: &syn::Type) -> TokenStream {
    let mut tokens = tokens.into_iter().peekable();
    let mut replaced = TokenStream::new();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(word) if word == "Self" => {
                let is_path = matches!(tokens.peek(), Some(TokenTree::Punct(next)) if next.as_char() == ':');
                replaced.extend(if is_path { quote!(<#owner>) } else { quote!(#owner) });
            }
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), without_self(group.stream(), owner));
                inner.set_span(group.span());
                replaced.extend([TokenTree::Group(inner)]);
            }
            other => replaced.extend([other]),
        }
    }
    replaced
}

fn expand_method(
    method: &mut ImplItemFn,
    owner: &syn::Type,
    owner_name: &syn::Ident,
    options: &ToolOptions,
) -> Result<MethodTool> {
    emit::check_signature(&method.sig)?;
    match method.sig.inputs.first() {
        Some(FnArg::Receiver(receiver)) if matches!(receiver.kind, ReceiverKind::Reference(_, _, None)) => {}
        Some(FnArg::Receiver(receiver)) => {
            let message =
                "concurrent calls share the value: take `&self` and put mutable fields behind a lock";
            return Err(Error::new_spanned(receiver, message));
        }
        _ => {
            let message = "a tool method takes `&self`: add it, or move the method out as a function";
            return Err(Error::new_spanned(&method.sig.ident, message));
        }
    }
    // The emitted code is outside of the `impl` block, where `Self` is another type.
    let mut signature: syn::Signature = syn::parse2(without_self(method.sig.to_token_stream(), owner))?;
    let parameters = parameter::take_all(&mut signature)?;
    parameter::use_names(&parameter::take_all(&mut method.sig)?, &mut method.block);
    let identifier = method.sig.ident.clone();
    let name = emit::tool_name(options, &identifier);
    let description = emit::description(options, &method.attrs, &identifier)?;
    let spec = emit::spec(&name, &description, &signature, &parameters, options)?;
    let body = emit::call_body(&quote!(self.0.#identifier), &signature, &parameters, options)?;
    let tool = format_ident!("{}_{}", owner_name.unraw(), identifier.unraw());
    let further = [emit::merge(&parameters, options), emit::pre_validate(&parameters, options)];
    let implementation = emit::implementation(&quote!(#tool), &spec, &body, &further);
    let conditions = emit::conditions(&method.attrs);
    let definition = quote! {
        #(#conditions)*
        #[allow(non_camel_case_types, reason = "the type has the name of its method")]
        struct #tool(::toolpost::__private::Arc<#owner>);

        #(#conditions)*
        #implementation
    };
    Ok(MethodTool { name: tool, conditions, definition })
}
