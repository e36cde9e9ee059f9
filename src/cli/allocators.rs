//! Flags that select the allocators to probe.

use clap::Args;

use super::config::ConfigError;
use crate::allocator::{AllocFunction, Catalog, Selection, given};

/// Allocators to probe in addition to those that are found, or instead of them.
#[derive(Debug, Args)]
pub struct AllocatorArgs {
    /// Probe only in this object, by file name (libc.so.6, or c for short) or path; can be repeated.
    #[arg(short = 'O', long = "obj", value_name = "OBJECT")]
    pub objects: Vec<String>,
    /// Also probe allocation functions whose names start with this, as je_malloc does; can be repeated.
    #[arg(short = 'S', long = "symbols-prefix", value_name = "PREFIX")]
    pub prefixes: Vec<String>,
    /// Also probe this function, or probe it instead of the known one with its name; can be repeated.
    ///
    /// SHAPE is alloc(size=N), realloc(block=N,size=N) or free(block=N), where N is the index of an argument,
    /// from 0. A size can be a product, size=N*M; if the block is stored through a pointer argument, add
    /// result=*N. The function is probed at each of its return instructions. return=probe uses a return probe
    /// instead: it costs less, but kills the program if the function throws or continues in another thread.
    #[arg(long = "alloc", value_name = "SYMBOL:SHAPE")]
    pub functions: Vec<String>,
}

impl TryFrom<AllocatorArgs> for Selection {
    type Error = ConfigError;

    fn try_from(args: AllocatorArgs) -> Result<Self, ConfigError> {
        for (flag, names) in [("--obj", &args.objects), ("--symbols-prefix", &args.prefixes)] {
            if names.iter().any(String::is_empty) {
                return Err(ConfigError::EmptyName(flag));
            }
        }
        let mut functions: Vec<_> = Vec::with_capacity(args.functions.len());
        for text in &args.functions {
            let function = given::parse(text).map_err(ConfigError::Alloc)?;
            if functions
                .iter()
                .any(|other: &AllocFunction| other.name == function.name)
            {
                return Err(ConfigError::AllocTwice(function.name.into_owned()));
            }
            functions.push(function);
        }
        let (count, max) = (functions.len(), Catalog::MAX_GIVEN);
        if count > max {
            return Err(ConfigError::TooManyAllocs { count, max });
        }
        Ok(Self {
            objects: args.objects,
            prefixes: args.prefixes,
            functions,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::allocator::given::GivenError;
    use crate::cli::Cli;

    fn selection(arguments: &str) -> Result<Selection, ConfigError> {
        let arguments = ["memleak", "-p", "1"]
            .into_iter()
            .chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        cli.trace.allocators.try_into()
    }

    /// Flags can be repeated, and combine.
    #[test]
    fn repeated() {
        let selection = selection("-O c -O /lib/x.so -S je_ --alloc a:free(0) --alloc b:alloc(size=1)");
        let selection = selection.expect("it makes sense");
        assert_eq!(selection.objects, ["c", "/lib/x.so"]);
        assert_eq!(selection.prefixes, ["je_"]);
        assert_eq!(selection.functions.len(), 2);
    }

    /// Each invalid value is refused with its own reason.
    #[test]
    fn nonsense() {
        for (arguments, error) in [
            ("--obj=", ConfigError::EmptyName("--obj")),
            ("--symbols-prefix=", ConfigError::EmptyName("--symbols-prefix")),
            (
                "--alloc a:free(0) --alloc a:alloc(0)",
                ConfigError::AllocTwice("a".into()),
            ),
            (
                "--alloc malloc",
                ConfigError::Alloc(GivenError::Form("malloc".into())),
            ),
        ] {
            assert_eq!(selection(arguments), Err(error), "{arguments}");
        }
    }

    /// Functions beyond the maximum are refused, not silently left out.
    #[test]
    fn too_many() {
        let described = |count: usize| -> String {
            let flags = (0..count).map(|number| format!("--alloc f{number}:free(0) "));
            flags.collect()
        };
        let max = Catalog::MAX_GIVEN;
        assert_eq!(selection(&described(max)).map(|all| all.functions.len()), Ok(max));
        let count = max + 1;
        assert_eq!(
            selection(&described(count)),
            Err(ConfigError::TooManyAllocs { count, max })
        );
    }
}
