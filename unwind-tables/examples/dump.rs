use unwind_tables::rule::*;
use unwind_tables::*;
fn main() {
    let a: Vec<_> = std::env::args().collect();
    let d = std::fs::read(&a[1]).unwrap();
    let v = ElfView::parse(&d).unwrap();
    let (t, _) = build::build(&v).unwrap();
    for r in t.rows() {
        if let UnwindRule::Unsupported(x) = r.rule {
            if x != Reason::CfaRegister {
                println!("{:#x} {x}", r.start)
            }
        }
    }
}
