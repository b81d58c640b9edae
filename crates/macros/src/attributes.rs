//! The options of `#[tool(…)]` and `#[tools(…)]`.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::quote;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Expr, ExprLit, Lit, LitStr, Meta, Result, Token};

use crate::emit::local;
use crate::json;

/// Everything that `#[tool(…)]` can say.
#[derive(Default)]
pub(crate) struct ToolOptions {
    pub(crate) name: Option<LitStr>,
    pub(crate) description: Option<LitStr>,
    /// The path of a function.
    pub(crate) pre_validate: Option<TokenStream>,
    /// Whether the attribute says where to run.
    pub(crate) placement: Option<TokenStream>,
    /// Statements that change a `spec`.
    pub(crate) changes: Vec<TokenStream>,
    idempotent: bool,
    cache: Option<Span>,
    memory: Option<Span>,
    worker: bool,
    attempts: Option<Expr>,
    backoff: Option<Backoff>,
    conflict: Option<LitStr>,
    /// The path of the function that makes one value of two.
    pub(crate) merge: Option<TokenStream>,
    /// Statements about waits, when it is known what they are between.
    waits: Option<TokenStream>,
}

/// The first and the longest wait.
struct Backoff {
    initial: TokenStream,
    maximum: TokenStream,
    span: Span,
}

/// The options of other libraries, and what they are called here.
const SEEDS: [(&str, &str); 14] = [
    ("summary", "`description`, or a doc comment,"),
    ("examples", "`example`, once for each,"),
    ("streaming", "`mode = \"streaming\"`"),
    ("session_mode", "`mode = \"session\"`"),
    ("input_model", "`#[arg(input)]` on the parameter"),
    ("timeout_seconds", "`timeout_s`"),
    ("parallel", "`placement = \"worker\"`"),
    ("conflict_policy", "`conflict`"),
    ("snapshot", "`#[state(id = \"…\")]` on a parameter"),
    ("backoff_initial_ms", "`backoff = \"5ms..250ms\"`"),
    ("backoff_max_ms", "`backoff = \"5ms..250ms\"`"),
    ("rate_limit", "`rate = \"10/s\"`"),
    ("cache_ttl", "`cache = \"5m\"`"),
    ("requires_confirmation", "`approval = \"ask\"`"),
];

/// An option without a value.
pub(crate) fn flag(meta: &Meta) -> Result<&syn::Path> {
    meta.require_path_only().map_err(|_| {
        let name = meta.path().get_ident().map(ToString::to_string).unwrap_or_default();
        Error::new_spanned(meta, format!("`{name}` takes no value: write `{name}`, or leave it out"))
    })
}

const KNOWN: &[&str] = &[
    "name",
    "title",
    "description",
    "category",
    "group",
    "tags",
    "read_only",
    "destructive",
    "idempotent",
    "open_world",
    "timeout",
    "timeout_s",
    "max_retries",
    "backoff",
    "conflict",
    "merge",
    "concurrency",
    "rate",
    "cache",
    "placement",
    "cpu_bound",
    "memory_mib",
    "approval",
    "output_limit",
    "mode",
    "task",
    "dry_run",
    "example",
    "sensitive",
    "pre_validate",
];

/// The list inside an attribute's parentheses.
pub(crate) fn metas(tokens: TokenStream) -> Result<Vec<Meta>> {
    // `enum` is a keyword, and no path: it is read as the raw identifier.
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
        other => Err(Error::new_spanned(other, "expected a text in quotes")),
    }
}

/// A list of texts: `tags("a", "b")`.
pub(crate) fn texts(meta: &Meta) -> Result<Vec<LitStr>> {
    let list = meta.require_list()?;
    let texts = Punctuated::<LitStr, Token![,]>::parse_terminated.parse2(list.tokens.clone());
    texts
        .map(|texts| texts.into_iter().collect())
        .map_err(|_| Error::new(list.tokens.span(), "expected texts in quotes, separated by commas"))
}

fn whole_number(meta: &Meta, least: u64) -> Result<Expr> {
    let value = &meta.require_name_value()?.value;
    let number = match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse::<u64>().ok(),
        _ => None,
    };
    match number {
        Some(number) if number >= least => Ok(value.clone()),
        _ => Err(Error::new_spanned(value, format!("expected a whole number, at least {least}"))),
    }
}

/// The longest duration: 100 years, in microseconds.
const LONGEST: f64 = 3.2e15;

/// Reads `250ms`, `10s`, `1.5s`, `1m30s`, `2h` into microseconds; the same grammar as `toolpost::parse_duration`.
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
        if !(0.0..=LONGEST).contains(&part) {
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

impl ToolOptions {
    pub(crate) fn parse(tokens: TokenStream) -> Result<Self> {
        let mut options = Self::default();
        for meta in metas(tokens)? {
            options.take(&meta)?;
        }
        options.finish()
    }

    fn take(&mut self, meta: &Meta) -> Result<()> {
        let key = meta.path().get_ident().map(ToString::to_string).unwrap_or_default();
        let spec = local("spec");
        match key.as_str() {
            "name" => {
                let name = text(meta)?;
                let value = name.value();
                let mut characters = value.chars();
                let good = characters.next().is_some_and(|first| first.is_ascii_alphabetic())
                    && characters.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
                    && value.len() <= 64;
                if !good {
                    let message =
                        "a tool's name begins with a letter and has at most 64 letters, digits, `_` or `-`";
                    return Err(Error::new(name.span(), message));
                }
                self.name = Some(name);
            }
            "description" => self.description = Some(text(meta)?),
            "title" | "category" | "group" => {
                let field = meta.path();
                let value = text(meta)?;
                self.changes.push(quote!(#spec.#field = ::core::option::Option::Some(#value.into());));
            }
            "tags" => {
                let tags = texts(meta)?;
                self.changes.push(quote!(#spec.tags = ::std::vec![#(#tags.into()),*];));
            }
            "read_only" | "destructive" | "idempotent" | "open_world" => {
                let field = flag(meta)?;
                self.idempotent |= key == "idempotent";
                self.changes.push(quote!(#spec.annotations.#field = true;));
            }
            "timeout" => {
                let value = text(meta)?;
                let timeout = if value.value() == "never" {
                    quote!(::toolpost::__private::Timeout::Never)
                } else {
                    let duration = duration(&value.value(), value.span())?;
                    quote!(::toolpost::__private::Timeout::After(#duration))
                };
                self.changes.push(quote!(#spec.policy.timeout = ::core::option::Option::Some(#timeout);));
            }
            "timeout_s" => {
                let seconds = whole_number(meta, 1)?;
                self.changes.push(quote!(
                    #spec.policy.timeout = ::core::option::Option::Some(
                        ::toolpost::__private::Timeout::After(::toolpost::__private::Duration::from_secs(#seconds)),
                    );
                ));
            }
            "max_retries" => {
                self.attempts = Some(whole_number(meta, 0)?);
            }
            "backoff" => {
                let value = text(meta)?;
                let written = value.value();
                let (initial, maximum) = written.split_once("..").ok_or_else(|| {
                    Error::new(value.span(), "expected the first and the longest wait, such as \"100ms..2s\"")
                })?;
                if micros(initial).zip(micros(maximum)).is_some_and(|(initial, maximum)| initial > maximum) {
                    let message = "the first wait is longer than the longest: write the shorter one first";
                    return Err(Error::new(value.span(), message));
                }
                self.backoff = Some(Backoff {
                    initial: duration(initial, value.span())?,
                    maximum: duration(maximum, value.span())?,
                    span: meta.span(),
                });
            }
            "conflict" => {
                let value = text(meta)?;
                one_of(&value, CONFLICTS)?;
                self.conflict = Some(value);
            }
            "merge" => match &meta.require_name_value()?.value {
                Expr::Path(path) => self.merge = Some(quote!(#path)),
                other => {
                    return Err(Error::new_spanned(other, "expected the path of a function, without quotes"));
                }
            },
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
                    || Error::new(value.span(), "expected calls and a time, such as \"10/s\" or \"5/30s\"");
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
                let places = [("inline", "Inline"), ("blocking", "Blocking"), ("worker", "Worker")];
                let variant = one_of(&text(meta)?, &places)?;
                self.worker = variant == "Worker";
                self.placement = Some(quote!(::toolpost::__private::Placement::#variant));
            }
            "cpu_bound" => {
                flag(meta)?;
                self.worker = true;
                self.placement = Some(quote!(::toolpost::__private::Placement::Worker));
            }
            "memory_mib" => {
                let mebibytes = whole_number(meta, 16)?;
                self.memory = Some(meta.span());
                self.changes.push(quote!(
                    #spec.policy.memory = ::core::option::Option::Some(#mebibytes * 1024 * 1024);
                ));
            }
            "mode" => {
                let modes = [("unary", "Unary"), ("streaming", "Streaming"), ("session", "Session")];
                let variant = one_of(&text(meta)?, &modes)?;
                self.changes.push(quote!(#spec.mode = ::toolpost::__private::Mode::#variant;));
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
            "example" => {
                let example = text(meta)?;
                json::check_object(&example.value()).map_err(|reason| {
                    let message = format!("an example is a JSON object with the arguments: {reason}");
                    Error::new(example.span(), message)
                })?;
                self.changes.push(quote!(
                    #spec = #spec.example(
                        ::toolpost::__private::serde_json::from_str(#example).unwrap_or_default(),
                        ::core::option::Option::None,
                    );
                ));
            }
            "sensitive" => {
                let names = texts(meta)?;
                self.changes.push(quote!(#spec.sensitive.extend([#(#names.into()),*]);));
            }
            "pre_validate" => match &meta.require_name_value()?.value {
                Expr::Path(path) => self.pre_validate = Some(quote!(#path)),
                other => {
                    return Err(Error::new_spanned(other, "expected the path of a function, without quotes"));
                }
            },
            _ => {
                let ours = SEEDS.iter().find(|(theirs, _)| *theirs == key).map(|(_, ours)| *ours);
                let message = match ours {
                    Some(ours) => format!("`{key}` is called {ours} here"),
                    None => format!("unknown option: expected one of {}", KNOWN.join(", ")),
                };
                return Err(Error::new_spanned(meta.path(), message));
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Self> {
        if let (Some(span), false) = (self.cache, self.idempotent) {
            return Err(Error::new(
                span,
                "only an idempotent tool can be cached: add `idempotent`, or drop `cache`",
            ));
        }
        if let (Some(span), false) = (self.memory, self.worker) {
            return Err(Error::new(
                span,
                "only a worker process has memory of its own: add `placement = \"worker\"`, or drop `memory_mib`",
            ));
        }
        self.waits = Some(self.waits()?);
        Ok(self)
    }

    /// What is said of conflicts and of failed attempts: `max_retries` and `backoff` are about conflicts if anything
    /// else is.
    fn waits(&self) -> Result<TokenStream> {
        let (spec, retry) = (local("spec"), local("retry"));
        let initial = self.backoff.iter().map(
            |Backoff { initial, maximum, .. }| quote!(#retry.initial = #initial; #retry.maximum = #maximum;),
        );
        let action = match (&self.conflict, &self.merge) {
            (None, None) => {
                if self.attempts.is_none() && self.backoff.is_none() {
                    return Ok(TokenStream::new());
                }
                let attempts = self.attempts.iter();
                return Ok(quote!(
                    #spec.policy.retry = ::core::option::Option::Some({
                        let mut #retry = ::toolpost::__private::Retry::default();
                        #(#retry.attempts = #attempts;)*
                        #(#initial)*
                        #retry
                    });
                ));
            }
            (Some(said), Some(_)) if said.value() != "merge" => {
                let message = "`merge` says what happens on a conflict: drop `conflict`, or write `conflict = \"merge\"`";
                return Err(Error::new(said.span(), message));
            }
            (Some(said), None) if said.value() == "merge" => {
                let message =
                    "say how: `merge = path::to::function`, a `fn(before: T, mine: T, theirs: T) -> T`";
                return Err(Error::new(said.span(), message));
            }
            (_, Some(merge)) => Ident::new("Merge", merge.span()),
            (Some(said), None) => {
                let idle = self.attempts.as_ref().map(Spanned::span);
                let idle = idle.or(self.backoff.as_ref().map(|backoff| backoff.span));
                if let (true, Some(span)) = (said.value() == "error", idle) {
                    let message = "with `conflict = \"error\"` nothing is tried again: drop `max_retries` and `backoff`";
                    return Err(Error::new(span, message));
                }
                one_of(said, CONFLICTS)?
            }
        };
        let attempts = self.attempts.iter();
        Ok(quote!(
            #spec.policy.conflict = ::core::option::Option::Some({
                let mut #retry = ::toolpost::__private::StateConflict::default();
                #retry.action = ::toolpost::__private::OnConflict::#action;
                #(#retry.max_retries = #attempts;)*
                #(#initial)*
                #retry
            });
        ))
    }

    /// Checks what is said of state against the parameters that are state: how many there are, and how many of them are
    /// changed. Nothing is said of it if there is none.
    pub(crate) fn check_state(&self, all: usize, changed: usize) -> Result<()> {
        if let (Some(span), true) = (self.cache, all > 0) {
            let message =
                "a tool with state does not answer the same each time, and cannot be cached: drop `cache`";
            return Err(Error::new(span, message));
        }
        let conflict = self.conflict.as_ref().map(LitStr::span);
        let span = conflict.or(self.merge.as_ref().map(Spanned::span));
        match span {
            Some(span) if changed == 0 => {
                let message =
                    "nothing can conflict: put `#[state(id = \"…\")]` on a parameter `&mut T`, or drop this";
                Err(Error::new(span, message))
            }
            Some(span) if changed > 1 && self.merge.is_some() => {
                let message = "a conflict can be merged where one parameter is changed, and here are more: \
                               make one type of them, or let the tool run again with `conflict = \"retry\"`";
                Err(Error::new(span, message))
            }
            _ => Ok(()),
        }
    }

    /// The statements that change a `spec`.
    pub(crate) fn statements(&self) -> TokenStream {
        let (changes, waits) = (&self.changes, &self.waits);
        quote!(#(#changes)* #waits)
    }
}

/// What can happen on a conflict.
const CONFLICTS: &[(&str, &str)] = &[("retry", "Retry"), ("error", "Error"), ("merge", "Merge")];

/// The text of the doc comments among attributes, without the space that follows `///`.
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
