//! A finished answer as the events of a stream.

use crate::{ItemView, ModelEvent, Response};

/// The events that an answer would have come in: texts word by word, calls, items, usage, the answer.
pub(crate) fn events_of(response: Response) -> Vec<ModelEvent> {
    let mut events: Vec<ModelEvent> = response.notices.iter().cloned().map(ModelEvent::Notice).collect();
    for (index, item) in (0..).zip(&response.items) {
        match item.view() {
            ItemView::Text { text } => {
                events.extend(words(text).map(|text| ModelEvent::TextDelta { index, text: text.to_owned() }));
            }
            ItemView::Thinking { text, .. } => {
                events.extend(
                    words(text).map(|text| ModelEvent::ThinkingDelta { index, text: text.to_owned() }),
                );
            }
            ItemView::ToolCall { id, name, arguments } => {
                let arguments = match arguments {
                    Ok(raw) => raw.get(),
                    Err(text) => text,
                };
                events.extend([String::new(), arguments.to_owned()].map(|fragment| {
                    ModelEvent::ToolCallDelta { index, id: id.clone(), name: name.clone(), fragment }
                }));
            }
            _ => {}
        }
        events.push(ModelEvent::Item(item.clone()));
    }
    events.push(ModelEvent::Usage(response.usage.clone()));
    events.push(ModelEvent::Done(Box::new(response)));
    events
}

/// Words with the white space behind them; joined they are the text.
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
