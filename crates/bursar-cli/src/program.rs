//! The program that the command is part of.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file name of the library that keeps workers inside their shares.
pub(crate) const LIBRARY: &str = "libbursar_enforce.so";

/// The program that the command is part of: how a run starts it again in another role, and where the library lies that keeps
/// workers inside their shares.
///
/// ```
/// use bursar_cli::Program;
///
/// let package = "/opt/env/lib/python3/site-packages/bursar";
/// let script = format!("{package}/__main__.py");
/// let program = Program::started_by(["/opt/env/bin/python3".into(), script.into()], [format!("{package}/_lib").into()]);
/// assert!(format!("{program:?}").contains("__main__.py"));
/// ```
#[derive(Clone, Debug)]
pub struct Program {
    words: Vec<OsString>,
    /// The name that a process of it has, if not its first word.
    name: Option<&'static str>,
    library_folders: Vec<PathBuf>,
}

impl Program {
    /// Returns the executable of this process, whose arguments are the command's. The library lies beside it, or where it was
    /// installed with it.
    pub fn this_executable() -> Self {
        let path = std::env::current_exe().ok();
        Self {
            words: vec!["/proc/self/exe".into()],
            name: Some("bursar"),
            library_folders: path.as_deref().map(beside).unwrap_or_default(),
        }
    }

    /// Returns the program that these words start, to which the command's arguments are added: an interpreter and a script. The
    /// library is in one of the folders.
    ///
    /// # Panics
    /// If there is no word.
    pub fn started_by(
        words: impl IntoIterator<Item = OsString>,
        library_folders: impl IntoIterator<Item = PathBuf>,
    ) -> Self {
        let words: Vec<OsString> = words.into_iter().collect();
        assert!(!words.is_empty(), "a program is started by one word at least");
        Self { words, name: None, library_folders: library_folders.into_iter().collect() }
    }

    /// Returns the command that starts this program, to be given arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        if let Some(name) = self.name {
            command.arg0(name);
        }
        command.args(&self.words[1..]);
        command
    }

    /// Returns the paths at which the library is looked for.
    pub(crate) fn libraries(&self) -> Vec<PathBuf> {
        self.library_folders.iter().map(|folder| folder.join(LIBRARY)).collect()
    }
}

/// Returns the folder of an executable, and the one for libraries below the prefix that it was installed to.
fn beside(executable: &Path) -> Vec<PathBuf> {
    let folder = executable.parent();
    let installed = folder.and_then(Path::parent).map(|prefix| prefix.join("lib/bursar"));
    folder.map(Path::to_owned).into_iter().chain(installed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_looked_for_beside_the_executable_and_where_it_was_installed() {
        let folders = beside(Path::new("/opt/bursar/bin/bursar"));
        let program = Program::started_by(["/opt/bursar/bin/bursar".into()], folders);
        let expected = ["/opt/bursar/bin/libbursar_enforce.so", "/opt/bursar/lib/bursar/libbursar_enforce.so"];
        assert_eq!(program.libraries(), expected.map(PathBuf::from));
    }

    #[test]
    fn a_role_is_started_by_the_words_of_the_program() {
        let program = Program::started_by(["python3".into(), "-I".into(), "main.py".into()], []);
        let command = program.command();
        assert_eq!(command.get_program(), "python3");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["-I", "main.py"]);
    }
}
