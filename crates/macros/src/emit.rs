//! What a tool function turns into, whether it stands alone or in an `impl` block.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Result, ReturnType, Signature, Type};

use crate::attributes::ToolOptions;
use crate::parameter::{Parameter, Source};

/// A variable of the emitted code, which nothing that a user writes can name or hide.
pub(crate) fn local(name: &str) -> Ident {
    Ident::new(&format!("toolpost_{name}"), Span::mixed_site())
}

/// Where an error about a type is shown, without giving names away to it.
pub(crate) fn at(kind: &Type) -> Span {
    Span::mixed_site().located_at(kind.span())
}

/// The name of a tool that bears the name of a function: `r#match` is `match`.
pub(crate) fn tool_name(options: &ToolOptions, identifier: &Ident) -> String {
    options.name.as_ref().map_or_else(|| identifier.unraw().to_string(), syn::LitStr::value)
}

/// The `#[cfg]`s of a function: everything that is made of it needs them too.
pub(crate) fn conditions(attributes: &[Attribute]) -> Vec<Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).cloned().collect()
}

/// Refuses what cannot be a tool.
pub(crate) fn check_signature(signature: &Signature) -> Result<()> {
    if let syn::Safety::Unsafe(keyword) = &signature.safety {
        return Err(Error::new_spanned(
            keyword,
            "a tool cannot be `unsafe`: a model decides when it is called",
        ));
    }
    if let Some(keyword) = &signature.constness {
        return Err(Error::new_spanned(keyword, "a tool cannot be `const`"));
    }
    if !signature.generics.params.is_empty() {
        let message = "a tool cannot be generic: its schema needs one type for each parameter";
        return Err(Error::new_spanned(&signature.generics, message));
    }
    Ok(())
}

/// The type that the function returns; whether it is a `Result` or an `Output` is for the type system to say.
fn return_type(signature: &Signature) -> Result<Option<&Type>> {
    let ReturnType::Type(_, kind) = &signature.output else { return Ok(None) };
    if let Type::ImplTrait(_) = &**kind {
        return Err(Error::new_spanned(kind, "a tool's result needs a type of its own, not `impl Trait`"));
    }
    Ok(Some(kind))
}

/// The expression that builds the spec.
pub(crate) fn spec(
    name: &str,
    description: &str,
    signature: &Signature,
    parameters: &[Parameter],
    options: &ToolOptions,
) -> Result<TokenStream> {
    let (spec, input) = (local("spec"), local("input"));
    let output = return_type(signature)?.map(|kind| {
        quote_spanned! {at(kind)=>
            #[allow(unused_imports, reason = "a `Result` has its own method")]
            use ::toolpost::__private::PlainReturn as _;
            #spec.output_schema = ::toolpost::__private::Return::<#kind>::of().output_schema();
        }
    });
    let schema = match parameters.iter().find(|parameter| matches!(parameter.source, Source::WholeInput)) {
        Some(Parameter { kind, .. }) => quote!(::toolpost::__private::input_schema::<#kind>()),
        None => {
            let schemas = parameters.iter().filter_map(|parameter| parameter.schema(&input));
            quote!({
                #[allow(unused_imports, reason = "what the application fills in has its own methods")]
                use ::toolpost::__private::ArgumentSlot as _;
                #[allow(unused_mut, reason = "a tool may have no parameters")]
                let mut #input = ::toolpost::__private::InputBuilder::default();
                #(#schemas)*
                #input.finish()
            })
        }
    };
    let states = || parameters.iter().filter(|parameter| matches!(parameter.source, Source::State(_)));
    let written = states().filter(|parameter| parameter.write_back().is_some()).count();
    options.check_state(states().count(), written)?;
    let notes = parameters.iter().filter_map(|parameter| parameter.note(&spec));
    let changes = options.statements();
    let placement = options.placement.clone().unwrap_or_else(|| {
        if signature.asyncness.is_some() {
            quote!(::toolpost::__private::Placement::Inline)
        } else {
            quote!(::toolpost::__private::Placement::Blocking)
        }
    });
    Ok(quote!({
        let mut #spec = ::toolpost::__private::ToolSpec::new(#name, #description);
        #spec.input_schema = #schema;
        #output
        #spec.policy.placement = #placement;
        #changes
        #(#notes)*
        ::toolpost::__private::Arc::new(#spec)
    }))
}

/// The body of `Tool::call`: bind the parameters, run the function, turn its result into an output.
pub(crate) fn call_body(
    function: &TokenStream,
    signature: &Signature,
    parameters: &[Parameter],
    options: &ToolOptions,
) -> Result<TokenStream> {
    let whole = parameters.iter().find(|parameter| matches!(parameter.source, Source::WholeInput));
    let bindings = parameters.iter().map(|parameter| parameter.binding(whole.is_some()));
    let passed = parameters.iter().map(Parameter::passed);
    let write_back: Vec<TokenStream> = parameters.iter().filter_map(Parameter::write_back).collect();
    let wait = signature.asyncness.map(|keyword| {
        let await_keyword = syn::Ident::new("await", keyword.span());
        quote!(.#await_keyword)
    });
    let pre_validate = match (&options.pre_validate, whole) {
        (None, _) => None,
        (Some(path), Some(parameter)) => {
            let input = parameter.variable();
            Some(quote!(#path(&#input).map_err(::toolpost::__private::into_error)?;))
        }
        (Some(path), None) => {
            let message = "`pre_validate` needs one struct that is the whole input: mark it `#[arg(input)]`";
            return Err(Error::new_spanned(path, message));
        }
    };
    let run = quote!(#function(#(#passed),*)#wait);
    // Errors about the result are shown at its type; no type is `()`, which has a JSON form too: no answer.
    let answer = quote_spanned! {return_type(signature)?.map_or_else(Span::mixed_site, at)=>
        ::toolpost::__private::Returned(#run).into_tool_output()
    };
    let write_back = (!write_back.is_empty()).then(|| {
        let answer = local("answer");
        // What a failed attempt made of its state is thrown away.
        quote! {
            if #answer.is_ok() {
                #(#write_back)*
            }
        }
    });
    let answer = match write_back {
        None => answer,
        Some(write_back) => {
            let name = local("answer");
            quote! {
                let #name = #answer;
                #write_back
                #name
            }
        }
    };
    Ok(quote! {
        #[allow(unused_imports, reason = "a `Result`, and what the application fills in, have their own methods")]
        use ::toolpost::__private::{ArgumentSlot as _, PlainReturned as _};
        #(#bindings)*
        #pre_validate
        #[allow(clippy::unit_arg, reason = "a tool may answer nothing")]
        #answer
    })
}

/// The method that makes one value of two, if the tool says how.
pub(crate) fn merge(parameters: &[Parameter], options: &ToolOptions) -> Option<TokenStream> {
    let path = options.merge.as_ref()?;
    let kind = parameters.iter().find_map(|parameter| parameter.write_back().map(|_| &parameter.kind))?;
    let (before, mine, theirs) = (local("before"), local("mine"), local("theirs"));
    let value = quote!(::toolpost::__private::serde_json::Value);
    Some(quote! {
        fn merge_state(
            &self,
            #before: ::core::option::Option<&#value>,
            #mine: &#value,
            #theirs: ::core::option::Option<&#value>,
        ) -> ::core::result::Result<#value, ::toolpost::__private::ToolError> {
            ::toolpost::__private::merge::<#kind, _>(#path, #before, #mine, #theirs)
        }
    })
}

/// The method that looks at the arguments without running, if the tool says how.
pub(crate) fn pre_validate(parameters: &[Parameter], options: &ToolOptions) -> Option<TokenStream> {
    let path = options.pre_validate.as_ref()?;
    let whole = parameters.iter().find(|parameter| matches!(parameter.source, Source::WholeInput))?;
    let (kind, args, input) = (&whole.kind, local("args"), local("input"));
    Some(quote! {
        fn pre_validate(
            &self,
            #args: &::toolpost::__private::Args,
        ) -> ::core::result::Result<(), ::toolpost::__private::ToolError> {
            let #input: #kind = #args.decode_all()?;
            #path(&#input).map_err(::toolpost::__private::into_error)
        }
    })
}

/// `impl Tool` for a type, with further methods. The spec is built once, on first use.
pub(crate) fn implementation(
    tool: &TokenStream,
    spec: &TokenStream,
    body: &TokenStream,
    further: &[Option<TokenStream>],
) -> TokenStream {
    let (args, ctx) = (local("args"), local("ctx"));
    quote! {
        impl ::toolpost::__private::Tool for #tool {
            fn spec(&self) -> ::toolpost::__private::Arc<::toolpost::__private::ToolSpec> {
                static SPEC: ::toolpost::__private::LazyLock<
                    ::toolpost::__private::Arc<::toolpost::__private::ToolSpec>,
                > = ::toolpost::__private::LazyLock::new(|| #spec);
                ::toolpost::__private::Arc::clone(&SPEC)
            }

            fn call<'a>(
                &'a self,
                #args: &'a ::toolpost::__private::Args,
                #ctx: &'a ::toolpost::__private::Ctx,
            ) -> ::toolpost::__private::BoxFuture<
                'a,
                ::core::result::Result<::toolpost::__private::Output, ::toolpost::__private::ToolError>,
            > {
                let _ = (#args, #ctx);
                ::std::boxed::Box::pin(async move { #body })
            }

            #(#further)*
        }
    }
}
