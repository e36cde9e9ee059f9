//! Dominators: blocks without which others could not be reached. If a block is lost, so are all blocks that
//! it dominates.
//!
//! Uses Lengauer and Tarjan's algorithm with path compression ("A fast algorithm for finding dominators in a
//! flowgraph", 1979): O(m log n) for m pointers and n blocks, for any shape. Iteration to a fixed point takes
//! longer for a list that can be entered at both ends. Nothing recurses, since a list can be as long as
//! memory. Needs some 50 bytes a block and 8 a pointer.

use leak_report::model::Amount;

/// No vertex.
const NONE: u32 = u32::MAX;

/// Directed graph. Vertices are added one after the other; the last one is the root.
#[derive(Debug)]
pub struct Graph {
    /// Index in `targets` of the first edge of each vertex, and the end of the last one's edges.
    starts: Vec<u32>,
    targets: Vec<u32>,
}

/// Vertices that can be reached, in an order in which each comes after its dominators.
#[derive(Debug)]
pub struct Dominators {
    /// The vertex at each place of the order.
    order: Vec<u32>,
    /// Place of the immediate dominator of the vertex at each place; the first has none, and says 0.
    dominators: Vec<u32>,
}

impl Default for Graph {
    fn default() -> Self {
        Self {
            starts: vec![0],
            targets: Vec::new(),
        }
    }
}

impl Graph {
    /// Adds an edge of the vertex that is being added.
    pub fn edge(&mut self, target: u32) {
        self.targets.push(target);
    }

    /// Ends the vertex that is being added, and drops its duplicate edges.
    pub fn end_vertex(&mut self) {
        let begin = self.starts.last().map_or(0, |&start| start as usize);
        let edges = &mut self.targets[begin..];
        edges.sort_unstable();
        let mut kept = 0;
        for at in 0..edges.len() {
            if at == 0 || edges[at] != edges[kept - 1] {
                edges[kept] = edges[at];
                kept += 1;
            }
        }
        self.targets.truncate(begin + kept);
        self.starts.push(number(self.targets.len()));
    }

    /// Edges so far.
    pub fn edges(&self) -> usize {
        self.targets.len()
    }

    /// Vertices so far.
    pub fn vertices(&self) -> usize {
        self.starts.len() - 1
    }

    /// Renames targets. `name` returns [`u32::MAX`] for targets that have no vertex.
    pub fn rename(&mut self, name: impl Fn(u32) -> u32) {
        self.targets.iter_mut().for_each(|target| *target = name(*target));
    }

    fn targets(&self, vertex: u32) -> &[u32] {
        let vertex = vertex as usize;
        match (self.starts.get(vertex), self.starts.get(vertex + 1)) {
            (Some(&start), Some(&end)) => &self.targets[start as usize..end as usize],
            (Some(_) | None, None | Some(_)) => &[],
        }
    }

    /// Finds the dominators of all vertices that can be reached from the last one.
    pub fn dominators(self) -> Dominators {
        let Some(root) = self.vertices().checked_sub(1) else {
            return Dominators {
                order: Vec::new(),
                dominators: Vec::new(),
            };
        };
        let visit = Visit::of(&self, number(root));
        let (starts, sources) = visit.sources(&self);
        drop(self);
        let dominators = Search::new(visit.order.len()).find(&visit.parents, &starts, &sources);
        Dominators {
            order: visit.order,
            dominators,
        }
    }
}

/// A visit of the graph, depth first.
struct Visit {
    /// Vertices in the order of the visit.
    order: Vec<u32>,
    /// Place in `order` of each vertex.
    places: Vec<u32>,
    /// Place of the vertex that each was first reached from, by place.
    parents: Vec<u32>,
}

impl Visit {
    fn of(graph: &Graph, root: u32) -> Self {
        let mut visit = Self {
            order: Vec::new(),
            places: vec![NONE; graph.vertices()],
            parents: Vec::new(),
        };
        let mut next: Vec<u32> = graph.starts.clone();
        let mut path = vec![root];
        visit.enter(root, 0);
        while let Some(&vertex) = path.last() {
            let at = next[vertex as usize];
            if at == graph.starts[vertex as usize + 1] {
                path.pop();
                continue;
            }
            next[vertex as usize] = at + 1;
            let target = graph.targets[at as usize];
            let is_new = visit
                .places
                .get(target as usize)
                .is_some_and(|&place| place == NONE);
            if is_new {
                visit.enter(target, visit.places[vertex as usize]);
                path.push(target);
            }
        }
        visit
    }

    fn enter(&mut self, vertex: u32, parent: u32) {
        self.places[vertex as usize] = number(self.order.len());
        self.order.push(vertex);
        self.parents.push(parent);
    }

    /// Returns the places that lead to each place: for each the index of its first source, and the sources of
    /// all.
    fn sources(&self, graph: &Graph) -> (Vec<u32>, Vec<u32>) {
        let places = |vertex: u32| {
            graph
                .targets(vertex)
                .iter()
                .filter_map(|&target| self.place(target))
        };
        let mut starts = vec![0_u32; self.order.len() + 1];
        for &vertex in &self.order {
            places(vertex).for_each(|target| starts[target as usize + 1] += 1);
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut sources = vec![0; starts.last().map_or(0, |&all| all as usize)];
        let mut next = starts.clone();
        for (&vertex, source) in self.order.iter().zip(0..) {
            for target in places(vertex) {
                let at = &mut next[target as usize];
                sources[*at as usize] = source;
                *at += 1;
            }
        }
        (starts, sources)
    }

    fn place(&self, vertex: u32) -> Option<u32> {
        self.places
            .get(vertex as usize)
            .copied()
            .filter(|&place| place != NONE)
    }
}

/// State of the algorithm, by place. Names are those of the paper.
struct Search {
    semi: Vec<u32>,
    label: Vec<u32>,
    ancestor: Vec<u32>,
    /// First vertex of each bucket. `next` has the next one in the same bucket.
    bucket: Vec<u32>,
    next: Vec<u32>,
    dominators: Vec<u32>,
    path: Vec<u32>,
}

impl Search {
    fn new(count: usize) -> Self {
        let each: Vec<u32> = (0..number(count)).collect();
        Self {
            semi: each.clone(),
            label: each,
            ancestor: vec![NONE; count],
            bucket: vec![NONE; count],
            next: vec![NONE; count],
            dominators: vec![0; count],
            path: Vec::new(),
        }
    }

    fn find(mut self, parents: &[u32], starts: &[u32], sources: &[u32]) -> Vec<u32> {
        let count = number(parents.len());
        for place in (1..count).rev() {
            let at = place as usize;
            for &source in &sources[starts[at] as usize..starts[at + 1] as usize] {
                let best = self.evaluate(source);
                self.semi[at] = self.semi[at].min(self.semi[best as usize]);
            }
            let semi = self.semi[at] as usize;
            self.next[at] = std::mem::replace(&mut self.bucket[semi], place);
            let parent = parents[at];
            self.ancestor[at] = parent;
            let mut waiting = std::mem::replace(&mut self.bucket[parent as usize], NONE);
            while waiting != NONE {
                let best = self.evaluate(waiting);
                let waits = waiting as usize;
                let is_earlier = self.semi[best as usize] < self.semi[waits];
                self.dominators[waits] = if is_earlier { best } else { parent };
                waiting = self.next[waits];
            }
        }
        for at in 1..parents.len() {
            if self.dominators[at] != self.semi[at] {
                self.dominators[at] = self.dominators[self.dominators[at] as usize];
            }
        }
        self.dominators
    }

    /// The vertex with the least semidominator on the path to `place` from the root of its tree.
    fn evaluate(&mut self, place: u32) -> u32 {
        if self.ancestor[place as usize] == NONE {
            return place;
        }
        self.path.clear();
        let mut at = place;
        loop {
            let ancestor = self.ancestor[at as usize];
            if self.ancestor[ancestor as usize] == NONE {
                break;
            }
            self.path.push(at);
            at = ancestor;
        }
        while let Some(at) = self.path.pop() {
            let ancestor = self.ancestor[at as usize] as usize;
            let (above, own) = (self.label[ancestor], self.label[at as usize]);
            if self.semi[above as usize] < self.semi[own as usize] {
                self.label[at as usize] = above;
            }
            self.ancestor[at as usize] = self.ancestor[ancestor];
        }
        self.label[place as usize]
    }
}

impl Dominators {
    /// Sums, for each of `groups` groups, the weight of all vertices that its vertices dominate, themselves
    /// included. Each vertex counts once for a group. `of` returns weight and group of a vertex.
    ///
    /// Each sum is a lower bound of what would be lost with the whole group: a vertex that can be reached
    /// through any of several vertices of the group, but only through these, is dominated by none of them.
    pub fn retained(&self, groups: usize, of: impl Fn(u32) -> (Amount, u32)) -> Vec<Amount> {
        let mut retained = vec![Amount::default(); groups];
        let mut weights: Vec<Amount> = self.order.iter().map(|&vertex| of(vertex).0).collect();
        for at in (1..self.order.len()).rev() {
            let weight = weights[at];
            let dominator = self.dominators[at] as usize;
            weights[dominator] = weights[dominator] + weight;
        }
        let (first, next) = self.children();
        let group = |at: u32| of(self.order[at as usize]).1 as usize;
        // Number of vertices of each group that dominate the current one.
        let mut open = vec![0_u32; groups];
        let mut at = 0;
        if self.order.is_empty() {
            return retained;
        }
        loop {
            let of_group = group(at);
            if let (Some(open), Some(sum)) = (open.get_mut(of_group), retained.get_mut(of_group)) {
                if *open == 0 {
                    *sum = *sum + weights[at as usize];
                }
                *open += 1;
            }
            if first[at as usize] != NONE {
                at = first[at as usize];
                continue;
            }
            loop {
                if let Some(open) = open.get_mut(group(at)) {
                    *open -= 1;
                }
                if at == 0 {
                    return retained;
                }
                if next[at as usize] != NONE {
                    at = next[at as usize];
                    break;
                }
                at = self.dominators[at as usize];
            }
        }
    }

    /// Returns the tree of dominators, by place: the first child of each vertex, and its next sibling.
    fn children(&self) -> (Vec<u32>, Vec<u32>) {
        let count = self.order.len();
        let (mut first, mut next) = (vec![NONE; count], vec![NONE; count]);
        for at in (1..count).rev() {
            let dominator = self.dominators[at] as usize;
            next[at] = std::mem::replace(&mut first[dominator], number(at));
        }
        (first, next)
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    fn block(bytes: u64) -> Amount {
        Amount { bytes, blocks: 1 }
    }

    fn graph(vertices: &[Vec<u32>]) -> Graph {
        let mut graph = Graph::default();
        for targets in vertices {
            targets.iter().for_each(|&target| graph.edge(target));
            graph.end_vertex();
        }
        graph
    }

    /// All vertices that can be reached from the last one without going through `without`.
    fn reached(vertices: &[Vec<u32>], without: Option<u32>) -> BTreeSet<u32> {
        let root = u32::try_from(vertices.len() - 1).expect("few");
        let mut found = BTreeSet::new();
        let mut pending = vec![root];
        while let Some(vertex) = pending.pop() {
            if Some(vertex) == without || !found.insert(vertex) {
                continue;
            }
            pending.extend(&vertices[vertex as usize]);
        }
        found
    }

    fn graphs() -> impl Strategy<Value = (Vec<Vec<u32>>, Vec<u32>)> {
        (2..24_u32).prop_flat_map(|count| {
            let targets = prop::collection::vec(0..count, 0..4);
            let many = usize::try_from(count).expect("few");
            (
                prop::collection::vec(targets, many),
                prop::collection::vec(0..4_u32, many),
            )
        })
    }

    proptest! {
        /// A vertex dominates the vertices that cannot be reached without it. The immediate dominator is
        /// dominated by all others. A group retains the vertices that its members dominate, each counted
        /// once.
        #[test]
        fn as_found_by_taking_each_away((vertices, groups) in graphs()) {
            let all = reached(&vertices, None);
            let root = u32::try_from(vertices.len() - 1).expect("few");
            let dominated: BTreeMap<u32, BTreeSet<u32>> = all
                .iter()
                .map(|&vertex| (vertex, &all - &reached(&vertices, Some(vertex))))
                .collect();
            let found = graph(&vertices).dominators();
            prop_assert_eq!(found.order.iter().copied().collect::<BTreeSet<_>>(), all.clone());
            for (&vertex, &dominator) in found.order.iter().zip(&found.dominators).skip(1) {
                let dominators: Vec<u32> = all.iter().copied().filter(|other| *other != vertex && dominated[other].contains(&vertex)).collect();
                let immediate = found.order[dominator as usize];
                prop_assert!(dominators.contains(&immediate));
                prop_assert!(dominators.iter().all(|other| dominated[other].contains(&immediate)));
            }
            let weight = |vertex: u32| block(1 << vertex);
            let retained = found.retained(4, |vertex| (weight(vertex), if vertex == root { u32::MAX } else { groups[vertex as usize] }));
            for (group, found) in (0..).zip(retained) {
                let members = all.iter().filter(|&&vertex| vertex != root && groups[vertex as usize] == group);
                let held: BTreeSet<u32> = members.flat_map(|vertex| dominated[vertex].iter().copied()).collect();
                let expected: Amount = held.iter().map(|&vertex| weight(vertex)).sum();
                prop_assert_eq!(found, expected);
            }
        }
    }

    /// A list of a million nodes that can be entered at both ends, with a further block for each node, and a
    /// chain as long, take seconds and no recursion.
    #[test]
    fn long_lists() {
        let nodes = 1_000_000_u32;
        let began = Instant::now();
        let mut graph = Graph::default();
        for node in 0..nodes {
            if node > 0 {
                graph.edge(node - 1);
            }
            if node + 1 < nodes {
                graph.edge(node + 1);
            }
            graph.edge(nodes + node);
            graph.end_vertex();
        }
        (0..nodes).for_each(|_| graph.end_vertex());
        graph.edge(0);
        graph.edge(nodes - 1);
        graph.end_vertex();
        let dominators = graph.dominators();
        let root = 2 * nodes;
        let group = |vertex: u32| match vertex {
            _ if vertex == root => u32::MAX,
            _ => u32::from(vertex >= nodes),
        };
        let retained = dominators.retained(2, |vertex| {
            let bytes = if vertex == root { 0 } else { 8 };
            (Amount { bytes, blocks: 1 }, group(vertex))
        });
        assert_eq!(
            retained,
            [
                Amount {
                    bytes: 16_000_000,
                    blocks: 2_000_000
                },
                Amount {
                    bytes: 8_000_000,
                    blocks: 1_000_000
                }
            ]
        );
        let mut chain = Graph::default();
        for node in 1..nodes {
            chain.edge(node);
            chain.end_vertex();
        }
        chain.end_vertex();
        chain.edge(0);
        chain.end_vertex();
        let retained = chain
            .dominators()
            .retained(1, |vertex| (block(1), u32::from(vertex == nodes)));
        assert_eq!(
            retained,
            [Amount {
                bytes: 1_000_000,
                blocks: 1_000_000
            }]
        );
        let took = began.elapsed();
        assert!(took.as_secs() < 60, "{took:?}");
    }

    /// A graph without vertices has no dominators, and nothing is retained.
    #[test]
    fn no_vertices() {
        assert!(Graph::default().dominators().retained(1, |_| (block(1), 0)) == [Amount::default()]);
    }
}
