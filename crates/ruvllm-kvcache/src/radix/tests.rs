//! The tree against a list of strings, and its shape after every operation.

use super::*;
use crate::key::NamespaceBuilder;
use proptest::prelude::*;
use std::collections::HashSet;

fn namespace(n: u8) -> Namespace {
    NamespaceBuilder::new("test").part("n", &[n]).finish()
}

/// Checks everything a tree promises about its shape.
fn check(tree: &Tree) {
    let (mut n_blocks, mut leaves, mut n_nodes) = (0, BTreeSet::new(), 0);
    let mut open: Vec<NodeId> = tree.roots.values().copied().collect();
    assert!(tree.roots.iter().all(|(&namespace, &id)| tree.nodes[id as usize].namespace == Some(namespace)));
    while let Some(id) = open.pop() {
        n_nodes += 1;
        let node = &tree.nodes[id as usize];
        n_blocks += node.blocks.len();
        assert_eq!(node.blocks.len(), node.tokens.len().div_ceil(BLOCK_TOKENS));
        assert_eq!(node.parent.is_none(), node.namespace.is_some());
        assert_eq!(node.parent.is_none(), node.tokens.is_empty());
        match (node.children.is_empty(), node.parent) {
            (true, Some(_)) => assert!(leaves.insert((node.last_used, id))),
            (true, None) => panic!("a root without children"),
            (false, _) => assert!(node.tokens.len().is_multiple_of(BLOCK_TOKENS), "a partial block inside"),
        }
        for (key, &child) in &node.children {
            let node = &tree.nodes[child as usize];
            assert_eq!(node.parent, Some(id));
            assert_eq!(BlockKey::first_of(&node.tokens), *key);
            assert!(tree.nodes[id as usize].last_used >= node.last_used || tree.nodes[id as usize].parent.is_none());
        }
        let keys: Vec<&BlockKey> = node.children.keys().collect();
        assert!(keys.windows(2).all(|pair| !pair[1].tokens().starts_with(pair[0].tokens())), "a beginning beside it");
        open.extend(node.children.values());
    }
    assert_eq!((n_blocks, &leaves), (n_in(tree), &tree.leaves));
    assert_eq!(n_nodes + tree.spare.len(), tree.nodes.len());
}

/// Returns how many blocks the tree says it holds, after a look at those of each format.
fn n_in(tree: &Tree) -> usize {
    for format in KvFormat::ALL {
        let n = tree.all_blocks().filter(|block| block.format() == format).count();
        assert_eq!(tree.n_blocks()[format as usize], n, "{format}");
    }
    tree.n_blocks().iter().sum()
}

/// Numbers blocks as they come, in changing formats.
struct Blocks(usize);

/// Returns block `i`.
fn block(i: usize) -> KvBlock {
    KvBlock::new(KvFormat::ALL[i % KvFormat::COUNT], i)
}

fn blocks<const N: usize>(numbers: [usize; N]) -> [KvBlock; N] {
    numbers.map(block)
}

impl Blocks {
    fn of(&mut self, tokens: &[u32]) -> Vec<KvBlock> {
        let n = tokens.len().div_ceil(BLOCK_TOKENS);
        self.0 += n;
        (self.0 - n..self.0).map(block).collect()
    }
}

/// Tokens of few kinds: prefixes meet and part everywhere.
fn tokens() -> impl Strategy<Value = Vec<u32>> {
    let piece = (0u32..3, 1usize..24).prop_map(|(token, n)| vec![token; n]);
    proptest::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Without eviction the match is the longest common prefix with anything inserted.
    #[test]
    fn the_longest_prefix_is_found(strings in proptest::collection::vec((tokens(), 0u8..2), 1..30)) {
        let (mut tree, mut blocks) = (Tree::default(), Blocks(0));
        for (i, (string, n)) in strings.iter().enumerate() {
            let before = strings[..i].iter().filter(|(_, m)| m == n);
            let expected = before.map(|(other, _)| n_common(other, string)).max().unwrap_or(0);
            let path = tree.find(namespace(*n), string);
            prop_assert_eq!(path.n_tokens, expected);
            let mut found = Vec::new();
            tree.blocks(&path, &mut found);
            prop_assert_eq!(found.len(), expected.div_ceil(BLOCK_TOKENS));
            let inserted = tree.insert(namespace(*n), string, &blocks.of(string));
            let n_blocks = string.len().div_ceil(BLOCK_TOKENS);
            prop_assert_eq!(inserted.from, if expected == string.len() { n_blocks } else { expected / BLOCK_TOKENS });
            prop_assert_eq!(tree.find(namespace(*n), string).n_tokens, string.len());
            check(&tree);
        }
        // Whatever leaves the tree was in it once, and nothing stays.
        let mut left: HashSet<KvBlock> = tree.all_blocks().collect();
        for prefix in tree.prefixes() {
            prop_assert_eq!(prefix.2.len(), prefix.1.len().div_ceil(BLOCK_TOKENS));
        }
        while n_in(&tree) > 0 {
            let n_freed = tree.evict(3, &mut |block| left.remove(&block));
            prop_assert!((1..=3).contains(&n_freed));
            check(&tree);
        }
        prop_assert!(left.is_empty() && tree.roots.is_empty() && tree.n_leaves() == 0);
    }
}

#[test]
fn the_longest_unused_goes_first_from_its_end() {
    let (mut tree, mut blocks) = (Tree::default(), Blocks(0));
    let string = |token: u32, n: usize| [vec![9; 32], vec![token; n]].concat();
    for (token, n) in [(0, 40), (1, 20), (2, 16)] {
        let string = string(token, n);
        tree.insert(namespace(0), &string, &blocks.of(&string));
    }
    let path = tree.find(namespace(0), &string(0, 40));
    tree.touch(&path);
    let mut gone = Vec::new();
    let mut evict = |tree: &mut Tree, n, kept: &[usize]| {
        gone.clear();
        tree.evict(n, &mut |block| {
            !kept.contains(&block.index()) && {
                gone.push(block.index());
                true
            }
        });
        check(tree);
        gone.clone()
    };
    // Blocks: 0 to 4 with token 0, 5 to 8 with token 1 (5 and 6 are 0 and 1 again), 9 to 11 with token 2.
    assert_eq!(evict(&mut tree, 1, &[]), [8]);
    assert_eq!(evict(&mut tree, 2, &[7]), [11, 4]);
    assert_eq!(evict(&mut tree, 9, &[0]), [7, 3, 2, 1]);
    assert_eq!(tree.find(namespace(0), &string(0, 40)).n_tokens, 16);
    assert_eq!((n_in(&tree), tree.n_leaves()), (1, 1));
}

#[test]
fn a_longer_block_takes_the_place_of_its_beginning() {
    let (mut tree, ns) = (Tree::default(), namespace(0));
    assert_eq!(tree.insert(ns, &[1; 20], &blocks([0, 1])), Inserted { from: 0, dropped: None });
    assert_eq!(tree.insert(ns, &[1; 24], &blocks([2, 3])), Inserted { from: 1, dropped: Some(block(1)) });
    assert_eq!(tree.insert(ns, &[1; 22], &blocks([4, 5])), Inserted { from: 2, dropped: None });
    assert_eq!(tree.insert(ns, &[[1; 18], [2; 18]].concat(), &blocks([6, 7, 8])), Inserted { from: 1, dropped: None });
    assert_eq!(tree.insert(ns, &[3, 4], &blocks([9])), Inserted { from: 0, dropped: None });
    assert_eq!(tree.insert(ns, &[3, 4, 5], &blocks([10])), Inserted { from: 0, dropped: Some(block(9)) });
    check(&tree);
    let all: HashSet<KvBlock> = tree.all_blocks().collect();
    assert_eq!(all, HashSet::from(blocks([0, 3, 7, 8, 10])));
    assert!(tree.forget(block(3)) && !tree.forget(block(7)) && tree.forget(block(8)) && tree.forget(block(7)));
    check(&tree);
    let mut removed: Vec<usize> = tree.remove(ns).into_iter().map(KvBlock::index).collect();
    removed.sort_unstable();
    assert_eq!(removed, [0, 10]);
    assert_eq!(tree.insert(ns, &[1], &blocks([0])), Inserted { from: 0, dropped: None });
    check(&tree);
}
