//! `bursar run` over programs that know nothing of Bursar: in C, over the simulated driver as `libcuda.so.1`, with the library that keeps
//! them inside their shares.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A folder with a driver, a ledger and a program.
struct Folder(PathBuf);

/// Returns a shared object that cargo has built for these tests.
fn library(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a program");
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|file| file.exists());
    found.unwrap_or_else(|| panic!("cargo builds {name} beside {}", own.display()))
}

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("bursar-enforced-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&folder).expect("a temporary folder");
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            symlink(library("libbursar_libcuda.so"), folder.join(name)).expect("a link");
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/take.c");
        let compiled = Command::new("cc").arg(source).arg("-o").arg(folder.join("take")).arg("-ldl").status();
        assert!(compiled.expect("a C compiler, which Rust needs to link").success());
        Self(folder)
    }

    /// Runs `bursar` with these words and, behind `--`, this command, on the driver that calls itself CUDA.
    fn bursar(&self, words: &str, command: &[&str]) -> Output {
        self.command(words, command).output().expect("the command was built")
    }

    /// Returns the command that [`Self::bursar`] runs.
    fn command(&self, words: &str, command: &[&str]) -> Command {
        let mut bursar = Command::new(env!("CARGO_BIN_EXE_bursar"));
        bursar.args(words.split_whitespace()).args(command.first().map(|_| "--")).args(command);
        bursar.current_dir(&self.0).env("BURSAR_LEDGER_DIR", &self.0).env("LD_LIBRARY_PATH", &self.0);
        let devices = format!("1x8GiB@{}", self.0.file_name().expect("a name").display());
        bursar.env("BURSAR_SIM_DEVICES", devices).env("NO_COLOR", "1").env_remove("LD_PRELOAD");
        bursar.env("BURSAR_ENFORCE_LIBRARY", library("libbursar_enforce.so")).env_remove("BURSAR_DRIVER");
        bursar
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn e1_a_run_keeps_each_worker_inside_its_share() {
    let folder = Folder::new();
    let ran = folder.bursar("run --per-worker 300MiB --want 2", &["./take", "1000"]);
    let (printed, said) = (text(&ran.stdout), text(&ran.stderr));
    assert!(ran.status.success(), "{printed}{said}");
    assert_eq!(printed.matches("took 300 MiB").count() + said.matches("took 300 MiB").count(), 2, "{printed}{said}");
    assert!(said.contains("libbursar_enforce.so keeps each worker inside its share"), "{said}");
    assert!(said.contains("refused 1 MiB of GPU-"), "{said}");
}

#[test]
fn e1_workers_draw_on_what_they_share_where_their_own_is_used_up() {
    let folder = Folder::new();
    let ran = folder.bursar("run --fixed 100MiB --per-worker 300MiB", &["./take", "1000"]);
    assert!(text(&ran.stdout).contains("took 400 MiB"), "{ran:?}");
}

#[test]
fn e7_the_command_itself_is_not_kept_inside_a_share() {
    let folder = Folder::new();
    let command = format!("{} --json ledger", env!("CARGO_BIN_EXE_bursar"));
    let ran = folder.bursar("run --per-worker 300MiB", &["./take", "300", &command]);
    let printed = text(&ran.stdout);
    assert!(ran.status.success() && printed.contains("took 300 MiB"), "{ran:?}");
    let held = format!("\"held\":{}", 300u64 << 20);
    assert!(printed.replace(' ', "").contains(&held), "{printed}");
    assert!(printed.replace(' ', "").contains("\"unmanaged\":0"), "what is charged counts once: {printed}");
}

#[test]
fn d2_a_run_and_the_commands_that_look_take_nothing_of_a_device() {
    let folder = Folder::new();
    let devices = [env!("CARGO_BIN_EXE_bursar"), "--json", "devices"];
    let mut bursar = folder.command("run --no-enforce --per-worker 300MiB", &devices);
    let ran = bursar.env("BURSAR_SIM_CONTEXT", "500MiB").output().expect("the command was built");
    let printed = text(&ran.stdout).replace(' ', "");
    assert!(printed.contains(&format!("\"free\":{}", 8u64 << 30)), "{ran:?}");
}

#[test]
fn e8_a_file_that_is_not_the_library_is_refused_by_name() {
    let folder = Folder::new();
    let whole = fs::read(library("libbursar_enforce.so")).expect("the library");
    let mut foreign = whole.clone();
    foreign[18] ^= 0xff;
    let other = fs::read(library("libbursar_libcuda.so")).expect("another library");
    let program = fs::read(folder.0.join("take")).expect("a program");
    let files = [
        (&[][..], "it is empty"),
        (&b"no library"[..], "it is not a shared object"),
        (&whole[..4], "it is for another machine"),
        (&whole[..50], "it is not whole"),
        (&whole[..whole.len() / 2], "it is not whole"),
        (&whole[..whole.len() - 1], "it is not whole"),
        (&foreign[..], "it is for another machine"),
        (&other[..], "it is another library"),
        (&program[..], "it is another library"),
    ];
    let file = folder.0.join("libbursar_enforce.so");
    for (bytes, what) in files {
        fs::write(&file, bytes).expect("a file");
        let mut bursar = folder.command("run --per-worker 300MiB", &["./take", "1000"]);
        let refused = bursar.env("BURSAR_ENFORCE_LIBRARY", &file).output().expect("the command was built");
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(3), "{what}: {said}");
        assert!(said.contains(file.to_str().expect("a plain name")) && said.contains(what), "{what}: {said}");
    }
}

#[test]
fn e8_a_run_says_what_it_does_without_the_library_and_the_documentation_what_it_is_not() {
    let folder = Folder::new();
    let free = folder.bursar("run --no-enforce --per-worker 300MiB", &["./take", "500"]);
    assert!(text(&free.stdout).contains("took 500 MiB"), "{free:?}");
    assert!(text(&free.stderr).contains("nothing keeps workers inside their shares"), "{free:?}");
    let mut bursar = Command::new(env!("CARGO_BIN_EXE_bursar"));
    bursar.args(["run", "--per-worker", "1MiB", "--", "true"]).env("BURSAR_ENFORCE_LIBRARY", "/nowhere/enforce.so");
    bursar.env("LD_LIBRARY_PATH", &folder.0).env("BURSAR_LEDGER_DIR", &folder.0).env_remove("BURSAR_DRIVER");
    let refused = bursar.output().expect("the command was built");
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{said}");
    assert!(said.contains("looked for /nowhere/enforce.so") && said.contains("--no-enforce"), "{said}");

    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let help = text(&folder.bursar("help run", &[]).stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    let page = |name: &str| fs::read_to_string(docs.join(name)).expect("a page");
    for page in [help, page("cli.md"), page("guide/03-sharing-a-card.md")] {
        let plain = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(plain.contains("not a security boundary"), "{plain}");
    }
}
