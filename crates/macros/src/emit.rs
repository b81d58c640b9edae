//! The emitted code of a tool, from a function or a method.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Result, ReturnType, Signature, Type};

use crate::attributes::{ToolOptions, doc_text};
use crate::parameter::{Parameter, Source};

/// A variable of the emitted code, hygienic against the user's names.
pub(crate) fn local(name: &str) -> Ident {
    Ident::new(&format!("toolpost_{name}"), Span::mixed_site())
}

/// The span of errors about a type, with hygienic names.
pub(crate) fn at(kind: &Type) -> Span {
    Span::mixed_site().located_at(kind.span())
}

/// The tool name: the option, else the name of the function. `r#match` is `match`.
pub(crate) fn tool_name(options: &ToolOptions, identifier: &Ident) -> String {
    options.name.as_ref().map_or_else(|| identifier.unraw().to_string(), syn::LitStr::value)
}

/// The `#[cfg]` attributes of a function, which its emitted items need as well.
pub(crate) fn conditions(attributes: &[Attribute]) -> Vec<Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).cloned().collect()
}

/// The description of a tool: the option, else the doc comment.
pub(crate) fn description(
    options: &ToolOptions,
    attributes: &[Attribute],
    identifier: &Ident,
) -> Result<String> {
    let description = options.description.as_ref().map_or_else(|| doc_text(attributes), syn::LitStr::value);
    if description.trim().is_empty() {
        return Err(Error::new_spanned(identifier, "a tool needs a description: write a doc comment"));
    }
    Ok(description)
}

/// Rejects signatures that cannot be tools.
pub(crate) fn check_signature(signature: &Signature) -> Result<()> {
    if let syn::Safety::Unsafe(keyword) = &signature.safety {
        return Err(Error::new_spanned(
            keyword,
            "a tool cannot be `unsafe`: make it safe to call with any arguments",
        ));
    }
    if let Some(keyword) = &signature.constness {
        return Err(Error::new_spanned(keyword, "a tool cannot be `const`: remove the keyword"));
    }
    if !signature.generics.params.is_empty() {
        let message = "a tool cannot be generic: write a concrete type for each parameter";
        return Err(Error::new_spanned(&signature.generics, message));
    }
    Ok(())
}

/// The return type of the function.
fn return_type(signature: &Signature) -> Result<Option<&Type>> {
    let ReturnType::Type(_, kind) = &signature.output else { return Ok(None) };
    if let Type::ImplTrait(_) = &**kind {
        return Err(Error::new_spanned(
            kind,
            "`impl Trait` cannot be a tool's result: write a concrete type",
        ));
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
            #[allow(unused_imports, reason = "an inherent method takes precedence for a `Result`")]
            use ::toolpost::__private::PlainReturn as _;
            #spec.output_schema = ::toolpost::__private::Return::<#kind>::marker().output_schema();
        }
    });
    let schema = match parameters.iter().find(|parameter| matches!(parameter.source, Source::WholeInput)) {
        Some(Parameter { kind, .. }) => quote!(::toolpost::__private::input_schema::<#kind>()),
        None => {
            let schemas = parameters.iter().filter_map(|parameter| parameter.schema(&input));
            quote!({
                #[allow(unused_imports, reason = "inherent methods take precedence for injected parameters")]
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

/// The body of `Tool::call`: binds the parameters, runs the function, converts its result.
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
            let message = "`pre_validate` needs a whole input: mark one struct parameter `#[arg(input)]`";
            return Err(Error::new_spanned(path, message));
        }
    };
    let run = quote!(#function(#(#passed),*)#wait);
    // Errors about the result point to its type.
    let answer = quote_spanned! {return_type(signature)?.map_or_else(Span::mixed_site, at)=>
        ::toolpost::__private::Returned(#run).into_tool_output()
    };
    let answer = if write_back.is_empty() {
        answer
    } else {
        let name = local("answer");
        // A failed attempt discards its state changes.
        quote! {
            let #name = #answer;
            if #name.is_ok() {
                #(#write_back)*
            }
            #name
        }
    };
    Ok(quote! {
        #[allow(unused_imports, reason = "inherent methods take precedence for a `Result` and for injected parameters")]
        use ::toolpost::__private::{ArgumentSlot as _, PlainReturned as _};
        #(#bindings)*
        #pre_validate
        #[allow(clippy::unit_arg, reason = "a tool may return `()`")]
        #answer
    })
}

/// The `merge_state` method, if the tool has `merge`.
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

/// The `pre_validate` method, if the tool has one.
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
