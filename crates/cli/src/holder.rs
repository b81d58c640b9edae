//! Which process works on a run, in words that another process can hold against what lives now.

/// The words for this process; `None` where the host cannot tell one from a later one of the same number.
pub(crate) fn own() -> Option<String> {
    of(std::process::id())
}

/// Whether the process of these words still lives; `None` if that cannot be said here.
pub(crate) fn is_alive(holder: &str) -> Option<bool> {
    let [number, _, boot, space] = words(holder)?;
    let own = of(std::process::id())?;
    let [_, _, own_boot, own_space] = words(&own)?;
    if boot != own_boot {
        return Some(false);
    }
    let number = number.parse().ok()?;
    // In another container the same number is another process.
    (space == own_space).then(|| of(number).as_deref() == Some(holder))
}

fn words(holder: &str) -> Option<[&str; 4]> {
    holder.split(' ').collect::<Vec<_>>().try_into().ok()
}

/// Number, start, boot and name space of a process that lives.
#[cfg(target_os = "linux")]
fn of(number: u32) -> Option<String> {
    let facts = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The name stands in parentheses and may have any characters.
    let mut fields = facts.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    let begun: u64 = fields.nth(18)?.parse().ok()?;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{number} {begun} {} {}", boot.trim(), space.display()))
}

#[cfg(not(target_os = "linux"))]
fn of(_: u32) -> Option<String> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_one_that_is_no_more() {
        let own = own().unwrap();
        assert_eq!(is_alive(&own), Some(true));
        let (_, rest) = own.split_once(' ').unwrap();
        assert_eq!(is_alive(&format!("4194305 {rest}")), Some(false));
        let words: Vec<&str> = own.split(' ').collect();
        assert_eq!(is_alive(&[words[0], "1", words[2], words[3]].join(" ")), Some(false));
        assert_eq!(is_alive(&[words[0], words[1], "another", words[3]].join(" ")), Some(false));
        assert_eq!(is_alive(&[words[0], words[1], words[2], "elsewhere"].join(" ")), None);
        for text in ["", "x", "1 2"] {
            assert_eq!(is_alive(text), None, "{text}");
        }
    }
}
