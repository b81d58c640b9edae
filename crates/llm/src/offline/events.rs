//! Converts a complete answer into the events of a stream.

use futures_util::StreamExt as _;

use crate::{Item, ItemView, ModelError, ModelEvent, Response, ResponseStream};

/// The stream of a complete answer, or of an error.
pub(crate) fn stream_of(answer: Result<Response, ModelError>) -> ResponseStream {
    let events = match answer {
        Ok(response) => events_of(response).into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    };
    futures_util::stream::iter(events).boxed()
}

/// The events of an answer: texts word by word, calls, items, usage, the answer.
fn events_of(response: Response) -> Vec<ModelEvent> {
    let mut events: Vec<ModelEvent> = response.notices.iter().cloned().map(ModelEvent::Notice).collect();
    for (index, item) in (0..).zip(&response.items) {
        events.extend(deltas_of(index, item));
        events.push(ModelEvent::Item(item.clone()));
    }
    events.push(ModelEvent::Usage(response.usage.clone()));
    events.push(ModelEvent::Done(Box::new(response)));
    events
}

/// The deltas of an item.
pub(crate) fn deltas_of(index: u64, item: &Item) -> Vec<ModelEvent> {
    match item.view() {
        ItemView::Text { text, .. } => {
            words(text).map(|text| ModelEvent::TextDelta { index, text: text.to_owned() }).collect()
        }
        ItemView::Thinking { text, .. } => {
            words(text).map(|text| ModelEvent::ThinkingDelta { index, text: text.to_owned() }).collect()
        }
        ItemView::ToolCall { id, name, arguments } => {
            let arguments = match arguments {
                Ok(raw) => raw.get(),
                Err(text) => text,
            };
            let delta = |fragment: &str| ModelEvent::ToolCallDelta {
                index,
                id: id.clone(),
                name: name.clone(),
                fragment: fragment.to_owned(),
            };
            vec![delta(""), delta(arguments)]
        }
        _ => Vec::new(),
    }
}

/// The words of a text, each with the white space after it.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let word = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let end = rest[word..]
            .find(|character: char| !character.is_whitespace())
            .map_or(rest.len(), |gap| word + gap);
        let (first, after) = rest.split_at(end);
        rest = after;
        (!first.is_empty()).then_some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn words_join_to_the_text() {
        assert_eq!(words(" a  bc\nü ").collect::<Vec<_>>(), [" ", "a  ", "bc\n", "ü "]);
        assert_eq!(words("").count(), 0);
    }
}
