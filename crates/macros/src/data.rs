//! `#[data]`: the three derives with `toolpost` paths.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, Item, Result};

pub(crate) fn expand(options: &TokenStream, item: TokenStream) -> Result<TokenStream> {
    if !options.is_empty() {
        return Err(Error::new_spanned(options, "`#[data]` takes no options: add `#[serde(…)]` below it"));
    }
    match syn::parse2(item)? {
        item @ (Item::Struct(_) | Item::Enum(_)) => Ok(quote! {
            #[derive(
                ::toolpost::__private::serde::Serialize,
                ::toolpost::__private::serde::Deserialize,
                ::toolpost::__private::schemars::JsonSchema,
            )]
            #[serde(crate = "::toolpost::__private::serde")]
            #[schemars(crate = "::toolpost::__private::schemars")]
            #item
        }),
        other => Err(Error::new_spanned(other, "`#[data]` applies to a struct or an enum")),
    }
}
