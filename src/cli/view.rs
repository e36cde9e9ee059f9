//! Flags for what reports show; they do not affect what is traced.

use std::time::Duration;

use clap::Args;

use super::config::{ConfigError, parse_depth, parse_older, parse_verdict_limit};
use super::names::NameArgs;
use super::verdict::VerdictWord;
use crate::reach::tags::{Tag, Tags};
use crate::session::{VerdictSettings, View};
use leak_report::model::leak::Order;
use leak_report::render::Format;

/// Flags for the content of reports.
#[derive(Debug, Args)]
pub struct ViewArgs {
    /// Hide blocks younger than this from all reports but JSON, in milliseconds or as in 5s, 1m; 0 shows all.
    ///
    /// [default: 500]
    #[arg(short = 'o', long, value_name = "TIME")]
    pub older: Option<String>,
    /// Report totals only, without reading the block table: no ages, and everything outstanding is shown.
    #[arg(short = 'C', long)]
    pub combined_only: bool,
    /// Rank stacks by this.
    ///
    /// [default: suspicion in formats for people, else size]
    #[arg(long, value_enum, value_name = "ORDER")]
    pub sort: Option<Order>,
    /// List the blocks of each stack with their addresses and sizes, except those that -o hides.
    ///
    /// A text report lists the 10 largest of each stack shown, JSON the 1000 largest of each stack, bcc and
    /// libbpf all; the others are counted.
    #[arg(short = 'a', long)]
    pub show_allocs: bool,
    /// Show the C++ classes of outstanding blocks, by their vtable pointers.
    ///
    /// Reads the first word of each block that -o does not hide, of at most 4096 blocks of each stack. Works
    /// for stripped programs, too. With -a, each listed block has its class beside it. --verdict always shows
    /// classes.
    #[arg(long)]
    pub classes: bool,
    /// Show how much free memory stays resident because of the blocks of each stack.
    ///
    /// Allocators seldom give memory from between blocks back to the kernel. Reads the structures of glibc's
    /// malloc, musl's, jemalloc, tcmalloc and mimalloc in the process's memory. --sort pinned and --measure
    /// pinned imply it.
    #[arg(long)]
    pub pinned: bool,
    /// Judge which outstanding blocks the process can still reach, and which are lost, as memcheck does.
    ///
    /// The process is not stopped unless `stop` is given: its memory is read in several passes while it runs,
    /// until they agree. Lost blocks can never be freed.
    #[arg(
        long,
        value_enum,
        value_name = "WORDS",
        num_args = 0..=1,
        require_equals = true,
        value_delimiter = ',',
        default_missing_value = "last"
    )]
    pub verdict: Option<Vec<VerdictWord>>,
    /// Start no further pass of --verdict after this time; blocks not yet judged are reported as unknown.
    ///
    /// [default: 60s]
    #[arg(long, value_name = "TIME", requires = "verdict")]
    pub verdict_limit: Option<String>,
    /// Recognise pointers with tags in these bits, too; tags in the lowest bits are always tolerated.
    #[arg(
        long,
        value_enum,
        value_name = "BITS",
        value_delimiter = ',',
        requires = "verdict"
    )]
    pub pointer_tags: Vec<Tag>,
    /// Keep the N innermost frames of each stack, and merge stacks that are equal in these.
    ///
    /// Stacks are still walked to their end, and reports judge the completeness of whole stacks.
    #[arg(long, value_name = "N")]
    pub perf_max_stack_depth: Option<String>,
    /// Style of function names.
    #[command(flatten)]
    pub names: NameArgs,
}

impl ViewArgs {
    /// Checks the flags for reports in `format`. `no_blocks`: the flag, if one is given, that has reports
    /// count something other than blocks.
    pub(super) fn check(&self, format: Format, no_blocks: Option<&'static str>) -> Result<View, ConfigError> {
        let older = match (&self.older, self.combined_only) {
            (Some(_), true) => return Err(ConfigError::AgesNotRead),
            // Mappings and pages have no ages.
            (None, _) if no_blocks.is_some() => None,
            (None, true) => None,
            (Some(text), false) => Some(parse_older(text)?),
            (None, false) => Some(View::default().older.unwrap_or(Duration::ZERO)),
        };
        let not_read = no_blocks.or(self.combined_only.then_some("--combined-only"));
        if let Some(flag) = not_read.filter(|_| self.classes) {
            return Err(ConfigError::NoClasses(flag));
        }
        let depth = self.perf_max_stack_depth.as_deref().map(parse_depth);
        let list = self.show_allocs.then(|| match (format.list_limits(), no_blocks) {
            _ if self.combined_only => Err(ConfigError::BlocksNotRead("--combined-only")),
            (_, Some(flag)) => Err(ConfigError::BlocksNotRead(flag)),
            (None, None) => Err(ConfigError::NoPlaceForBlocks(format.name())),
            (Some(limits), None) => Ok(limits),
        });
        Ok(View {
            older,
            sort: self.sort,
            verdict: self.verdict_settings(no_blocks)?,
            depth: depth.transpose()?,
            classes: self.classes,
            list: list.transpose()?,
            names: self.names.into(),
            ..View::default()
        })
    }

    fn verdict_settings(
        &self,
        no_blocks: Option<&'static str>,
    ) -> Result<Option<VerdictSettings>, ConfigError> {
        let Some(words) = &self.verdict else {
            return Ok(None);
        };
        let has = |word| words.contains(&word);
        if has(VerdictWord::Last) && has(VerdictWord::Each) {
            return Err(ConfigError::LastAndEach);
        }
        let no_blocks = no_blocks.or(self.combined_only.then_some("--combined-only"));
        if let Some(flag) = no_blocks {
            return Err(ConfigError::NothingToJudge(flag));
        }
        let default = VerdictSettings::default();
        let limit = self
            .verdict_limit
            .as_deref()
            .map(parse_verdict_limit)
            .transpose()?;
        Ok(Some(VerdictSettings {
            each: has(VerdictWord::Each),
            stops: has(VerdictWord::Stop),
            limit: limit.unwrap_or(default.limit),
            tags: Tags::new(&self.pointer_tags),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn view(arguments: &str) -> Result<View, ConfigError> {
        let arguments = ["memleak", "-p", "1"]
            .into_iter()
            .chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        cli.trace.view.check(Format::Text, None)
    }

    /// The default age is 0.5 s, and bare numbers are milliseconds. With totals only there are no ages: both
    /// flags together are refused, even for the default age.
    #[test]
    fn ages() {
        let older = |arguments: &str| view(arguments).map(|view| view.older);
        let milliseconds = |number| Ok(Some(Duration::from_millis(number)));
        assert_eq!(older(""), milliseconds(500));
        assert_eq!(older("-o 0"), milliseconds(0));
        assert_eq!(older("--older 60000"), milliseconds(60_000));
        assert_eq!(older("-o 5s"), milliseconds(5000));
        assert_eq!(older("-o 1.5"), Ok(Some(Duration::from_micros(1500))));
        assert_eq!(older(&format!("-o {}", u64::MAX)), milliseconds(u64::MAX));
        for combined in ["-C", "--combined-only"] {
            assert_eq!(older(combined), Ok(None));
            assert_eq!(
                older(&format!("{combined} -o 500")),
                Err(ConfigError::AgesNotRead)
            );
        }
        for wrong in ["1.5x", "x", "18446744073709551616"] {
            let error = older(&format!("-o {wrong}")).expect_err(wrong).to_string();
            assert!(error.contains(&format!("`{wrong}` for --older")), "{error}");
        }
    }

    /// Blocks are listed where they are read and the format has a place for them, up to the format's limit.
    #[test]
    fn blocks() {
        let args = |arguments: &str| {
            let arguments = ["memleak", "-p", "1"]
                .into_iter()
                .chain(arguments.split_whitespace());
            let cli = Cli::try_parse_from(arguments).expect("the command line parses");
            cli.trace.view
        };
        let limit = |format| {
            let view = args("-a").check(format, None);
            view.map(|view| view.list.map(|limits| limits.of_a_stack))
        };
        assert_eq!(view("").map(|view| view.list), Ok(None));
        assert_eq!(limit(Format::Text), Ok(Some(10)));
        assert_eq!(limit(Format::Json), Ok(Some(1000)));
        assert_eq!(limit(Format::Bcc), Ok(Some(usize::MAX)));
        let not_read = |flag| Err(ConfigError::BlocksNotRead(flag));
        assert_eq!(view("-C --show-allocs"), not_read("--combined-only"));
        assert_eq!(args("-a").check(Format::Text, Some("--mmap")), not_read("--mmap"));
    }

    /// Depths are numbers of frames above 0.
    #[test]
    fn depths() {
        let depth = |arguments: &str| view(arguments).map(|view| view.depth.map(NonZeroUsize::get));
        assert_eq!(depth(""), Ok(None));
        assert_eq!(depth("--perf-max-stack-depth 5"), Ok(Some(5)));
        for wrong in ["0", "-1", "many"] {
            let error = ConfigError::Depth(wrong.to_owned());
            assert_eq!(depth(&format!("--perf-max-stack-depth={wrong}")), Err(error));
        }
    }

    /// Without --sort, the format decides the order.
    #[test]
    fn order() {
        let sort = |arguments: &str| view(arguments).map(|view| view.sort);
        assert_eq!(sort(""), Ok(None));
        assert_eq!(sort("--sort size"), Ok(Some(Order::Size)));
        assert_eq!(sort("--sort count"), Ok(Some(Order::Count)));
        assert_eq!(sort("--sort growth"), Ok(Some(Order::Growth)));
        assert_eq!(sort("--sort suspicion"), Ok(Some(Order::Suspicion)));
    }
}
