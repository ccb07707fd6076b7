//! Writes examples of a task with one right answer: dates in many forms, and the same as YYYY-MM-DD.
//!
//! `cargo run -p ruvllm-lora --example dates -- 2000 7 > dates.jsonl` writes 2,000 conversations of seed 7, for `ruvllm lora train`.

use std::io::{BufWriter, Write, stdout};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::json;

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
const ROMAN: [&str; 12] = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let n: usize = args.next().map_or(Ok(2000), |n| n.parse())?;
    let mut rng = ChaCha8Rng::seed_from_u64(args.next().map_or(Ok(7), |seed| seed.parse())?);
    let mut below = |n: usize| ((u64::from(rng.next_u32()) * n as u64) >> 32) as usize;
    let mut out = BufWriter::new(stdout().lock());
    for _ in 0..n {
        let (year, month, day) = (1900 + below(200), below(12), 1 + below(28));
        let name = MONTHS[month];
        let ending = match day {
            1 | 21 => "st",
            2 | 22 => "nd",
            3 | 23 => "rd",
            _ => "th",
        };
        let date = match below(8) {
            0 => format!("{name} {day}, {year}"),
            1 => format!("the {day}{ending} of {name}, {year}"),
            2 => format!("{day} {name} {year}"),
            3 => format!("{} {day} {year}", &name[..3]),
            4 => format!("{day}.{}.{year}", ROMAN[month]),
            5 => format!("{year}, {} {day}", name.to_uppercase()),
            6 => format!("{name} the {day}{ending} in the year {year}"),
            _ => format!("day {day} of month {} of {year}", month + 1),
        };
        let question = format!("Write this date as YYYY-MM-DD: {date}");
        let answer = format!("{year}-{:02}-{day:02}", month + 1);
        let messages =
            [json!({ "role": "user", "content": question }), json!({ "role": "assistant", "content": answer })];
        writeln!(out, "{}", json!({ "messages": messages }))?;
    }
    Ok(())
}
