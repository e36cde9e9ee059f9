//! Programs on a FUSE mount that only their user may look into, as an AppImage mounts itself: even root
//! cannot open the file, and yet stacks are as complete as elsewhere.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory, run_tool, stock};

/// A user without rights.
const USER: &str = "65534";

fn as_user(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args([
        &format!("--reuid={USER}"),
        &format!("--regid={USER}"),
        "--clear-groups",
        program,
    ]);
    command
}

/// A mount of [`USER`]; unmounted when dropped.
struct Mount {
    /// Directory that all users can enter.
    directory: tempfile::TempDir,
    /// Mode of the device, which all users can open on most systems.
    device: Permissions,
}

const DEVICE: &str = "/dev/fuse";

impl Mount {
    /// Mounts a file system of the files in `files`.
    fn new(files: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("our own");
        let device = fs::metadata(DEVICE).expect(DEVICE).permissions();
        let mount = Self { directory, device };
        fs::set_permissions(DEVICE, Permissions::from_mode(0o666)).expect("we are root");
        let image = mount.directory.path().join("image");
        run_tool(Command::new("mksquashfs").arg(files).arg(&image).arg("-quiet"));
        fs::create_dir(mount.path()).expect("a new one");
        std::os::unix::fs::chown(mount.path(), Some(65534), Some(65534)).expect("we are root");
        run_tool(as_user("squashfuse").arg(&image).arg(mount.path()));
        mount
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("mount")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = as_user("fusermount3").arg("-u").arg(self.path()).status();
        let restored = fs::set_permissions(DEVICE, self.device.clone());
        assert!(unmounted.is_ok_and(|status| status.success()) && restored.is_ok());
    }
}

/// All stacks of such a program, and of a library beside it, are complete, and no right is advised that root
/// already has.
#[test]
fn traced_from_memory() {
    for (path, package) in [
        ("/usr/bin/squashfuse", "squashfuse"),
        ("/usr/bin/mksquashfs", "squashfs-tools"),
    ] {
        stock(path, package);
    }
    let files = directory("private-mount").join("files");
    fs::create_dir_all(&files).expect("our own directory");
    let program = compile(&files, "amounts/plain.c", &["-O2", "-fomit-frame-pointer"]);
    let mount = Mount::new(&files);
    let mounted = mount.path().join(program.file_name().expect("a name"));
    assert!(fs::read(&mounted).is_err(), "root may read it");
    let mut program = Program::spawn(as_user(&mounted.display().to_string()).arg("10"));
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    let (report, messages) = memleak.finish_with_messages();
    program.send_line("");
    assert!(program.end().success());
    report.check_sums();
    assert!(report.allocated.blocks >= 10, "{report}");
    assert!(
        report.stacks.iter().all(|stack| stack.end == "complete"),
        "{report}"
    );
    assert!(
        !messages.iter().any(|line| line.contains("sudo")),
        "{messages:#?}"
    );
}
