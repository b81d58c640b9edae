//! Session prompts as JSON Lines, for a program that drives a tool through a pipe.

use std::io::{self, BufRead, Read as _};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};
use toolpost_core::{Answer, Question, QuestionKind, ToolError};
use toolpost_exec::protocol::dialect::{SESSION_PROMPT, SessionLine};

use crate::print;
use crate::style::one_line;

/// The maximum length of a line of standard input, in bytes.
const MAX_LINE: u64 = 1 << 20;

/// The number of characters of an invalid line in an error.
const EXCERPT: usize = 80;

/// The numbers of written and read lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    asked: Mutex<u64>,
    read: Arc<Mutex<u64>>,
}

impl Lines {
    /// Writes a prompt as one line and reads the answer.
    pub(super) async fn ask(&self, question: &Question) -> Result<Answer, ToolError> {
        let line = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            *asked += 1;
            line(question, *asked == 1)
        };
        print::line(&line).map_err(|failure| ToolError::dependency(failure.message))?;
        // A plain thread: the runtime would wait for an answer that never comes.
        let (answered, answer) = tokio::sync::oneshot::channel();
        let read = Arc::clone(&self.read);
        std::thread::spawn(move || {
            let mut number = read.lock().unwrap_or_else(PoisonError::into_inner);
            // The call may be over.
            let _ = answered.send(read_answer(io::stdin().lock(), &mut number));
        });
        answer.await?
    }
}

/// The line of a prompt, in toolable's format.
fn line(question: &Question, is_first: bool) -> SessionLine {
    let mut more = Map::new();
    if let QuestionKind::Input { schema: Some(schema) } = &question.kind {
        more.insert("schema".to_owned(), schema.clone());
    }
    let (prompt, message) = (SESSION_PROMPT.to_owned(), question.message.clone());
    if is_first {
        return SessionLine::SessionStart { message, prompt, more };
    }
    more.insert("message".to_owned(), message.into());
    SessionLine::AwaitingInput { prompt, more }
}

/// The answer in the next line that is not empty. The end of input declines.
fn read_answer(mut input: impl BufRead, number: &mut u64) -> Result<Answer, ToolError> {
    loop {
        let mut line = Vec::new();
        let length = input.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok(Answer::Declined);
        }
        *number += 1;
        if length as u64 > MAX_LINE {
            return Err(ToolError::limit(format!("line {number} of standard input exceeds 1 MiB")));
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let value: Value = serde_json::from_slice(&line).map_err(|_| {
            let text = String::from_utf8_lossy(&line);
            ToolError::invalid_input(format!(
                "line {number} of standard input is not JSON: `{}`",
                one_line(text.trim(), EXCERPT)
            ))
            .suggest("Write one JSON value per line, such as {\"action\": \"quit\"}.")
        })?;
        return Ok(Answer::Given { value });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_bounded_and_named() {
        let mut number = 0;
        let mut input = io::Cursor::new(b"\n{\"action\": 1}\nnonsense\n".to_vec());
        let answer = read_answer(&mut input, &mut number).unwrap();
        assert_eq!(answer, Answer::Given { value: json!({ "action": 1 }) });
        let error = read_answer(&mut input, &mut number).unwrap_err();
        assert_eq!(error.message(), "line 3 of standard input is not JSON: `nonsense`");
        assert_eq!(read_answer(&mut input, &mut number).unwrap(), Answer::Declined);
        let endless = io::BufReader::new(io::repeat(b' '));
        let error = read_answer(endless, &mut number).unwrap_err();
        assert_eq!(error.message(), "line 4 of standard input exceeds 1 MiB");
    }
}
