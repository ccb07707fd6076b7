//! Formats of strings that are asserted, by the documents that define them.

use std::sync::LazyLock;

/// What a format allows: an expression that a text matches as a whole, and one that it does not.
pub(super) struct Format {
    /// Patterns that all hold.
    pub(super) patterns: Vec<String>,
    /// A pattern that does not.
    pub(super) not: Option<String>,
}

/// The 29th of February is a day of every fourth year, but for full centuries that 400 does not divide.
const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
);
/// RFC 3339; a leap second only at the end of a day of UTC.
const TIME: &str = concat!(
    r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    r"|23:59:60(?:\.[0-9]+)?(?:[zZ]|[+-]00:00))"
);
const IPV4: &str =
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
/// Names of hosts up to 253 characters: four labels of any length, or fifteen of up to fifteen characters. To count both the
/// characters of a label and those of the whole takes a state for each pair.
static HOST: LazyLock<String> = LazyLock::new(|| {
    let label = |n: usize| format!("[a-zA-Z0-9](?:[a-zA-Z0-9-]{{0,{n}}}[a-zA-Z0-9])?");
    let (long, last, short) = (label(61), label(59), label(13));
    format!(r"(?:(?:{long}\.){{0,3}}{last}|{long}|(?:{short}\.){{0,14}}{short})")
});
/// RFC 3986: unreserved, percent-encoded, sub-delims.
const REGISTERED: &str = r"(?:[a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})";
const PATH: &str = r"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})";

/// RFC 4291, 2.2, as RFC 3986 writes it down.
static IPV6: LazyLock<String> = LazyLock::new(|| {
    let h = "[0-9a-fA-F]{1,4}";
    let last = format!("(?:{h}:{h}|{IPV4})");
    let mut ways = vec![format!("(?:{h}:){{6}}{last}"), format!("::(?:{h}:){{5}}{last}")];
    for n in 0..=4 {
        let front = if n == 0 { format!("(?:{h})?") } else { format!("(?:(?:{h}:){{0,{n}}}{h})?") };
        ways.push(format!("{front}::(?:{h}:){{{}}}{last}", 4 - n));
    }
    ways.push(format!("(?:(?:{h}:){{0,5}}{h})?::{h}"));
    ways.push(format!("(?:(?:{h}:){{0,6}}{h})?::"));
    format!("(?:{})", ways.join("|"))
});

static URI: LazyLock<String> = LazyLock::new(|| {
    let ipv6 = &*IPV6;
    let host = format!(r"(?:\[(?:{ipv6}|[vV][0-9a-fA-F]+\.[a-zA-Z0-9._~!$&'()*+,;=:-]+)\]|{REGISTERED}*)");
    let user = r"(?:(?:[a-zA-Z0-9._~!$&'()*+,;=:-]|%[0-9a-fA-F]{2})*@)?";
    let rest = format!("(?:/{PATH}*)*");
    let part = format!("(?://{user}{host}(?::[0-9]*)?{rest}|/(?:{PATH}+{rest})?|{PATH}+{rest}|)");
    format!(r"[a-zA-Z][a-zA-Z0-9+.-]*:{part}(?:\?(?:{PATH}|[/?])*)?(?:#(?:{PATH}|[/?])*)?")
});

/// RFC 3339, appendix A.
static DURATION: LazyLock<String> = LazyLock::new(|| {
    let time = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
    let date = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)";
    format!("P(?:{date}(?:{time})?|{time}|[0-9]+W)")
});

/// Returns what a format asserts; `None` if it is an annotation here.
pub(super) fn find(name: &str) -> Option<Format> {
    let whole = |text: &str| format!("^(?:{text})$");
    let one = |text: &str| Some(Format { patterns: vec![whole(text)], not: None });
    match name {
        "date" => one(DATE),
        "time" => one(TIME),
        "date-time" => one(&format!("{DATE}[tT]{TIME}")),
        "duration" => one(&DURATION),
        "ipv4" => one(IPV4),
        "ipv6" => one(&IPV6),
        "uuid" => one("[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"),
        "uri" => one(&URI),
        // RFC 1123; what looks like a label of IDNA would have to be one.
        "hostname" => Some(Format { patterns: vec![whole(&HOST)], not: Some(r"(^|\.)..--".to_owned()) }),
        // RFC 5321, 4.1.2, without quoted local parts.
        "email" => {
            let local = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}";
            Some(Format {
                patterns: vec![whole(&format!("{local}@{}", &*HOST))],
                not: Some(r"^\.|\.\.|\.@|@(?:.*\.)?..--".to_owned()),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(name: &str, text: &str) -> bool {
        let Format { patterns, not } = find(name).expect("a format");
        let is_match = |pattern: &String| regex::Regex::new(pattern).expect("a pattern").is_match(text);
        patterns.iter().all(is_match) && !not.iter().any(is_match)
    }

    #[test]
    fn formats_are_those_of_their_documents() {
        let cases: [(&str, &[&str], &[&str]); 10] = [
            (
                "date",
                &["2024-02-29", "2000-02-29", "0004-02-29", "2023-02-28", "1999-12-31", "2400-02-29"],
                &[
                    "2023-02-29",
                    "2100-02-29",
                    "1900-02-29",
                    "2024-02-30",
                    "2024-04-31",
                    "2024-13-01",
                    "2024-1-1",
                    "0000-00-00",
                ],
            ),
            (
                "date-time",
                &["2024-02-29T10:00:00Z", "1990-12-31t23:59:60z", "2001-01-01T00:00:00.123+05:30"],
                &[
                    "2023-02-29T10:00:00Z",
                    "2100-02-29T10:00:00Z",
                    "1990-12-31T22:59:60Z",
                    "2001-01-01T24:00:00Z",
                    "2001-01-01",
                ],
            ),
            (
                "time",
                &["00:00:00Z", "23:59:60Z", "12:30:01.5-08:00"],
                &["12:00:00", "12:00:60Z", "25:00:00Z", "12:00:00+24:00"],
            ),
            ("duration", &["P1Y2M3DT4H5M6S", "P4W", "PT1S", "P1D"], &["P", "PT", "P1Y2W", "P1D2H", "1D", "P1M2Y"]),
            ("ipv4", &["0.0.0.0", "255.1.20.199"], &["256.0.0.1", "01.2.3.4", "1.2.3", "1.2.3.4.5"]),
            (
                "ipv6",
                &[
                    "::",
                    "::1",
                    "1::",
                    "1:2:3:4:5:6:7:8",
                    "::ffff:1.2.3.4",
                    "1:2::3:4",
                    "1:2:3:4:5:6:7::",
                    "::2:3:4:5:6:7:8",
                ],
                &["1:2:3:4:5:6:7", "1::2::3", ":::", "12345::", "1:2:3:4:5:6:7:8:9", "::1.2.3", "1:2:3:4:5:6:7:8::"],
            ),
            (
                "uuid",
                &["01234567-89ab-CDEF-0123-456789abcdef"],
                &["0123456789abcdef0123456789abcdef", "01234567-89ab-cdef-0123-456789abcdeg"],
            ),
            (
                "uri",
                &[
                    "http://a.b/c?d#e",
                    "urn:x:y",
                    "mailto:a@b.c",
                    "http://[::1]:80/",
                    "a:",
                    "http://a%20b/",
                    "file:///x",
                ],
                &["//a/b", "/a", "a b:c", "http://a/{b}", "http://a/%2", "http://[::1", "1a:b", "http://a\\b"],
            ),
            (
                "hostname",
                &["a", "a.b", "a-b.c1", "3com.com"],
                &["-a", "a-", "a..b", "a.", "a_b", "", "xn--x", "ab--cd"],
            ),
            (
                "email",
                &["a@b", "a.b+c@d-e.f", "~x@y.z"],
                &["a", "@b", "a@", ".a@b", "a.@b", "a..b@c", "a b@c", "a@b@c"],
            ),
        ];
        for (name, right, wrong) in cases {
            right.iter().for_each(|text| assert!(holds(name, text), "{name} {text}"));
            wrong.iter().for_each(|text| assert!(!holds(name, text), "{name} {text}"));
        }
        for name in ["password", "byte", "binary", "uri-reference", "iri", "regex", "json-pointer", "no-such"] {
            assert!(find(name).is_none(), "{name}");
        }
    }
}
