//! Functions of Python, in each format: with name, file and line, without a module, and without their
//! addresses.

use super::*;
use crate::model::NameStyle;
use crate::model::site_name::{SiteNamer, SiteNames};
use crate::samples::python::{CODE, function, python};

/// The text has `[python]` in place of a module, and marks the responsible frame: a function that the
/// interpreter runs, or one of an extension.
#[test]
fn text_with_functions_of_python() {
    insta::assert_snapshot!(rendered(&python(), Format::Text), @r"
[09:05:07] leaker (4242), 12.3 s: 1.2 KiB outstanding in 20 blocks at 3 sites
    ID SUSP       HELD BLOCKS        GROWTH FREED    AGE   SITE
 ca25d    -      640 B     10             0 50.0%      ?   fetch_rows db.py:118
 544eb    -      384 B      6             0 50.0%      ?   fast_index
 502ca    -      256 B      4             0 50.0%      ? ! fast_index

ca25d fetch_rows: 640 B in 10 blocks, 50.0% of all, via malloc
      _PyBytes_Resize+0x8 [python3.11]
      python3.11+0x5000 [python3.11]
      decode [python] /usr/lib/python3.11/json/decoder.py:337
      _PyEval_EvalFrameDefault+0x8 [python3.11]
    > fetch_rows [python] …/db.py:118
      <module> [python] …/main.py:3
      _PyEval_EvalFrameDefault+0x8 [python3.11]
      Py_BytesMain+0x8 [python3.11]
      end: complete

544eb fast_index(char const*): 384 B in 6 blocks, 30.0% of all, via malloc
    > fast_index(char const*)+0x4 [_fast.so]
      <module> [python] …/main.py:3
      _PyEval_EvalFrameDefault+0x8 [python3.11]
      Py_BytesMain+0x8 [python3.11]
      end: complete

502ca fast_index(char const*): 256 B in 4 blocks, 20.0% of all, via malloc
    > fast_index(char const*)+0x4 [_fast.so]
      fetch_rows [python] …/db.py:118
      <python function> [python]
      end: no_cfi at _fast.so+0x1234 (code without CFI, frame pointer not plausible)

  2 of 3 stacks complete (80.0% of allocations), nothing lost
  1 no_cfi (20.0% of allocations): code without CFI, frame pointer not plausible
    Build that code with -fasynchronous-unwind-tables, or assembly with .cfi directives.
  Python: 88 functions; allocations: 32 have all their frames, 8 have only the innermost frames (too many, or native frames between them unknown), 2 have none (stack and interpreter state disagree, as in a subinterpreter), 1 have none (interpreter not yet known, or no room)
  …/ is /opt/app/
  (-v: calls, resident memory, ages, and memleak's own cost)
");
}

/// The verbose text has no address for a function of Python, and says how many stacks have their functions of
/// Python.
#[test]
fn verbose_text_with_functions_of_python() {
    let text = verbose(&python());
    let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    has("    > 0x00007f0000001234 fast_index(char const*)+0x4 [_fast.so]");
    has("                         <module> [python] …/main.py:3");
    has("                         <python function> [python]");
    has("  Frames:    104 by CFI, 0 by frame pointer (0%)");
    has(
        "  Python:    88 functions; allocations: 32 have all their frames, 8 have only the innermost frames \
         (too many, or native frames between them unknown), 2 have none (stack and interpreter state \
         disagree, as in a subinterpreter), 1 have none (interpreter not yet known, or no room)",
    );
    assert!(!verbose(&full()).contains("Python"), "nothing of it otherwise");
    let mut whole = python();
    whole.completeness.python.in_part = 0;
    assert!(rendered(&whole, Format::Text).contains("\n  Python: 88 functions; "));
    whole.completeness.python.not_placed = 0;
    assert!(rendered(&whole, Format::Text).contains("\n  Python: 88 functions; "));
    whole.completeness.python.not_read = 0;
    assert!(
        !rendered(&whole, Format::Text).contains("Python: "),
        "nothing is missing"
    );
}

/// No format for other programs or for people shows the address of a code object, or leaves a function
/// without a name.
#[test]
fn no_address_is_shown() {
    let report = python();
    let texts = Format::all().filter(|format| !matches!(format, Format::Pprof | Format::Json));
    for format in texts {
        let text = rendered(&report, format);
        let name = format.name();
        for hidden in [CODE, CODE + 0x100, CODE + 0x200, CODE + 0x300] {
            let is_shown = text.contains(&format!("{hidden:x}")) || text.contains(&hidden.to_string());
            assert!(!is_shown, "{name}: {hidden:x}\n{text}");
        }
        // Native code without a symbol has its module after it on the line.
        let is_unknown = |line: &str| line.ends_with("[unknown]") || line.contains("<null sym>");
        assert!(!text.lines().any(is_unknown), "{name}\n{text}");
        for shown in ["fetch_rows", "fast_index"] {
            assert!(text.contains(shown), "{name}: {shown}\n{text}");
        }
        if format != Format::Summary {
            let nameless = text.contains("<python function>") || text.contains("&lt;python function&gt;");
            assert!(
                nameless || text.contains(r"\u003cpython function>"),
                "{name}\n{text}"
            );
        }
    }
}

/// JSON has for each function how it was found, its name, file and line, and it counts such frames and stacks
/// separately. Reports of other programs have none of this.
#[test]
fn json_with_functions_of_python() {
    let value: Value = serde_json::from_str(&rendered(&python(), Format::Json)).unwrap();
    let expected = json!({
        "pc": format!("{CODE:#x}"), "module": null, "build_id": null, "address": null, "found_by": "python",
        "symbol": "fetch_rows", "offset": null, "file": "/opt/app/db.py", "line": 118, "inlined": []
    });
    assert_eq!(value["stacks"][0]["frames"][4], expected);
    assert_eq!(value["stacks"][0]["responsible"]["symbol"], "fetch_rows");
    let unwinding = &value["unwinding"];
    assert_eq!(
        unwinding["frames"],
        json!({"cfi": 104, "fp": 0, "fp_generated": 0, "fp_uncertain": 0, "python": 88})
    );
    assert_eq!(
        unwinding["python"],
        json!({"whole": 32, "in_part": 8, "not_placed": 2, "not_read": 1})
    );
    let other: Value = serde_json::from_str(&rendered(&full(), Format::Json)).unwrap();
    assert_eq!(other["unwinding"].get("python"), None);
    assert_eq!(other["unwinding"]["frames"].get("python"), None);
}

/// Dialects print 0 instead of an address, and `[python]` for the module.
#[test]
fn dialects_with_functions_of_python() {
    let mut report = python();
    report.compared.older = Some(std::time::Duration::ZERO);
    let has = |format, line: &str| {
        let text = rendered(&report, format);
        assert!(text.contains(line), "{text}");
    };
    has(Format::Bcc, "\n\t\t0x0000000000000000\tfetch_rows [python]\n");
    has(Format::Libbpf, "\n\t4 [<0000000000000000>] fetch_rows [python]\n");
}

/// Flame graphs, which do not show the file beside a function, add it to the name of a module's code.
#[test]
fn flame_graphs_with_functions_of_python() {
    insta::assert_snapshot!(rendered(&python(), Format::Folded), @r"
    Py_BytesMain;_PyEval_EvalFrameDefault;<module> main.py;fast_index(char const*) 384
    Py_BytesMain;_PyEval_EvalFrameDefault;<module> main.py;fetch_rows;_PyEval_EvalFrameDefault;decode;[python3.11];_PyBytes_Resize 640
    [no_cfi in _fast.so];<python function>;fetch_rows;fast_index(char const*) 256
    ");
    for format in [Format::Speedscope, Format::Gperftools] {
        assert!(rendered(&python(), format).contains("<module> main.py"));
    }
}

/// The title is the function of the program that the interpreter runs, or a function of an extension. If the
/// program consists of functions of Python's library only, it is the innermost of them.
#[test]
fn owners_with_functions_of_python() {
    let title = |report: &Report, stack: usize| {
        titles::title(report.stack(&report.stacks[stack]), NameStyle::default())
    };
    let mut report = python();
    assert_eq!(title(&report, 0), "fetch_rows");
    assert_eq!(title(&report, 1), "fast_index(char const*)");
    let library = Some(("/usr/lib/python3.11/http/server.py", 7));
    crate::samples::change_frames(&mut report, 0, |frames| {
        let of_library = function(CODE, Some("malloc"), library);
        frames.retain(|frame| ![frames_of_python(4), frames_of_python(5)].contains(frame));
        frames.insert(3, of_library);
    });
    assert_eq!(title(&report, 0), "decode");
    crate::samples::change_frames(&mut report, 0, |frames| {
        let installed = ("/usr/lib/python3/dist-packages/yaml/reader.py", 7);
        frames.insert(4, function(CODE, Some("malloc"), Some(installed)));
    });
    assert_eq!(
        title(&report, 0),
        "malloc",
        "a function of Python can have any name"
    );
    let main = function(CODE, Some("<module>"), Some(("/opt/app/main.py", 3)));
    crate::samples::change_frames(&mut report, 0, |frames| frames[4] = main);
    assert_eq!(title(&report, 0), "<module> main.py");
    let short = titles::short_title(report.stack(&report.stacks[0]), &report);
    assert_eq!(short, "<module> main.py:3");
}

/// One of the frames of the first stack.
fn frames_of_python(number: usize) -> crate::model::FrameId {
    crate::samples::frames(&python().stacks[0])[number]
}

/// Sites have the same number wherever their code objects are, and different numbers if line or function
/// differ.
#[test]
fn sites_with_functions_of_python() {
    let site = |code, name, line| {
        let mut report = python();
        let moved = function(code, Some(name), Some(("/opt/app/db.py", line)));
        crate::samples::change_frames(&mut report, 0, |frames| frames[4] = moved);
        report.stack(&report.stacks[0]).site()
    };
    let known = python().stack(&python().stacks[0]).site();
    assert_eq!(site(CODE, "fetch_rows", 118), known);
    assert_eq!(site(0x1000, "fetch_rows", 118), known);
    assert_ne!(site(CODE, "fetch_rows", 119), known);
    assert_ne!(site(CODE, "fetch_row", 118), known);
}

/// Names of sites in messages do not contain the interpreter's functions.
#[test]
fn site_names_with_functions_of_python() {
    let report = python();
    let mut names = SiteNames::default();
    let site = SiteNamer::new(&mut names).site(report.stack(&report.stacks[0]));
    let own: Vec<_> = names
        .callers(&site)
        .filter(|(_, is_own)| *is_own)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(own, ["fetch_rows", "<module> main.py"]);
}
