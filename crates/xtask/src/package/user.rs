//! The workspace of a user who has nothing but the packaged crates.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::cargo;
use crate::error::Error;

/// The features of cudarc that Bursar is compiled beside. cudarc compiles with exactly one of them.
const CUDARC_FEATURES: [&str; 2] = ["cuda-12060", "cuda-13000"];

/// A crate that was packaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packaged {
    name: String,
    version: String,
}

impl Packaged {
    /// Returns the crate whose archive has this file name, if it is `package`.
    pub(super) fn named(package: &str, file: &str) -> Option<Self> {
        let version = file.strip_prefix(package)?.strip_prefix('-')?.strip_suffix(".crate")?;
        let is_version = version.starts_with(|c: char| c.is_ascii_digit());
        is_version.then(|| Self { name: package.into(), version: version.into() })
    }

    pub(super) fn archive(&self) -> String {
        format!("{}-{}.crate", self.name, self.version)
    }

    /// Returns the line that takes the crate from its folder instead of the registry.
    fn patch(&self) -> String {
        format!("{0} = {{ path = \"crates/{0}-{1}\" }}\n", self.name, self.version)
    }
}

/// The user's workspace: the README's program, and a crate for each version of cudarc's bindings.
#[derive(Debug)]
pub(super) struct User {
    program: String,
    /// The text that the README says the program prints.
    prints: String,
    cudarc: String,
    packaged: Vec<Packaged>,
}

impl User {
    /// Takes the program from the README and the version of cudarc from the workspace's manifest.
    pub(super) fn new(readme: &str, manifest: &str, packaged: Vec<Packaged>) -> Result<Self, Error> {
        let missing = |what: &str| Error::Package { what: what.into() };
        let program = first_program(readme).ok_or_else(|| missing("README.md has no Rust program"))?;
        let prints =
            block_after_program(readme, "```text").ok_or_else(|| missing("README.md does not say what it prints"))?;
        let cudarc = version_of("cudarc", manifest).ok_or_else(|| missing("Cargo.toml names no version of cudarc"))?;
        Ok(Self { program, prints, cudarc: cudarc.into(), packaged })
    }

    /// Returns the paths and the texts of the workspace's files.
    pub(super) fn files(&self) -> Vec<(PathBuf, String)> {
        let mut files: Vec<(PathBuf, String)> = vec![
            ("Cargo.toml".into(), self.workspace()),
            ("readme/Cargo.toml".into(), self.member("readme", "")),
            ("readme/src/main.rs".into(), self.program.clone()),
        ];
        for feature in CUDARC_FEATURES {
            let name = beside(feature);
            let features = format!("[\"driver\", \"fallback-dynamic-loading\", \"std\", \"{feature}\"]");
            let cudarc = format!(
                "cudarc = {{ version = \"{}\", default-features = false, features = {features} }}\n",
                self.cudarc
            );
            let source = "//! Bursar and cudarc in one program.\n\n\
                          /// A type of each.\npub type Both = (bursar::Bytes, cudarc::driver::CudaContext);\n";
            files.push((format!("{name}/Cargo.toml").into(), self.member(&name, &cudarc)));
            files.push((format!("{name}/src/lib.rs").into(), source.into()));
        }
        files
    }

    fn workspace(&self) -> String {
        let members: String =
            CUDARC_FEATURES.map(beside).iter().map(|member| format!("\"{member}\", ")).collect::<String>();
        let patches: String = self.packaged.iter().map(Packaged::patch).collect();
        format!(
            "[workspace]\nresolver = \"3\"\nmembers = [{members}\"readme\", \"crates/*\"]\n\n\
             [profile.dev]\ndebug = false\n\n[patch.crates-io]\n{patches}"
        )
    }

    fn member(&self, name: &str, dependencies: &str) -> String {
        let bursar = self.packaged.iter().find(|packaged| packaged.name == "bursar");
        let version = bursar.map_or("*", |bursar| bursar.version.as_str());
        format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n\
             [dependencies]\nbursar = \"{version}\"\n{dependencies}"
        )
    }

    /// Returns the command that builds and runs the program.
    pub(super) fn run(&self, home: &Path, target: &Path) -> Command {
        let mut command = command(home, target, &["run", "-p", "readme"]);
        command.env("BURSAR_DRIVER", "sim");
        command
    }

    /// Compares what the program printed with what the README says.
    pub(super) fn judge(&self, printed: &str) -> Result<(), Error> {
        let said = &self.prints;
        match printed.trim_end() == said.trim_end() {
            true => Ok(()),
            false => {
                Err(Error::Package { what: format!("README.md says\n{said}\nwhere its program prints\n{printed}") })
            }
        }
    }

    /// Returns the commands that compile everything else.
    pub(super) fn checks(&self, home: &Path, target: &Path) -> Vec<Command> {
        let mut checks = vec![command(home, target, &["check", "-p", "bursar-cli"])];
        checks.extend(CUDARC_FEATURES.map(|feature| command(home, target, &["check", "-p", &beside(feature)])));
        checks
    }
}

fn command(home: &Path, target: &Path, args: &[&str]) -> Command {
    let mut command = cargo(home, ["--offline", "--quiet"]);
    command.args(args).env("CARGO_TARGET_DIR", target);
    command
}

fn beside(feature: &str) -> String {
    format!("beside-cudarc-{feature}")
}

/// Returns the first Rust block of a document as a program. As in documentation tests, `# ` hides a line from readers.
fn first_program(document: &str) -> Option<String> {
    let mut lines = document.lines().skip_while(|line| !line.starts_with("```rust")).skip(1);
    let block: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
    let shown = block.iter().map(|line| line.strip_prefix("# ").unwrap_or(line));
    let program: String = shown.flat_map(|line| [line, "\n"]).collect();
    program.contains("fn main(").then_some(program)
}

/// Returns the first block of this kind that follows the first Rust block of a document.
fn block_after_program(document: &str, fence: &str) -> Option<String> {
    let mut lines = document.lines().skip_while(|line| !line.starts_with("```rust")).skip_while(|line| *line != fence);
    lines.next()?;
    Some(lines.take_while(|line| !line.starts_with("```")).flat_map(|line| [line, "\n"]).collect())
}

/// Returns the version that a manifest has for a dependency.
fn version_of<'a>(dependency: &str, manifest: &'a str) -> Option<&'a str> {
    let mut lines = manifest.lines().filter_map(|line| line.strip_prefix(dependency)?.strip_prefix(" = "));
    lines.find_map(|line| line.split_once("version = \"")?.1.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = "# Name\n\n```sh\nls\n```\n\n```rust\n# use std::fmt;\nfn main() {}\n```\n\n```text\nprinted\n```\n\n```rust\nlater();\n```\n";
    const MANIFEST: &str = "[workspace.dependencies]\ncudarc-extra = \"9\"\ncudarc = { version = \"0.19.10\" }\n";

    fn user() -> User {
        let packaged = Packaged::named("bursar", "bursar-0.1.0.crate").unwrap();
        User::new(README, MANIFEST, vec![packaged]).unwrap()
    }

    #[test]
    fn j2_the_program_is_the_first_of_the_readme() {
        assert_eq!(user().program, "use std::fmt;\nfn main() {}\n");
        assert!(first_program("```sh\nfn main() {}\n```\n").is_none());
        assert!(User::new("```rust\nf();\n```", MANIFEST, Vec::new()).is_err());
    }

    #[test]
    fn j2_the_readme_says_what_its_program_prints() {
        assert!(user().judge("printed\n").is_ok());
        for wrong in ["", "printed\nmore\n", "print"] {
            assert!(user().judge(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn j2_every_crate_comes_from_its_archive() {
        let files = user().files();
        let text = |path: &str| files.iter().find(|(found, _)| found == Path::new(path)).unwrap().1.as_str();
        assert!(text("Cargo.toml").ends_with("[patch.crates-io]\nbursar = { path = \"crates/bursar-0.1.0\" }\n"));
        assert!(text("readme/Cargo.toml").ends_with("[dependencies]\nbursar = \"0.1.0\"\n"));
    }

    #[test]
    fn j1_bursar_is_compiled_beside_two_versions_of_cudarc() {
        let user = user();
        let features: Vec<String> = user
            .files()
            .into_iter()
            .filter(|(path, text)| path.ends_with("Cargo.toml") && text.contains("\ncudarc = { version = \"0.19.10\""))
            .map(|(_, text)| CUDARC_FEATURES.iter().filter(|feature| text.contains(*feature)).copied().collect())
            .collect();
        assert_eq!(features, CUDARC_FEATURES);
        let lines: Vec<String> = user
            .checks(Path::new("home"), Path::new("target"))
            .iter()
            .map(|command| command.get_args().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" "))
            .collect();
        let expected = [
            "--offline --quiet check -p bursar-cli",
            "--offline --quiet check -p beside-cudarc-cuda-12060",
            "--offline --quiet check -p beside-cudarc-cuda-13000",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn an_archive_belongs_to_the_package_whose_name_it_has() {
        let found = Packaged::named("bursar", "bursar-0.2.0-rc.1.crate").unwrap();
        assert_eq!((found.version.as_str(), found.archive().as_str()), ("0.2.0-rc.1", "bursar-0.2.0-rc.1.crate"));
        assert_eq!(Packaged::named("bursar", "bursar-core-0.1.0.crate"), None);
        assert_eq!(Packaged::named("bursar", "bursar-0.1.0.crate.tmp"), None);
    }
}
