//! The allocation functions that are traced: one table, no control flow.
//!
//! A row says what a call means (its role) and where its numbers are (its shape); which addresses
//! it has in a process is [`discovery`](super::discovery)'s business. Another allocator or another
//! function is another row.

/// What a call does to the set of live blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A new block comes to life.
    Allocate,
    /// A block dies.
    Free,
    /// A block dies and another comes to life; the old one lives on when the call fails.
    Resize,
}

/// Where the requested size is. Arguments are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SizeAt {
    /// The call requests nothing.
    Nowhere,
    /// bytes = argument n
    Argument(u8),
    /// bytes = argument n × argument m, saturating
    Product(u8, u8),
}

/// Where the new block's address is after the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResultAt {
    /// There is no new block.
    Nowhere,
    /// The return value; null is failure.
    Returned,
    /// Stored through the pointer in argument n, and only when the function returns 0.
    StoredThrough(u8),
}

/// Where a call's numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The requested size.
    pub size: SizeAt,
    /// The argument that is the block to free or resize.
    pub block: Option<u8>,
    /// The new block.
    pub result: ResultAt,
}

impl Shape {
    /// The arguments that a probe reads at the start of a call, in no order, possibly repeated.
    pub fn arguments(self) -> impl Iterator<Item = u8> {
        let size = match self.size {
            SizeAt::Nowhere => [None, None],
            SizeAt::Argument(n) => [Some(n), None],
            SizeAt::Product(n, m) => [Some(n), Some(m)],
        };
        let result = match self.result {
            ResultAt::Nowhere | ResultAt::Returned => None,
            ResultAt::StoredThrough(n) => Some(n),
        };
        size.into_iter().chain([self.block, result]).flatten()
    }
}

/// Whose interface a function belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// C and POSIX allocation as glibc exports it; interposers such as tcmalloc define the same names.
    Libc,
}

/// Whether an allocator without the function is worth a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Presence {
    /// Every C library has it.
    Expected,
    /// Newer, obsolete, or missing from other C libraries.
    Optional,
}

/// One row of [`FUNCTIONS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AllocFunction {
    /// The symbol's name, without a version.
    pub name: &'static str,
    /// What a call means.
    pub role: Role,
    /// Where its numbers are.
    pub shape: Shape,
    /// Whose interface it belongs to.
    pub family: Family,
    /// Whether its absence is reported.
    pub presence: Presence,
}

/// Every function that is traced, best known name first where one address has several.
pub const FUNCTIONS: &[AllocFunction] = &[
    allocates("malloc", SizeAt::Argument(0), Presence::Expected),
    allocates("calloc", SizeAt::Product(0, 1), Presence::Expected),
    resizes("realloc", SizeAt::Argument(1), Presence::Expected),
    resizes("reallocarray", SizeAt::Product(1, 2), Presence::Optional),
    AllocFunction {
        name: "posix_memalign",
        role: Role::Allocate,
        shape: Shape {
            size: SizeAt::Argument(2),
            block: None,
            result: ResultAt::StoredThrough(0),
        },
        family: Family::Libc,
        presence: Presence::Expected,
    },
    allocates("aligned_alloc", SizeAt::Argument(1), Presence::Expected),
    allocates("memalign", SizeAt::Argument(1), Presence::Optional),
    allocates("valloc", SizeAt::Argument(0), Presence::Optional),
    allocates("pvalloc", SizeAt::Argument(0), Presence::Optional),
    AllocFunction {
        name: "free",
        role: Role::Free,
        shape: Shape {
            size: SizeAt::Nowhere,
            block: Some(0),
            result: ResultAt::Nowhere,
        },
        family: Family::Libc,
        presence: Presence::Expected,
    },
];

const fn allocates(name: &'static str, size: SizeAt, presence: Presence) -> AllocFunction {
    let shape = Shape {
        size,
        block: None,
        result: ResultAt::Returned,
    };
    AllocFunction {
        name,
        role: Role::Allocate,
        shape,
        family: Family::Libc,
        presence,
    }
}

const fn resizes(name: &'static str, size: SizeAt, presence: Presence) -> AllocFunction {
    let shape = Shape {
        size,
        block: Some(0),
        result: ResultAt::Returned,
    };
    AllocFunction {
        name,
        role: Role::Resize,
        shape,
        family: Family::Libc,
        presence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name stands for one row, and no row reads more than the six register arguments.
    #[test]
    fn rows_are_distinct_and_readable() {
        for (index, function) in FUNCTIONS.iter().enumerate() {
            assert!(
                FUNCTIONS[..index].iter().all(|other| other.name != function.name),
                "{}",
                function.name
            );
            assert!(
                function.shape.arguments().all(|argument| argument < 6),
                "{}",
                function.name
            );
        }
    }

    /// A role and its shape agree: who frees names a block, who allocates has a size and a result.
    #[test]
    fn shapes_fit_roles() {
        for AllocFunction {
            name, role, shape, ..
        } in FUNCTIONS
        {
            let frees = matches!(role, Role::Free | Role::Resize);
            let allocates = matches!(role, Role::Allocate | Role::Resize);
            assert_eq!(shape.block.is_some(), frees, "{name}");
            assert_eq!(shape.size != SizeAt::Nowhere, allocates, "{name}");
            assert_eq!(shape.result != ResultAt::Nowhere, allocates, "{name}");
        }
    }

    /// What a probe reads, by name.
    #[test]
    fn arguments() {
        let cases: &[(&str, &[u8])] = &[
            ("malloc", &[0]),
            ("calloc", &[0, 1]),
            ("realloc", &[0, 1]),
            ("reallocarray", &[0, 1, 2]),
            ("posix_memalign", &[0, 2]),
            ("aligned_alloc", &[1]),
            ("free", &[0]),
        ];
        for (name, expected) in cases {
            let function = FUNCTIONS
                .iter()
                .find(|function| function.name == *name)
                .expect("a row");
            let mut arguments: Vec<u8> = function.shape.arguments().collect();
            arguments.sort_unstable();
            assert_eq!(arguments, *expected, "{name}");
        }
    }
}
