//! The packets between the host and an interpreter of a session, and what the host makes of those that come back.
//!
//! A packet is a letter, 16 bytes that name the request it belongs to, and at most [`LARGEST`] bytes. The socket keeps
//! their borders, so a packet that hostile code writes spoils no other. The kernel says which process sent a packet; one
//! that is not from the interpreter, or does not name the running request, is counted and dropped.

/// The most bytes behind the head of one packet.
pub(super) const LARGEST: usize = 60_000;
/// The letter and the request's name.
pub(super) const HEAD: usize = 17;
/// Packets that belong to nothing, after which the interpreter is taken for hostile.
pub(super) const MAXIMUM_STRAY: u64 = 10_000;
/// Remarks of an interpreter that are kept for one cell.
const MAXIMUM_NOTES: usize = 20;
/// Bytes of one remark.
const MAXIMUM_NOTE: usize = 1000;

/// Names a request. Nobody can guess it, and it is never used again.
pub(super) type Nonce = [u8; 16];

/// Letters of the host.
pub(super) mod ask {
    /// A part of a cell's source; more follows.
    pub(in super::super) const PART: u8 = b'P';
    /// The rest of a cell's source, behind its number and the limit of its value.
    pub(in super::super) const CELL: u8 = b'C';
    /// Puts the origin under rules for files; folders come with it.
    pub(in super::super) const LOCK: u8 = b'L';
    /// Makes a new member by forking; descriptors come with it.
    pub(in super::super) const FORK: u8 = b'B';
}

/// Letters of an interpreter.
pub(super) mod tell {
    /// The origin is ready.
    pub(in super::super) const READY: u8 = b'R';
    /// A new member is there, or says why not.
    pub(in super::super) const HELLO: u8 = b'H';
    /// A part of the value.
    pub(in super::super) const VALUE: u8 = b'V';
    /// A remark.
    pub(in super::super) const NOTE: u8 = b'N';
    /// The cell has ended: how, and the status it asked for.
    pub(in super::super) const END: u8 = b'E';
}

/// A packet, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) letter: u8,
    pub(super) nonce: Nonce,
    pub(super) payload: &'a [u8],
}

/// Puts a packet together.
pub(super) fn encode(letter: u8, nonce: &Nonce, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(HEAD + payload.len());
    packet.push(letter);
    packet.extend_from_slice(nonce);
    packet.extend_from_slice(payload);
    packet
}

/// Takes a packet apart; none if it is too short or too long to be one.
pub(super) fn decode(packet: &[u8]) -> Option<Frame<'_>> {
    let (head, payload) = packet.split_at_checked(HEAD)?;
    let (letter, nonce) = head.split_first()?;
    (payload.len() <= LARGEST).then_some(Frame { letter: *letter, nonce: nonce.try_into().ok()?, payload })
}

/// The packets of a cell's source, in order.
pub(super) fn cell(nonce: &Nonce, number: u32, value_bytes: usize, source: &[u8]) -> Vec<Vec<u8>> {
    let mut parts: Vec<&[u8]> = source.chunks(LARGEST - 8).collect();
    let last = parts.pop().unwrap_or_default();
    let mut packets: Vec<Vec<u8>> = parts.into_iter().map(|part| encode(ask::PART, nonce, part)).collect();
    let mut payload = number.to_le_bytes().to_vec();
    payload.extend_from_slice(&u32::try_from(value_bytes).unwrap_or(u32::MAX - 1).to_le_bytes());
    payload.extend_from_slice(last);
    packets.push(encode(ask::CELL, nonce, &payload));
    packets
}

/// How a cell ended, as its interpreter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It came to its end.
    Done,
    /// An exception ended it.
    Raised,
    /// The host's interrupt ended it.
    Interrupted,
    /// It asked for the end of the program with a status; the interpreter goes on.
    Exited(u8),
}

/// What the packets of one cell amount to.
#[derive(Debug)]
pub(super) struct Answer {
    nonce: Nonce,
    value_bytes: usize,
    value: Vec<u8>,
    overflowed: bool,
    notes: Vec<String>,
    left_out: u64,
    stray: u64,
    end: Option<End>,
}

impl Answer {
    pub(super) fn new(nonce: Nonce, value_bytes: usize) -> Self {
        Self {
            nonce,
            value_bytes,
            value: Vec::new(),
            overflowed: false,
            notes: Vec::new(),
            left_out: 0,
            stray: 0,
            end: None,
        }
    }

    /// Takes a packet. `is_interpreter` is what the kernel says about its sender.
    pub(super) fn take(&mut self, packet: &[u8], is_interpreter: bool) {
        let frame = decode(packet).filter(|frame| is_interpreter && frame.nonce == self.nonce);
        let Some(frame) = frame.filter(|_| self.end.is_none()) else {
            self.stray += 1;
            return;
        };
        match (frame.letter, frame.payload) {
            (tell::VALUE, part) if self.value.len() + part.len() <= self.value_bytes => {
                self.value.extend_from_slice(part);
            }
            (tell::VALUE, _) => self.overflowed = true,
            (tell::NOTE, text) if self.notes.len() < MAXIMUM_NOTES => {
                let text = text.get(..text.len().min(MAXIMUM_NOTE)).unwrap_or_default();
                let text = String::from_utf8_lossy(text);
                self.notes.push(text.chars().filter(|letter| !letter.is_control()).collect());
            }
            (tell::NOTE, _) => self.left_out += 1,
            (tell::END, [letter, status]) => match letter {
                b'o' => self.end = Some(End::Done),
                b'x' => self.end = Some(End::Raised),
                b'i' => self.end = Some(End::Interrupted),
                b'q' => self.end = Some(End::Exited(*status)),
                _ => self.stray += 1,
            },
            _ => self.stray += 1,
        }
    }

    /// How the cell ended, if it has.
    pub(super) fn end(&self) -> Option<End> {
        self.end
    }

    /// Whether so many packets belong to nothing that somebody floods the socket.
    pub(super) fn is_flooded(&self) -> bool {
        self.stray + self.left_out > MAXIMUM_STRAY
    }

    /// The bytes of the value and whether there were too many; remarks go to the report.
    pub(super) fn finish(self, notes: &mut Vec<String>) -> (Vec<u8>, bool) {
        notes.extend(self.notes);
        if self.stray > 0 {
            notes.push(format!("{} packets on the control descriptor belonged to nothing", self.stray));
        }
        // Of a cell that did not come to its end there is none.
        if self.end == Some(End::Done) { (self.value, self.overflowed) } else { (Vec::new(), false) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: Nonce = *b"0123456789abcdef";

    /// Numbers that look random and are the same each time.
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
        assert_eq!(done.finish(&mut notes), (b"[1, 2]".to_vec(), false));
        assert_eq!(notes, ["a remark"]);
        let (raised, _) = answer(&[(b'V', b"1"), (b'E', b"x\0")]);
        assert_eq!(raised.finish(&mut notes), (vec![], false));
        let (large, _) = answer(&[(b'V', &[b'1'; 101]), (b'E', b"o\0")]);
        assert!(large.finish(&mut notes).1);
        assert_eq!(answer(&[(b'E', b"q\x03")]).1, Some(End::Exited(3)));

        for length in [0, 1, LARGEST - 9, LARGEST - 8, LARGEST - 7, 3 * LARGEST] {
            let source: Vec<u8> = (0..length).map(|number| number as u8).collect();
            let packets = cell(&NONCE, 7, 1000, &source);
            let mut found = Vec::new();
            for (place, packet) in packets.iter().enumerate() {
                let frame = decode(packet).unwrap();
                assert_eq!(frame.nonce, NONCE);
                let is_last = place + 1 == packets.len();
                assert_eq!(frame.letter, if is_last { ask::CELL } else { ask::PART });
                found.extend_from_slice(if is_last { &frame.payload[8..] } else { frame.payload });
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
        // What comes behind the end is nobody's.
        answer.take(&encode(b'V', &NONCE, b"1"), true);
        answer.take(&encode(b'E', &NONCE, b"o\0"), true);
        assert_eq!(answer.end(), Some(End::Raised));
        assert_eq!(answer.stray, 9);
    }

    #[test]
    fn what_is_kept_is_bounded_whatever_comes() {
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
            assert!(answer.value.len() <= 4096 && answer.notes.len() <= MAXIMUM_NOTES, "round {round}");
            assert!(answer.notes.iter().all(|note| note.len() <= 3 * MAXIMUM_NOTE));
            let mut notes = vec![];
            let (value, _) = answer.finish(&mut notes);
            assert!(value.len() <= 4096);
            assert!(notes.len() <= MAXIMUM_NOTES + 2);
        }
        let mut flooded = Answer::new(NONCE, 10);
        for _ in 0..=MAXIMUM_STRAY {
            assert!(!flooded.is_flooded());
            flooded.take(b"", true);
        }
        assert!(flooded.is_flooded());
        assert!(decode(&vec![b'V'; HEAD + LARGEST + 1]).is_none());
        assert!(decode(&[b'V'; HEAD - 1]).is_none());
    }
}
