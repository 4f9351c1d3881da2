//! The test command: every check of the workspace, in order, stopping at the first that fails.

use std::env::consts::EXE_EXTENSION;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::command::{cargo, describe, execute, new_ledger_folder, target_folder};
use crate::error::Error;
use crate::numa;
use crate::package;
use crate::python;
use crate::tidy;
use crate::tree::{Example, File, Tree};

/// The text in an example's opening documentation that marks it as one for hardware only.
const REQUIRES_CUDA: &str = "Requires: CUDA";

/// One step of the test run.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The rustup component it needs beyond the plain toolchain: the cargo command and the component's name.
    component: Option<(&'static str, &'static str)>,
    run: fn(&Path) -> Result<(), Error>,
}

/// The steps, cheapest diagnosis first.
pub(crate) const STEPS: &[Step] = &[
    Step { name: "tidy", about: "the style rules of the workspace", component: None, run: tidy::run },
    Step {
        name: "fmt",
        about: "formatting, checked and not changed",
        component: Some(("fmt", "rustfmt")),
        run: |root| execute(&mut cargo(root, ["fmt", "--all", "--check"])),
    },
    Step {
        name: "clippy",
        about: "lints over every target, warnings refused",
        component: Some(("clippy", "clippy")),
        run: clippy,
    },
    Step { name: "test", about: "unit and integration tests; every example compiled", component: None, run: tests },
    Step {
        name: "doctest",
        about: "the examples in the documentation",
        component: None,
        run: |root| execute(&mut cargo(root, ["test", "--workspace", "--doc"])),
    },
    Step { name: "loom", about: "every interleaving of the lock-free parts", component: None, run: loom_models },
    Step {
        name: "examples",
        about: "every numbered example, run on the simulated device",
        component: None,
        run: examples,
    },
    Step {
        name: "python",
        about: "the Python package: its tests, examples and types, from the wheel",
        component: None,
        run: python::step,
    },
    Step {
        name: "numa",
        about: "the tests of pinned host memory on a kernel with five NUMA nodes",
        component: None,
        run: numa::step,
    },
    Step {
        name: "package",
        about: "what is published, used from outside the workspace",
        component: None,
        run: package::run,
    },
    Step { name: "doc", about: "the documentation built, warnings refused", component: None, run: documentation },
];

/// Returns the step of that name.
pub(crate) fn step(name: &str) -> Result<&'static Step, Error> {
    STEPS
        .iter()
        .find(|step| step.name == name)
        .ok_or_else(|| Error::UnknownStep { name: name.into(), known: STEPS.iter().map(|step| step.name).collect() })
}

/// Runs `steps` in order and stops at the first that fails.
pub(crate) fn run(root: &Path, steps: &[Step]) -> Result<(), Error> {
    for (command, component) in steps.iter().filter_map(|step| step.component) {
        require_component(root, command, component)?;
    }
    let started = Instant::now();
    let (mut passed, mut left_out) = (Vec::new(), Vec::new());
    for (index, step) in steps.iter().enumerate() {
        println!("\n==> [{}/{}] {}: {}", index + 1, steps.len(), step.name, step.about);
        let step_started = Instant::now();
        let outcome = (step.run)(root);
        let elapsed = step_started.elapsed();
        match outcome {
            Ok(()) => {
                println!("<== {} passed in {:.1} s", step.name, elapsed.as_secs_f64());
                passed.push(step.name);
            }
            Err(Error::NotRun { reason }) if !is_required(step.name) => {
                println!("<== {} not run: {reason}", step.name);
                left_out.push(format!("not run: {} ({reason})", step.name));
            }
            Err(cause) => return Err(Error::Step { name: step.name, elapsed, cause: Box::new(cause) }),
        }
    }
    let total_s = started.elapsed().as_secs_f64();
    match passed[..] {
        [] => println!("\nNothing was run."),
        _ => println!("\nAll passed in {total_s:.1} s: {}", passed.join(", ")),
    }
    left_out.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Returns whether a step that cannot be run here is a failure: `BURSAR_REQUIRE_NUMA=1` says so of the step `numa`.
fn is_required(step: &str) -> bool {
    std::env::var(format!("BURSAR_REQUIRE_{}", step.to_uppercase())).is_ok_and(|value| value == "1")
}

fn require_component(root: &Path, command: &str, component: &'static str) -> Result<(), Error> {
    let mut probe = cargo(root, [command, "--version"]);
    let status = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Error::MissingComponent { component }),
        Err(source) => Err(Error::Start { command: describe(&probe), source }),
    }
}

fn clippy(root: &Path) -> Result<(), Error> {
    let args = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    execute(&mut cargo(root, args))
}

/// Runs all tests and builds the examples. Benches are left to clippy: running one as a test costs a build and checks
/// nothing.
fn tests(root: &Path) -> Result<(), Error> {
    execute(&mut cargo(root, ["test", "--workspace", "--tests"]))?;
    execute(&mut build_examples(root))
}

fn build_examples(root: &Path) -> Command {
    cargo(root, ["build", "--workspace", "--examples"])
}

fn loom_models(root: &Path) -> Result<(), Error> {
    let tree = Tree::read(root)?;
    let mut commands: Vec<Command> =
        tree.packages_with("tests/loom.rs").map(|package| loom_model(root, package)).collect();
    if commands.is_empty() {
        println!("no package has tests/loom.rs");
    }
    commands.iter_mut().try_for_each(execute)
}

/// Returns the command that runs a package's loom models. Loom's flag changes every crate, so this build has a target folder
/// of its own and leaves the other one warm.
fn loom_model(root: &Path, package: &str) -> Command {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default() + " --cfg loom";
    let mut command = cargo(root, ["test", "--profile", "loom", "-p", package, "--test", "loom"]);
    command.env("CARGO_TARGET_DIR", target_folder().join("loom"));
    command.env("RUSTFLAGS", flags.trim_start());
    command
}

/// Runs every numbered example. They are built for the whole workspace first: for one package alone, cargo would build its
/// dependencies again with fewer features.
fn examples(root: &Path) -> Result<(), Error> {
    execute(&mut build_examples(root))?;
    let folder = root.join(target_folder()).join("debug/examples");
    let ledgers = new_ledger_folder(&root.join(target_folder()).join("tests"))?;
    let tree = Tree::read(root)?;
    let mut left_out = Vec::new();
    for file in tree.rust_files() {
        let Some(Example { name }) = Example::at(&file.path) else {
            continue;
        };
        if requires_cuda(file) {
            left_out.push(name);
            continue;
        }
        let mut command = Command::new(folder.join(name).with_extension(EXE_EXTENSION));
        execute(command.current_dir(root).env("BURSAR_DRIVER", "sim").env("BURSAR_LEDGER_DIR", &ledgers))?;
    }
    for name in left_out {
        println!("not run: {name} ({REQUIRES_CUDA})");
    }
    Ok(())
}

fn requires_cuda(file: &File) -> bool {
    file.text.lines().take_while(|line| line.starts_with("//")).any(|line| line.contains(REQUIRES_CUDA))
}

fn documentation(root: &Path) -> Result<(), Error> {
    let mut command = cargo(root, ["doc", "--workspace", "--no-deps"]);
    execute(command.env("RUSTDOCFLAGS", "-D warnings"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn fake(name: &'static str, run: fn(&Path) -> Result<(), Error>) -> Step {
        Step { name, about: "a step of this test", component: None, run }
    }

    #[test]
    fn the_first_failing_step_ends_the_run() {
        let steps = [
            fake("good", |_| Ok(())),
            fake("bad", |_| Err(Error::Untidy { findings: 1 })),
            fake("unreached", |_| panic!("a step ran after one that failed")),
        ];
        let error = run(crate::workspace_root(), &steps).unwrap_err();
        assert!(matches!(error, Error::Step { name: "bad", .. }), "{error}");
        assert_eq!(error.exit_status(), 1);
    }

    #[test]
    fn a_step_that_cannot_run_ends_nothing_and_does_not_pass() {
        let absent = |_: &Path| Err(Error::NotRun { reason: "no QEMU".into() });
        let failed = |_: &Path| Err(Error::Untidy { findings: 1 });
        assert!(run(crate::workspace_root(), &[fake("absent", absent)]).is_ok());
        let error = run(crate::workspace_root(), &[fake("absent", absent), fake("bad", failed)]).unwrap_err();
        assert!(matches!(error, Error::Step { name: "bad", .. }), "the next step ran: {error}");
    }

    #[test]
    fn a_failure_says_how_to_rerun_the_step() {
        let error = Error::Step {
            name: "fmt",
            elapsed: Duration::from_millis(1500),
            cause: Box::new(Error::Untidy { findings: 2 }),
        };
        let expected = "step `fmt` failed after 1.5 s: tidy has 2 findings\n\
                        Rerun it alone with: cargo xtask test --only fmt";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_missing_component_is_named() {
        let root = crate::workspace_root();
        let error = require_component(root, "no-such-command-of-cargo", "rustfmt").unwrap_err();
        assert!(error.to_string().ends_with("run `rustup component add rustfmt`"), "{error}");
    }

    #[test]
    fn an_unknown_step_lists_the_known_ones() {
        let error = step("lint").unwrap_err();
        assert!(error.to_string().contains("`lint`; the steps are tidy, fmt, clippy,"), "{error}");
        assert_eq!(error.exit_status(), 2);
    }

    #[test]
    fn loom_builds_in_a_folder_of_its_own() {
        let line = describe(&loom_model(Path::new("."), "bursar-memory"));
        assert!(line.contains("/loom "), "{line}");
        assert!(line.contains("--cfg loom\" cargo test --profile loom -p bursar-memory"), "{line}");
    }

    #[test]
    fn only_the_opening_documentation_asks_for_cuda() {
        let texts = [
            ("a.rs", "//! A tour.\n//!\n//! Requires: CUDA\nfn main() {}"),
            ("b.rs", "//! A tour.\nfn main() {}\n// Requires: CUDA\n"),
        ];
        let tree = Tree::from_texts(texts);
        let asks: Vec<bool> = tree.rust_files().map(requires_cuda).collect();
        assert_eq!(asks, [true, false]);
    }
}
