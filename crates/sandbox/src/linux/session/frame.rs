//! Packets between the host and an interpreter of a session.
//!
//! A packet is a letter, a 16-byte request id and at most [`MAX_PAYLOAD`] bytes. The socket preserves packet
//! boundaries, so a hostile packet corrupts no other. The kernel reports the sending process. A packet that
//! is not from the interpreter, or not for the running request, is counted and dropped.

use super::super::value::Bounded;

/// The maximum payload of a packet in bytes.
pub(super) const MAX_PAYLOAD: usize = 60_000;
/// The size of letter and request id.
pub(super) const HEAD: usize = 17;
/// The number of invalid packets after which the interpreter counts as hostile.
pub(super) const MAX_STRAY: u64 = 10_000;
/// The maximum number of notes per cell.
const MAX_NOTES: usize = 20;
/// The maximum size of a note in bytes.
const MAX_NOTE_BYTES: usize = 1000;

/// An unguessable request id, used once.
pub(super) type Nonce = [u8; 16];

/// Letters of packets from the host.
pub(super) mod request {
    /// A part of a cell's source; more follows.
    pub(in super::super) const PART: u8 = b'P';
    /// The last part of a cell's source, after its number.
    pub(in super::super) const CELL: u8 = b'C';
    /// Interrupts the running cell, in an interpreter that reads packets during a cell.
    pub(in super::super) const INTERRUPT: u8 = b'I';
    /// Applies file rules to the zygote; directory descriptors are attached.
    pub(in super::super) const LOCK: u8 = b'L';
    /// Forks a new member; descriptors are attached.
    pub(in super::super) const FORK: u8 = b'B';
}

/// Letters of packets from an interpreter.
pub(super) mod reply {
    /// The zygote is ready.
    pub(in super::super) const READY: u8 = b'R';
    /// A new member has started, or failed with a reason.
    pub(in super::super) const HELLO: u8 = b'H';
    /// A part of the value.
    pub(in super::super) const VALUE: u8 = b'V';
    /// A note.
    pub(in super::super) const NOTE: u8 = b'N';
    /// The cell ended: how, and its requested exit status.
    pub(in super::super) const END: u8 = b'E';
}

/// A decoded packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) letter: u8,
    pub(super) nonce: Nonce,
    pub(super) payload: &'a [u8],
}

/// Encodes a packet.
pub(super) fn encode(letter: u8, nonce: &Nonce, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(HEAD + payload.len());
    packet.push(letter);
    packet.extend_from_slice(nonce);
    packet.extend_from_slice(payload);
    packet
}

/// Decodes a packet; none if its size is invalid.
pub(super) fn decode(packet: &[u8]) -> Option<Frame<'_>> {
    let (head, payload) = packet.split_at_checked(HEAD)?;
    let (letter, nonce) = head.split_first()?;
    (payload.len() <= MAX_PAYLOAD).then_some(Frame {
        letter: *letter,
        nonce: nonce.try_into().ok()?,
        payload,
    })
}

/// The packets with a cell's source, in order.
pub(super) fn cell(nonce: &Nonce, number: u32, source: &[u8]) -> Vec<Vec<u8>> {
    let mut parts: Vec<&[u8]> = source.chunks(MAX_PAYLOAD - 4).collect();
    let last = parts.pop().unwrap_or_default();
    let mut packets: Vec<Vec<u8>> =
        parts.into_iter().map(|part| encode(request::PART, nonce, part)).collect();
    let mut payload = number.to_le_bytes().to_vec();
    payload.extend_from_slice(last);
    packets.push(encode(request::CELL, nonce, &payload));
    packets
}

/// The end of a cell, as its interpreter reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It ran to its end.
    Done,
    /// An exception ended it.
    Raised,
    /// The host's interrupt ended it.
    Interrupted,
    /// It requested an exit with a status; the interpreter continues.
    Exited(u8),
}

/// The accumulated answer of one cell.
#[derive(Debug)]
pub(super) struct Answer {
    nonce: Nonce,
    value: Bounded,
    notes: Vec<String>,
    left_out: u64,
    stray: u64,
    end: Option<End>,
}

impl Answer {
    pub(super) fn new(nonce: Nonce, value_bytes: usize) -> Self {
        Self { nonce, value: Bounded::new(value_bytes), notes: Vec::new(), left_out: 0, stray: 0, end: None }
    }

    /// Adds a packet. `is_interpreter` is the kernel's information about its sender.
    pub(super) fn take(&mut self, packet: &[u8], is_interpreter: bool) {
        let frame = decode(packet).filter(|frame| is_interpreter && frame.nonce == self.nonce);
        let Some(frame) = frame.filter(|_| self.end.is_none()) else {
            self.stray += 1;
            return;
        };
        match (frame.letter, frame.payload) {
            (reply::VALUE, part) => self.value.push(part),
            (reply::NOTE, text) if self.notes.len() < MAX_NOTES => {
                let text = text.get(..text.len().min(MAX_NOTE_BYTES)).unwrap_or_default();
                let text = String::from_utf8_lossy(text);
                self.notes.push(text.chars().filter(|letter| !letter.is_control()).collect());
            }
            (reply::NOTE, _) => self.left_out += 1,
            (reply::END, [letter, status]) => match letter {
                b'o' => self.end = Some(End::Done),
                b'x' => self.end = Some(End::Raised),
                b'i' => self.end = Some(End::Interrupted),
                b'q' => self.end = Some(End::Exited(*status)),
                _ => self.stray += 1,
            },
            _ => self.stray += 1,
        }
    }

    /// The end of the cell, if it has ended.
    pub(super) fn end(&self) -> Option<End> {
        self.end
    }

    /// Whether the interpreter floods the socket with invalid packets.
    pub(super) fn is_flooded(&self) -> bool {
        self.stray + self.left_out > MAX_STRAY
    }

    /// The value. Adds notes to the report.
    pub(super) fn finish(self, notes: &mut Vec<String>) -> Bounded {
        notes.extend(self.notes);
        if self.stray > 0 {
            notes.push(format!("{} invalid packets on the control descriptor", self.stray));
        }
        // An unfinished cell has no value.
        if self.end == Some(End::Done) { self.value } else { Bounded::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: Nonce = *b"0123456789abcdef";

    /// Pseudo-random numbers with a fixed seed.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn bytes(&mut self, most: usize) -> Vec<u8> {
            let length = self.next() as usize % (most + 1);
            (0..length).map(|_| self.next() as u8).collect()
        }
    }

    fn answer(packets: &[(u8, &[u8])]) -> (Answer, Option<End>) {
        let mut answer = Answer::new(NONCE, 100);
        for (letter, payload) in packets {
            answer.take(&encode(*letter, &NONCE, payload), true);
        }
        let end = answer.end();
        (answer, end)
    }

    #[test]
    fn a_value_in_parts_arrives_whole_and_packets_round_trip() {
        let (done, end) = answer(&[(b'V', b"[1, "), (b'N', b"a\x1b remark"), (b'V', b"2]"), (b'E', b"o\0")]);
        assert_eq!(end, Some(End::Done));
        let mut notes = vec![];
        assert_eq!(done.finish(&mut notes).whole(), Some(&b"[1, 2]"[..]));
        assert_eq!(notes, ["a remark"]);
        let (raised, _) = answer(&[(b'V', b"1"), (b'E', b"x\0")]);
        assert_eq!(raised.finish(&mut notes).whole(), Some(&b""[..]));
        let (large, _) = answer(&[(b'V', &[b'1'; 101]), (b'E', b"o\0")]);
        assert_eq!(large.finish(&mut notes).whole(), None);
        assert_eq!(answer(&[(b'E', b"q\x03")]).1, Some(End::Exited(3)));

        for length in [0, 1, MAX_PAYLOAD - 5, MAX_PAYLOAD - 4, MAX_PAYLOAD - 3, 3 * MAX_PAYLOAD] {
            let source: Vec<u8> = (0..length).map(|number| number as u8).collect();
            let packets = cell(&NONCE, 7, &source);
            let mut found = Vec::new();
            for (place, packet) in packets.iter().enumerate() {
                let frame = decode(packet).unwrap();
                assert_eq!(frame.nonce, NONCE);
                let is_last = place + 1 == packets.len();
                assert_eq!(frame.letter, if is_last { request::CELL } else { request::PART });
                found.extend_from_slice(if is_last { &frame.payload[4..] } else { frame.payload });
            }
            assert_eq!(found, source);
        }
    }

    #[test]
    fn only_the_interpreters_own_packets_for_this_request_count() {
        let mut answer = Answer::new(NONCE, 100);
        answer.take(&encode(b'E', &NONCE, b"o\0"), false);
        answer.take(&encode(b'E', b"another request!", b"o\0"), true);
        answer.take(&encode(b'E', &[0; 16], b"o\0"), true);
        for payload in [&b""[..], b"o", b"o\0\0", b"z\0"] {
            answer.take(&encode(b'E', &NONCE, payload), true);
        }
        assert_eq!(answer.end(), None);
        answer.take(&encode(b'E', &NONCE, b"x\0"), true);
        // Packets after the end are invalid.
        answer.take(&encode(b'V', &NONCE, b"1"), true);
        answer.take(&encode(b'E', &NONCE, b"o\0"), true);
        assert_eq!(answer.end(), Some(End::Raised));
        assert_eq!(answer.stray, 9);
    }

    #[test]
    fn hostile_packets_are_bounded() {
        let mut numbers = Numbers(0x5eed_0001);
        for round in 0..200 {
            let mut answer = Answer::new(NONCE, 4096);
            for _ in 0..400 {
                let bytes = numbers.bytes(600);
                let packet = match numbers.next() % 4 {
                    0 => bytes,
                    1 => encode(numbers.next() as u8, &NONCE, &bytes),
                    _ => encode(*b"VNRHFE".get(numbers.next() as usize % 6).unwrap(), &NONCE, &bytes),
                };
                answer.take(&packet, !numbers.next().is_multiple_of(8));
            }
            assert!(answer.notes.len() <= MAX_NOTES, "round {round}");
            assert!(answer.notes.iter().all(|note| note.len() <= 3 * MAX_NOTE_BYTES));
            let mut notes = vec![];
            let value = answer.finish(&mut notes);
            assert!(value.whole().is_none_or(|value| value.len() <= 4096));
            assert!(notes.len() <= MAX_NOTES + 2);
        }
        let mut flooded = Answer::new(NONCE, 10);
        for _ in 0..=MAX_STRAY {
            assert!(!flooded.is_flooded());
            flooded.take(b"", true);
        }
        assert!(flooded.is_flooded());
        assert!(decode(&vec![b'V'; HEAD + MAX_PAYLOAD + 1]).is_none());
        assert!(decode(&[b'V'; HEAD - 1]).is_none());
    }
}
