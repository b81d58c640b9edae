//! Removes files of other providers from requests: file ids are valid at one provider only.

use std::borrow::Cow;

use crate::provider::PROVIDERS;
use crate::{MediaSource, Part, Request, Turn};

/// The request without the files of other providers, with a notice for each. A text replaces each file.
///
/// A file belongs to the provider that answered its turn.
pub(crate) fn without_foreign_files<'a>(
    provider: &str,
    request: &'a Request,
) -> (Cow<'a, Request>, Vec<String>) {
    let mut foreign: Vec<(usize, &'static str)> = Vec::new();
    let mut answered_by = None;
    for (index, turn) in request.turns.iter().enumerate().rev() {
        match turn {
            Turn::Assistant(turn) => {
                // A cancelled or scripted answer does not tell the provider of the files.
                let known = PROVIDERS.iter().find(|known| known.name == turn.origin.provider);
                answered_by = known.map(|known| known.name).or(answered_by);
            }
            turn => {
                let other = answered_by.filter(|other| *other != provider);
                foreign.extend(
                    other.filter(|_| parts(turn).any(|part| id(part).is_some())).map(|other| (index, other)),
                );
            }
        }
    }
    if foreign.is_empty() {
        return (Cow::Borrowed(request), Vec::new());
    }
    let mut request = request.clone();
    let mut notices = Vec::new();
    for (index, other) in foreign.into_iter().rev() {
        let Some(turn) = request.turns.get_mut(index) else { continue };
        for part in parts_mut(turn) {
            let Some(id) = id(part) else { continue };
            notices
                .push(format!("the file `{id}` was not sent: it was uploaded to {other}, not to {provider}"));
            *part = Part::text(format!(
                "[A file was uploaded to {other} here. It is unavailable; ask the user for it if you need it.]"
            ));
        }
    }
    (Cow::Owned(request), notices)
}

/// The id of an uploaded file.
fn id(part: &Part) -> Option<&str> {
    match part {
        Part::ContainerFile { file_id } => Some(file_id),
        Part::Image(media) | Part::Document(media) => match &media.source {
            MediaSource::FileId(id) => Some(id),
            _ => None,
        },
        _ => None,
    }
}

fn parts(turn: &Turn) -> Box<dyn Iterator<Item = &Part> + '_> {
    match turn {
        Turn::User(parts) | Turn::System(parts) => Box::new(parts.iter()),
        Turn::ToolResults(results) => Box::new(results.iter().flat_map(|result| &result.content)),
        Turn::Assistant(_) => Box::new(std::iter::empty()),
    }
}

fn parts_mut(turn: &mut Turn) -> Box<dyn Iterator<Item = &mut Part> + '_> {
    match turn {
        Turn::User(parts) | Turn::System(parts) => Box::new(parts.iter_mut()),
        Turn::ToolResults(results) => Box::new(results.iter_mut().flat_map(|result| &mut result.content)),
        Turn::Assistant(_) => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AssistantTurn, Media, ModelId, ToolResult};

    fn answer(provider: &str) -> Turn {
        Turn::Assistant(AssistantTurn::new(ModelId::new(provider, "m"), Vec::new()))
    }

    fn file(id: &str) -> Turn {
        Turn::User(vec![Part::text("look"), Part::ContainerFile { file_id: id.into() }])
    }

    /// The remaining ids and the number of notices, for a provider.
    fn remaining(turns: &[Turn], provider: &str) -> (Vec<String>, usize) {
        let request = Request { turns: turns.to_vec(), ..Request::default() };
        let (seen, notices) = without_foreign_files(provider, &request);
        assert_eq!(matches!(seen, Cow::Borrowed(_)), notices.is_empty());
        assert_eq!(seen.turns.len(), turns.len());
        let ids = seen.turns.iter().flat_map(parts).filter_map(id).map(str::to_owned);
        (ids.collect(), notices.len())
    }

    #[test]
    fn a_file_belongs_to_the_provider_that_answered_its_turn() {
        let mut result = ToolResult::text("1", "t", "seen");
        result.content.push(Part::Image(Media::from_file_id("image/png", "f3")));
        let turns = [
            file("f1"),
            answer("openai"),
            file("f2"),
            answer("interrupted"),
            answer("anthropic"),
            Turn::ToolResults(vec![result]),
            answer("anthropic"),
            Turn::User(vec![Part::Document(Media::from_url("application/pdf", "https://a.example/x.pdf"))]),
            answer("openai"),
            file("f4"),
        ];
        for (provider, ids, notices) in
            [("openai", &["f1", "f4"][..], 2), ("anthropic", &["f2", "f3", "f4"], 1), ("gemini", &["f4"], 3)]
        {
            assert_eq!(
                remaining(&turns, provider),
                (ids.iter().map(|id| (*id).to_owned()).collect(), notices),
                "{provider}"
            );
        }
        // Without an answer of a provider, the provider of the files is unknown.
        assert_eq!(remaining(&[file("f1"), answer("script")], "openai"), (vec!["f1".to_owned()], 0));
    }
}
