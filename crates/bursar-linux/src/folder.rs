//! The folder that the processes of one user share, and folders that no other user can write to.

use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The environment variable that names the folder in which the processes of a user share.
pub const FOLDER_VARIABLE: &str = "BURSAR_LEDGER_DIR";

/// Returns the effective user id of this process.
///
/// ```
/// assert_eq!(bursar_linux::user_id(), bursar_linux::user_id());
/// ```
pub fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the folder in which the processes of `user` share: the one that [`FOLDER_VARIABLE`] names, or else one of the user's
/// own in shared memory. It need not exist. A relative one is in the folder that this process was in when it first asked: it means the same
/// from then on, wherever the process goes.
///
/// ```
/// if std::env::var_os(bursar_linux::FOLDER_VARIABLE).is_none() {
///     assert_eq!(bursar_linux::shared_folder(1000), std::path::Path::new("/dev/shm/bursar-1000"));
/// }
/// ```
pub fn shared_folder(user: u32) -> PathBuf {
    match std::env::var_os(FOLDER_VARIABLE) {
        Some(folder) if !folder.is_empty() => {
            static BEGAN_IN: OnceLock<PathBuf> = OnceLock::new();
            BEGAN_IN.get_or_init(|| std::env::current_dir().unwrap_or_default()).join(folder)
        }
        _ => PathBuf::from(format!("/dev/shm/bursar-{user}")),
    }
}

/// The reason why something is not a private folder of its user.
///
/// ```
/// use bursar_linux::{NotPrivate, check_owner};
///
/// assert_eq!(check_owner(1000, 0o777, 1000), Err(NotPrivate::Writable { mode: 0o777 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotPrivate {
    /// It is a symbolic link, which its owner could point elsewhere.
    #[error("it is a symbolic link")]
    Link,
    /// It is a file or something else.
    #[error("it is not a folder")]
    NotAFolder,
    /// It belongs to another user.
    #[error("it belongs to user {owner}, and this process runs as {user}")]
    Owner {
        /// The user it belongs to.
        owner: u32,
        /// The user this process runs as.
        user: u32,
    },
    /// Other users can write to it.
    #[error("other users can write to it (mode {mode:03o})")]
    Writable {
        /// Its permissions.
        mode: u32,
    },
}

/// Checks that a folder with this owner and these permissions is private to `user`: it is theirs, and only they can write to it.
///
/// ```
/// assert!(bursar_linux::check_owner(1000, 0o755, 1000).is_ok());
/// assert!(bursar_linux::check_owner(0, 0o755, 1000).is_err());
/// ```
pub fn check_owner(owner: u32, mode: u32, user: u32) -> Result<(), NotPrivate> {
    if owner != user {
        return Err(NotPrivate::Owner { owner, user });
    }
    if mode & 0o022 != 0 {
        return Err(NotPrivate::Writable { mode });
    }
    Ok(())
}

/// Creates a folder that only this user can use. One that exists is checked instead: it must be a folder of this user that nobody
/// else can write to.
///
/// ```
/// let folder = std::env::temp_dir().join(format!("bursar-linux-doc-{}", std::process::id()));
/// bursar_linux::create_private_folder(&folder)?;
/// bursar_linux::create_private_folder(&folder)?;
/// std::fs::remove_dir(&folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    let found = loop {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
            Ok(()) => return Ok(()),
        }
        match std::fs::symlink_metadata(path) {
            // Its last user removed it between the two calls.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => break other?,
        }
    };
    let checked = match found.file_type() {
        kind if kind.is_symlink() => Err(NotPrivate::Link),
        kind if !kind.is_dir() => Err(NotPrivate::NotAFolder),
        _ => check_owner(found.uid(), found.mode() & 0o7777, user_id()),
    };
    checked.map_err(|why| {
        let why = format!(
            "{}: {why}; remove it, or set {FOLDER_VARIABLE} to a folder of yours that nobody else can write to",
            path.display()
        );
        io::Error::new(ErrorKind::PermissionDenied, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("bursar-linux-{name}-{}", std::process::id()))
    }

    #[test]
    fn l7_only_a_folder_that_nobody_else_can_write_to_is_private() {
        assert_eq!(check_owner(7, 0o700, 7), Ok(()));
        assert_eq!(check_owner(7, 0o755, 7), Ok(()));
        assert_eq!(check_owner(8, 0o700, 7), Err(NotPrivate::Owner { owner: 8, user: 7 }));
        assert_eq!(check_owner(7, 0o720, 7), Err(NotPrivate::Writable { mode: 0o720 }));
        assert_eq!(check_owner(7, 0o702, 7), Err(NotPrivate::Writable { mode: 0o702 }));
    }

    #[test]
    fn l7_what_is_found_in_place_of_a_private_folder_is_refused_by_name() {
        let root = scratch("refused");
        create_private_folder(&root).expect("a new folder");
        assert_eq!(std::fs::metadata(&root).expect("it was made").mode() & 0o777, 0o700);
        let refusal = |name: &str| {
            let error = create_private_folder(&root.join(name)).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            error.to_string()
        };
        std::fs::write(root.join("file"), "").expect("room");
        std::os::unix::fs::symlink(&root, root.join("link")).expect("room");
        std::fs::create_dir(root.join("open")).expect("room");
        std::fs::set_permissions(root.join("open"), PermissionsExt::from_mode(0o777)).expect("ours");
        for (name, why) in [("file", "not a folder"), ("link", "symbolic link"), ("open", "(mode 777)")] {
            let refusal = refusal(name);
            assert!(refusal.contains(name) && refusal.contains(why) && refusal.contains(FOLDER_VARIABLE), "{refusal}");
        }
        std::fs::remove_dir_all(&root).expect("ours");
    }

    #[test]
    fn l5_a_folder_that_others_remove_meanwhile_is_made_again() {
        let path = scratch("removed");
        let come_and_go = || -> io::Result<()> {
            for _ in 0..5_000 {
                create_private_folder(&path)?;
                let _another_removed_it = std::fs::remove_dir(&path);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            for thread in [0; 3].map(|_| scope.spawn(come_and_go)) {
                thread.join().expect("no panic").expect("a folder at every attempt");
            }
        });
    }
}
