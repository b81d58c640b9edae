//! A parameter of a tool function: the source of its value, and its schema.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::{Error, Expr, FnArg, Ident, Meta, Pat, PatType, Result, Type};

use crate::attributes::{doc_text, flag, metas, text, texts, unknown};
use crate::emit::{at, local};
use crate::state::State;

/// The source of a parameter's value.
pub(crate) enum Source {
    /// An argument of the caller.
    Argument { default: Option<Expr>, keywords: Vec<TokenStream>, sensitive: bool },
    /// All arguments of the caller, as one struct.
    WholeInput,
    /// The context, by reference.
    ContextReference,
    /// The context or an injected value, judged by the name of the type; the type system decides.
    ContextOrInject,
    /// A value that the application injects by name.
    InjectedByName,
    /// A part of a document.
    State(State),
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

fn is_named(kind: &Type, name: &str) -> bool {
    last_segment(kind).is_some_and(|segment| segment.ident == name)
}

const KNOWN: &str =
    "default, min, max, min_len, max_len, pattern, format, example, enum, sensitive, inject, input";

/// Keys of other toolkits, each with its replacement.
const FOREIGN: &[(&str, &str)] = &[
    ("ge", "`min`"),
    ("minimum", "`min`"),
    ("le", "`max`"),
    ("maximum", "`max`"),
    ("min_length", "`min_len`"),
    ("max_length", "`max_len`"),
    ("regex", "`pattern`"),
    ("choices", "`enum(\"a\", \"b\")`"),
    ("examples", "`example`"),
    ("description", "a doc comment on the parameter"),
    ("required", "nothing: `Option` and `default` make a parameter optional"),
];

/// The formats of a string: everyday names, then those of JSON Schema.
const FORMATS: &[&str] = &[
    "file",
    "url",
    "email",
    "uuid",
    "datetime",
    "json",
    "base64",
    "code",
    "program",
    "argv",
    "stdin",
    "date-time",
    "date",
    "time",
    "duration",
    "hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uri-reference",
    "regex",
    "json-pointer",
];

/// The parsed keys of `#[arg(…)]`.
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
            "pattern" => {
                let value = text(meta)?;
                keyword(&key, quote!(#value));
            }
            "format" => {
                let value = text(meta)?;
                if !FORMATS.contains(&value.value().as_str()) {
                    let message = format!("unknown format: expected one of {}", FORMATS.join(", "));
                    return Err(Error::new(value.span(), message));
                }
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
                flag(meta)?;
                self.sensitive = true;
            }
            "inject" => {
                flag(meta)?;
                self.inject = true;
            }
            "input" => {
                flag(meta)?;
                self.input = true;
            }
            _ => return Err(unknown(meta, KNOWN, FOREIGN)),
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
    /// Parses a parameter and removes its tool attributes.
    pub(crate) fn take(argument: &mut PatType) -> Result<Self> {
        let Pat::Ident(pattern) = &*argument.pat else {
            let message = "a tool parameter cannot be a pattern: name it and destructure it in the body";
            return Err(Error::new_spanned(&argument.pat, message));
        };
        let name = pattern.ident.clone();
        if let Some(position) = argument.attrs.iter().position(|attribute| attribute.path().is_ident("state"))
        {
            let attribute = argument.attrs.remove(position);
            if let Some(other) = argument.attrs.iter().find(|other| !other.path().is_ident("doc")) {
                let message = "a state parameter takes no other attributes: remove this one";
                return Err(Error::new_spanned(other, message));
            }
            argument.attrs.clear();
            let (state, kind) = State::take(&attribute, &argument.ty)?;
            return Ok(Self { name, kind, description: String::new(), source: Source::State(state) });
        }
        let description = doc_text(&argument.attrs);
        let mut options = ArgOptions::default();
        let mut keys = Vec::new();
        for attribute in argument.attrs.iter().filter(|attribute| attribute.path().is_ident("arg")) {
            for meta in metas(attribute.meta.require_list()?.tokens.clone())? {
                options.take(&meta)?;
                keys.push(meta);
            }
        }
        let filled = match &*argument.ty {
            Type::Reference(reference) => is_named(&reference.elem, "Ctx"),
            kind => is_named(kind, "Ctx") || is_named(kind, "Inject"),
        };
        if let (true, Some(first)) = (filled, keys.first()) {
            let message =
                "`Ctx` and `Inject` parameters take no keys: remove `#[arg(…)]`, or rename the type";
            return Err(Error::new_spanned(first, message));
        }
        if let (true, [first, second, ..]) = (options.inject, keys.as_slice()) {
            let message = "an injected parameter has no schema: remove the keys besides `inject`";
            return Err(Error::new_spanned(
                if first.path().is_ident("inject") { second } else { first },
                message,
            ));
        }
        if let (true, [first, second, ..]) = (options.input, keys.as_slice()) {
            let message = "a whole input takes no other keys: move them to its fields, and secrets to \
                           `policy(sensitive(\"field\"))`";
            return Err(Error::new_spanned(
                if first.path().is_ident("input") { second } else { first },
                message,
            ));
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
            Type::Reference(reference) if reference.mutability.is_some() => {
                let message = "a tool cannot borrow mutably: take the value, or add `#[state(id = \"…\")]` for a document";
                return Err(Error::new_spanned(reference, message));
            }
            Type::Reference(reference) => {
                let message = "a tool owns its arguments: write `String` for `&str`, `Vec<T>` for `&[T]`";
                return Err(Error::new_spanned(reference, message));
            }
            Type::ImplTrait(_) => {
                return Err(Error::new_spanned(
                    &kind,
                    "`impl Trait` cannot be a tool parameter: write a concrete type",
                ));
            }
            _ if filled => Source::ContextOrInject,
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
        self.name.unraw().to_string()
    }

    /// The variable of its value in the emitted code.
    pub(crate) fn variable(&self) -> Ident {
        let mut variable = local(&format!("argument_{}", self.name.unraw()));
        variable.set_span(Span::mixed_site().located_at(self.name.span()));
        variable
    }

    /// The statement that adds it to the input schema, unless the application fills it.
    pub(crate) fn schema(&self, input: &Ident) -> Option<TokenStream> {
        let (default, keywords) = match &self.source {
            Source::Argument { default, keywords, .. } => (default.as_ref(), keywords.as_slice()),
            Source::ContextOrInject => (None, &[][..]),
            _ => return None,
        };
        let (name, kind, description) = (self.text_name(), &self.kind, &self.description);
        let default = match default {
            Some(value) => {
                quote!(::core::option::Option::Some(::toolpost::__private::serde_json::json!(#value)))
            }
            None => quote!(::core::option::Option::None),
        };
        Some(quote_spanned! {at(kind)=>
            ::toolpost::__private::Slot::<#kind>::marker().describe(&mut #input, ::toolpost::__private::Parameter {
                name: #name,
                description: #description,
                optional: ::toolpost::__private::Slot::<#kind>::marker().is_optional(),
                default: #default,
                keywords: ::std::vec![#(#keywords),*],
            });
        })
    }

    /// The statement that adds it to the injected, sensitive or state parameters of a spec.
    pub(crate) fn note(&self, spec: &Ident) -> Option<TokenStream> {
        let name = self.text_name();
        match &self.source {
            Source::InjectedByName => Some(quote!(#spec.injected.push(#name.into());)),
            Source::Argument { sensitive: true, .. } => Some(quote!(#spec.sensitive.push(#name.into());)),
            Source::State(state) => {
                let state = state.spec();
                Some(quote!(#spec.state.push(#state);))
            }
            _ => None,
        }
    }

    /// The statement that binds its value. With a whole input there are no single arguments.
    pub(crate) fn binding(&self, beside_whole_input: bool) -> TokenStream {
        let (variable, kind, name) = (self.variable(), &self.kind, self.text_name());
        let (args, ctx) = (local("args"), local("ctx"));
        let slot = quote!(::toolpost::__private::Slot::<#kind>::marker());
        let value = match &self.source {
            Source::Argument { default, .. } => {
                let default = match default {
                    Some(value) => quote! {
                        ::core::option::Option::Some(|| ::toolpost::__private::serde_json::json!(#value))
                    },
                    None => quote!(::core::option::Option::None),
                };
                quote_spanned!(at(kind)=> #slot.take(#args, #ctx, #name, #default)?)
            }
            Source::WholeInput => quote!(#args.decode_all::<#kind>()?),
            Source::ContextReference => return quote!(let #variable = #ctx;),
            Source::ContextOrInject if beside_whole_input => quote_spanned!(at(kind)=> #slot.fill(#ctx)?),
            Source::ContextOrInject => {
                quote_spanned!(at(kind)=> #slot.take(#args, #ctx, #name, ::core::option::Option::None)?)
            }
            Source::InjectedByName => quote!(#ctx.inject_named::<#kind>(#name)?),
            Source::State(State { index, writes, .. }) => {
                let keyword = writes.then(|| quote!(mut));
                return quote_spanned! {at(kind)=>
                    let #keyword #variable = ::toolpost::__private::load_state::<#kind>(#ctx, #index)?;
                };
            }
        };
        quote!(let #variable: #kind = #value;)
    }
}

impl Parameter {
    /// The argument expression of the function call.
    pub(crate) fn passed(&self) -> TokenStream {
        let variable = self.variable();
        match &self.source {
            Source::State(State { writes: true, .. }) => quote!(#variable.get_mut()),
            Source::State(_) => quote!(#variable.get()),
            _ => quote!(#variable),
        }
    }

    /// The statement that stores a changed state.
    pub(crate) fn write_back(&self) -> Option<TokenStream> {
        let (variable, ctx) = (self.variable(), local("ctx"));
        matches!(self.source, Source::State(State { writes: true, .. }))
            .then(|| quote!(#variable.write_back(#ctx)?;))
    }

    fn state(&self) -> Option<&State> {
        match &self.source {
            Source::State(state) => Some(state),
            _ => None,
        }
    }
}

/// Marks arguments that only name a document as used.
pub(crate) fn use_names(parameters: &[Parameter], block: &mut syn::Block) {
    let placeholders = parameters.iter().filter_map(Parameter::state).flat_map(State::placeholders);
    let names: Vec<String> = placeholders.map(|placeholder| placeholder.name).collect();
    for parameter in parameters.iter().filter(|parameter| names.contains(&parameter.text_name())) {
        let name = &parameter.name;
        block.stmts.insert(0, syn::parse_quote!(let _ = &#name;));
    }
}

/// Checks that the names in document templates are arguments.
fn check_placeholders(parameters: &[Parameter]) -> Result<()> {
    let whole = parameters.iter().any(|parameter| matches!(parameter.source, Source::WholeInput));
    for placeholder in parameters.iter().filter_map(Parameter::state).flat_map(State::placeholders) {
        let name = placeholder.name;
        let wrong = |message: String| Err(Error::new(placeholder.template.span(), message));
        let argument = parameters.iter().find_map(|parameter| match &parameter.source {
            Source::Argument { sensitive, .. } if parameter.text_name() == name => Some(*sensitive),
            _ => None,
        });
        match (name.as_str(), argument) {
            ("owner" | "scope", Some(_)) => {
                return wrong(format!(
                    "`{{{name}}}` is reserved, but there is an argument of that name: rename the argument"
                ));
            }
            (_, Some(true)) => {
                return wrong(format!(
                    "`{name}` is sensitive, but a document id is not secret: use another argument"
                ));
            }
            ("owner" | "scope", None) | (_, Some(false)) => {}
            // The fields of a whole input are checked when the tool is registered.
            (_, None) if whole => {}
            (_, None) => {
                let arguments =
                    parameters.iter().filter(|known| matches!(known.source, Source::Argument { .. }));
                let known: Vec<String> = ["owner".to_owned(), "scope".to_owned()]
                    .into_iter()
                    .chain(arguments.map(Parameter::text_name))
                    .map(|name| format!("`{{{name}}}`"))
                    .collect();
                return wrong(format!("unknown name `{{{name}}}`: expected one of {}", known.join(", ")));
            }
        }
    }
    Ok(())
}

/// Parses the parameters of a function, without the receiver.
pub(crate) fn take_all(signature: &mut syn::Signature) -> Result<Vec<Parameter>> {
    let mut parameters = Vec::new();
    for argument in &mut signature.inputs {
        if let FnArg::Typed(argument) = argument {
            parameters.push(Parameter::take(argument)?);
        }
    }
    let states = parameters.iter_mut().filter_map(|parameter| match &mut parameter.source {
        Source::State(state) => Some(state),
        _ => None,
    });
    states.enumerate().for_each(|(index, state)| state.index = index);
    check_placeholders(&parameters)?;
    let mut whole = parameters.iter().filter(|parameter| matches!(parameter.source, Source::WholeInput));
    let (first, second) = (whole.next(), whole.next());
    let other = parameters.iter().find(|parameter| matches!(parameter.source, Source::Argument { .. }));
    if let (Some(_), Some(other)) = (first, second.or(other)) {
        let message = "the tool has a whole input: make this parameter a field of it";
        return Err(Error::new_spanned(&other.name, message));
    }
    Ok(parameters)
}
