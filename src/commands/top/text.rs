//! The table for people: a line for each process, those with certain growth first.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use leak_report::render::cells::{fit, width};
use leak_report::render::{counted, printable, short_size};

use super::table::{Row, Table, Trend};
use crate::session::time_of_day;

/// Width of the user's name, in columns.
const USER: usize = 9;

/// Writes the first `rows` processes, and says how many others there are.
pub(super) fn render(table: &Table, rows: usize, is_painted: bool, out: &mut dyn Write) -> io::Result<()> {
    let machine = &table.machine;
    writeln!(
        out,
        "[{}] {} for {:.1} s, every {:.1} s: {}",
        time_of_day(),
        counted(table.rows.len() as u64, "process"),
        table.elapsed.as_secs_f64(),
        table.interval.as_secs_f64(),
        table.counts()
    )?;
    writeln!(
        out,
        "Memory: {} of {} available, {} of swap free",
        short_size(machine.available),
        short_size(machine.total),
        short_size(machine.swap_free)
    )?;
    for note in table.notes() {
        writeln!(out, "Note: {note}")?;
    }
    let heading = Style::new().bold();
    let heading = if is_painted { heading } else { Style::new() };
    writeln!(
        out,
        "{heading}{:>8} {:<USER$} {:>10} {:>11}  {:<23} {:>7} {:>6}  {:<15} NAME{heading:#}",
        "PID", "USER", "ANONYMOUS", "GROWTH/min", "FOR CERTAIN (99 %)", "SINCE", "MEM", "FULL IN"
    )?;
    let (shown, others) = table.rows.split_at(rows.min(table.rows.len()));
    for row in shown {
        line(row, table, is_painted, out)?;
    }
    if !others.is_empty() {
        let growing = others.iter().filter(|row| row.trend() == Trend::Grows).count();
        let bytes = others
            .iter()
            .map(|row| row.memory.bytes())
            .fold(0, u64::saturating_add);
        writeln!(
            out,
            "and {} with {}, of which {growing} grow (-T N shows N)",
            counted(others.len() as u64, "other"),
            short_size(bytes)
        )?;
    }
    writeln!(out)
}

fn line(row: &Row, table: &Table, is_painted: bool, out: &mut dyn Write) -> io::Result<()> {
    let style = match row.trend() {
        _ if !is_painted => Style::new(),
        Trend::Grows => AnsiColor::Yellow.on_default(),
        Trend::Shrinks => Style::new(),
        Trend::None | Trend::Early => Style::new().dimmed(),
    };
    let user = fit(&printable(&row.user_name()), USER);
    let user = format!("{user}{}", " ".repeat(USER - width(&user)));
    writeln!(
        out,
        "{style}{:>8} {user} {:>10} {:>11}  {:<23} {:>7} {:>5.1}%  {:<15} {}{style:#}",
        row.pid,
        short_size(row.memory.bytes()),
        row.growth_in_words(),
        row.limits_in_words(),
        since(row),
        row.share(&table.machine),
        row.full_in_words(),
        printable(&row.comm)
    )
}

/// Time over which a row's growth is judged.
pub(super) fn since(row: &Row) -> String {
    let seconds = row.span.as_secs();
    match seconds {
        0..3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        _ => format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::table::tests::row;

    /// A name cannot control the terminal, rows beyond the number are summed up, and painted text differs
    /// only in its colours.
    #[test]
    fn lines() {
        let mut table = Table {
            rows: vec![
                row(7, 3 << 20, 1024.0, 2048.0),
                row(8, 1 << 20, -1.0, 1.0),
                row(9, 5, 3.0, 4.0),
            ],
            ..Table::default()
        };
        table.rows[0].comm = "\u{1b}[2Jx".to_owned();
        table.left_out = 5;
        let text = |is_painted| {
            let mut text = Vec::new();
            render(&table, 2, is_painted, &mut text).expect("memory");
            String::from_utf8(text).expect("UTF-8")
        };
        let plain = text(false);
        let lines: Vec<_> = plain.lines().skip(2).map(str::trim_end).collect();
        assert_eq!(
            lines[0],
            "Note: 5 processes with less memory than these are not watched"
        );
        let expected = [
            "       7 root         3.0 MiB    +1.5 KiB  +1.0 … +2.0 KiB            0:19   0.0%                  \\u{1b}[2Jx",
            "       8 root         1.0 MiB    no trend  -1.0 … +1.0 B              0:19   0.0%                  process8",
            "and 1 other with 5 B, of which 1 grow (-T N shows N)",
        ];
        assert_eq!(lines[2..5], expected);
        let without_colours = anstream::adapter::strip_str(&text(true)).to_string();
        let (_, rows) = without_colours.split_once('\n').expect("lines");
        assert!(plain.ends_with(rows), "{without_colours}");
        assert_ne!(text(true), plain);
    }
}
