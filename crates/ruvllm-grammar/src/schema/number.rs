//! Numbers of JSON between bounds, as expressions over their digits: exact for any bound.

/// A whole number.
pub(super) const INTEGER: &str = "(?:0|-?[1-9][0-9]*)";
/// Any number; an exponent that a double holds.
pub(super) const NUMBER: &str =
    r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE](?:[+-]?0*[0-9]{1,2}|[+-]?1[0-9]{2}|-2[0-9]{2}))?";
/// A number that bounds are told of: without an exponent.
pub(super) const DECIMAL: &str = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?";
/// The most digits of a bound.
const DIGITS_MAX: usize = 60;

/// A bound, as it is written: its sign, and digits without zeros that say nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    is_negative: bool,
    whole: String,
    fraction: String,
}

impl Bound {
    /// Reads a number as JSON writes it; `None` if it has too many digits.
    pub(super) fn read(text: &str) -> Option<Bound> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i32 = exponent.parse().ok()?;
        let (sign, digits) = mantissa.strip_prefix('-').map_or((false, mantissa), |digits| (true, digits));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if exponent.unsigned_abs() as usize > DIGITS_MAX || digits.len() > DIGITS_MAX {
            return None;
        }
        let all = format!("{whole}{fraction}");
        let at = whole.len() as i32 + exponent;
        let (whole, fraction) = match at {
            ..=0 => (String::new(), "0".repeat(-at as usize) + &all),
            at if at as usize >= all.len() => (all.clone() + &"0".repeat(at as usize - all.len()), String::new()),
            at => (all[..at as usize].to_owned(), all[at as usize..].to_owned()),
        };
        let whole = whole.trim_start_matches('0').to_owned();
        let whole = if whole.is_empty() { "0".to_owned() } else { whole };
        let fraction = fraction.trim_end_matches('0').to_owned();
        let is_negative = sign && (whole != "0" || !fraction.is_empty());
        Some(Bound { is_negative, whole, fraction })
    }

    /// Returns the expression for the numbers from it on, or those above it.
    pub(super) fn from(&self, is_open: bool) -> String {
        match self.is_negative {
            false if self.is_zero() && !is_open => format!("(?:{}|{})", any(), negative_zero()),
            false => self.more(is_open),
            true => format!("(?:{}|-(?:{}))", any(), self.less(is_open)),
        }
    }

    /// Returns the expression for the numbers up to it, or those below it.
    pub(super) fn to(&self, is_open: bool) -> String {
        match self.is_negative {
            false if self.is_zero() && is_open => format!("-(?:{})", self.more(true)),
            false => format!("(?:{}|-{})", self.less(is_open), any()),
            true => format!("-(?:{})", self.more(is_open)),
        }
    }

    fn is_zero(&self) -> bool {
        self.whole == "0" && self.fraction.is_empty()
    }

    /// Writes what is larger, without sign.
    fn more(&self, is_open: bool) -> String {
        let n = self.whole.len();
        let mut ways = vec![format!("[1-9][0-9]{{{n},}}{FRACTION}")];
        for (i, digit) in self.whole.bytes().enumerate().filter(|&(_, digit)| digit < b'9') {
            let (front, first) = (&self.whole[..i], (digit + 1) as char);
            ways.push(format!("{front}[{first}-9][0-9]{{{}}}{FRACTION}", n - 1 - i));
        }
        let (whole, fraction) = (&self.whole, &self.fraction);
        for (i, digit) in fraction.bytes().enumerate().filter(|&(_, digit)| digit < b'9') {
            ways.push(format!(r"{whole}\.{}[{}-9][0-9]*", &fraction[..i], (digit + 1) as char));
        }
        ways.push(match (fraction.is_empty(), is_open) {
            (true, false) => format!("{whole}{FRACTION}"),
            (true, true) => format!(r"{whole}\.0*[1-9][0-9]*"),
            (false, false) => format!(r"{whole}\.{fraction}[0-9]*"),
            (false, true) => format!(r"{whole}\.{fraction}0*[1-9][0-9]*"),
        });
        format!("(?:{})", ways.join("|"))
    }

    /// Writes what is smaller and not negative, without sign.
    fn less(&self, is_open: bool) -> String {
        let n = self.whole.len();
        let mut ways = Vec::new();
        if n > 1 {
            ways.push(format!("(?:0|[1-9][0-9]{{0,{}}}){FRACTION}", n - 2));
        }
        for (i, digit) in self.whole.bytes().enumerate() {
            let least = if i == 0 && n > 1 { b'1' } else { b'0' };
            if digit > least {
                let (least, last) = (least as char, (digit - 1) as char);
                ways.push(format!("{}[{least}-{last}][0-9]{{{}}}{FRACTION}", &self.whole[..i], n - 1 - i));
            }
        }
        let (whole, fraction) = (&self.whole, &self.fraction);
        if !fraction.is_empty() {
            ways.push(whole.clone());
        }
        for (i, digit) in fraction.bytes().enumerate() {
            if i > 0 {
                ways.push(format!(r"{whole}\.{}", &fraction[..i]));
            }
            if digit > b'0' {
                ways.push(format!(r"{whole}\.{}[0-{}][0-9]*", &fraction[..i], (digit - 1) as char));
            }
        }
        match (fraction.is_empty(), is_open) {
            (_, true) => {}
            (true, false) => ways.push(format!(r"{whole}(?:\.0+)?")),
            (false, false) => ways.push(format!(r"{whole}\.{fraction}0*")),
        }
        match ways.is_empty() {
            // Nothing is below zero.
            true => NOTHING.to_owned(),
            false => format!("(?:{})", ways.join("|")),
        }
    }
}

/// What a schema says of the least or the largest number.
pub(super) struct Limit {
    pub(super) bound: Bound,
    pub(super) is_least: bool,
    /// Whether the bound itself is ruled out.
    pub(super) is_open: bool,
}

impl Limit {
    /// Returns the expression for the numbers that keep it.
    pub(super) fn expression(&self) -> String {
        match self.is_least {
            true => self.bound.from(self.is_open),
            false => self.bound.to(self.is_open),
        }
    }

    /// Returns the least or largest whole number that keeps it; `None` if it has too many digits.
    fn whole(&self) -> Option<i64> {
        let Bound { is_negative, whole, fraction } = &self.bound;
        let magnitude: i64 = whole.parse().ok().filter(|&magnitude| magnitude < WHOLE_MAX)?;
        let towards_zero = if *is_negative { -magnitude } else { magnitude };
        Some(match (fraction.is_empty(), self.is_least) {
            (true, true) => towards_zero + i64::from(self.is_open),
            (true, false) => towards_zero - i64::from(self.is_open),
            (false, true) => towards_zero + i64::from(!is_negative),
            (false, false) => towards_zero - i64::from(*is_negative),
        })
    }
}

/// Bounds of whole numbers that are told at once are below it.
const WHOLE_MAX: i64 = 1_000_000_000_000_000_000;

/// Returns one expression for the whole numbers that keep all limits: cheaper for a lexer than what they say one by one
/// (docs/lab/structured-output.md). `None` if a bound has too many digits.
pub(super) fn whole(limits: &[Limit]) -> Option<String> {
    let (mut least, mut most): (Option<i64>, Option<i64>) = (None, None);
    for limit in limits {
        let whole = limit.whole()?;
        match limit.is_least {
            true => least = Some(least.map_or(whole, |least| least.max(whole))),
            false => most = Some(most.map_or(whole, |most| most.min(whole))),
        }
    }
    // Those below zero by what they are without their sign.
    let mut ways = Vec::new();
    if least.is_none_or(|least| least < 0) && most.is_none_or(|most| least.is_none_or(|least| least <= most)) {
        let nearest = most.filter(|&most| most < 0).map_or(1, i64::unsigned_abs);
        let ways_below = magnitudes(nearest, least.map(i64::unsigned_abs));
        ways.push(format!("-(?:{})", ways_below.join("|")));
    }
    if most.is_none_or(|most| most >= 0) {
        ways.extend(magnitudes(least.unwrap_or(0).max(0) as u64, most.map(|most| most as u64)));
    }
    Some(if ways.is_empty() { NOTHING.to_owned() } else { format!("(?:{})", ways.join("|")) })
}

/// Returns expressions for the whole numbers from `from` to `to`: blocks of as many free digits at the end as fit.
fn magnitudes(mut from: u64, to: Option<u64>) -> Vec<String> {
    let n_digits = from.max(1).ilog10() + 1;
    let last = to.unwrap_or(10u64.pow(n_digits) - 1);
    let mut ways = Vec::new();
    while from <= last {
        let fits =
            |&n: &u32| from / 10u64.pow(n) >= 1 && from.is_multiple_of(10u64.pow(n)) && last - from >= 10u64.pow(n) - 1;
        let n_free = (1..=18).take_while(fits).last().unwrap_or(0);
        let block = 10u64.pow(n_free);
        let (prefix, digit) = (from / block / 10, from / block % 10);
        // Blocks side by side become one, up to the next digit's turn; nothing begins with zero.
        let n_blocks = if from == 0 { 1 } else { ((last - from + 1) / block).min(10 - digit) };
        let front = if prefix > 0 { prefix.to_string() } else { String::new() };
        let digits = match n_blocks {
            1 => digit.to_string(),
            n => format!("[{digit}-{}]", digit + n - 1),
        };
        let free = match n_free {
            0 => String::new(),
            1 => "[0-9]".to_owned(),
            n => format!("[0-9]{{{n}}}"),
        };
        ways.push(format!("{front}{digits}{free}"));
        from += n_blocks * block;
    }
    if to.is_none() {
        ways.push(format!("[1-9][0-9]{{{n_digits},}}"));
    }
    ways
}

/// Returns the expression for the multiples of a number, as far as doubles hold them: those of 1, 2, 5, 25, 10 and the like
/// are told by their last digits; `None` for others.
pub(super) fn multiples(text: &str) -> Option<String> {
    let Bound { is_negative: false, whole, fraction } = Bound::read(text)? else { return None };
    let digits = format!("{whole}{fraction}");
    let (digits, n_fraction) = (digits.trim_start_matches('0'), fraction.len());
    if n_fraction > 0 {
        let is_power = digits == "1" && n_fraction <= 6;
        return is_power.then(|| format!(r"-?(?:0|[1-9][0-9]{{0,5}})(?:\.[0-9]{{1,{n_fraction}}})?"));
    }
    let multiple: u64 = digits.parse().ok().filter(|&multiple| multiple > 0)?;
    let n = (0..=9u32).find(|&n| 10u64.pow(n) % multiple == 0)?;
    let all: Vec<u64> = (0..10u64.pow(n)).step_by(multiple as usize).take(1_001).collect();
    if all.len() > 1_000 {
        return None;
    }
    let join = |texts: Vec<String>| texts.join("|");
    let short = join(all.iter().map(u64::to_string).collect());
    let last = match n {
        0 => String::new(),
        n => join(all.iter().map(|value| format!("{value:0width$}", width = n as usize)).collect()),
    };
    Some(format!(r"-?(?:{short}|[1-9][0-9]{{0,{}}}(?:{last}))(?:\.0+)?", 14 - n))
}

/// What no text is.
const NOTHING: &str = r"[^\x00-\x{10ffff}]";
/// What may stand behind the whole part.
const FRACTION: &str = r"(?:\.[0-9]+)?";

fn any() -> String {
    format!("(?:0|[1-9][0-9]*){FRACTION}")
}

fn negative_zero() -> String {
    r"-0(?:\.0+)?".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_between_bounds_are_told_at_once() {
        let limit =
            |text: &str, is_least, is_open| Limit { bound: Bound::read(text).expect("a bound"), is_least, is_open };
        let bounds =
            ["-1000", "-99.5", "-99", "-10", "-1", "-0.5", "0", "0.5", "1", "9", "10", "99", "100.5", "150", "1000"];
        let value = |text: &str| text.parse::<f64>().expect("a number");
        let numbers: Vec<i64> = (-1_250..=1_250).chain([-100_000, -99_999, 99_999, 100_000, 123_456_789]).collect();
        // The least and the largest number, and whether they are ruled out.
        type Case<'t> = [Option<(&'t str, bool)>; 2];
        let mut cases: Vec<Case<'_>> = vec![[None, None]];
        for least in bounds {
            for is_open in [false, true] {
                cases.extend([[Some((least, is_open)), None], [None, Some((least, is_open))]]);
                cases.extend(bounds.map(|most| [Some((least, is_open)), Some((most, false))]));
            }
        }
        for [least, most] in cases {
            let limits: Vec<Limit> = least
                .map(|(text, is_open)| limit(text, true, is_open))
                .into_iter()
                .chain(most.map(|(text, is_open)| limit(text, false, is_open)))
                .collect();
            let expression = whole(&limits).expect("few digits");
            let regex = regex::Regex::new(&format!("^(?:{expression})$")).expect("an expression");
            let keeps = |number: f64| {
                least.is_none_or(|(text, is_open)| number > value(text) || !is_open && number == value(text))
                    && most.is_none_or(|(text, is_open)| number < value(text) || !is_open && number == value(text))
            };
            for &number in &numbers {
                let text = number.to_string();
                assert_eq!(
                    regex.is_match(&text),
                    keeps(number as f64),
                    "{text} of {least:?} to {most:?}: {expression}"
                );
            }
            for wrong in ["-0", "00", "01", "1.0", "-", "", "1e2"] {
                assert!(!regex.is_match(wrong), "{wrong} of {least:?} to {most:?}: {expression}");
            }
        }
        let largest = [limit("-999999999999999999", true, false), limit("999999999999999999", false, false)];
        let regex =
            regex::Regex::new(&format!("^(?:{})$", whole(&largest).expect("18 digits"))).expect("an expression");
        assert!(regex.is_match("-999999999999999999") && !regex.is_match("1000000000000000000"));
        assert!(whole(&[limit("1000000000000000000", false, false)]).is_none());
    }

    #[test]
    fn bounds_are_exact_for_every_number() {
        let numbers = [
            "-9007199254740993",
            "-100",
            "-99.5",
            "-10.01",
            "-10",
            "-9.99",
            "-1",
            "-0.5",
            "-0.05",
            "-0",
            "-0.0",
            "0",
            "0.0",
            "0.001",
            "0.05",
            "0.5",
            "0.50",
            "0.51",
            "1",
            "1.0",
            "1.5",
            "2",
            "9",
            "9.99",
            "10",
            "10.01",
            "11",
            "19",
            "20",
            "99",
            "100",
            "101",
            "9007199254740992",
            "9007199254740993",
            "9007199254740994",
            "18446744073709551616",
        ];
        // Exact for these: all are multiples of 1/1000.
        let value = |text: &str| {
            let (whole, fraction) =
                text.trim_start_matches('-').split_once('.').unwrap_or((text.trim_start_matches('-'), ""));
            let thousands: i128 = format!("{whole}{fraction:0<3}").parse().expect("digits");
            if text.starts_with('-') { -thousands } else { thousands }
        };
        for bound in numbers {
            let read = Bound::read(bound).expect("a bound");
            for (expression, holds) in [
                (read.from(false), (|a, b| a >= b) as fn(i128, i128) -> bool),
                (read.from(true), |a, b| a > b),
                (read.to(false), |a, b| a <= b),
                (read.to(true), |a, b| a < b),
            ] {
                let regex = regex::Regex::new(&format!("^(?:{expression})$")).expect("an expression");
                for number in numbers {
                    let right = holds(value(number), value(bound));
                    assert_eq!(regex.is_match(number), right, "{number} and {bound}: {expression}");
                }
            }
        }
        for (multiple, right, wrong) in [
            ("1", ["7", "-10", "0", "3.0"], ["0.5", "1.01", "01"]),
            ("2", ["0", "-4", "128", "10"], ["1", "13", "2.5"]),
            ("25", ["0", "25", "1075", "-50"], ["5", "26", "1005"]),
            ("1000", ["0", "1000", "-25000", "3000.0"], ["100", "1500", "0001000"]),
            ("0.01", ["0.01", "7", "-3.5", "12.34"], ["0.001", "1.234", "1.015"]),
        ] {
            let expression = multiples(multiple).expect("an expression");
            let regex = regex::Regex::new(&format!("^(?:{expression})$")).expect("an expression");
            right.iter().for_each(|number| assert!(regex.is_match(number), "{number} by {multiple}: {expression}"));
            wrong.iter().for_each(|number| assert!(!regex.is_match(number), "{number} by {multiple}: {expression}"));
        }
        assert_eq!((multiples("7"), multiples("0.3"), multiples("-2")), (None, None, None));
        assert_eq!(Bound::read("1e2"), Bound::read("100"));
        assert_eq!(Bound::read("-1.50e-1"), Bound::read("-0.15"));
        assert_eq!(Bound::read("12.5e1"), Bound::read("125"));
        assert_eq!(Bound::read("1e300"), None);
    }
}
