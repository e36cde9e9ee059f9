//! The flags that say which allocators are probed.

use clap::Args;

use crate::allocator::{Selection, given};
use crate::config::ConfigError;

/// Which allocators to probe, besides and instead of those that are found.
#[derive(Debug, Args)]
pub struct AllocatorArgs {
    /// Probe only in this object, by file name (libc.so.6, or c for short) or path; may be repeated.
    #[arg(short = 'O', long = "obj", value_name = "OBJECT")]
    pub objects: Vec<String>,
    /// Probe allocation functions whose names start with this too, as je_malloc does; may be repeated.
    #[arg(short = 'S', long = "symbols-prefix", value_name = "PREFIX")]
    pub prefixes: Vec<String>,
    /// Probe this function too, or instead of the known one of its name; may be repeated.
    ///
    /// SHAPE is alloc(size=N), realloc(block=N,size=N) or free(block=N), N being the number of an argument, counted
    /// from 0. A size may be a product, size=N*M; where the block is stored through a pointer, that is result=*N.
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
            let function = given::parse(text)?;
            if functions
                .iter()
                .any(|other: &crate::allocator::AllocFunction| other.name == function.name)
            {
                return Err(ConfigError::AllocTwice(function.name.into_owned()));
            }
            functions.push(function);
        }
        Ok(Self {
            objects: args.objects,
            prefixes: args.prefixes,
            functions,
        })
    }
}
