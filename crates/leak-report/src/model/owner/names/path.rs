//! Parts of demangled names. Names come from untrusted files: each part is found in one pass.

/// Position, value and depth in brackets of each byte of a name; the `>` of `->` closes nothing.
fn depths(name: &str) -> impl Iterator<Item = (usize, u8, usize)> {
    let mut depth = 0_usize;
    let mut last = 0;
    name.bytes().enumerate().map(move |(at, byte)| {
        match byte {
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            b'>' if last == b'-' => {}
            b'>' | b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        last = byte;
        (at, byte, depth)
    })
}

/// True if a part of a name closes all the brackets that it opens.
pub(super) fn is_closed(part: &str) -> bool {
    depths(part).last().is_none_or(|(_, _, depth)| depth == 0)
}

/// Path of a function of C++, or of Rust if it is not in `<>`: with template arguments, without parameters,
/// and without the return type that precedes the names of template functions.
pub(super) struct Path<'a>(&'a str);

impl<'a> Path<'a> {
    pub(super) fn of(name: &'a str) -> Self {
        const ANONYMOUS: &str = "(anonymous namespace)";
        let mut start = 0;
        let mut end = name.len();
        for (at, byte, depth) in depths(name) {
            match byte {
                b' ' if depth == 0 && name[at..].starts_with(" [clone ") => {
                    end = at;
                    break;
                }
                b' ' if depth == 0 => start = at + 1,
                b'(' if depth == 1 && !name[at..].starts_with(ANONYMOUS) => {
                    end = at;
                    break;
                }
                _ => {}
            }
        }
        Self(name.get(start..end).unwrap_or_default())
    }

    /// The path without template arguments and anything else in brackets.
    pub(super) fn without_arguments(&self) -> String {
        let outside = depths(self.0).filter(|&(_, byte, depth)| depth == 0 && !is_closing(byte));
        let bytes = outside.map(|(_, byte, _)| byte).collect();
        // Brackets are ASCII, so the bytes outside of them are still valid UTF-8.
        String::from_utf8(bytes).unwrap_or_default()
    }

    /// The class and the name of its member; `None` for a path without a class.
    pub(super) fn split(&self) -> Option<(&'a str, &'a str)> {
        let path = self.0;
        let outside = depths(path).filter(|&(at, _, depth)| {
            let before = path.get(..at);
            depth == 0 && before.is_some_and(|before| before.ends_with("::"))
        });
        let (at, ..) = outside.last()?;
        let (member, _) = path[at..].split_once('<').unwrap_or((&path[at..], ""));
        Some((&path[..at - 2], member))
    }
}

fn is_closing(byte: u8) -> bool {
    matches!(byte, b'>' | b')' | b']' | b'}')
}

/// Template arguments of a class and of the classes around it.
pub(super) fn arguments(class: &str) -> impl Iterator<Item = &str> {
    let mut begin = 0;
    depths(class).filter_map(move |(at, byte, depth)| {
        let is_opening = byte == b'<' && depth == 1;
        let is_end = byte == b',' && depth == 1 || byte == b'>' && depth == 0;
        let argument = is_end.then(|| class[begin..at].trim());
        if is_opening || is_end {
            begin = at + 1;
        }
        argument
    })
}

/// True if both are the same class, or instances of the same template.
pub(super) fn is_of_type(one: &str, other: &str) -> bool {
    Path(one).without_arguments() == Path(other).without_arguments()
}

/// The trait in Rust's `<Type as Trait>::method`.
pub(super) fn trait_of(name: &str) -> Option<&str> {
    if !name.starts_with('<') {
        return None;
    }
    let (end, ..) = depths(name).find(|&(_, byte, depth)| depth == 0 && byte == b'>')?;
    let inside = &name[1..end];
    let outside = depths(inside)
        .filter(|&(at, byte, depth)| depth == 0 && byte == b' ' && inside[at..].starts_with(" as "));
    let (at, ..) = outside.last()?;
    Some(&inside[at + " as ".len()..])
}
