//! What a tool function turns into, whether it stands alone or in an `impl` block.

use proc_macro2::TokenStream;
use quote::quote;
use syn::spanned::Spanned;
use syn::{Error, Result, ReturnType, Signature, Type};

use crate::attributes::ToolOptions;
use crate::parameter::{Parameter, Source, first_type_argument, last_segment};

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

/// The type that the output schema describes, and whether the function returns a `Result` of it.
fn output_type(signature: &Signature) -> Result<(Option<Type>, bool)> {
    let ReturnType::Type(_, kind) = &signature.output else { return Ok((None, false)) };
    if let Type::ImplTrait(_) = &**kind {
        return Err(Error::new_spanned(kind, "a tool's result needs a type of its own, not `impl Trait`"));
    }
    let Some(segment) = last_segment(kind) else { return Ok((Some((**kind).clone()), false)) };
    if segment.ident == "Result" {
        let inner = first_type_argument(segment)
            .ok_or_else(|| Error::new_spanned(kind, "expected `Result<T, E>` with the type of the result"))?;
        return Ok((Some(inner.clone()), true));
    }
    Ok((Some((**kind).clone()), false))
}

/// The expression that builds the spec.
pub(crate) fn spec(
    name: &str,
    description: &str,
    signature: &Signature,
    parameters: &[Parameter],
    options: &ToolOptions,
) -> Result<TokenStream> {
    let (output, _) = output_type(signature)?;
    let output = output.filter(|kind| last_segment(kind).is_none_or(|segment| segment.ident != "Output"));
    let output =
        output.map(|kind| quote!(spec.output_schema = ::toolpost::__private::output_schema::<#kind>();));
    let input = match parameters.iter().find(|parameter| matches!(parameter.source, Source::WholeInput)) {
        Some(Parameter { kind, .. }) => quote!(::toolpost::__private::input_schema::<#kind>()),
        None => {
            let schemas = parameters.iter().filter_map(Parameter::schema);
            quote!({
                #[allow(unused_mut, reason = "a tool may have no parameters")]
                let mut input = ::toolpost::__private::InputBuilder::default();
                #(#schemas)*
                input.finish()
            })
        }
    };
    let notes = parameters.iter().filter_map(Parameter::note);
    let changes = &options.changes;
    let placement = options.placement.clone().unwrap_or_else(|| {
        if signature.asyncness.is_some() {
            quote!(::toolpost::__private::Placement::Inline)
        } else {
            quote!(::toolpost::__private::Placement::Blocking)
        }
    });
    Ok(quote!({
        let mut spec = ::toolpost::__private::ToolSpec::new(#name, #description);
        spec.input_schema = #input;
        #output
        spec.policy.placement = #placement;
        #(#changes)*
        #(#notes)*
        ::toolpost::__private::Arc::new(spec)
    }))
}

/// The body of `Tool::call`: bind the parameters, run the function, turn its result into an output.
pub(crate) fn call_body(
    function: &TokenStream,
    signature: &Signature,
    parameters: &[Parameter],
    options: &ToolOptions,
) -> Result<TokenStream> {
    let (_, is_result) = output_type(signature)?;
    let bindings = parameters.iter().map(Parameter::binding);
    let names = parameters.iter().map(|parameter| &parameter.name);
    let wait = signature.asyncness.map(|keyword| {
        let await_keyword = syn::Ident::new("await", keyword.span());
        quote!(.#await_keyword)
    });
    let whole = parameters.iter().find(|parameter| matches!(parameter.source, Source::WholeInput));
    let pre_validate = match (&options.pre_validate, whole) {
        (None, _) => None,
        (Some(path), Some(Parameter { name, .. })) => Some(quote! {
            #path(&#name).map_err(::toolpost::__private::into_error)?;
        }),
        (Some(path), None) => {
            let message = "`pre_validate` needs one struct that is the whole input: mark it `#[arg(input)]`";
            return Err(Error::new_spanned(path, message));
        }
    };
    let run = quote!(#function(#(#names),*)#wait);
    // A `return` without a value gives `()`, which has a JSON form too: no answer.
    let value = if is_result { quote!(#run.map_err(::toolpost::__private::into_error)?) } else { run };
    Ok(quote! {
        #(#bindings)*
        #pre_validate
        #[allow(clippy::unit_arg, reason = "a tool may answer nothing")]
        ::toolpost::__private::IntoOutput::into_output(#value)
    })
}

/// `impl Tool` for a type. The spec is built once, on first use.
pub(crate) fn implementation(tool: &TokenStream, spec: &TokenStream, body: &TokenStream) -> TokenStream {
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
                args: &'a ::toolpost::__private::Args,
                ctx: &'a ::toolpost::__private::Ctx,
            ) -> ::toolpost::__private::BoxFuture<
                'a,
                ::core::result::Result<::toolpost::__private::Output, ::toolpost::__private::ToolError>,
            > {
                let _ = (args, ctx);
                ::std::boxed::Box::pin(async move { #body })
            }
        }
    }
}
