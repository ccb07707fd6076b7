//! Notes in an encrypted file: written, read in order of time, and hidden from whoever has the file and not the key.
//!
//! `cargo run -p ruvllm-store --example notes`

use std::error::Error;

use ruvllm_store::{Durability, MasterKey, OpenOptions, Scan, Table, time_key};

const NOTES: Table = Table::new("notes");

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("ruvllm-notes-{}.redb", std::process::id()));
    let key = MasterKey::new(ruvllm_store::random()?);
    let options = OpenOptions { key: Some(&key), ..OpenOptions::default() };
    let store = ruvllm_store::open(&path, &options)?;
    let mut change = store.begin(Durability::Durable)?;
    change.put(NOTES, b"alice", &time_key(1_700_000_060_000, 2), b"no milk")?;
    change.put(NOTES, b"alice", &time_key(1_700_000_000_000, 1), b"tea at four")?;
    change.commit()?;
    drop(store);

    let mut notes = Vec::new();
    ruvllm_store::open(&path, &options)?.snapshot()?.scan(NOTES, &Scan::all(b"alice"), &mut |_, note| {
        notes.push(String::from_utf8_lossy(note).into_owned());
        Ok(true)
    })?;
    println!("{}", notes.join("\n"));
    assert_eq!(notes, ["tea at four", "no milk"]);

    let bytes = std::fs::read(&path)?;
    let is_there = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(!is_there("milk") && !is_there("alice"), "the file says nothing without its key");
    let refused = ruvllm_store::open(&path, &OpenOptions::default()).err().ok_or("it opens without a key")?;
    println!("without the key: {}", refused.to_string().rsplit(": ").next().unwrap_or_default());
    std::fs::remove_file(&path)?;
    Ok(())
}
