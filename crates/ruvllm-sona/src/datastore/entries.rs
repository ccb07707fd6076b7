//! The entries of a datastore, in pages that copies share until one of them writes.
//!
//! A request reads the datastore as it was when it began, and what it taught goes into a copy (`Learned::ingest`). So a copy
//! costs a pointer for a page, and adding a request's entries the page that they begin in; nothing is ever moved to make
//! room.

use std::sync::Arc;

use super::Context;
use crate::codec::{Reader, Writer};
use crate::error::SonaError;
use crate::top::BLOCK;
use crate::whiten::Key;

/// Entries of a page.
const PAGE: usize = 1024;

const _: () = assert!(PAGE.is_multiple_of(BLOCK), "a search reads pages block by block");

/// Keys, each with the token that followed and what was read before.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entries {
    /// The first bytes of a key lie apart from the rest: they are what a coarse scan reads.
    n_head: usize,
    n_tail: usize,
    /// Full but for the last one.
    pages: Vec<Arc<Page>>,
}

/// Up to [`PAGE`] entries.
#[derive(Debug, PartialEq)]
struct Page {
    /// `[n, n_head]` and `[n, n_tail]`.
    heads: Vec<i8>,
    tails: Vec<i8>,
    scales: Vec<f32>,
    tokens: Vec<u32>,
    contexts: Vec<Context>,
}

impl Page {
    /// Makes an empty page with room for all of its entries.
    fn new(n_head: usize, n_tail: usize) -> Page {
        Page {
            heads: Vec::with_capacity(PAGE * n_head),
            tails: Vec::with_capacity(PAGE * n_tail),
            scales: Vec::with_capacity(PAGE),
            tokens: Vec::with_capacity(PAGE),
            contexts: Vec::with_capacity(PAGE),
        }
    }
}

impl Clone for Page {
    /// A copy has room for a page as well: it is made to be written.
    fn clone(&self) -> Page {
        let n = self.scales.len().max(1);
        let mut page = Page::new(self.heads.len() / n, self.tails.len() / n);
        page.heads.extend_from_slice(&self.heads);
        page.tails.extend_from_slice(&self.tails);
        page.scales.extend_from_slice(&self.scales);
        page.tokens.extend_from_slice(&self.tokens);
        page.contexts.extend_from_slice(&self.contexts);
        page
    }
}

/// A key that is split after its first `n_head` bytes.
pub(super) struct SplitKey<'a> {
    /// `[n_head]`
    pub(super) head: &'a [i8],
    /// `[n_tail]`
    pub(super) tail: &'a [i8],
    pub(super) scale: f32,
}

/// Up to [`BLOCK`] neighbouring entries, as a search reads them.
pub(super) struct Block<'a> {
    /// The number of the first.
    pub(super) first: usize,
    /// `[n, n_head]`
    pub(super) heads: &'a [i8],
    /// `[n, n_tail]`
    pub(super) tails: &'a [i8],
    /// `[n]`
    pub(super) scales: &'a [f32],
}

impl Entries {
    /// No entries, of keys that are cut behind `n_head` bytes.
    pub(super) fn new(n_head: usize, n_tail: usize) -> Entries {
        Entries { n_head, n_tail, pages: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.pages.last().map_or(0, |last| (self.pages.len() - 1) * PAGE + last.scales.len())
    }

    pub(super) fn n_head(&self) -> usize {
        self.n_head
    }

    /// Adds an entry behind the others.
    pub(super) fn push(&mut self, key: &Key, context: Context, token: u32) {
        let (head, tail) = key.bytes.split_at(self.n_head);
        self.add(SplitKey { head, tail, scale: key.scale }, context, token);
    }

    /// Adds an entry whose key is split already.
    fn add(&mut self, SplitKey { head, tail, scale }: SplitKey<'_>, context: Context, token: u32) {
        if self.len() == self.pages.len() * PAGE {
            self.pages.push(Arc::new(Page::new(self.n_head, self.n_tail)));
        }
        if let Some(page) = self.pages.last_mut().map(Arc::make_mut) {
            page.heads.extend_from_slice(head);
            page.tails.extend_from_slice(tail);
            page.scales.push(scale);
            page.tokens.push(token);
            page.contexts.push(context);
        }
    }

    /// Puts an entry in the place of another.
    pub(super) fn replace(&mut self, at: usize, key: &Key, context: Context, token: u32) {
        let (head, tail) = key.bytes.split_at(self.n_head);
        let (page, at) = (Arc::make_mut(&mut self.pages[at / PAGE]), at % PAGE);
        page.heads[at * head.len()..][..head.len()].copy_from_slice(head);
        page.tails[at * tail.len()..][..tail.len()].copy_from_slice(tail);
        (page.scales[at], page.tokens[at], page.contexts[at]) = (key.scale, token, context);
    }

    /// Returns an entry's key.
    pub(super) fn key(&self, at: usize) -> SplitKey<'_> {
        let (page, at) = (&self.pages[at / PAGE], at % PAGE);
        let (head, tail) = (&page.heads[at * self.n_head..], &page.tails[at * self.n_tail..]);
        SplitKey { head: &head[..self.n_head], tail: &tail[..self.n_tail], scale: page.scales[at] }
    }

    pub(super) fn token(&self, at: usize) -> u32 {
        self.pages[at / PAGE].tokens[at % PAGE]
    }

    pub(super) fn context(&self, at: usize) -> Context {
        self.pages[at / PAGE].contexts[at % PAGE]
    }

    /// Returns how many blocks they are.
    pub(super) fn n_blocks(&self) -> usize {
        self.len().div_ceil(BLOCK)
    }

    /// Returns a block.
    pub(super) fn block(&self, i: usize) -> Block<'_> {
        let (first, page) = (i * BLOCK, &self.pages[i * BLOCK / PAGE]);
        let at = first % PAGE;
        let n = BLOCK.min(page.scales.len() - at);
        let heads = &page.heads[at * self.n_head..][..n * self.n_head];
        let tails = &page.tails[at * self.n_tail..][..n * self.n_tail];
        Block { first, heads, tails, scales: &page.scales[at..at + n] }
    }

    /// Writes all heads, all tails, all scales, all tokens, what `between` writes, and all contexts.
    pub(super) fn write(&self, out: &mut Writer, between: impl FnOnce(&mut Writer)) {
        self.pages.iter().for_each(|page| _ = out.i8s(&page.heads));
        self.pages.iter().for_each(|page| _ = out.i8s(&page.tails));
        self.pages.iter().for_each(|page| _ = out.plain_f32s(&page.scales));
        self.pages.iter().for_each(|page| _ = out.plain_u32s(&page.tokens));
        between(out);
        self.pages.iter().flat_map(|page| &page.contexts).for_each(|context| _ = out.u64(context.bits()));
    }

    /// Reads `n` entries that [`Entries::write`] wrote, and adds them.
    pub(super) fn read<T>(
        &mut self,
        n: usize,
        from: &mut Reader<'_>,
        between: impl FnOnce(&mut Reader<'_>) -> Result<T, SonaError>,
    ) -> Result<T, SonaError> {
        let (n_head, n_tail) = (self.n_head, self.n_tail);
        let (heads, tails, scales) = (from.i8s(n * n_head)?, from.i8s(n * n_tail)?, from.plain_f32s(n)?);
        let (tokens, between) = (from.plain_u32s(n)?, between(from)?);
        for i in 0..n {
            let (head, tail) = (&heads[i * n_head..][..n_head], &tails[i * n_tail..][..n_tail]);
            self.add(SplitKey { head, tail, scale: scales[i] }, Context::from_bits(from.u64()?), tokens[i]);
        }
        Ok(between)
    }
}
