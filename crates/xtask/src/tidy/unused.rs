//! Files that are tracked and that nothing uses.
//!
//! Source files are checked by `modules`. Any other file is used if cargo, git or proptest finds it by its path, or if
//! another file names it. A number in a file name may be written by the program that reads the file, so the parts around it
//! are searched for.

use super::Finding;
use crate::lexer::words;
use crate::tree::{File, Tree, in_package};

/// Files that tools find by their paths.
const FOUND: &[&str] =
    &[".cargo/config.toml", ".ci/run", ".gitignore", "Cargo.lock", "Cargo.toml", "pyproject.toml", "rustfmt.toml"];

/// Files that Python, its type checkers and pytest find by their names, wherever they are.
const FOUND_BY_PYTHON: &[&str] = &["__init__.py", "__main__.py", "conftest.py", "py.typed"];

pub(super) fn nothing_is_left_over(tree: &Tree) -> Vec<Finding> {
    let files = tree.files().filter(|file| !file.path.ends_with(".rs"));
    files
        .filter(|file| !is_found(tree, &file.path) && !is_named(tree, file))
        .map(|file| Finding::about(&file.path, "unused-file", "no other file names it"))
        .collect()
}

/// Returns whether a tool finds the file by its path.
fn is_found(tree: &Tree, path: &str) -> bool {
    let beside = |suffix: &str| path.strip_suffix(suffix).is_some_and(|stem| tree.get(&format!("{stem}.rs")).is_some());
    let regressions = path.split_once("/proptest-regressions/").is_some_and(|(package, rest)| {
        let source = rest.strip_suffix(".txt").map(|stem| format!("{package}/src/{stem}.rs"));
        source.is_some_and(|source| tree.get(&source).is_some())
    });
    let is_document = !path.contains('/') && (path.ends_with(".md") || path.starts_with("LICENSE"));
    let is_manifest_or_licence =
        in_package(path).is_some_and(|(_, file)| file == "Cargo.toml" || file.starts_with("LICENSE-"));
    FOUND.contains(&path)
        || is_document
        || is_manifest_or_licence
        || is_found_by_python(tree, path)
        || regressions
        || beside(".stderr")
        || beside(".proptest-regressions")
}

/// Returns whether Python finds the file: by its name, as a test, or because another file imports the module or the project
/// names it.
fn is_found_by_python(tree: &Tree, path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some(module) = name.strip_suffix(".pyi").or_else(|| name.strip_suffix(".py")) else {
        return FOUND_BY_PYTHON.contains(&name);
    };
    let imports = |file: &File| {
        let statements = file.text.lines().map(str::trim_start).filter(|line| line.contains("import "));
        statements.flat_map(words).any(|(_, word)| word == module)
    };
    let is_in_project =
        || tree.get("pyproject.toml").is_some_and(|file| words(&file.text).any(|(_, word)| word == module));
    let is_imported = || tree.files().any(|file| file.path != path && file.path.ends_with(".py") && imports(file));
    FOUND_BY_PYTHON.contains(&name) || module.starts_with("test_") || is_imported() || is_in_project()
}

fn is_named(tree: &Tree, file: &File) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or(&file.path);
    let parts: Vec<&str> = name.split(|c: char| c.is_ascii_digit()).filter(|part| part.len() > 1).collect();
    tree.files().any(|other| other.path != file.path && parts.iter().all(|part| other.text.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::shown;

    #[test]
    fn a_file_that_nothing_names_is_found() {
        let files = [
            ("README.md", "See [the guide](docs/guide.md)."),
            ("docs/guide.md", ""),
            ("docs/old-plan.md", "guide.md is the newer one; old-plan.md"),
            ("crates/a/relative.users", ""),
            ("crates/a/Cargo.toml", ""),
            ("crates/a/LICENSE-MIT", ""),
            ("crates/a/src/lib.rs", "const PAGE: &str = include_str!(\"page.html\"); format!(\"shot-{n}.gz\");"),
            ("crates/a/src/page.html", ""),
            ("crates/a/tests/shot-4.gz", ""),
            ("crates/a/tests/all.rs", ""),
            ("crates/a/tests/all.proptest-regressions", ""),
            ("crates/a/tests/gone.proptest-regressions", ""),
            ("crates/a/proptest-regressions/part/units.txt", ""),
            ("crates/a/src/part/units.rs", ""),
            ("python/bursar/__init__.py", "from ._devices import devices\n"),
            ("python/bursar/_devices.py", "from . import _native\n"),
            ("python/bursar/_native.pyi", ""),
            ("python/bursar/_gone.py", "# _gone imports _gone\n"),
            ("python/tests/test_devices.py", ""),
        ];
        let expected = [
            "crates/a/relative.users:1: unused-file: no other file names it",
            "crates/a/tests/gone.proptest-regressions:1: unused-file: no other file names it",
            "docs/old-plan.md:1: unused-file: no other file names it",
            "python/bursar/_gone.py:1: unused-file: no other file names it",
        ];
        assert_eq!(shown(nothing_is_left_over, files), expected);
    }
}
