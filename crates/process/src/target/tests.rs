use std::process::{Child, Command, Stdio};

use unwind_tables::addr::Avma;

use super::*;
use crate::mappings::MappedCode;
use crate::maps::MapsName;
use crate::modules::Unreadable;

/// A child that is killed and reaped when the test ends, even by a panic.
struct Running(Child);

impl Running {
    fn start(program: &Path) -> Self {
        let mut command = Command::new(program);
        let child = command
            .arg("1000")
            .stdout(Stdio::null())
            .spawn()
            .expect("a child process");
        let running = Self(child);
        // `spawn` can return before the kernel has mapped the program; its loader maps libc last.
        while !fs::read_to_string(format!("/proc/{}/maps", running.pid()))
            .is_ok_and(|maps| maps.contains("libc.so"))
        {
            std::thread::yield_now();
        }
        running
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn kill(&mut self) {
        self.0.kill().expect("it runs");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Some tests have killed it already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleep() -> PathBuf {
    PathBuf::from("/bin/sleep")
}

fn own() -> (Target, Modules, Mappings) {
    let target = Target::open(std::process::id()).expect("we run");
    let mut modules = Modules::new();
    let mappings = target.read_mappings(&mut modules).expect("we run");
    (target, modules, mappings)
}

/// Error for a process that cannot be traced, as the user reads it: one line.
fn refusal(pid: u32) -> String {
    let text = Target::open(pid).expect_err("not fit to be traced").to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

/// This program's own code is found in its own mappings: a function's address leads to the executable, and
/// through bias and segments to the bytes in the file.
#[test]
fn own_code_is_mapped() {
    let (target, modules, mappings) = own();
    assert_eq!(target.pid(), std::process::id());
    assert_eq!(target.exe(), std::env::current_exe().expect("our path"));
    let address = Avma::new(u64::try_from(own as *const () as usize).expect("64-bit addresses"));
    let MappedCode::Module { module, bias } = mappings.find(address).expect("mapped").code else {
        panic!("our code belongs to a module");
    };
    let module = modules.get(module).expect("known");
    assert_eq!(module.path, target.exe());
    let elf = unwind_tables::elf::ElfView::parse(module.bytes()).expect("an ELF file");
    let offset =
        usize::try_from(elf.offset_of(bias.to_svma(address)).expect("in the file").get()).expect("small");
    let mut found = [0; 16];
    let memory = File::open("/proc/self/mem").expect("our memory");
    memory.read_exact_at(&mut found, address.get()).expect("our code");
    assert_eq!(found, module.bytes()[offset..offset + 16]);
}

/// The C library and the vDSO are modules with build-ids; only the former can be probed, through a path that
/// leads to the same file.
#[test]
fn libc_and_vdso() {
    let (target, mut modules, mappings) = own();
    let libc = modules
        .iter()
        .find(|module| module.path.ends_with("libc.so.6"))
        .expect("libc is loaded");
    assert!(libc.build_id.is_some() && !libc.is_vdso() && !libc.device_unconfirmed);
    assert_eq!(
        fs::read(libc.probe_path().expect("a file")).expect("readable"),
        libc.bytes()
    );
    let vdso = modules
        .iter()
        .find(|module| module.is_vdso())
        .expect("the vDSO is mapped");
    assert!(vdso.build_id.is_some() && vdso.bytes().starts_with(b"\x7fELF"));
    assert_eq!(vdso.probe_path(), None);
    // Reading again adds neither modules nor mappings.
    let count = modules.iter().count();
    let second = target.read_mappings(&mut modules).expect("we run");
    assert_eq!(mappings, second);
    assert_eq!(modules.iter().count(), count);
}

/// Two processes share their modules.
#[test]
fn modules_are_shared() {
    let (one, two) = (Running::start(&sleep()), Running::start(&sleep()));
    let mut modules = Modules::new();
    let mut read = |running: &Running| {
        let target = Target::open(running.pid()).expect("it runs");
        target.read_mappings(&mut modules).expect("it runs");
        modules.iter().count()
    };
    assert_eq!(read(&one), read(&two));
}

/// A program deleted while it runs is still read if the kernel permits it, and never mistaken for the file
/// that now has its path.
#[test]
fn deleted_program() {
    let path = std::env::temp_dir().join(format!("memleak-deleted-{}", std::process::id()));
    let original = fs::read(sleep()).expect("a program");
    fs::copy(sleep(), &path).expect("a copy");
    let running = Running::start(&path);
    fs::remove_file(&path).expect("ours");
    fs::write(&path, b"another file").expect("ours");
    let target = Target::open(running.pid()).expect("it runs");
    let mut modules = Modules::new();
    let mappings = target.read_mappings(&mut modules).expect("it runs");
    fs::remove_file(&path).expect("ours");
    let program = modules.iter().find(|module| module.path == path);
    let refused = mappings.entries().iter().any(|entry| {
        entry.code
            == MappedCode::Unreadable {
                path: path.clone(),
                why: Unreadable::Replaced,
            }
    });
    match program {
        Some(module) => assert!(module.bytes() == original && !refused),
        None => assert!(refused, "{mappings:?}"),
    }
}

/// Between reading the maps and opening a file, another can be mapped in its place. It is not taken for the
/// one in the maps, and a file that could not be opened for that reason is tried again.
#[test]
fn another_file_in_the_place_of_one_as_root() {
    let running = Running::start(&sleep());
    let target = Target::open(running.pid()).expect("it runs");
    let text = read_maps(target.pid()).expect("it runs");
    let code = maps::parse(&text)
        .filter_map(Result::ok)
        .find(|entry| entry.executable && matches!(entry.name, MapsName::File { .. }));
    let found = code.expect("it has code");
    let read_as = |path: &Path, inode| maps::MapsEntry {
        name: MapsName::File {
            path: path.to_owned(),
            deleted: false,
        },
        inode,
        ..found.clone()
    };
    let mut modules = Modules::new();
    let own = std::env::current_exe().expect("this test");
    let inode = fs::metadata(&own).expect("this test").ino();
    let module = modules
        .of_mapping(target.pid(), &read_as(&own, inode))
        .expect("by its path");
    assert_eq!(modules.get(module).expect("just added").path, own);
    let absent = Path::new("/nowhere");
    let unmapped = modules.of_mapping(target.pid(), &read_as(absent, 1));
    assert_eq!(unmapped, Err(Unreadable::Gone));
}

/// A target has exited once it is dead, reaped or not, and not before.
#[test]
fn exit() {
    let mut running = Running::start(&sleep());
    let target = Target::open(running.pid()).expect("it runs");
    assert_eq!(target.comm(), "sleep");
    assert!(!target.has_exited());
    running.kill();
    while !target.has_exited() {
        std::thread::yield_now();
    }
    let pid = running.pid();
    assert_eq!(
        refusal(pid),
        format!("{pid} (sleep) has exited and only waits for its parent; trace one that runs")
    );
    drop(running);
    assert!(target.has_exited());
    let error = target.read_mappings(&mut Modules::new()).expect_err("it is gone");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(refusal(pid).starts_with(&format!("no process with pid {pid}; ")));
}

/// A pid without a process or program is refused with a remedy.
#[test]
fn refusals() {
    // Above the kernel's maximum pid, 2^22.
    assert!(refusal(u32::MAX).starts_with("no process with pid 4294967295; "));
    let thread = std::thread::spawn(|| {
        let tid = fs::read_link("/proc/thread-self")
            .expect("/proc")
            .file_name()
            .expect("a number")
            .to_owned();
        (refusal(tid.to_string_lossy().parse().expect("a number")), tid)
    });
    let (text, tid) = thread.join().expect("the refusal");
    let pid = std::process::id();
    assert_eq!(
        text,
        format!("{} is a thread of process {pid}; use -p {pid}", tid.display())
    );
    // Containers do not show kernel threads.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n") {
        assert_eq!(
            refusal(2),
            "2 (kthreadd) is a kernel thread, which has no heap; give the pid of a program's process"
        );
    }
    // Process 1 belongs to root.
    if File::open("/proc/1/maps").is_err() {
        assert!(refusal(1).starts_with("no permission to read process 1 ("));
    }
}

/// 32-bit and x32 programs are distinguished from 64-bit ones by their ELF class.
#[test]
fn classes() {
    for (header, expected) in [
        (&b"\x7fELF\x02"[..], true),
        (b"\x7fELF\x01", false),
        (b"\x7fELF", false),
        (b"#!/bi", false),
    ] {
        assert_eq!(is_64_bit(header), expected, "{header:?}");
    }
}

/// Devices and directories are not opened, and text is not ELF.
#[test]
fn not_modules() {
    let mut modules = Modules::new();
    let mut add = |path: &str| modules.add_file(Path::new(path)).expect_err("no module");
    assert_eq!(add("/dev/zero"), Unreadable::NotRegular);
    assert_eq!(add("/"), Unreadable::NotRegular);
    assert_eq!(add("/nowhere"), Unreadable::CannotOpen(io::ErrorKind::NotFound));
    assert!(matches!(add("/etc/passwd"), Unreadable::NotElf(_)));
}
