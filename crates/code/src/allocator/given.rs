//! Functions that the user describes: `SYMBOL:SHAPE`.
//!
//! ```text
//! SHAPE   = alloc(size=N[*N][,result=*N][,return=probe])
//!         | realloc(block=N,size=N[*N][,return=probe])
//!         | free(block=N)
//! N       = the number of an argument, counted from 0
//! ```

use thiserror::Error;

use super::functions::{AllocFunction, Family, Presence, ResultAt, Returns, Role, Shape, SizeAt};
use leak_report::model::Name;

/// Number of integer arguments that are passed in registers (System V psABI, 3.2.3).
const ARGUMENTS: u8 = 6;

/// Errors in the description of a function.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GivenError {
    #[error(
        "`{0}` is not SYMBOL:SHAPE: write for example my_alloc:alloc(size=0), my_free:free(block=0) or \
         my_realloc:realloc(block=0,size=1)"
    )]
    Form(String),
    #[error("`{0}` is not a kind of function: write alloc(…), realloc(…) or free(…)")]
    Kind(String),
    /// A field that functions of this kind do not have.
    #[error("`{field}` is not a field of {kind}, which has {known}")]
    Field {
        field: String,
        kind: &'static str,
        /// Fields that the kind has.
        known: &'static str,
    },
    #[error("{kind} needs {missing}: for example {example}")]
    Missing {
        kind: &'static str,
        missing: &'static str,
        example: &'static str,
    },
    #[error("`{0}` is given twice: give each field once")]
    Twice(String),
    #[error("`{0}` is not an argument: they are counted from 0, and the first six are in registers: 0 to 5")]
    Argument(String),
    #[error("`return={0}` is not valid: write return=probe, or leave it out")]
    Return(String),
}

/// Fields of one kind of function, with the texts for errors.
struct Kind {
    name: &'static str,
    role: Role,
    fields: &'static [&'static str],
    known: &'static str,
    example: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "alloc",
        role: Role::Allocate,
        fields: &["size", "result", "return"],
        known: "size=N or size=N*M, result=*N, and return=probe",
        example: "alloc(size=0)",
    },
    Kind {
        name: "realloc",
        role: Role::Resize,
        fields: &["block", "size", "return"],
        known: "block=N, size=N or size=N*M, and return=probe",
        example: "realloc(block=0,size=1)",
    },
    Kind {
        name: "free",
        role: Role::Free,
        fields: &["block"],
        known: "block=N",
        example: "free(block=0)",
    },
];

/// Describes an allocating function in the form that [`parse`] reads.
pub(super) fn described(shape: Shape) -> String {
    let size = match shape.size {
        SizeAt::Nowhere | SizeAt::Copied { .. } => String::new(),
        SizeAt::Argument(n) => n.to_string(),
        SizeAt::Product(n, m) => format!("{n}*{m}"),
    };
    match shape.result {
        ResultAt::StoredThrough(n) => format!("alloc(size={size},result=*{n})"),
        ResultAt::Nowhere | ResultAt::Returned => format!("alloc(size={size})"),
    }
}

/// Parses a description.
pub fn parse(text: &str) -> Result<AllocFunction, GivenError> {
    let form = || GivenError::Form(text.to_owned());
    let (name, shape) = text.split_once(':').ok_or_else(form)?;
    let (kind, fields) = shape.split_once('(').ok_or_else(form)?;
    let fields = fields.strip_suffix(')').ok_or_else(form)?;
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(form());
    }
    let known = KINDS.iter().find(|known| known.name == kind.trim());
    let kind = known.ok_or_else(|| GivenError::Kind(kind.trim().to_owned()))?;
    let (shape, returns) = parse_shape(kind, fields)?;
    Ok(AllocFunction {
        name: Name::Owned(name.to_owned()),
        role: kind.role,
        shape,
        family: Family::Given,
        returns,
        presence: Presence::Optional,
        for_records: false,
    })
}

fn parse_shape(kind: &Kind, fields: &str) -> Result<(Shape, Returns), GivenError> {
    let mut values: Vec<(&str, &str)> = Vec::new();
    for field in fields.split(',').map(str::trim).filter(|field| !field.is_empty()) {
        // The first field's name may be omitted: free(0).
        let (name, value) = field.split_once('=').unwrap_or((kind.fields[0], field));
        let name = name.trim();
        if !kind.fields.contains(&name) {
            return Err(GivenError::Field {
                field: name.to_owned(),
                kind: kind.name,
                known: kind.known,
            });
        }
        if values.iter().any(|(other, _)| *other == name) {
            return Err(GivenError::Twice(name.to_owned()));
        }
        values.push((name, value.trim()));
    }
    let value = |name: &str| {
        values
            .iter()
            .find(|(other, _)| *other == name)
            .map(|&(_, value)| value)
    };
    let needed = |name: &'static str| {
        value(name).ok_or(GivenError::Missing {
            kind: kind.name,
            missing: name,
            example: kind.example,
        })
    };
    let block = match kind.role {
        Role::Allocate => None,
        Role::Free | Role::Resize | Role::ResizeOrFree | Role::ResizeInPlace => {
            Some(argument(needed("block")?)?)
        }
    };
    if !kind.role.allocates() {
        let shape = Shape {
            size: SizeAt::Nowhere,
            block,
            result: ResultAt::Nowhere,
        };
        return Ok((shape, Returns::Always));
    }
    let returns = match value("return") {
        None => Returns::Anywhere,
        Some("probe") => Returns::Always,
        Some(other) => return Err(GivenError::Return(other.to_owned())),
    };
    let size = needed("size")?;
    let shape = Shape {
        size: match size.split_once('*') {
            Some((one, other)) => SizeAt::Product(argument(one)?, argument(other)?),
            None => SizeAt::Argument(argument(size)?),
        },
        block,
        result: value("result").map_or(Ok(ResultAt::Returned), result)?,
    };
    Ok((shape, returns))
}

fn result(text: &str) -> Result<ResultAt, GivenError> {
    let stored = text.strip_prefix('*');
    let number = stored.ok_or_else(|| GivenError::Argument(text.to_owned()))?;
    Ok(ResultAt::StoredThrough(argument(number)?))
}

fn argument(text: &str) -> Result<u8, GivenError> {
    let number: Option<u8> = text.trim().parse().ok();
    number
        .filter(|&number| number < ARGUMENTS)
        .ok_or_else(|| GivenError::Argument(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(size: SizeAt, block: Option<u8>, result: ResultAt) -> Shape {
        Shape { size, block, result }
    }

    /// Each form is parsed to the shape that it describes.
    #[test]
    fn shapes() {
        let returned = ResultAt::Returned;
        let cases = [
            (
                "a:alloc(size=0)",
                Role::Allocate,
                shape(SizeAt::Argument(0), None, returned),
            ),
            (
                "a:alloc(1)",
                Role::Allocate,
                shape(SizeAt::Argument(1), None, returned),
            ),
            (
                "pool_get:alloc(size=1*2, result=*0)",
                Role::Allocate,
                shape(SizeAt::Product(1, 2), None, ResultAt::StoredThrough(0)),
            ),
            (
                "r:realloc(block=0,size=1)",
                Role::Resize,
                shape(SizeAt::Argument(1), Some(0), returned),
            ),
            (
                "f:free(0)",
                Role::Free,
                shape(SizeAt::Nowhere, Some(0), ResultAt::Nowhere),
            ),
            (
                "f:free(block=5)",
                Role::Free,
                shape(SizeAt::Nowhere, Some(5), ResultAt::Nowhere),
            ),
        ];
        for (text, role, shape) in cases {
            let function = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((function.role, function.shape), (role, shape), "{text}");
            let expected = match role.allocates() {
                true => Returns::Anywhere,
                false => Returns::Always,
            };
            assert_eq!(function.returns, expected, "{text}");
        }
        for text in [
            "a:alloc(0,return=probe)",
            "a:realloc(block=0,size=1,return=probe)",
        ] {
            assert!(
                parse(text).is_ok_and(|function| function.returns == Returns::Always),
                "{text}"
            );
        }
    }

    /// Each mistake gives its own error, with the correct form.
    #[test]
    fn mistakes() {
        let text = String::from;
        let cases = [
            ("malloc", GivenError::Form(text("malloc"))),
            (":alloc(size=0)", GivenError::Form(text(":alloc(size=0)"))),
            ("a:alloc(size=0", GivenError::Form(text("a:alloc(size=0"))),
            ("a:alloc", GivenError::Form(text("a:alloc"))),
            ("a:new(size=0)", GivenError::Kind(text("new"))),
            ("a:alloc(size=6)", GivenError::Argument(text("6"))),
            ("a:alloc(size=-1)", GivenError::Argument(text("-1"))),
            ("a:alloc(size=)", GivenError::Argument(String::new())),
            ("a:alloc(size=1*)", GivenError::Argument(String::new())),
            ("a:alloc(size=1,result=0)", GivenError::Argument(text("0"))),
            ("a:alloc(size=1,return=ret)", GivenError::Return(text("ret"))),
            ("a:alloc(size=1,size=2)", GivenError::Twice(text("size"))),
            (
                "a:free(size=0)",
                GivenError::Field {
                    field: text("size"),
                    kind: "free",
                    known: "block=N",
                },
            ),
            (
                "a:realloc(block=0)",
                GivenError::Missing {
                    kind: "realloc",
                    missing: "size",
                    example: "realloc(block=0,size=1)",
                },
            ),
        ];
        for (text, error) in cases {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }
}
