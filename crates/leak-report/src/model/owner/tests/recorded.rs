//! Stacks as recorded from real programs: Ruby 3.1.2 of Debian 12, numpy 2.4.6 and pandas 3.1.1 on its Python
//! 3.11, pyarrow 26.0.1, OpenCV 5.0.0.

use super::{check, check_nameless, nameless};
use crate::model::FrameId;
use crate::samples::{changed, frame, module_of, plain_module, python::function};

const SITE_PACKAGES: &str = "/srv/venv/lib/python3.11/site-packages";

/// A frame of libruby: its name, or the address of a nameless one.
fn ruby(name: &str) -> FrameId {
    match name.strip_prefix("0x") {
        Some(address) => nameless("libruby-3.1.so.3.1", address),
        None => frame("libruby-3.1.so.3.1", name),
    }
}

/// The frames between a method in C and the program.
const CALL: [&str; 4] = ["0x249530", "0x24be2b", "0x24ec3e", "rb_vm_exec"];

fn rubies(names: &[&str]) -> Vec<FrameId> {
    { names }.iter().chain(&CALL).map(|name| ruby(name)).collect()
}

/// A frame of an extension in a package of Python.
fn native(file: &str, name: &str) -> FrameId {
    let module = module_of(&plain_module(&format!("{SITE_PACKAGES}/{file}"), None));
    let sample = match name.strip_prefix("0x") {
        Some(address) => nameless("sample.so", address),
        None => frame("sample.so", name),
    };
    changed(sample, |frame| {
        if let Some(place) = &mut frame.at.place {
            place.module = module;
        }
    })
}

fn numpy(name: &str) -> FrameId {
    native(
        "numpy/_core/_multiarray_umath.cpython-311-x86_64-linux-gnu.so",
        name,
    )
}

/// A function of Python in a file of packages, or of the program.
fn python(name: &str, file: &str) -> FrameId {
    let path = match file.contains('/') {
        true => format!("{SITE_PACKAGES}/{file}"),
        false => format!("/srv/{file}"),
    };
    let code = path.bytes().chain(name.bytes()).map(u64::from).sum();
    function(code, Some(name), Some((&path, 12)))
}

fn interpreter() -> FrameId {
    frame("python3.11", "_PyEval_EvalFrameDefault")
}

/// Helpers of a stripped libruby are attributed to the exported function above them.
#[test]
fn growth_in_ruby() {
    for (names, site) in [
        (&["0xd8484", "0x1ec5be", "rb_str_times"][..], "rb_str_times"),
        (
            &["0xd860f", "0x3d59e", "0x3f755", "0x41aa3", "rb_ary_cat"],
            "rb_ary_cat",
        ),
        (
            &[
                "0xd860f",
                "0x1f3184",
                "0x1fc332",
                "rb_str_buf_append",
                "rb_str_append",
            ],
            "rb_str_buf_append",
        ),
        (&["0xd8484", "rb_str_buf_new", "rb_str_format"], "rb_str_buf_new"),
        (
            &[
                "0xcfec0",
                "0xd9a10",
                "rb_wb_protected_newobj_of",
                "0x41f00",
                "rb_ary_new",
            ],
            "rb_ary_new",
        ),
        (
            &["0xd884e", "rb_data_typed_object_zalloc", "rb_mutex_new"],
            "rb_mutex_new",
        ),
    ] {
        check(rubies(names), site);
    }
}

/// A nameless method far below the function that runs programs is not attributed to it.
#[test]
fn nameless_methods_of_ruby() {
    check_nameless(rubies(&["0xabc0", "0x1b1a16", "0x1fe025"]), 0);
}

/// A nameless function that an extension calls, through an exported function that is not on the stack, is the
/// site until another stack shows that it is a shared helper. Then the extension is responsible.
#[test]
fn extensions_of_ruby() {
    let parse = frame("parser.so", "cParser_parse");
    let [with_symbols, nameless_method] = [parse, nameless("generator.so", "6688")].map(|method| {
        let mut frames = vec![ruby("0xd8480"), method];
        frames.extend(rubies(&[]));
        frames
    });
    check_nameless(with_symbols.clone(), 0);
    // Another stack of the report shows what it is.
    check(rubies(&["0xd8480", "rb_str_buf_new"]), "rb_str_buf_new");
    check(with_symbols, "cParser_parse");
    check_nameless(nameless_method, 1);
}

/// Functions between the allocator and the Python function that wanted the array are not the site, including
/// Python functions of numpy.
#[test]
fn arrays_of_numpy() {
    let allocator = ["default_malloc", "PyDataMem_UserNEW", "PyArray_NewFromDescr_int"].map(numpy);
    let to = |more: &[FrameId]| [&allocator[..], more].concat();
    let main = python("<module>", "svc.py");
    check(
        to(&[
            numpy("PyArray_Empty_int"),
            numpy("array_empty"),
            interpreter(),
            python("Model.predict", "svc.py"),
            main,
            interpreter(),
        ]),
        "Model.predict",
    );
    // `np.sort` is a function of Python, and calls copy.
    check(
        to(&[
            numpy("PyArray_NewCopy"),
            numpy("array_copy"),
            interpreter(),
            python("sort", "numpy/_core/fromnumeric.py"),
            interpreter(),
            numpy("dispatcher_vectorcall"),
            interpreter(),
            python("Model.sort", "svc.py"),
            main,
            interpreter(),
        ]),
        "Model.sort",
    );
    // Any other extension is responsible for what it requests; so is a Python function of a package that
    // makes no arrays.
    check(
        to(&[
            numpy("PyArray_Empty_int"),
            native("fast/_fast.so", "fast_index"),
            interpreter(),
            main,
            interpreter(),
        ]),
        "fast_index",
    );
    check(
        to(&[
            numpy("array_empty"),
            interpreter(),
            python("load", "fast/index.py"),
            main,
            interpreter(),
        ]),
        "load",
    );
    // In a library's thread, no Python function is the caller.
    check(
        to(&[numpy("PyArray_Empty_int"), frame("libc.so.6", "start_thread")]),
        "PyArray_Empty_int",
    );
}

/// Blocks of numpy that are not arrays are attributed to numpy.
#[test]
fn other_blocks_of_numpy() {
    check(
        vec![
            numpy("PyArray_AddCastingImplementation_FromSpec"),
            interpreter(),
            python("<module>", "svc.py"),
            interpreter(),
        ],
        "PyArray_AddCastingImplementation_FromSpec",
    );
}

/// Packages on top of numpy, and packages with their own allocators, are not the site either.
#[test]
fn arrays_of_other_packages() {
    let main = python("<module>", "svc.py");
    check(
        vec![
            numpy("default_malloc"),
            numpy("PyDataMem_UserNEW"),
            numpy("PyArray_NewFromDescr_int"),
            numpy("PyArray_Empty_int"),
            numpy("array_empty"),
            interpreter(),
            python("_stack_arrays", "pandas/core/internals/managers.py"),
            python("DataFrame.__init__", "pandas/core/frame.py"),
            python("make_frame", "frame.py"),
            main,
            interpreter(),
        ],
        "make_frame",
    );
    let pool = "arrow::BaseMemoryPoolImpl<arrow::(anonymous namespace)::MimallocAllocator>::Reallocate(long, long, long, unsigned char**) [clone .lto_priv.0]";
    check(
        vec![
            native("pyarrow/libarrow.so.2600", pool),
            python("cast", "pyarrow/compute.py"),
            python("NDFrame.astype", "pandas/core/generic.py"),
            python("tolist", "frame.py"),
            main,
            interpreter(),
        ],
        "tolist",
    );
    // An extension of pandas imports another one, through Python's standard library.
    let import = function(
        7,
        Some("_call_with_frames_removed"),
        Some(("<frozen importlib._bootstrap>", 241)),
    );
    let [offsets, conversion] =
        ["offsets", "conversion"].map(|name| native(&format!("pandas/_libs/tslibs/{name}.so"), "0x6061"));
    check(
        vec![
            offsets,
            interpreter(),
            import,
            interpreter(),
            conversion,
            interpreter(),
            python("load", "svc.py"),
            interpreter(),
        ],
        "load",
    );
    let [malloc, create, resize] =
        ["0x1a2b30", "0x1a4c10", "0x2b3d40"].map(|name| native("cv2/cv2.abi3.so", name));
    check(
        vec![
            malloc,
            create,
            resize,
            interpreter(),
            python("thumbnail", "svc.py"),
            main,
            interpreter(),
        ],
        "thumbnail",
    );
    check(
        vec![
            native("torch/lib/libc10.so", "c10::alloc_cpu(unsigned long)"),
            native("torch/lib/libtorch_cpu.so", "at::native::add(at::Tensor const&)"),
            native("torch/lib/libtorch_python.so", "torch::autograd::THPVariable_add"),
            interpreter(),
            python("Linear.forward", "torch/nn/modules/linear.py"),
            python("Model.forward", "svc.py"),
            main,
            interpreter(),
        ],
        "Model.forward",
    );
}
