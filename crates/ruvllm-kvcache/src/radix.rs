//! The tree over token ids: which blocks hold the longest known prefix.
//!
//! ```text
//! root (namespace) ── [t0 … t31 | 2 blocks] ─┬─ [t32 … t52 | 2 blocks, the last with 5 tokens]
//!                                            └─ [u32 … u63 | 2 blocks] ── …
//! ```
//!
//! A node holds a *run* of whole blocks, a leaf possibly a partial one at its end. Nodes part at block boundaries only:
//! two prefixes that part inside a block are siblings that each own a block. Siblings are sorted by the tokens of their
//! first block, and of strings in order the longest common prefix with any other stands right beside the place where
//! that one would be: so a match goes on inside a block, to the token, at the cost of looking at two neighbours.
//!
//! No partial block is the beginning of a sibling's first block: the longer one takes its place.

use crate::key::Namespace;
use ruvllm_kernels::attention::{BLOCK_TOKENS, KvBlock, KvFormat};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Place of a node in [`Tree::nodes`].
type NodeId = u32;

/// Place of a block in the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    node: NodeId,
    /// Index among the blocks of the node.
    i: usize,
}

/// The tokens of a block, at most 16; a beginning of another sorts before it.
#[derive(Clone, Copy, Debug)]
struct BlockKey {
    tokens: [u32; BLOCK_TOKENS],
    len: u8,
}

impl BlockKey {
    /// Returns the key of the block that `tokens` begin with.
    fn first_of(tokens: &[u32]) -> BlockKey {
        let len = tokens.len().min(BLOCK_TOKENS);
        let mut key = BlockKey { tokens: [0; BLOCK_TOKENS], len: len as u8 };
        key.tokens[..len].copy_from_slice(&tokens[..len]);
        key
    }

    fn tokens(&self) -> &[u32] {
        &self.tokens[..usize::from(self.len)]
    }
}

impl Ord for BlockKey {
    fn cmp(&self, other: &BlockKey) -> Ordering {
        self.tokens().cmp(other.tokens())
    }
}

impl PartialOrd for BlockKey {
    fn partial_cmp(&self, other: &BlockKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for BlockKey {
    fn eq(&self, other: &BlockKey) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for BlockKey {}

#[derive(Debug)]
struct Node {
    /// `None` for a root.
    parent: Option<NodeId>,
    /// Of a root, whose tree this is.
    namespace: Option<Namespace>,
    tokens: Vec<u32>,
    /// `tokens.len() / 16` blocks, rounded up; empty for a root only.
    blocks: Vec<KvBlock>,
    children: BTreeMap<BlockKey, NodeId>,
    last_used: u64,
}

/// Where the tokens of a query lead: nodes below the root, each with the number of its tokens that agree.
#[derive(Debug, Default)]
pub(crate) struct Path {
    nodes: Vec<(NodeId, usize)>,
    /// Tokens that agree in all.
    pub(crate) n_tokens: usize,
}

/// What an insertion did with the blocks that were offered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// Offered blocks from this one on are the tree's now as well; none if it is their number.
    pub(crate) from: usize,
    /// A partial block that were evicted for a longer one and is the tree's no more.
    pub(crate) dropped: Option<KvBlock>,
}

/// Trees by namespace. It counts no references: what it returns tells the owner which blocks to retain and release.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    /// Nodes that are not in use.
    spare: Vec<NodeId>,
    roots: HashMap<Namespace, NodeId>,
    /// Nodes without children, roots aside, the least recently used first.
    leaves: BTreeSet<(u64, NodeId)>,
    clock: u64,
    /// Its blocks by format.
    n_blocks: [usize; KvFormat::COUNT],
}

/// Returns how many leading tokens agree.
fn n_common(a: &[u32], b: &[u32]) -> usize {
    let n = a.len().min(b.len());
    a[..n].iter().zip(&b[..n]).position(|(a, b)| a != b).unwrap_or(n)
}

impl Tree {
    /// Returns the number of blocks in the tree, by format.
    pub(crate) fn n_blocks(&self) -> [usize; KvFormat::COUNT] {
        self.n_blocks
    }

    /// Returns the number of prefixes that are not the beginning of another.
    pub(crate) fn n_leaves(&self) -> usize {
        self.leaves.len()
    }

    /// Returns the longest path that agrees with `tokens`.
    pub(crate) fn find(&self, namespace: Namespace, tokens: &[u32]) -> Path {
        let mut path = Path::default();
        let Some(mut node) = self.roots.get(&namespace).copied() else { return path };
        while path.n_tokens < tokens.len() {
            let rest = &tokens[path.n_tokens..];
            let Some(child) = self.best_child(node, rest) else { break };
            let run = &self.nodes[child as usize].tokens;
            let n = n_common(run, rest);
            path.nodes.push((child, n));
            path.n_tokens += n;
            if n < run.len() || !n.is_multiple_of(BLOCK_TOKENS) {
                break;
            }
            node = child;
        }
        path
    }

    /// Returns the child whose first block agrees longest with `tokens`, if any does by a token.
    fn best_child(&self, node: NodeId, tokens: &[u32]) -> Option<NodeId> {
        let children = &self.nodes[node as usize].children;
        let key = BlockKey::first_of(tokens);
        let before = children.range(..=key).next_back();
        let after = children.range(key..).next();
        let candidates = before.into_iter().chain(after);
        let best = candidates.map(|(child, &id)| (n_common(child.tokens(), key.tokens()), id)).max_by_key(|&(n, _)| n);
        best.filter(|&(n, _)| n > 0).map(|(_, id)| id)
    }

    /// Appends the blocks that hold the path's tokens; the last may hold more than the agreeing ones.
    pub(crate) fn blocks(&self, path: &Path, out: &mut Vec<KvBlock>) {
        for &(node, n) in &path.nodes {
            out.extend_from_slice(&self.nodes[node as usize].blocks[..n.div_ceil(BLOCK_TOKENS)]);
        }
    }

    /// Counts the path as used now.
    pub(crate) fn touch(&mut self, path: &Path) {
        self.clock += 1;
        for &(id, _) in &path.nodes {
            let node = &mut self.nodes[id as usize];
            if node.children.is_empty() {
                self.leaves.remove(&(node.last_used, id));
                self.leaves.insert((self.clock, id));
            }
            node.last_used = self.clock;
        }
    }

    /// Adds `tokens`, whose KV cache is in `blocks`, as far as they are not there.
    pub(crate) fn insert(&mut self, namespace: Namespace, tokens: &[u32], blocks: &[KvBlock]) -> Inserted {
        assert_eq!(blocks.len(), tokens.len().div_ceil(BLOCK_TOKENS), "blocks for {} tokens", tokens.len());
        let mut path = self.find(namespace, tokens);
        self.touch(&path);
        if path.n_tokens == tokens.len() {
            return Inserted { from: blocks.len(), dropped: None };
        }
        // The first block that is not there as a whole.
        let from = path.n_tokens / BLOCK_TOKENS;
        let mut dropped = None;
        let mut at = self.root(namespace);
        if let Some((last, n)) = path.nodes.pop() {
            let kept = n / BLOCK_TOKENS * BLOCK_TOKENS;
            let run = self.nodes[last as usize].tokens.len();
            if n == run && kept < n {
                dropped = Some(self.nodes[last as usize].blocks[kept / BLOCK_TOKENS]);
                at = self.cut(last, kept);
            } else if kept == run {
                at = last;
            } else if kept > 0 {
                at = self.split(last, kept);
            } else {
                at = self.nodes[last as usize].parent.expect("only roots have no parent");
            }
        }
        self.append(at, &tokens[from * BLOCK_TOKENS..], &blocks[from..]);
        Inserted { from, dropped }
    }

    /// Returns the root of a namespace, a new one if need be.
    fn root(&mut self, namespace: Namespace) -> NodeId {
        match self.roots.get(&namespace) {
            Some(&root) => root,
            None => {
                let root = self.add(Node {
                    parent: None,
                    namespace: Some(namespace),
                    tokens: Vec::new(),
                    blocks: Vec::new(),
                    children: BTreeMap::new(),
                    last_used: self.clock,
                });
                self.roots.insert(namespace, root);
                root
            }
        }
    }

    fn add(&mut self, node: Node) -> NodeId {
        match self.spare.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                NodeId::try_from(self.nodes.len() - 1).expect("fewer nodes than blocks, and those have 32 bits")
            }
        }
    }

    /// Puts tokens and blocks after the end of node `at`: into it, if it is a leaf, else as a child.
    fn append(&mut self, at: NodeId, tokens: &[u32], blocks: &[KvBlock]) {
        blocks.iter().for_each(|block| self.n_blocks[block.format() as usize] += 1);
        let node = &mut self.nodes[at as usize];
        if node.parent.is_some() && node.children.is_empty() {
            node.tokens.extend_from_slice(tokens);
            node.blocks.extend_from_slice(blocks);
            return;
        }
        let child = self.add(Node {
            parent: Some(at),
            namespace: None,
            tokens: tokens.to_vec(),
            blocks: blocks.to_vec(),
            children: BTreeMap::new(),
            last_used: self.clock,
        });
        self.nodes[at as usize].children.insert(BlockKey::first_of(tokens), child);
        self.leaves.insert((self.clock, child));
    }

    /// Cuts a node in two after `n` tokens, whole blocks. Returns the upper one; the lower one keeps its id.
    fn split(&mut self, id: NodeId, n: usize) -> NodeId {
        let node = &mut self.nodes[id as usize];
        let (tokens, blocks) = (node.tokens.split_off(n), node.blocks.split_off(n / BLOCK_TOKENS));
        let upper = Node {
            parent: node.parent,
            namespace: None,
            tokens: std::mem::replace(&mut node.tokens, tokens),
            blocks: std::mem::replace(&mut node.blocks, blocks),
            children: BTreeMap::new(),
            last_used: node.last_used,
        };
        let (parent, key) = (upper.parent.expect("roots are not split"), BlockKey::first_of(&upper.tokens));
        let lower_key = BlockKey::first_of(&node.tokens);
        let upper = self.add(upper);
        self.nodes[upper as usize].children.insert(lower_key, id);
        self.nodes[id as usize].parent = Some(upper);
        self.nodes[parent as usize].children.insert(key, upper);
        upper
    }

    /// Takes the last block from a leaf, down to `n` tokens; a leaf without tokens goes. Returns the node where the
    /// prefix ends now: the leaf or its parent.
    fn cut(&mut self, id: NodeId, n: usize) -> NodeId {
        let node = &mut self.nodes[id as usize];
        let key = BlockKey::first_of(&node.tokens);
        node.tokens.truncate(n);
        let last = node.blocks.pop().expect("a leaf holds a block");
        debug_assert_eq!(node.blocks.len(), n / BLOCK_TOKENS);
        self.n_blocks[last.format() as usize] -= 1;
        if n > 0 {
            return id;
        }
        let parent_id = node.parent.expect("roots hold no tokens");
        self.leaves.remove(&(node.last_used, id));
        self.spare.push(id);
        let parent = &mut self.nodes[parent_id as usize];
        parent.children.remove(&key);
        if parent.children.is_empty() && parent.parent.is_some() {
            self.leaves.insert((parent.last_used, parent_id));
        }
        parent_id
    }

    /// Gives up blocks from the ends of the least recently used prefixes until `release` has said `true` for `n` of
    /// them, and returns how many it was. Where it says `false`, the block stays and with it all before it.
    pub(crate) fn evict(&mut self, n: usize, release: &mut dyn FnMut(KvBlock) -> bool) -> usize {
        let (mut n_freed, mut next) = (0, (0, 0));
        while n_freed < n {
            let Some(&(last_used, leaf)) = self.leaves.range(next..).next() else { break };
            next = (last_used, leaf + 1);
            while n_freed < n {
                let blocks = &self.nodes[leaf as usize].blocks;
                let n_kept = blocks.len() - 1;
                if !release(blocks[n_kept]) {
                    break;
                }
                n_freed += 1;
                let end = self.cut(leaf, n_kept * BLOCK_TOKENS);
                if end != leaf {
                    self.drop_empty_root(end);
                    next = next.min((self.nodes[end as usize].last_used, end));
                    break;
                }
            }
        }
        n_freed
    }

    /// Gives up `block` if it ends a prefix; returns whether it did.
    pub(crate) fn forget(&mut self, block: KvBlock) -> bool {
        let mut leaves = self.leaves.iter().map(|&(_, leaf)| leaf);
        let Some(leaf) = leaves.find(|&leaf| self.nodes[leaf as usize].blocks.last() == Some(&block)) else {
            return false;
        };
        let end = self.cut(leaf, (self.nodes[leaf as usize].blocks.len() - 1) * BLOCK_TOKENS);
        self.drop_empty_root(end);
        true
    }

    fn drop_empty_root(&mut self, id: NodeId) {
        let node = &mut self.nodes[id as usize];
        if let (Some(namespace), true) = (node.namespace, node.children.is_empty()) {
            node.namespace = None;
            self.roots.remove(&namespace);
            self.spare.push(id);
        }
    }

    /// Takes a namespace out and returns its blocks.
    pub(crate) fn remove(&mut self, namespace: Namespace) -> Vec<KvBlock> {
        let (mut blocks, mut open) = (Vec::new(), Vec::new());
        open.extend(self.roots.remove(&namespace));
        while let Some(id) = open.pop() {
            let node = &mut self.nodes[id as usize];
            self.leaves.remove(&(node.last_used, id));
            blocks.append(&mut node.blocks);
            open.extend(std::mem::take(&mut node.children).into_values());
            (node.tokens, node.namespace) = (Vec::new(), None);
            self.spare.push(id);
        }
        blocks.iter().for_each(|block: &KvBlock| self.n_blocks[block.format() as usize] -= 1);
        blocks
    }

    /// Puts blocks of fewer bits in the place of the path's whole blocks, where `blocks`, which hold the same tokens, have
    /// them, and tells `swapped` both.
    pub(crate) fn adopt(&mut self, path: &Path, blocks: &[KvBlock], swapped: &mut dyn FnMut(KvBlock, KvBlock)) {
        let mut rest = blocks;
        for &(id, n) in &path.nodes {
            let whole = n / BLOCK_TOKENS;
            for (i, &block) in rest.iter().enumerate().take(whole) {
                if block.format() > self.nodes[id as usize].blocks[i].format() {
                    swapped(self.replace(Place { node: id, i }, block), block);
                }
            }
            rest = &rest[whole.min(rest.len())..];
        }
    }

    /// Returns the places of the whole blocks of the `n`th least recently used prefix that is not the beginning of
    /// another, in order.
    pub(crate) fn places(&self, n: usize) -> Option<Vec<Place>> {
        let &(_, leaf) = self.leaves.iter().nth(n)?;
        let upwards = std::iter::successors(Some(leaf), |&id| self.nodes[id as usize].parent);
        let mut path: Vec<NodeId> = upwards.collect();
        path.reverse();
        let whole = |&id: &NodeId| self.nodes[id as usize].tokens.len() / BLOCK_TOKENS;
        Some(path.iter().flat_map(|id| (0..whole(id)).map(move |i| Place { node: *id, i })).collect())
    }

    /// Returns the block at a place.
    pub(crate) fn at(&self, place: Place) -> KvBlock {
        self.nodes[place.node as usize].blocks[place.i]
    }

    /// Puts another block at a place and returns the one that was there.
    pub(crate) fn replace(&mut self, place: Place, block: KvBlock) -> KvBlock {
        let old = std::mem::replace(&mut self.nodes[place.node as usize].blocks[place.i], block);
        self.n_blocks[old.format() as usize] -= 1;
        self.n_blocks[block.format() as usize] += 1;
        old
    }

    /// Iterates over the namespaces that hold something.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = Namespace> {
        self.roots.keys().copied()
    }

    /// Iterates over the blocks of the tree.
    pub(crate) fn all_blocks(&self) -> impl Iterator<Item = KvBlock> {
        // Nodes out of use hold no blocks.
        self.nodes.iter().flat_map(|node| node.blocks.iter().copied())
    }

    /// Iterates over the prefixes that are not the beginning of another, the least recently used first.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = (Namespace, Vec<u32>, Vec<KvBlock>)> {
        self.leaves.iter().map(|&(_, leaf)| {
            let upwards = std::iter::successors(Some(leaf), |&id| self.nodes[id as usize].parent);
            let mut nodes: Vec<&Node> = upwards.map(|id| &self.nodes[id as usize]).collect();
            nodes.reverse();
            let namespace = nodes[0].namespace.expect("a path begins at a root");
            let tokens = nodes.iter().flat_map(|node| &node.tokens).copied().collect();
            (namespace, tokens, nodes.iter().flat_map(|node| &node.blocks).copied().collect())
        })
    }
}

#[cfg(test)]
mod tests;
