//! Address rules: which addresses are not public.

#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
use std::net::UdpSocket;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The rule that blocks an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressRule {
    /// Its name, such as `loopback` or `metadata`.
    pub name: &'static str,
    /// The predicate of a sentence about the address, such as "is this machine itself".
    pub reason: &'static str,
}

const fn because(name: &'static str, reason: &'static str) -> AddressRule {
    AddressRule { name, reason }
}

const LOOPBACK: AddressRule = because("loopback", "is this machine itself");
const UNSPECIFIED: AddressRule = because("unspecified", "means this machine itself");
const PRIVATE: AddressRule = because("private", "belongs to a private network");
const LINK_LOCAL: AddressRule =
    because("link_local", "belongs to the local link, where clouds keep the credentials of a machine");
const METADATA: AddressRule = because("metadata", "is where a cloud keeps the credentials of a machine");
const SHARED: AddressRule = because("shared", "belongs to the network of a provider");
const MULTICAST: AddressRule = because("multicast", "is a group of machines");
const BROADCAST: AddressRule = because("broadcast", "is every machine of the local network");
const RESERVED: AddressRule = because("reserved", "is not a public address");

/// The rule for addresses of this machine.
#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
pub(crate) const OWN: AddressRule = because("own", "is this machine itself");

/// Whether packets to an address would return to this machine. Sends nothing.
#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
pub(crate) fn is_own(address: IpAddr) -> bool {
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // The kernel's route to an own address starts at that address.
    let is_route_to_itself = UdpSocket::bind((any, 0))
        .and_then(|socket| {
            socket.connect((address, 9))?;
            socket.local_addr()
        })
        .is_ok_and(|local| local.ip() == address);
    // Only an own address can be bound, unless the machine allows binding to all.
    is_route_to_itself
        || (UdpSocket::bind((address, 0)).is_ok()
            && UdpSocket::bind((IpAddr::from([192, 0, 2, 1]), 0)).is_err())
}

/// Cloud metadata addresses outside the other rules.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(169, 254, 169, 254), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(100, 100, 100, 200)];

/// Returns the rule that blocks an address; none if it is public.
///
/// An IPv4 address inside an IPv6 address (mapped, NAT64, 6to4) has the rule of the inner address. Sources:
/// IANA's special-purpose registries and the clouds' documentation.
///
/// ```
/// let rule = toolpost_egress::address_rule("169.254.169.254".parse()?).expect("no public address");
/// assert_eq!(rule.name, "metadata");
/// assert_eq!(toolpost_egress::address_rule("1.1.1.1".parse()?), None);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn address_rule(address: IpAddr) -> Option<AddressRule> {
    match address {
        IpAddr::V4(address) => rule_v4(address),
        IpAddr::V6(address) => rule_v6(address),
    }
}

/// Whether an address is from a documentation or benchmark range, which no machine has. VPNs and mirrors that
/// replace DNS answers use them.
#[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
pub(crate) fn is_stand_in(address: IpAddr) -> bool {
    let IpAddr::V4(address) = address else { return false };
    matches!(address.octets(), [192, 0, 2, _] | [198, 18..=19, ..] | [198, 51, 100, _] | [203, 0, 113, _])
}

fn rule_v4(address: Ipv4Addr) -> Option<AddressRule> {
    if METADATA_V4.contains(&address) {
        return Some(METADATA);
    }
    Some(match address.octets() {
        [0, 0, 0, 0] => UNSPECIFIED,
        [255, 255, 255, 255] => BROADCAST,
        [127, ..] => LOOPBACK,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => PRIVATE,
        [169, 254, ..] => LINK_LOCAL,
        [100, 64..=127, ..] => SHARED,
        [224..=239, ..] => MULTICAST,
        // "This network", protocol assignments, documentation, 6to4 relays, benchmarks, and future use.
        [0 | 240..=255, ..]
        | [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18..=19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => RESERVED,
        _ => return None,
    })
}

fn rule_v6(address: Ipv6Addr) -> Option<AddressRule> {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        rule_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(UNSPECIFIED),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(LOOPBACK),
        // An IPv4 address in another form: mapped, NAT64, or 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => embedded(high, low),
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] => Some(METADATA),
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => Some(PRIVATE),
        [0xfe80..=0xfebf, ..] => Some(LINK_LOCAL),
        [0xff00..=0xffff, ..] => Some(MULTICAST),
        // Protocol assignments (Teredo, ORCHID and others) and documentation.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(RESERVED),
        // The prefix of all public addresses.
        [0x2000..=0x3fff, ..] => None,
        _ => Some(RESERVED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
    #[test]
    fn stand_ins_are_among_the_reserved_addresses() {
        for address in ["192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.7", "203.0.113.80"] {
            let address = address.parse().unwrap();
            assert!(is_stand_in(address) && address_rule(address) == Some(RESERVED), "{address}");
        }
        for address in
            ["192.0.0.1", "198.17.0.1", "198.20.0.1", "240.0.0.1", "10.0.0.1", "169.254.169.254", "::1"]
        {
            assert!(!is_stand_in(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn private_addresses_are_blocked_in_every_form() {
        for (address, expected) in [
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "reserved"),
            ("10.0.0.1", "private"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.168.1.1", "private"),
            ("169.254.1.1", "link_local"),
            ("169.254.169.254", "metadata"),
            ("168.63.129.16", "metadata"),
            ("100.100.100.200", "metadata"),
            ("100.64.0.1", "shared"),
            ("224.0.0.1", "multicast"),
            ("255.255.255.255", "broadcast"),
            ("240.0.0.1", "reserved"),
            ("192.0.2.1", "reserved"),
            ("198.18.0.1", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:169.254.169.254", "metadata"),
            ("::127.0.0.1", "reserved"),
            ("64:ff9b::10.0.0.1", "private"),
            ("64:ff9b::a9fe:a9fe", "metadata"),
            ("64:ff9b:1::1", "reserved"),
            ("2002:7f00:1::", "loopback"),
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "reserved"),
            ("2001:db8::1", "reserved"),
            ("fd00:ec2::254", "metadata"),
            ("fc00::1", "private"),
            ("fdff::1", "private"),
            ("fe80::1", "link_local"),
            ("fec0::1", "private"),
            ("ff02::1", "multicast"),
            ("100::1", "reserved"),
            ("5f00::1", "reserved"),
        ] {
            assert_eq!(
                address_rule(address.parse().unwrap()).map(|rule| rule.name),
                Some(expected),
                "{address}"
            );
        }
    }

    #[test]
    fn public_addresses_are_allowed() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "172.15.255.255",
            "172.32.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450:4001::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2001:4860:4860::8888",
        ] {
            assert_eq!(address_rule(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn an_address_inside_another_one_has_its_rule() {
        // Every first and second octet, and a sample of the rest.
        for bits in (0..=u16::MAX).map(|high| u32::from(high).wrapping_mul(65_543)) {
            let [a, b, c, d] = bits.to_be_bytes();
            let plain = address_rule(IpAddr::from([a, b, c, d]));
            for text in [format!("::ffff:{a}.{b}.{c}.{d}"), format!("64:ff9b::{a}.{b}.{c}.{d}")] {
                assert_eq!(address_rule(text.parse().unwrap()), plain, "{text}");
            }
        }
    }

    #[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
    #[test]
    fn an_address_of_this_machine_is_known() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(is_own("127.9.9.9".parse().unwrap()));
        assert!(!is_own("192.0.2.77".parse().unwrap()));
        assert!(!is_own("8.8.8.8".parse().unwrap()));
    }
}
