//! The keys of `#[tool(…)]` and `#[tools(…)]`.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::quote;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Expr, ExprLit, Lit, LitStr, Meta, Result, Token};

use crate::emit::local;
use crate::json;

/// The parsed keys of `#[tool(…)]`.
#[derive(Default)]
pub(crate) struct ToolOptions {
    pub(crate) name: Option<LitStr>,
    pub(crate) description: Option<LitStr>,
    /// The path of a function.
    pub(crate) pre_validate: Option<TokenStream>,
    /// Where the tool runs, if the attribute sets it.
    pub(crate) placement: Option<TokenStream>,
    /// Statements that change a `spec`.
    pub(crate) changes: Vec<TokenStream>,
    idempotent: bool,
    cache: Option<Span>,
    memory: Option<Span>,
    cpu_bound: bool,
    max_retries: Option<Expr>,
    backoff_initial: Option<Expr>,
    backoff_max: Option<Expr>,
    conflict: Option<LitStr>,
    /// The path of the function that merges two states.
    pub(crate) merge: Option<TokenStream>,
    /// Statements that set retries, of attempts or of conflicts.
    retries: TokenStream,
}

/// The keys of `#[tool(…)]`.
const KEYS: &[&str] = &[
    "name",
    "description",
    "summary",
    "tags",
    "examples",
    "streaming",
    "session_mode",
    "cpu_bound",
    "timeout_s",
    "max_retries",
    "backoff_initial_ms",
    "backoff_max_ms",
    "conflict_policy",
    "policy",
];

/// The keys of `policy(…)`.
const POLICY_KEYS: &[&str] = &[
    "read_only",
    "destructive",
    "idempotent",
    "open_world",
    "category",
    "group",
    "approval",
    "cache",
    "concurrency",
    "rate",
    "no_timeout",
    "placement",
    "memory_mib",
    "output_limit",
    "merge",
    "task",
    "dry_run",
    "sensitive",
    "pre_validate",
];

/// Keys of other toolkits, each with its replacement.
const FOREIGN: &[(&str, &str)] = &[
    ("title", "`summary`"),
    ("timeout", "`timeout_s = 10`, or `policy(no_timeout)`"),
    ("tool_timeout", "`timeout_s = 10`"),
    ("example", "`examples(r#\"{…}\"#)`"),
    ("mode", "`streaming` or `session_mode`"),
    ("conflict", "`conflict_policy`"),
    ("backoff", "`backoff_initial_ms = 5` and `backoff_max_ms = 250`"),
    ("snapshot", "`#[state(id = \"…\")]` on a parameter `&mut T`"),
    ("parallel", "`cpu_bound`"),
    ("blocking", "`policy(placement = \"blocking\")`"),
    ("retries", "`max_retries`"),
    ("retry_count", "`max_retries`"),
    ("max_tool_output_chars", "`policy(output_limit = 65536)`, in bytes"),
    ("cache_enabled", "`policy(cache = \"5m\")`"),
    ("cache_ttl", "`policy(cache = \"5m\")`"),
    ("max_concurrent", "`policy(concurrency = 4)`"),
    ("rate_limit", "`policy(rate = \"10/s\")`"),
    ("requires_approval", "`policy(approval = \"ask\")`"),
    ("input_model", "`#[arg(input)]` on one parameter of a struct type"),
    ("parameters", "the function's parameters, with `#[arg(…)]` for their limits"),
    ("arguments", "the function's parameters, with `#[arg(…)]` for their limits"),
    ("context_injection", "`Inject<T>`, or `#[arg(inject)]` on the parameter"),
    ("exclude_params", "`Inject<T>`, or `#[arg(inject)]` on the parameter"),
    ("uri_pattern", "the pattern as the first item: `#[resource(\"notes://{user}\")]`"),
];

/// The error of an unknown key. `foreign` has the keys of other toolkits.
pub(crate) fn unknown(meta: &Meta, known: &str, foreign: &[(&str, &str)]) -> Error {
    let name = meta.path().get_ident().map(ToString::to_string).unwrap_or_default();
    let ours = foreign.iter().find(|(theirs, _)| *theirs == name);
    let message = match ours {
        Some((_, ours)) => format!("unknown key `{name}`: write {ours}"),
        None => format!("unknown key: expected one of {known}"),
    };
    Error::new_spanned(meta.path(), message)
}

/// Parses a key without a value.
pub(crate) fn flag(meta: &Meta) -> Result<&syn::Path> {
    match meta {
        Meta::Path(path) => Ok(path),
        other => {
            let name = other.path().get_ident().map(ToString::to_string).unwrap_or_default();
            let message = format!("`{name}` takes no value: write `{name}` only, or remove it");
            Err(Error::new_spanned(other, message))
        }
    }
}

/// The keys inside the parentheses of an attribute.
pub(crate) fn metas(tokens: TokenStream) -> Result<Vec<Meta>> {
    // `enum` is a keyword and no path, so it is parsed as a raw identifier.
    let tokens = tokens.into_iter().map(|token| match token {
        TokenTree::Ident(word) if word == "enum" => Ident::new_raw("enum", word.span()).into(),
        other => other,
    });
    let tokens: TokenStream = tokens.collect();
    Ok(Punctuated::<Meta, Token![,]>::parse_terminated.parse2(tokens)?.into_iter().collect())
}

pub(crate) fn text(meta: &Meta) -> Result<LitStr> {
    match &meta.require_name_value()?.value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Ok(text.clone()),
        other => Err(Error::new_spanned(other, "expected a string")),
    }
}

/// A list of strings: `tags("a", "b")`.
pub(crate) fn texts(meta: &Meta) -> Result<Vec<LitStr>> {
    let list = meta.require_list()?;
    let texts = Punctuated::<LitStr, Token![,]>::parse_terminated.parse2(list.tokens.clone());
    texts
        .map(|texts| texts.into_iter().collect())
        .map_err(|_| Error::new(list.tokens.span(), "expected strings separated by commas"))
}

fn whole_number(meta: &Meta, min: u64) -> Result<Expr> {
    let value = &meta.require_name_value()?.value;
    let number = match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse::<u64>().ok(),
        _ => None,
    };
    match number {
        Some(number) if number >= min => Ok(value.clone()),
        _ => Err(Error::new_spanned(value, format!("expected a whole number, at least {min}"))),
    }
}

/// The maximum duration: 100 years, in microseconds.
const MAX_MICROS: f64 = 3.2e15;

/// Parses `250ms`, `10s`, `1.5s`, `1m30s`, `2h` into microseconds, like `toolpost::time::parse_duration`.
fn micros(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    let mut total = 0_u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let scale = match unit {
            "us" => 1.0,
            "ms" => 1e3,
            "s" => 1e6,
            "m" => 60e6,
            "h" => 3600e6,
            "d" => 86_400e6,
            _ => return None,
        };
        let part = number.parse::<f64>().ok()? * scale;
        if !(0.0..=MAX_MICROS).contains(&part) {
            return None;
        }
        total = total.checked_add(part as u64)?;
        rest = tail;
    }
    Some(total)
}

fn duration(text: &str, span: Span) -> Result<TokenStream> {
    let micros = micros(text).ok_or_else(|| {
        Error::new(
            span,
            format!("`{text}` is not a duration: write a number and a unit, such as \"250ms\" or \"10s\""),
        )
    })?;
    Ok(quote!(::toolpost::__private::Duration::from_micros(#micros)))
}

fn one_of<'a>(text: &LitStr, choices: &'a [(&'a str, &'a str)]) -> Result<syn::Ident> {
    let value = text.value();
    let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    choices
        .iter()
        .find(|(name, _)| *name == value)
        .map(|(_, variant)| syn::Ident::new(variant, text.span()))
        .ok_or_else(|| Error::new(text.span(), format!("expected one of {}", names.join(", "))))
}

/// Seconds as microseconds: an integer or a decimal number above 0.
fn seconds(meta: &Meta) -> Result<u64> {
    let value = &meta.require_name_value()?.value;
    let seconds = match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse::<f64>().ok(),
        Expr::Lit(ExprLit { lit: Lit::Float(number), .. }) => number.base10_parse::<f64>().ok(),
        _ => None,
    };
    seconds
        .map(|seconds| seconds * 1e6)
        .filter(|micros| (1.0..=MAX_MICROS).contains(micros))
        .map(|micros| micros as u64)
        .ok_or_else(|| Error::new_spanned(value, "expected seconds above 0, such as `10` or `0.5`"))
}

/// The path of a function, without quotes.
fn function(meta: &Meta) -> Result<TokenStream> {
    match &meta.require_name_value()?.value {
        Expr::Path(path) => Ok(quote!(#path)),
        other => Err(Error::new_spanned(other, "expected the path of a function, without quotes")),
    }
}

impl ToolOptions {
    pub(crate) fn parse(tokens: TokenStream) -> Result<Self> {
        let mut options = Self::default();
        for meta in metas(tokens)? {
            options.key(&meta)?;
        }
        options.finish()
    }

    /// Parses one key of `#[tool(…)]`.
    fn key(&mut self, meta: &Meta) -> Result<()> {
        let key = meta.path().get_ident().map(ToString::to_string).unwrap_or_default();
        let spec = local("spec");
        match key.as_str() {
            "name" => self.name = Some(tool_name(meta)?),
            "description" => self.description = Some(text(meta)?),
            "summary" => {
                let value = text(meta)?;
                self.changes.push(quote!(#spec.title = ::core::option::Option::Some(#value.into());));
            }
            "tags" => {
                let tags = texts(meta)?;
                self.changes.push(quote!(#spec.tags = ::std::vec![#(#tags.into()),*];));
            }
            "examples" => {
                for example in texts(meta)? {
                    json::check_object(&example.value()).map_err(|reason| {
                        let message =
                            format!("invalid example, which is a JSON object of arguments: {reason}");
                        Error::new(example.span(), message)
                    })?;
                    self.changes.push(quote!(
                        #spec = #spec.example(
                            ::toolpost::__private::serde_json::from_str(#example).unwrap_or_default(),
                            ::core::option::Option::None,
                        );
                    ));
                }
            }
            "streaming" | "session_mode" => {
                flag(meta)?;
                let mode = Ident::new(if key == "streaming" { "Streaming" } else { "Session" }, meta.span());
                self.changes.push(quote!(#spec.mode = ::toolpost::__private::Mode::#mode;));
            }
            "cpu_bound" => {
                flag(meta)?;
                if self.placement.is_some() {
                    return Err(Error::new_spanned(
                        meta,
                        "`cpu_bound` sets the placement: remove `policy(placement)`",
                    ));
                }
                self.cpu_bound = true;
                self.placement = Some(quote!(::toolpost::__private::Placement::Worker));
            }
            "timeout_s" => {
                let micros = seconds(meta)?;
                self.changes.push(quote!(
                    #spec.policy.timeout = ::core::option::Option::Some(
                        ::toolpost::__private::Timeout::After(
                            ::toolpost::__private::Duration::from_micros(#micros),
                        ),
                    );
                ));
            }
            "max_retries" => self.max_retries = Some(whole_number(meta, 0)?),
            "backoff_initial_ms" => self.backoff_initial = Some(whole_number(meta, 0)?),
            "backoff_max_ms" => self.backoff_max = Some(whole_number(meta, 0)?),
            "conflict_policy" => {
                let value = text(meta)?;
                one_of(&value, CONFLICTS)?;
                self.conflict = Some(value);
            }
            "policy" => {
                for meta in metas(meta.require_list()?.tokens.clone())? {
                    self.policy_key(&meta)?;
                }
            }
            _ if POLICY_KEYS.contains(&key.as_str()) => {
                let value = if matches!(meta, Meta::Path(_)) { "" } else { " = …" };
                let message = format!("`{key}` is a key of `policy`: write `policy({key}{value})`");
                return Err(Error::new_spanned(meta.path(), message));
            }
            _ => return Err(unknown(meta, &KEYS.join(", "), FOREIGN)),
        }
        Ok(())
    }

    /// Parses one key of `policy(…)`.
    fn policy_key(&mut self, meta: &Meta) -> Result<()> {
        let key = meta.path().get_ident().map(ToString::to_string).unwrap_or_default();
        let spec = local("spec");
        match key.as_str() {
            "category" | "group" => {
                let field = meta.path();
                let value = text(meta)?;
                self.changes.push(quote!(#spec.#field = ::core::option::Option::Some(#value.into());));
            }
            "read_only" | "destructive" | "idempotent" | "open_world" => {
                let field = flag(meta)?;
                self.idempotent |= key == "idempotent";
                self.changes.push(quote!(#spec.annotations.#field = true;));
            }
            "no_timeout" => {
                flag(meta)?;
                self.changes.push(quote!(
                    #spec.policy.timeout =
                        ::core::option::Option::Some(::toolpost::__private::Timeout::Never);
                ));
            }
            "merge" => self.merge = Some(function(meta)?),
            "concurrency" => {
                let number = whole_number(meta, 1)?;
                self.changes.push(quote!(#spec.policy.concurrency = ::core::option::Option::Some(#number);));
            }
            "output_limit" => {
                let number = whole_number(meta, 256)?;
                self.changes.push(quote!(#spec.policy.output_limit = ::core::option::Option::Some(#number);));
            }
            "rate" => {
                let value = text(meta)?;
                let wrong =
                    || Error::new(value.span(), "expected calls per time, such as \"10/s\" or \"5/30s\"");
                let written = value.value();
                let (calls, per) = written.split_once('/').ok_or_else(wrong)?;
                let calls: u32 = calls.parse().ok().filter(|calls| *calls > 0).ok_or_else(wrong)?;
                let per = if per.starts_with(|c: char| c.is_ascii_digit()) {
                    per.into()
                } else {
                    format!("1{per}")
                };
                let per = micros(&per).filter(|per| *per > 0).ok_or_else(wrong)?;
                self.changes.push(quote!(
                    #spec.policy.rate = ::core::option::Option::Some(::toolpost::__private::Rate {
                        calls: #calls,
                        per: ::toolpost::__private::Duration::from_micros(#per),
                    });
                ));
            }
            "cache" => {
                let value = text(meta)?;
                let duration = duration(&value.value(), value.span())?;
                self.cache = Some(meta.span());
                self.changes.push(quote!(#spec.policy.cache = ::core::option::Option::Some(#duration);));
            }
            "placement" => {
                let variant = one_of(&text(meta)?, &[("inline", "Inline"), ("blocking", "Blocking")])?;
                if self.placement.is_some() {
                    return Err(Error::new_spanned(
                        meta,
                        "`cpu_bound` sets the placement: remove `placement`",
                    ));
                }
                self.placement = Some(quote!(::toolpost::__private::Placement::#variant));
            }
            "memory_mib" => {
                let mebibytes = whole_number(meta, 16)?;
                self.memory = Some(meta.span());
                self.changes.push(quote!(
                    #spec.policy.memory = ::core::option::Option::Some(#mebibytes * 1024 * 1024);
                ));
            }
            "task" => {
                let uses =
                    [("when_slow", "WhenSlow"), ("at_once", "AtOnce"), ("only", "Only"), ("never", "Never")];
                let variant = one_of(&text(meta)?, &uses)?;
                self.changes.push(quote!(#spec.task = ::toolpost::__private::TaskUse::#variant;));
            }
            "dry_run" => {
                let field = flag(meta)?;
                self.changes.push(quote!(#spec.#field = true;));
            }
            "approval" => {
                let variant = one_of(&text(meta)?, &[("allow", "Allow"), ("ask", "Ask"), ("deny", "Deny")])?;
                self.changes.push(quote!(
                    #spec.policy.approval = ::core::option::Option::Some(::toolpost::__private::Approval::#variant);
                ));
            }
            "sensitive" => {
                let names = texts(meta)?;
                self.changes.push(quote!(#spec.sensitive.extend([#(#names.into()),*]);));
            }
            "pre_validate" => self.pre_validate = Some(function(meta)?),
            _ => return Err(unknown(meta, &POLICY_KEYS.join(", "), FOREIGN)),
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Self> {
        if let (Some(span), false) = (self.cache, self.idempotent) {
            return Err(Error::new(
                span,
                "only an idempotent tool can be cached: add `idempotent`, or remove `cache`",
            ));
        }
        if let (Some(span), false) = (self.memory, self.cpu_bound) {
            return Err(Error::new(
                span,
                "only a worker process has a memory limit: add `cpu_bound`, or remove `memory_mib`",
            ));
        }
        self.retries = self.retries()?;
        Ok(self)
    }

    /// The statements for `max_retries` and backoff: of conflicts if the tool sets a conflict policy, else of attempts.
    fn retries(&self) -> Result<TokenStream> {
        let (spec, retry) = (local("spec"), local("retry"));
        if let (Some(initial), Some(max)) = (&self.backoff_initial, &self.backoff_max) {
            let number = |value: &Expr| match value {
                Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse::<u64>().ok(),
                _ => None,
            };
            if number(initial) > number(max) {
                let message = "`backoff_initial_ms` exceeds `backoff_max_ms`: swap them";
                return Err(Error::new_spanned(initial, message));
            }
        }
        let (initial, max) = (self.backoff_initial.iter(), self.backoff_max.iter());
        let backoff = quote!(
            #(#retry.initial = ::toolpost::__private::Duration::from_millis(#initial);)*
            #(#retry.maximum = ::toolpost::__private::Duration::from_millis(#max);)*
        );
        let attempts = self.max_retries.iter();
        let is_set =
            self.max_retries.as_ref().or(self.backoff_initial.as_ref()).or(self.backoff_max.as_ref());
        let action = match (&self.conflict, &self.merge) {
            (None, None) => {
                return Ok(is_set.map_or_else(TokenStream::new, |_| {
                    quote!(
                        #spec.policy.retry = ::core::option::Option::Some({
                            let mut #retry = ::toolpost::__private::Retry::default();
                            #(#retry.attempts = #attempts;)*
                            #backoff
                            #retry
                        });
                    )
                }));
            }
            (Some(conflict), Some(_)) => {
                let message = "`policy(merge)` sets the conflict policy: remove `conflict_policy`";
                return Err(Error::new(conflict.span(), message));
            }
            (None, Some(merge)) => Ident::new("Merge", merge.span()),
            (Some(conflict), None) => {
                if let (true, Some(unused)) = (conflict.value() == "error", is_set) {
                    let message =
                        "`conflict_policy = \"error\"` retries nothing: remove `max_retries` and the backoff";
                    return Err(Error::new_spanned(unused, message));
                }
                one_of(conflict, CONFLICTS)?
            }
        };
        Ok(quote!(
            #spec.policy.conflict = ::core::option::Option::Some({
                let mut #retry = ::toolpost::__private::StateConflict::default();
                #retry.action = ::toolpost::__private::OnConflict::#action;
                #(#retry.max_retries = #attempts;)*
                #backoff
                #retry
            });
        ))
    }

    /// Checks the keys about state against the number of state parameters, and of those that the tool changes.
    pub(crate) fn check_state(&self, all: usize, changed: usize) -> Result<()> {
        if let (Some(span), true) = (self.cache, all > 0) {
            let message = "a tool with state cannot be cached: remove `cache`";
            return Err(Error::new(span, message));
        }
        let conflict = self.conflict.as_ref().map(LitStr::span);
        let span = conflict.or(self.merge.as_ref().map(Spanned::span));
        match span {
            Some(span) if changed == 0 => {
                let message = "the tool changes no state: add `#[state(id = \"…\")]` to a parameter `&mut T`, or remove this key";
                Err(Error::new(span, message))
            }
            Some(span) if changed > 1 && self.merge.is_some() => {
                let message = "`merge` supports one changed parameter: combine them, or use \
                               `conflict_policy = \"retry\"`";
                Err(Error::new(span, message))
            }
            _ => Ok(()),
        }
    }

    /// The statements that change a `spec`.
    pub(crate) fn statements(&self) -> TokenStream {
        let (changes, retries) = (&self.changes, &self.retries);
        quote!(#(#changes)* #retries)
    }
}

/// The values of `conflict_policy`.
const CONFLICTS: &[(&str, &str)] = &[("retry", "Retry"), ("error", "Error")];

/// A tool name: a letter, then letters, digits, `_` or `-`.
fn tool_name(meta: &Meta) -> Result<LitStr> {
    let name = text(meta)?;
    let value = name.value();
    let mut characters = value.chars();
    let is_valid = characters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        && value.len() <= 64;
    if !is_valid {
        let message = "invalid tool name: write a letter, then at most 63 letters, digits, `_` or `-`";
        return Err(Error::new(name.span(), message));
    }
    Ok(name)
}

/// The doc comment among attributes, without the space after `///`.
pub(crate) fn doc_text(attributes: &[Attribute]) -> String {
    let lines: Vec<String> = attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("doc"))
        .filter_map(|attribute| text(&attribute.meta).ok())
        .map(|line| {
            let line = line.value();
            line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned()
        })
        .collect();
    lines.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::micros;

    #[test]
    fn durations() {
        assert_eq!(micros("250ms"), Some(250_000));
        assert_eq!(micros("1m30s"), Some(90_000_000));
        assert_eq!(micros("1.5s"), Some(1_500_000));
        for text in ["", "10", "s", "1 s", "1y", "..s", "-1s", "99999999999999999999s"] {
            assert_eq!(micros(text), None, "{text}");
        }
    }
}
