//! Decodes server-sent events from chunks of bytes.

use std::fmt;

use memchr::memchr2;

/// Maximum length of a line or event, in bytes.
const MAX_EVENT: usize = 16 * 1024 * 1024;

/// A decoder of `text/event-stream`. It calls back once per complete event.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Decoder {
    /// The beginning of an incomplete line.
    line: Vec<u8>,
    /// The data lines of the current event, joined by line breaks.
    data: String,
    has_data: bool,
    /// Whether the last byte was a carriage return, to which a following line feed belongs.
    after_return: bool,
    /// Whether the first line was decoded. Only the first line may have a byte order mark.
    has_started: bool,
}

/// The reason why bytes are not valid server-sent events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// A line or an event is longer than the limit.
    TooLong,
    /// A data line is not UTF-8.
    NotUtf8,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "an event is longer than {} MiB", MAX_EVENT / (1024 * 1024)),
            Self::NotUtf8 => f.write_str("an event is not UTF-8"),
        }
    }
}

impl Decoder {
    /// Decodes bytes and calls `on_event` with the data of each complete event. An error ends the decoding.
    pub(crate) fn feed<E: From<Malformed>>(
        &mut self,
        mut bytes: &[u8],
        on_event: &mut impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            let taken = self.feed_event(bytes, on_event)?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Decodes bytes up to the end of the first event, or all of them. Returns how many.
    pub(crate) fn feed_event<E: From<Malformed>>(
        &mut self,
        bytes: &[u8],
        on_event: &mut impl FnMut(&str) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut rest = bytes;
        let mut has_ended = false;
        while !rest.is_empty() && !has_ended {
            if std::mem::take(&mut self.after_return) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', rest) else {
                self.buffer(rest)?;
                return Ok(bytes.len());
            };
            self.after_return = rest[end] == b'\r';
            has_ended = self.end_line(&rest[..end], on_event)?;
            rest = &rest[end + 1..];
        }
        Ok(bytes.len() - rest.len())
    }

    /// Ends the stream. The last event counts without its final line breaks, which some servers omit.
    pub(crate) fn finish<E: From<Malformed>>(
        &mut self,
        on_event: &mut impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        self.end_line(&[], on_event)?;
        self.dispatch(on_event)?;
        Ok(())
    }

    fn buffer(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        if self.line.len() + bytes.len() > MAX_EVENT {
            return Err(Malformed::TooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// Ends a line. True if an event ended with it.
    fn end_line<E: From<Malformed>>(
        &mut self,
        line: &[u8],
        on_event: &mut impl FnMut(&str) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.line.is_empty() {
            return self.take_line(line, on_event);
        }
        self.buffer(line)?;
        let mut whole = std::mem::take(&mut self.line);
        let result = self.take_line(&whole, on_event);
        whole.clear();
        self.line = whole;
        result
    }

    fn take_line<E: From<Malformed>>(
        &mut self,
        mut line: &[u8],
        on_event: &mut impl FnMut(&str) -> Result<(), E>,
    ) -> Result<bool, E> {
        if !std::mem::replace(&mut self.has_started, true) {
            line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        }
        if line.is_empty() {
            return self.dispatch(on_event);
        }
        // The event name repeats the data's `type`. Comments, ids and retry times have no use here.
        let Some(value) = line.strip_prefix(b"data") else { return Ok(false) };
        let value = match value {
            [] => value,
            [b':', b' ', value @ ..] | [b':', value @ ..] => value,
            _ => return Ok(false),
        };
        if self.data.len() + value.len() > MAX_EVENT {
            return Err(Malformed::TooLong.into());
        }
        if std::mem::replace(&mut self.has_data, true) {
            self.data.push('\n');
        }
        self.data.push_str(std::str::from_utf8(value).map_err(|_| Malformed::NotUtf8)?);
        Ok(false)
    }

    fn dispatch<E>(&mut self, on_event: &mut impl FnMut(&str) -> Result<(), E>) -> Result<bool, E> {
        if !std::mem::take(&mut self.has_data) {
            return Ok(false);
        }
        let result = on_event(&self.data);
        self.data.clear();
        result.map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(pieces: &[&[u8]]) -> Result<Vec<String>, Malformed> {
        let mut events = Vec::new();
        let mut decoder = Decoder::default();
        let mut on_event = |data: &str| {
            events.push(data.to_owned());
            Ok::<(), Malformed>(())
        };
        for piece in pieces {
            decoder.feed(piece, &mut on_event)?;
        }
        decoder.finish(&mut on_event)?;
        Ok(events)
    }

    #[test]
    fn every_split_decodes_to_the_same_events() {
        let text = "\u{feff}event: a\r\ndata: one\r\n\r\n: comment\rdata:two\rdata\rdata:  drei ü\r\rid: 7\n\ndatax: no\n\n\
                    data: four\n\ndata: five";
        let bytes = text.as_bytes();
        let expected = ["one", "two\n\n drei ü", "four", "five"];
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let events = decode(&[&bytes[..first], &bytes[first..second], &bytes[second..]]).unwrap();
                assert_eq!(events, expected, "{first} {second}");
            }
        }
    }

    #[test]
    fn events_can_be_decoded_one_at_a_time() {
        let mut bytes = b": hi\n\ndata: one\r\n\r\n\r\ndata: two\n\ndata: th".as_slice();
        let (mut decoder, mut events, mut steps) = (Decoder::default(), Vec::new(), Vec::new());
        while !bytes.is_empty() {
            let taken = decoder.feed_event(bytes, &mut |data: &str| {
                events.push(data.to_owned());
                Ok::<(), Malformed>(())
            });
            let taken = taken.unwrap();
            bytes = &bytes[taken..];
            steps.push((events.len(), bytes.len()));
        }
        assert_eq!(steps, [(1, 22), (2, 8), (2, 0)]);
    }

    #[test]
    fn an_empty_stream_has_no_events() {
        assert!(decode(&[b"", b"\n\n\n", b": ping\n\n"]).unwrap().is_empty());
    }

    #[test]
    fn size_is_bounded_per_line_and_per_event() {
        let long = vec![b'x'; MAX_EVENT + 1];
        assert_eq!(decode(&[b"data: ", &long]), Err(Malformed::TooLong));
        let line = [b"data: ".as_slice(), &vec![b'x'; MAX_EVENT / 2 + 1], b"\n"].concat();
        assert_eq!(decode(&[&line, &line]), Err(Malformed::TooLong));
    }

    #[test]
    fn invalid_utf8_is_an_error() {
        assert_eq!(decode(&[b"data: \xff\n\n"]), Err(Malformed::NotUtf8));
    }
}
