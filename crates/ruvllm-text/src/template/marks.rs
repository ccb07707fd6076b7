//! Marks on characters of a conversation, which a template carries along like other characters: a character of a private-use plane
//! stands for one of the basic plane.

use std::borrow::Cow;
use std::cell::Cell;

/// The planes for private use.
const PLANES: [u32; 2] = [0xF_0000, 0x10_0000];

thread_local! {
    /// The marks of the rendering that this thread does.
    static MARKS: Cell<Option<Marks>> = const { Cell::new(None) };
}

/// Marks that are taken from one plane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    plane: u32,
}

impl Marks {
    /// Returns marks that are no characters of these texts; `None` where they use all that could be one.
    pub(crate) fn beside(texts: &[&str]) -> Option<Marks> {
        let is_used = |plane: &u32| texts.iter().any(|text| text.chars().any(|c| c as u32 & !0xFFFF == *plane));
        PLANES.into_iter().find(|plane| !is_used(plane)).map(|plane| Marks { plane })
    }

    /// Returns the character that stands for another one.
    pub(crate) fn mark(self, c: char) -> Option<char> {
        char::from_u32(self.plane + c as u32).filter(|_| (c as u32) < 0xFFFE)
    }

    /// Returns the character that a mark stands for.
    pub(crate) fn original(self, c: char) -> Option<char> {
        (c as u32).checked_sub(self.plane).filter(|n| *n <= 0xFFFF).and_then(char::from_u32)
    }

    /// Returns a text without marks.
    pub(crate) fn removed(self, text: &str) -> Cow<'_, str> {
        match text.chars().any(|c| self.original(c).is_some()) {
            true => Cow::Owned(text.chars().map(|c| self.original(c).unwrap_or(c)).collect()),
            false => Cow::Borrowed(text),
        }
    }

    /// Renders with these marks.
    pub(crate) fn within<T>(self, render: impl FnOnce() -> T) -> T {
        struct Reset(Option<Marks>);
        impl Drop for Reset {
            fn drop(&mut self) {
                MARKS.set(self.0);
            }
        }
        let _reset = Reset(MARKS.replace(Some(self)));
        render()
    }
}

/// Returns the character that a mark of this rendering stands for, or the character itself.
pub(super) fn original(c: char) -> char {
    MARKS.get().and_then(|marks| marks.original(c)).unwrap_or(c)
}
