//! Server-sent events, read line by line within bounds.

use std::io::{self, BufRead, Read};

/// The most bytes of one event: a server that sends more is not believed.
const EVENT_BYTES_MAX: u64 = 8 << 20;

/// The data of a stream's events, up to `[DONE]` or the end.
pub(crate) struct Events<R> {
    reader: R,
    is_done: bool,
}

impl<R: BufRead> Events<R> {
    pub(crate) fn new(reader: R) -> Events<R> {
        Events { reader, is_done: false }
    }

    /// Reads lines up to an empty one, and returns the data of the event; `None` at the end of the stream.
    fn read(&mut self) -> io::Result<Option<String>> {
        let (mut data, mut n_left) = (String::new(), EVENT_BYTES_MAX);
        loop {
            let mut line = String::new();
            let n = self.reader.by_ref().take(n_left).read_line(&mut line)? as u64;
            n_left -= n;
            if n_left == 0 {
                return Err(io::Error::other(format!("an event of more than {EVENT_BYTES_MAX} bytes")));
            }
            let content = line.trim_end_matches(['\r', '\n']);
            match content.strip_prefix("data:") {
                Some(more) => {
                    if !data.is_empty() {
                        data.push('\n');
                    }
                    data.push_str(more.strip_prefix(' ').unwrap_or(more));
                }
                // The end of the stream ends its last event too.
                None if content.is_empty() && (!data.is_empty() || n == 0) => {
                    return Ok((!data.is_empty()).then_some(data));
                }
                // Comments, names and numbers of events.
                None => {}
            }
        }
    }
}

impl<R: BufRead> Iterator for Events<R> {
    type Item = io::Result<String>;

    fn next(&mut self) -> Option<io::Result<String>> {
        if self.is_done {
            return None;
        }
        let event = self.read().transpose();
        self.is_done = !matches!(&event, Some(Ok(data)) if data != "[DONE]");
        event.filter(|event| !matches!(event, Ok(data) if data == "[DONE]"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(stream: &str) -> Vec<String> {
        Events::new(stream.as_bytes()).map(|event| event.expect("a sound stream")).collect()
    }

    #[test]
    fn events_are_their_data() {
        let stream = ": ping\n\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:b\ndata: c\n\ndata: [DONE]\n\ndata: after\n\n";
        assert_eq!(events(stream), ["{\"a\":1}", "b\nc"]);
        assert_eq!(events("data: cut off"), ["cut off"]);
        assert!(events("").is_empty());
    }

    #[test]
    fn an_event_without_an_end_is_refused() {
        let endless = io::repeat(b'x').take(EVENT_BYTES_MAX + 10);
        let found: Vec<_> = Events::new(io::BufReader::new(endless)).collect();
        assert!(matches!(&found[..], [Err(_)]), "{} events", found.len());
    }
}
