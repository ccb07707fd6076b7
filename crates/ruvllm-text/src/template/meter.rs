//! The allowance of one rendering: bytes that its values hold, bytes that it writes and work.
//!
//! The template engine counts instructions, and one instruction may copy a text of any length. So whatever makes a value asks
//! here first. Values are given back when nothing else refers to them any more, which is looked for when the allowance is used
//! up.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::sequence::Sequence;

/// Bytes of the values that a rendering makes and holds at one time.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Bytes of text that a rendering writes, what macros and blocks capture included.
pub(super) const WRITTEN_BYTES_MAX: usize = 64 << 20;
/// Work: a byte that is copied is one unit.
const WORK_MAX: usize = 2 << 30;
/// Work of an operation, or of one item that it looks at.
pub(super) const STEP: usize = 256;
/// The deepest nesting of lists and dicts.
const DEPTH_MAX: usize = 100;
/// Bytes of an item of a list.
pub(super) const ITEM_BYTES: usize = size_of::<Value>();
/// Bytes of an entry of a dict, with what its table keeps free.
const ENTRY_BYTES: usize = 128;
/// The longest text that a value holds without memory of its own.
const INLINE_BYTES: usize = 22;

thread_local! {
    static METER: RefCell<Meter> = RefCell::new(Meter::default());
}

/// What a rendering has taken.
#[derive(Default)]
struct Meter {
    work: usize,
    written_bytes: usize,
    held_bytes: usize,
    held: Vec<Held>,
}

/// A value that may be given back.
enum Held {
    Text(Arc<str>),
    List(Arc<Vec<Value>>, usize),
}

/// An allowance that is used up.
#[derive(Debug)]
pub(super) struct Exceeded(String);

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Exceeded {}

fn exceeded(line: impl Into<String>) -> Error {
    let line = line.into();
    Error::new(ErrorKind::InvalidOperation, line.clone()).with_source(Exceeded(line))
}

/// Gives a rendering of this thread its whole allowance; what is held goes with what is returned.
pub(super) fn begin() -> Rendering {
    METER.with_borrow_mut(|meter| *meter = Meter::default());
    Rendering
}

/// A rendering that goes on.
pub(super) struct Rendering;

impl Drop for Rendering {
    fn drop(&mut self) {
        METER.with_borrow_mut(|meter| *meter = Meter::default());
    }
}

/// Counts work.
pub(super) fn work(n: usize) -> Result<(), Error> {
    METER.with_borrow_mut(|meter| {
        meter.work = meter.work.saturating_add(n);
        if meter.work > WORK_MAX { Err(exceeded("takes too much work")) } else { Ok(()) }
    })
}

/// Makes sure that so many bytes more may be held.
pub(super) fn room(n_bytes: usize) -> Result<(), Error> {
    METER.with_borrow_mut(|meter| meter.room(n_bytes))
}

/// Counts bytes that are held to the end.
pub(super) fn hold(n_bytes: usize) -> Result<(), Error> {
    METER.with_borrow_mut(|meter| {
        meter.room(n_bytes)?;
        meter.held_bytes += n_bytes;
        Ok(())
    })
}

/// Counts text that is written.
pub(super) fn write(n_bytes: usize) -> Result<(), Error> {
    work(n_bytes)?;
    METER.with_borrow_mut(|meter| {
        meter.written_bytes += n_bytes;
        match meter.written_bytes > WRITTEN_BYTES_MAX {
            true => Err(exceeded(format!("does not render: the text is longer than {WRITTEN_BYTES_MAX} bytes"))),
            false => Ok(()),
        }
    })
}

/// Returns a text as a value that is held.
pub(super) fn text(text: String) -> Result<Value, Error> {
    if text.len() <= INLINE_BYTES {
        return Ok(Value::from(text));
    }
    room(2 * text.len())?;
    let text: Arc<str> = Arc::from(text);
    hold_text(&text)?;
    Ok(Value::from(text))
}

/// Returns a text that is marked as safe as a value that is held.
pub(super) fn safe(text: String) -> Result<Value, Error> {
    let value = Value::from_safe_string(text);
    if let Some(text) = value.to_str() {
        hold_text(&text)?;
    }
    Ok(value)
}

fn hold_text(text: &Arc<str>) -> Result<(), Error> {
    work(STEP + text.len())?;
    METER.with_borrow_mut(|meter| meter.add(Held::Text(Arc::clone(text))))
}

/// Returns a list as a value that is held; `own_bytes` are those of items that nothing else holds.
pub(super) fn list(items: Vec<Value>, own_bytes: usize) -> Result<Value, Error> {
    Ok(Value::from_dyn_object(shared(items, own_bytes)?))
}

/// Returns the items of a list or another sequence, which are held.
pub(super) fn shared(items: Vec<Value>, own_bytes: usize) -> Result<Arc<Vec<Value>>, Error> {
    work(STEP + items.len() * ITEM_BYTES)?;
    let list = Arc::new(items);
    METER.with_borrow_mut(|meter| meter.add(Held::List(Arc::clone(&list), own_bytes)))?;
    Ok(list)
}

/// Returns texts as values, and the bytes that nothing else holds: parts of one text, for a list.
pub(super) fn parts<'t>(texts: impl Iterator<Item = &'t str>) -> Result<(Vec<Value>, usize), Error> {
    let (mut items, mut own_bytes) = (Vec::new(), 0);
    for text in texts {
        let n_bytes = if text.len() <= INLINE_BYTES { 0 } else { STEP + text.len() };
        work(2 * ITEM_BYTES + n_bytes)?;
        own_bytes += n_bytes;
        if items.len() == items.capacity() {
            room(own_bytes + 4 * items.capacity() * ITEM_BYTES)?;
        }
        items.push(Value::from(text));
    }
    Ok((items, own_bytes))
}

/// Returns a list of texts.
pub(super) fn texts<'t>(texts: impl Iterator<Item = &'t str>) -> Result<Value, Error> {
    let (items, own_bytes) = parts(texts)?;
    list(items, own_bytes)
}

/// Returns a dict as a value that is held to the end.
pub(super) fn dict(entries: Vec<(Value, Value)>) -> Result<Value, Error> {
    work(STEP * (1 + entries.len()))?;
    hold(ENTRY_BYTES * (1 + entries.len()))?;
    let dict: Value = entries.into_iter().collect();
    unfolded(&dict)?;
    Ok(dict)
}

/// Returns the items of a value; fails once they are too many.
pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    let mut items = Vec::new();
    for item in value.try_iter()? {
        if items.len() == items.capacity() {
            room(4 * items.capacity() * ITEM_BYTES)?;
        }
        work(2 * ITEM_BYTES)?;
        items.push(item);
    }
    Ok(items)
}

/// Returns the bytes of a value with everything in it, each time that it is in it: what a walk through it costs.
///
/// # Errors
/// It is nested too deeply, or the walk takes too much work.
pub(super) fn unfolded(value: &Value) -> Result<usize, Error> {
    walk(value, 0, false)
}

/// Makes sure that a value holds nothing that may come to hold it: such a circle would never be given back.
pub(super) fn plain(value: &Value) -> Result<(), Error> {
    walk(value, 0, true).map(drop)
}

fn walk(value: &Value, depth: usize, only_plain: bool) -> Result<usize, Error> {
    let Some(object) = value.as_object() else {
        return Ok(ITEM_BYTES + value.as_str().map_or(0, str::len));
    };
    work(STEP)?;
    if depth > DEPTH_MAX {
        return Err(exceeded(format!("does not render: a value is nested deeper than {DEPTH_MAX}")));
    }
    // Its namespaces, loops and macros can be changed after they are made.
    let name = object.type_name();
    let changing = ["Namespace", "::Loop", "::Macro", "::Closure", "::Method", "::Cycler", "::Joiner"];
    if only_plain && changing.iter().any(|end| name.ends_with(end)) {
        let line = "a namespace, a loop, a macro or a method cannot be kept in a namespace or a loop";
        return Err(Error::new(ErrorKind::InvalidOperation, line));
    }
    let mut n_bytes = ITEM_BYTES;
    if let Some(sequence) = Sequence::of(value) {
        // Items that were taken from a generator are still there.
        for item in sequence.items.iter() {
            work(ITEM_BYTES)?;
            n_bytes += walk(item, depth + 1, only_plain)?;
        }
        return Ok(n_bytes);
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                work(ITEM_BYTES)?;
                n_bytes += walk(&item, depth + 1, only_plain)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                work(2 * ITEM_BYTES)?;
                n_bytes += walk(&key, depth + 1, only_plain)?;
                n_bytes += walk(&value.get_item(&key)?, depth + 1, only_plain)?;
            }
        }
        _ => {}
    }
    Ok(n_bytes)
}

impl Meter {
    fn room(&mut self, n_bytes: usize) -> Result<(), Error> {
        if self.held_bytes.saturating_add(n_bytes) > HELD_BYTES_MAX {
            self.sweep();
        }
        match self.held_bytes.saturating_add(n_bytes) > HELD_BYTES_MAX || self.work > WORK_MAX {
            true => Err(exceeded("takes too much memory")),
            false => Ok(()),
        }
    }

    fn add(&mut self, held: Held) -> Result<(), Error> {
        self.room(held.n_bytes())?;
        self.held_bytes += held.n_bytes();
        self.held.push(held);
        Ok(())
    }

    /// Gives back what nothing else refers to: the newest first, since a list is newer than what is in it.
    fn sweep(&mut self) {
        self.work = self.work.saturating_add(self.held.len() * ITEM_BYTES);
        let mut kept = Vec::new();
        while let Some(held) = self.held.pop() {
            match held.is_shared() {
                true => kept.push(held),
                false => self.held_bytes -= held.n_bytes(),
            }
        }
        kept.reverse();
        self.held = kept;
    }
}

impl Held {
    fn n_bytes(&self) -> usize {
        STEP + match self {
            Held::Text(text) => text.len(),
            Held::List(list, own_bytes) => list.capacity() * ITEM_BYTES + own_bytes,
        }
    }

    fn is_shared(&self) -> bool {
        match self {
            Held::Text(text) => Arc::strong_count(text) > 1,
            Held::List(list, _) => Arc::strong_count(list) > 1,
        }
    }
}
