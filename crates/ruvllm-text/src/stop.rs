//! Stop strings over streamed text: what might be the start of one is held back until it is certain.

/// Watches a stream of text for stop strings.
#[derive(Debug)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
    /// The one that was completed.
    matched: Option<usize>,
}

impl StopFilter {
    /// Makes a filter; empty strings are ignored.
    pub fn new(stops: &[String]) -> StopFilter {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        StopFilter { stops, held: String::new(), matched: None }
    }

    /// Returns the stop string that was completed.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|i| self.stops[i].as_str())
    }

    /// Takes a piece and appends to `out` what is certain. Returns whether a stop string was completed; the text
    /// before it is then in `out`, the string itself and what follows are dropped.
    pub fn push(&mut self, piece: &str, out: &mut String) -> bool {
        if self.stops.is_empty() {
            out.push_str(piece);
            return false;
        }
        self.held.push_str(piece);
        let found = self.stops.iter().enumerate().filter_map(|(i, stop)| Some((self.held.find(stop.as_str())?, i)));
        if let Some((at, i)) = found.min() {
            self.matched = Some(i);
            out.push_str(&self.held[..at]);
            self.held.clear();
            return true;
        }
        let certain = self.held.len() - self.longest_open_start();
        out.push_str(&self.held[..certain]);
        self.held.drain(..certain);
        false
    }

    /// Appends what was held back: no more text will come.
    pub fn flush(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Returns the length of the longest end of the held text that begins a stop string.
    fn longest_open_start(&self) -> usize {
        let open = |stop: &String| {
            let longest = self.held.len().min(stop.len() - 1);
            (1..=longest).rev().find(|&n| {
                let at = self.held.len() - n;
                self.held.is_char_boundary(at) && stop.is_char_boundary(n) && self.held[at..] == stop[..n]
            })
        };
        self.stops.iter().filter_map(open).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::StopFilter;

    fn check(stops: &[&str], pieces: &[&str], expected: &[&str], stopped: bool) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut filter = StopFilter::new(&stops);
        let mut seen = Vec::new();
        for piece in pieces {
            let mut out = String::new();
            let hit = filter.push(piece, &mut out);
            seen.push(out);
            if hit {
                assert!(stopped, "stopped at {piece:?}");
                assert_eq!(seen, expected);
                return;
            }
        }
        let mut rest = String::new();
        filter.flush(&mut rest);
        seen.push(rest);
        assert!(!stopped);
        assert_eq!(seen, expected);
    }

    #[test]
    fn text_is_held_only_while_it_may_be_a_stop() {
        check(&["END"], &["a E", "N", "D b"], &["a ", "", ""], true);
        check(&["END"], &["a E", "N", "T"], &["a ", "", "ENT", ""], false);
        check(&["END"], &["E", "E", "ND"], &["", "E", ""], true);
        check(&["\n\n", "\nUser:"], &["hi\n", "Us", "e"], &["hi", "", "", "\nUse"], false);
        check(&["x", "abc"], &["abx"], &["ab"], true);
        check(&["é!"], &["caf", "é", "?"], &["caf", "", "é?", ""], false);
        check(&[""], &["a", "b"], &["a", "b", ""], false);
    }
}
