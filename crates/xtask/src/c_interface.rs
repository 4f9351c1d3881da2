//! The C interface as people use it: its header, written from the code, and its files where compilers find them.

use std::path::Path;

use crate::command::{cargo, execute, target_folder};
use crate::error::Error;

const HEADER: &str = "crates/bursar-c/include/bursar.h";

/// The number in the name of the shared object, which `build.rs` of the crate gives it.
const INTERFACE: &str = "0";

/// Writes the header from the code. The test that compares the two does it, so that this program needs no parser of Rust.
pub(crate) fn write_header(root: &Path) -> Result<(), Error> {
    let mut command = cargo(root, ["test", "--quiet", "--package", "bursar-c", "--test", "header"]);
    execute(command.env("BURSAR_WRITE_HEADER", "1"))
}

/// Builds the libraries and puts them below `prefix`, with the header and a file for pkg-config.
pub(crate) fn install(root: &Path, prefix: &str) -> Result<(), Error> {
    execute(&mut cargo(root, ["build", "--release", "--package", "bursar-c"]))?;
    let built = root.join(target_folder()).join("release");
    let prefix = std::path::absolute(prefix).map_err(|source| Error::Write { path: prefix.into(), source })?;
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    for folder in [&include, &lib.join("pkgconfig")] {
        std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.clone(), source })?;
    }
    let shared = format!("libbursar.so.{INTERFACE}");
    copy(&root.join(HEADER), &include.join("bursar.h"))?;
    copy(&built.join("libbursar_c.so"), &lib.join(&shared))?;
    copy(&built.join("libbursar_c.a"), &lib.join("libbursar.a"))?;
    link(&shared, &lib.join("libbursar.so"))?;
    let description = lib.join("pkgconfig/bursar.pc");
    let text = pkg_config(&prefix, env!("CARGO_PKG_VERSION"));
    std::fs::write(&description, text).map_err(|source| Error::Write { path: description, source })?;
    println!("installed below {}", prefix.display());
    Ok(())
}

/// Copies a file by way of another name, so that programs which use an earlier one keep it.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let draft = to.with_extension("draft");
    let copied = std::fs::copy(from, &draft).and_then(|_| std::fs::rename(&draft, to));
    copied.map_err(|source| Error::Write { path: to.into(), source })
}

fn link(target: &str, at: &Path) -> Result<(), Error> {
    let draft = at.with_extension("draft");
    let _ = std::fs::remove_file(&draft);
    let linked = std::os::unix::fs::symlink(target, &draft).and_then(|()| std::fs::rename(&draft, at));
    linked.map_err(|source| Error::Write { path: at.into(), source })
}

/// Returns the description that pkg-config reads. The libraries after `Libs.private` are those that the static one needs.
fn pkg_config(prefix: &Path, version: &str) -> String {
    format!(
        "prefix={}\nincludedir=${{prefix}}/include\nlibdir=${{prefix}}/lib\n\n\
         Name: bursar\nDescription: Device memory, budgets and reservations for programs that share GPUs\n\
         Version: {version}\nCflags: -I${{includedir}}\nLibs: -L${{libdir}} -lbursar\n\
         Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc\n",
        prefix.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_the_interface_is_the_one_that_the_header_and_the_linker_have() {
        let read = |path: &str| std::fs::read_to_string(crate::workspace_root().join(path)).expect("a file");
        assert!(read(HEADER).contains(&format!("#define BURSAR_INTERFACE {INTERFACE}\n")));
        assert!(read("crates/bursar-c/build.rs").contains(&format!("libbursar.so.{INTERFACE}\"")));
    }

    #[test]
    fn pkg_config_is_told_where_things_are() {
        let text = pkg_config(Path::new("/opt/bursar"), "1.2.3");
        assert!(text.starts_with("prefix=/opt/bursar\n") && text.contains("\nVersion: 1.2.3\n"), "{text}");
    }
}
