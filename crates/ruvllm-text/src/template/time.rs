//! `strftime_now`: the date, as templates write it into system prompts.

use web_time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment in the proleptic Gregorian calendar, UTC.
struct Date {
    /// Since 1970.
    seconds: i64,
    year: i64,
    /// 1 to 12.
    month: usize,
    /// 1 to 31.
    day: i64,
    /// 0 is Sunday.
    weekday: usize,
    /// 1 to 366.
    day_of_year: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

/// Days to a date: Hinnant 2014, "chrono-compatible low-level date algorithms", `civil_from_days`.
fn date(time: SystemTime) -> Date {
    let seconds = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    };
    let (days, second_of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years begin in March, so that the leap day comes last; 146,097 days are 400 years.
    let from_march = days + 719_468;
    let (era, day_of_era) = (from_march.div_euclid(146_097), from_march.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_from_march + 2) / 153;
    let day = day_from_march - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let leap = i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
    Date {
        seconds,
        year,
        month: month as usize,
        day,
        weekday: (days + 4).rem_euclid(7) as usize,
        day_of_year: if month <= 2 { day_from_march - 305 } else { day_from_march + 60 + leap },
        hour: second_of_day / 3_600,
        minute: second_of_day / 60 % 60,
        second: second_of_day % 60,
    }
}

/// Formats a moment in UTC like C's `strftime` in the C locale; a directive it does not know stays as it is.
pub fn strftime(time: SystemTime, format: &str) -> String {
    let date = date(time);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let rest = chars.as_str();
        let flag = rest.chars().next().filter(|c| "-_0^".contains(*c));
        let directive = rest.chars().nth(usize::from(flag.is_some()));
        let Some(text) = directive.and_then(|directive| date.directive(directive, flag)) else {
            out.push('%');
            continue;
        };
        out.push_str(&if flag == Some('^') { text.to_uppercase() } else { text });
        chars.nth(usize::from(flag.is_some()));
    }
    out
}

impl Date {
    /// Returns the year and number of the ISO week.
    fn iso_week(&self) -> (i64, i64) {
        let days_in = |year: i64| 365 + i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
        // The week of a day is the one of its Thursday.
        let thursday = self.day_of_year + 3 - (self.weekday as i64 + 6) % 7;
        match thursday {
            day if day < 1 => (self.year - 1, (day + days_in(self.year - 1) - 1) / 7 + 1),
            day if day > days_in(self.year) => (self.year + 1, 1),
            day => (self.year, (day - 1) / 7 + 1),
        }
    }

    /// Returns one directive's text; `flag` says how numbers are filled up.
    fn directive(&self, directive: char, flag: Option<char>) -> Option<String> {
        let filled = |n: i64, width: usize, fill: char| match (flag, fill) {
            (Some('-'), _) => n.to_string(),
            (Some('_'), _) | (None | Some('^'), ' ') => format!("{n:width$}"),
            _ => format!("{n:0width$}"),
        };
        let padded = |n: i64, width: usize| filled(n, width, '0');
        let weekday = self.weekday as i64;
        let (iso_year, iso_week) = self.iso_week();
        let hour12 = (self.hour + 11) % 12 + 1;
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => padded(self.year.rem_euclid(100), 2),
            'm' => padded(self.month as i64, 2),
            'd' => padded(self.day, 2),
            'e' => filled(self.day, 2, ' '),
            'k' => filled(self.hour, 2, ' '),
            'l' => filled(hour12, 2, ' '),
            'C' => padded(self.year.div_euclid(100), 2),
            'U' => padded((self.day_of_year + 6 - weekday) / 7, 2),
            'W' => padded((self.day_of_year + 6 - (weekday + 6) % 7) / 7, 2),
            'G' => iso_year.to_string(),
            'g' => padded(iso_year.rem_euclid(100), 2),
            'V' => padded(iso_week, 2),
            's' => self.seconds.to_string(),
            'f' => "000000".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            'c' => format!(
                "{} {} {:2} {:02}:{:02}:{:02} {}",
                &DAYS[self.weekday][..3],
                &MONTHS[self.month - 1][..3],
                self.day,
                self.hour,
                self.minute,
                self.second,
                self.year
            ),
            'j' => padded(self.day_of_year, 3),
            'B' => MONTHS[self.month - 1].to_owned(),
            'b' | 'h' => MONTHS[self.month - 1][..3].to_owned(),
            'A' => DAYS[self.weekday].to_owned(),
            'a' => DAYS[self.weekday][..3].to_owned(),
            'u' => ((self.weekday + 6) % 7 + 1).to_string(),
            'w' => self.weekday.to_string(),
            'H' => padded(self.hour, 2),
            'I' => padded(hour12, 2),
            'M' => padded(self.minute, 2),
            'S' => padded(self.second, 2),
            'p' => (if self.hour < 12 { "AM" } else { "PM" }).to_owned(),
            'P' => (if self.hour < 12 { "am" } else { "pm" }).to_owned(),
            'r' => format!(
                "{:02}:{:02}:{:02} {}",
                hour12,
                self.minute,
                self.second,
                if self.hour < 12 { "AM" } else { "PM" }
            ),
            // Python's time has no zone.
            'z' | 'Z' => String::new(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            'D' | 'x' => format!("{:02}/{:02}/{:02}", self.month, self.day, self.year.rem_euclid(100)),
            'T' | 'X' => format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            'R' => format!("{:02}:{:02}", self.hour, self.minute),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn check(seconds: u64, format: &str, expected: &str) {
        assert_eq!(strftime(UNIX_EPOCH + Duration::from_secs(seconds), format), expected, "{seconds} {format}");
    }

    #[test]
    fn dates_are_pythons() {
        check(1_736_944_496, "%d %b %Y, %H:%M:%S %A %j", "15 Jan 2025, 12:34:56 Wednesday 015");
        check(0, "%Y-%m-%d %a %e %-d %I%p", "1970-01-01 Thu  1 1 12AM");
        check(951_782_400, "%F %j %B", "2000-02-29 060 February");
        check(1_735_603_200, "%F %j %u %w", "2024-12-31 366 2 2");
        check(4_107_542_400, "%D %T %y", "03/01/00 00:00:00 00");
        check(0, "100%% %Q %", "100% %Q %");
        check(
            1_736_944_496,
            "%c|%x|%U %W %G-W%V|%C %k %l|%_d %^a %r %z%Z|%s",
            "Wed Jan 15 12:34:56 2025|01/15/25|02 02 2025-W03|20 12 12|15 WED 12:34:56 PM |1736944496",
        );
        check(1_735_603_200, "%G-W%V %U %W", "2025-W01 52 53");
        check(1_609_459_200, "%G-W%V %g %U %W", "2020-W53 20 00 00");
    }
}
