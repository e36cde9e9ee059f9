use std::collections::BTreeMap;
use std::time::*;
use unwind_tables::coverage::*;
use unwind_tables::rule::Reason;
fn main() {
    let mut paths: Vec<_> = std::env::args().skip(1).collect();
    if paths.is_empty() {
        use std::io::*;
        let mut s = String::new();
        stdin().read_to_string(&mut s).unwrap();
        paths = s.lines().map(String::from).collect();
    }
    let verbose = paths.len() < 20;
    let (mut n, mut raw, mut rows, mut bytes, mut malformed, mut outside, mut gap, mut code, mut fdes) =
        (0u64, 0, 0, 0u64, 0u64, 0u64, 0, 0, 0u64);
    let mut time = Duration::ZERO;
    let mut reasons: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut kinds: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut errs: BTreeMap<String, u64> = BTreeMap::new();
    let mut none = 0;
    let mut seen = std::collections::HashSet::new();
    for p in paths {
        let Ok(real) = std::fs::canonicalize(&p) else {
            continue;
        };
        if !seen.insert(real.clone()) {
            continue;
        }
        let Ok(data) = std::fs::read(&real) else { continue };
        if !data.starts_with(b"\x7fELF") {
            continue;
        }
        let mut best = Duration::MAX;
        let mut r = None;
        for _ in 0..if verbose { 5 } else { 1 } {
            let t = Instant::now();
            let c = unwind_tables::compile(&data);
            best = best.min(t.elapsed());
            r = Some(c);
        }
        match r.unwrap() {
            Err(e) => {
                *errs.entry(e.to_string()).or_default() += 1;
                if !e.to_string().contains("32-bit") && !e.to_string().contains("unsupported") {
                    println!("{p}: {e}")
                }
            }
            Ok(c) => {
                n += 1;
                time += best;
                let v = &c.coverage;
                raw += v.raw_rows;
                rows += v.rows;
                malformed += u64::from(v.malformed_fdes);
                outside += u64::from(v.outside_fdes);
                gap += v.gap_bytes;
                code += v.code_bytes;
                fdes += u64::from(v.fdes);
                if c.image.is_none() {
                    none += 1;
                    println!("no cfi: {p}")
                }
                if v.malformed_fdes > 0 || v.outside_fdes > 0 {
                    println!("{p}: malformed {} outside {}", v.malformed_fdes, v.outside_fdes)
                }
                if v.source != CfiSource::EhFrame {
                    println!("{p}: {:?}", v.source)
                }
                let b = c.image.as_ref().map_or(0, |i| i.byte_len());
                bytes += b as u64;
                for r in Reason::ALL {
                    let x = v.unsupported(r);
                    let e = reasons.entry(r.name()).or_default();
                    e.0 += x.rows;
                    e.1 += x.bytes;
                    if x.rows > 0 && r != Reason::CfaRegister {
                        println!("  {p}: {r} {}", x.rows)
                    }
                }
                for k in RuleKind::ALL {
                    let x = v.of_kind(k);
                    let e = kinds.entry(k.name()).or_default();
                    e.0 += x.rows;
                    e.1 += x.bytes;
                }
                if verbose {
                    println!(
                        "{p}: fdes {} raw {} rows {} image {} B {:.2} B/row  {:?} {:.1} M raw rows/s gap {}",
                        v.fdes,
                        v.raw_rows,
                        v.rows,
                        b,
                        b as f64 / v.rows as f64,
                        best,
                        v.raw_rows as f64 / best.as_secs_f64() / 1e6,
                        v.gap_bytes
                    );
                }
            }
        }
    }
    println!(
        "objects {n} none {none} fdes {fdes} raw {raw} rows {rows} image bytes {bytes} malformed {malformed} outside {outside} gap {gap} of {code} time {time:?} {:.2} Mrows/s",
        raw as f64 / time.as_secs_f64() / 1e6
    );
    println!("{reasons:?}\n{kinds:?}\n{errs:?}");
}
