//! One parameter of a tool function: where its value comes from, and what the schema says of it.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, Expr, FnArg, GenericArgument, Ident, Meta, Pat, PatType, PathArguments, Result, Type};

use crate::attributes::{doc_text, metas, text, texts};

/// Where the value of a parameter comes from.
pub(crate) enum Source {
    /// The caller's arguments.
    Argument { default: Option<Expr>, keywords: Vec<TokenStream>, sensitive: bool },
    /// All of the caller's arguments at once.
    WholeInput,
    /// The context, by value.
    Context,
    /// The context, by reference.
    ContextReference,
    /// The application, by type.
    InjectedByType,
    /// The application, by name.
    InjectedByName,
}

pub(crate) struct Parameter {
    pub(crate) name: Ident,
    pub(crate) kind: Type,
    pub(crate) description: String,
    pub(crate) source: Source,
}

/// The last segment of a type's path, such as `Option` of `std::option::Option<T>`.
pub(crate) fn last_segment(kind: &Type) -> Option<&syn::PathSegment> {
    match kind {
        Type::Path(path) => path.path.segments.last(),
        Type::Group(group) => last_segment(&group.elem),
        _ => None,
    }
}

/// The first type argument, such as `T` of `Option<T>`.
pub(crate) fn first_type_argument(segment: &syn::PathSegment) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(kind) => Some(kind),
        _ => None,
    })
}

fn is_named(kind: &Type, name: &str) -> bool {
    last_segment(kind).is_some_and(|segment| segment.ident == name)
}

const KNOWN: &str =
    "default, min, max, min_len, max_len, pattern, format, example, enum, sensitive, inject, input";

/// What `#[arg(…)]` says.
#[derive(Default)]
struct ArgOptions {
    default: Option<Expr>,
    keywords: Vec<TokenStream>,
    sensitive: bool,
    inject: bool,
    input: bool,
}

impl ArgOptions {
    fn take(&mut self, meta: &Meta) -> Result<()> {
        let key = meta.path().get_ident().map(ToString::to_string).unwrap_or_default();
        let mut keyword = |name: &str, value: TokenStream| {
            self.keywords.push(quote!((#name, ::toolpost::__private::serde_json::json!(#value))));
        };
        match key.as_str() {
            "default" => self.default = Some(meta.require_name_value()?.value.clone()),
            "min" | "max" | "min_len" | "max_len" => {
                let value = &meta.require_name_value()?.value;
                if !is_number(value) {
                    return Err(Error::new_spanned(value, "expected a number"));
                }
                let name = match key.as_str() {
                    "min" => "minimum",
                    "max" => "maximum",
                    "min_len" => "minLength",
                    _ => "maxLength",
                };
                keyword(name, quote!(#value));
            }
            "pattern" | "format" => {
                let value = text(meta)?;
                keyword(&key, quote!(#value));
            }
            "example" => {
                let value = &meta.require_name_value()?.value;
                keyword("examples", quote!([#value]));
            }
            "r#enum" => {
                let values = texts(meta)?;
                keyword("enum", quote!([#(#values),*]));
            }
            "sensitive" => {
                meta.require_path_only()?;
                self.sensitive = true;
            }
            "inject" => {
                meta.require_path_only()?;
                self.inject = true;
            }
            "input" => {
                meta.require_path_only()?;
                self.input = true;
            }
            _ => {
                let message = format!("unknown option: expected one of {KNOWN}");
                return Err(Error::new_spanned(meta.path(), message));
            }
        }
        Ok(())
    }
}

fn is_number(expression: &Expr) -> bool {
    match expression {
        Expr::Lit(literal) => matches!(literal.lit, syn::Lit::Int(_) | syn::Lit::Float(_)),
        Expr::Unary(unary) => matches!(unary.op, syn::UnOp::Neg(_)) && is_number(&unary.expr),
        _ => false,
    }
}

impl Parameter {
    /// Reads a parameter and strips what only the macro understands from it.
    pub(crate) fn take(argument: &mut PatType) -> Result<Self> {
        let Pat::Ident(pattern) = &*argument.pat else {
            let message = "a tool's parameter needs a name: take it whole and destructure it in the body";
            return Err(Error::new_spanned(&argument.pat, message));
        };
        let name = pattern.ident.clone();
        let description = doc_text(&argument.attrs);
        let mut options = ArgOptions::default();
        for attribute in argument.attrs.iter().filter(|attribute| attribute.path().is_ident("arg")) {
            for meta in metas(attribute.meta.require_list()?.tokens.clone())? {
                options.take(&meta)?;
            }
        }
        if options.inject && (options.default.is_some() || !options.keywords.is_empty() || options.sensitive)
        {
            let message = "an injected parameter is not in the schema: `inject` stands alone";
            return Err(Error::new_spanned(&argument.attrs[0], message));
        }
        argument
            .attrs
            .retain(|attribute| !attribute.path().is_ident("doc") && !attribute.path().is_ident("arg"));
        let kind = (*argument.ty).clone();
        let source = match &kind {
            Type::Reference(reference)
                if is_named(&reference.elem, "Ctx") && reference.mutability.is_none() =>
            {
                Source::ContextReference
            }
            Type::Reference(reference) => {
                let message = "a tool owns its arguments: write `String` instead of `&str`, `Vec<T>` instead of `&[T]`; \
                               only the context may be borrowed, as `&Ctx`";
                return Err(Error::new_spanned(reference, message));
            }
            Type::ImplTrait(_) => {
                return Err(Error::new_spanned(
                    &kind,
                    "a tool's parameter needs a type of its own, not `impl Trait`",
                ));
            }
            kind if is_named(kind, "Ctx") => Source::Context,
            kind if is_named(kind, "Inject") => Source::InjectedByType,
            _ if options.inject => Source::InjectedByName,
            _ if options.input => Source::WholeInput,
            _ => Source::Argument {
                default: options.default,
                keywords: options.keywords,
                sensitive: options.sensitive,
            },
        };
        Ok(Self { name, kind, description, source })
    }

    fn text_name(&self) -> String {
        let name = self.name.to_string();
        name.strip_prefix("r#").unwrap_or(&name).to_owned()
    }

    fn is_optional(&self) -> bool {
        is_named(&self.kind, "Option")
    }

    /// The statement that adds it to an `input` builder.
    pub(crate) fn schema(&self) -> Option<TokenStream> {
        let Source::Argument { default, keywords, .. } = &self.source else { return None };
        let (name, kind, description, optional) =
            (self.text_name(), &self.kind, &self.description, self.is_optional());
        let default = match default {
            Some(value) => {
                quote!(::core::option::Option::Some(::toolpost::__private::serde_json::json!(#value)))
            }
            None => quote!(::core::option::Option::None),
        };
        Some(quote! {
            input.parameter::<#kind>(::toolpost::__private::Parameter {
                name: #name,
                description: #description,
                optional: #optional,
                default: #default,
                keywords: ::std::vec![#(#keywords),*],
            });
        })
    }

    /// The statement that notes it as injected or sensitive in a `spec`.
    pub(crate) fn note(&self) -> Option<TokenStream> {
        let name = self.text_name();
        match &self.source {
            Source::InjectedByName => Some(quote!(spec.injected.push(#name.into());)),
            Source::Argument { sensitive: true, .. } => Some(quote!(spec.sensitive.push(#name.into());)),
            _ => None,
        }
    }

    /// The statement that binds its value.
    pub(crate) fn binding(&self) -> TokenStream {
        let (variable, kind, name) = (&self.name, &self.kind, self.text_name());
        let value = match &self.source {
            Source::Argument { default, .. } => {
                let default = match default {
                    Some(value) => quote! {
                        ::core::option::Option::Some(|| ::toolpost::__private::serde_json::json!(#value))
                    },
                    None => quote!(::core::option::Option::None),
                };
                quote!(::toolpost::__private::decode::<#kind>(args, #name, #default)?)
            }
            Source::WholeInput => quote!(args.decode_all::<#kind>()?),
            Source::Context => quote!(::core::clone::Clone::clone(ctx)),
            Source::ContextReference => return quote!(let #variable = ctx;),
            Source::InjectedByType => quote!(ctx.inject()?),
            Source::InjectedByName => quote!(ctx.inject_named::<#kind>(#name)?),
        };
        quote!(let #variable: #kind = #value;)
    }
}

/// Reads the parameters of a function; a receiver is passed over.
pub(crate) fn take_all(signature: &mut syn::Signature) -> Result<Vec<Parameter>> {
    let mut parameters = Vec::new();
    for argument in &mut signature.inputs {
        if let FnArg::Typed(argument) = argument {
            parameters.push(Parameter::take(argument)?);
        }
    }
    let whole = parameters.iter().find(|parameter| matches!(parameter.source, Source::WholeInput));
    let other = parameters.iter().find(|parameter| matches!(parameter.source, Source::Argument { .. }));
    if let (Some(_), Some(other)) = (whole, other) {
        let message = "the whole input is another parameter already: make this a field of it";
        return Err(Error::new_spanned(&other.name, message));
    }
    Ok(parameters)
}
