//! Chains of holders by site: a root, and the stacks of the blocks on the way from it, each stack once.
//!
//! All blocks that are held in the same way share a chain, so that a million nodes of a list have one. Chains
//! form a tree: a chain is identified by its last link, which knows the link before it.

use std::collections::HashMap;

/// Maximum number of links of a chain. Blocks that are held by a longer one count for its beginning.
pub const MAX_LINKS: usize = 8;
/// Maximum number of chains, of some 100 bytes each. The holders of all further blocks count as
/// [`ChainId::UNKNOWN`].
const MAX_CHAINS: usize = 1 << 20;

/// Number of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainId(u32);

impl ChainId {
    /// Unknown chain: there were too many.
    pub const UNKNOWN: Self = Self(u32::MAX);
}

#[derive(Clone, Copy, Debug)]
struct Link {
    /// The link before it.
    before: Option<ChainId>,
    /// Number of the root in the first link, number of the stack record in others.
    number: u32,
    /// Number of links up to here, without the root.
    depth: usize,
    repeats: bool,
    is_cut: bool,
}

/// A stack in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Via {
    /// Number of the stack record.
    pub stack: u32,
    /// True if some blocks are held by several blocks of this stack in a row, or in turn with others.
    pub repeats: bool,
}

/// A chain from its root on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Number of the root.
    pub root: u32,
    pub via: Vec<Via>,
    /// True if further holders follow that are not in it.
    pub is_cut: bool,
}

/// All chains.
#[derive(Debug, Default)]
pub struct Chains {
    links: Vec<Link>,
    roots: HashMap<u32, ChainId>,
    through: HashMap<(ChainId, u32), ChainId>,
}

impl Chains {
    /// Returns the chain of blocks that a root holds.
    pub fn root(&mut self, root: u32) -> ChainId {
        if let Some(&known) = self.roots.get(&root) {
            return known;
        }
        let chain = self.add(Link {
            before: None,
            number: root,
            depth: 0,
            repeats: false,
            is_cut: false,
        });
        self.roots.insert(root, chain);
        chain
    }

    /// Returns the chain of blocks that are held by a block of `stack`, which is itself held by `chain`.
    pub fn through(&mut self, chain: ChainId, stack: u32) -> ChainId {
        if let Some(&known) = self.through.get(&(chain, stack)) {
            return known;
        }
        let through = match self.link(chain).copied() {
            None => return ChainId::UNKNOWN,
            Some(last) => match self.with(chain, stack) {
                Some(earlier) => {
                    self.change(earlier, |link| link.repeats = true);
                    earlier
                }
                None if last.depth == MAX_LINKS => {
                    self.change(chain, |link| link.is_cut = true);
                    chain
                }
                None => self.add(Link {
                    before: Some(chain),
                    number: stack,
                    depth: last.depth + 1,
                    repeats: false,
                    is_cut: false,
                }),
            },
        };
        if self.through.len() < 4 * MAX_CHAINS {
            self.through.insert((chain, stack), through);
        }
        through
    }

    /// Returns the part of a chain before the first block of `stack`: all nodes of a list are held by the
    /// holder of the list.
    pub fn up_to(&self, chain: ChainId, stack: u32) -> ChainId {
        let own = self.with(chain, stack).and_then(|own| self.link(own));
        own.and_then(|own| own.before).unwrap_or(chain)
    }

    /// Returns the part of a chain that ends with `stack`, if that is in the chain.
    fn with(&self, chain: ChainId, stack: u32) -> Option<ChainId> {
        let mut at = chain;
        loop {
            let link = self.link(at)?;
            let before = link.before?;
            if link.number == stack {
                return Some(at);
            }
            at = before;
        }
    }

    /// A chain in full; `None` if it is not known.
    pub fn get(&self, chain: ChainId) -> Option<Chain> {
        let last = self.link(chain)?;
        let is_cut = last.is_cut;
        let mut via = Vec::with_capacity(last.depth);
        let mut at = last;
        while let Some(before) = at.before {
            via.push(Via {
                stack: at.number,
                repeats: at.repeats,
            });
            at = self.link(before)?;
        }
        via.reverse();
        Some(Chain {
            root: at.number,
            via,
            is_cut,
        })
    }

    fn link(&self, chain: ChainId) -> Option<&Link> {
        self.links.get(chain.0 as usize)
    }

    fn change(&mut self, chain: ChainId, change: impl FnOnce(&mut Link)) {
        if let Some(link) = self.links.get_mut(chain.0 as usize) {
            change(link);
        }
    }

    fn add(&mut self, link: Link) -> ChainId {
        if self.links.len() == MAX_CHAINS {
            return ChainId::UNKNOWN;
        }
        let chain = ChainId(u32::try_from(self.links.len()).unwrap_or(u32::MAX));
        self.links.push(link);
        chain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each stack is in a chain once; blocks of one stack that hold each other have the holder of the first
    /// of them.
    #[test]
    fn repetitions() {
        let mut chains = Chains::default();
        let root = chains.root(7);
        assert_eq!(chains.root(7), root);
        let list = chains.through(root, 1);
        assert_eq!(chains.through(list, 1), list);
        let item = chains.through(list, 2);
        assert_eq!(chains.through(item, 1), list);
        let via = |stack, repeats| Via { stack, repeats };
        let expected = Chain {
            root: 7,
            via: vec![via(1, true), via(2, false)],
            is_cut: false,
        };
        assert_eq!(chains.get(item), Some(expected));
        assert_eq!(chains.up_to(list, 1), root);
        assert_eq!(chains.up_to(item, 1), root);
        assert_eq!(chains.up_to(item, 3), item);
    }

    /// A chain that would be too long is cut, and says so; the number of chains is bounded.
    #[test]
    fn bounds() {
        let mut chains = Chains::default();
        let mut chain = chains.root(0);
        for stack in 0..100 {
            chain = chains.through(chain, stack);
        }
        let found = chains.get(chain).expect("known");
        assert!(found.via.len() == MAX_LINKS && found.is_cut, "{found:?}");
        for root in 0..u32::try_from(MAX_CHAINS).expect("few") + 9 {
            chain = chains.root(root);
        }
        assert_eq!(chain, ChainId::UNKNOWN);
        assert_eq!(chains.through(chain, 1), ChainId::UNKNOWN);
        assert_eq!((chains.get(chain), chains.up_to(chain, 1)), (None, chain));
    }
}
