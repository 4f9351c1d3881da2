//! The programs that cargo builds, read from its messages.

use std::path::PathBuf;
use std::process::Command;

use crate::command::{describe, output};
use crate::error::Error;

/// A program in cargo's messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    /// The folder of its package.
    pub(crate) package: String,
    pub(crate) target: String,
    pub(crate) executable: PathBuf,
}

/// Runs cargo and returns the programs that it built or found built.
pub(crate) fn artifacts(command: &mut Command) -> Result<Vec<Artifact>, Error> {
    println!("$ {}", describe(command));
    Ok(output(command)?.lines().filter_map(artifact).collect())
}

/// Reads one message: a line of JSON, of which a few strings are wanted.
fn artifact(message: &str) -> Option<Artifact> {
    let after = |text: &str, key: &str| Some(text.split_once(key)?.1.split_once('"')?.0.to_owned());
    let manifest = PathBuf::from(after(message, "\"manifest_path\":\"")?);
    let package = manifest.parent()?.file_name()?.to_string_lossy().into_owned();
    let target = after(message.split_once("\"target\":")?.1, "\"name\":\"")?;
    Some(Artifact { package, target, executable: after(message, "\"executable\":\"")?.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read_from_cargos_message() {
        let message = "{\"reason\":\"compiler-artifact\",\"package_id\":\"path+file:///w/crates/bursar-host#0.1.0\",\
                       \"manifest_path\":\"/w/crates/bursar-host/Cargo.toml\",\"target\":{\"kind\":[\"test\"],\
                       \"crate_types\":[\"bin\"],\"name\":\"pool\",\"src_path\":\"/w/x.rs\"},\
                       \"executable\":\"/t/debug/deps/pool-1\",\"fresh\":true}";
        let expected = Artifact {
            package: "bursar-host".into(),
            target: "pool".into(),
            executable: "/t/debug/deps/pool-1".into(),
        };
        assert_eq!(artifact(message), Some(expected));
        assert_eq!(artifact(&message.replace("\"/t/debug/deps/pool-1\"", "null")), None);
    }
}
