//! The command that workers run, with placeholders that are filled in for each.

use crate::program::Program;
use crate::run::processes::launch;
use crate::run::slots::Slot;
use bursar::fit::Worker;
use bursar::ledger::Reservation;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const DEVICE: &str = "{device}";

/// Returns whether a word contains the placeholder for a device.
pub(crate) fn names_a_device(word: &OsStr) -> bool {
    word.as_bytes().windows(DEVICE.len()).any(|window| window == DEVICE.as_bytes())
}

/// A command whose words may contain `{worker}`, `{workers}` and `{device}`.
#[derive(Debug)]
pub(crate) struct CommandTemplate {
    program: Program,
    words: Vec<OsString>,
    /// The number of workers that there will be.
    workers: u64,
    /// The name of the stage.
    label: String,
}

impl CommandTemplate {
    pub(crate) fn new(program: &Program, words: &[OsString], workers: u64, label: &str) -> Self {
        Self { program: program.clone(), words: words.to_vec(), workers, label: label.to_owned() }
    }

    /// Returns the command of the worker with this number, to be [launched](launch): in a process group of its own, on the
    /// processors of its slot, with its output in pipes.
    pub(crate) fn command(&self, worker: u64, slot: &Slot) -> Command {
        let device = slot.device.map(|device| device.0.to_string());
        let mut placeholders = vec![("{worker}", worker.to_string()), ("{workers}", self.workers.to_string())];
        placeholders.extend(device.map(|device| (DEVICE, device)));
        let words: Vec<_> = self.words.iter().map(|word| fill(word, &placeholders)).collect();
        let mut command = launch::command(&self.program, &words, slot.cpus.as_ref());
        // The share of a run within a run is not for its workers.
        command.env_remove(Reservation::VARIABLE).env_remove(Worker::SHARED_VARIABLE);
        command.envs(slot.environment.iter().map(|(name, value)| (name, value)));
        command.env(Worker::NUMBER_VARIABLE, worker.to_string()).env(Worker::COUNT_VARIABLE, self.workers.to_string());
        command.env(Worker::LABEL_VARIABLE, &self.label);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command
    }
}

/// Fills in the placeholders of a word, from left to right. Other braces stay as they are.
fn fill(word: &OsStr, placeholders: &[(&str, String)]) -> OsString {
    let (mut filled, mut rest) = (Vec::new(), word.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        match placeholders.iter().find(|(placeholder, _)| rest.starts_with(placeholder.as_bytes())) {
            Some((placeholder, value)) => {
                filled.extend_from_slice(value.as_bytes());
                rest = &rest[placeholder.len()..];
            }
            None => {
                filled.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar::device::NumaNode;
    use bursar::{Bytes, DeviceId};

    struct NoShare;

    impl crate::run::slots::SlotShare for NoShare {
        fn give_up(&self) -> bursar::Result<()> {
            Ok(())
        }
        fn take_again(&self, _: &dyn Fn() -> bool) -> bursar::Result<bool> {
            Ok(true)
        }
    }

    fn slot(device: Option<u32>) -> Slot {
        Slot {
            device: device.map(DeviceId),
            numa_node: NumaNode::UNKNOWN,
            cpus: None,
            limit: Some(Bytes::gib(1)),
            environment: vec![("COLOUR", "blue".into())],
            memory: std::sync::Arc::new(NoShare),
        }
    }

    /// Returns the words after those of the launch.
    fn words(command: &Command) -> Vec<&OsStr> {
        command.get_args().skip(3).collect()
    }

    #[test]
    fn placeholders_are_filled_in_and_nothing_else_is_touched() {
        let given =
            ["run-{worker}", "{worker}of{workers}", "{{device}}", "{other} {work{worker}er}", "{"].map(Into::into);
        let command = CommandTemplate::new(&Program::this_executable(), &given, 8, "stage").command(3, &slot(Some(1)));
        assert_eq!(words(&command), ["run-3", "3of8", "{1}", "{other} {work3er}", "{"]);
        let command =
            CommandTemplate::new(&Program::this_executable(), &given[2..3], 8, "stage").command(3, &slot(None));
        assert_eq!(words(&command), ["{{device}}"], "without a device it is no placeholder");
    }

    #[test]
    fn bytes_that_are_no_text_stay_as_they_are() {
        let given = OsString::from_vec(b"\xff{worker}\xfe".to_vec());
        let command =
            CommandTemplate::new(&Program::this_executable(), &["x".into(), given], 1, "stage").command(0, &slot(None));
        assert_eq!(words(&command)[1].as_bytes(), b"\xff0\xfe");
    }

    #[test]
    fn a_worker_is_told_its_number_their_count_and_what_its_slot_says() {
        let command =
            CommandTemplate::new(&Program::this_executable(), &["x".into()], 8, "stage").command(3, &slot(None));
        let set: Vec<_> = command.get_envs().filter_map(|(name, value)| Some((name, value?))).collect();
        let expected = [("BURSAR_LABEL", "stage"), ("BURSAR_WORKER", "3"), ("BURSAR_WORKERS", "8"), ("COLOUR", "blue")];
        assert_eq!(set, expected.map(|(name, value)| (OsStr::new(name), OsStr::new(value))));
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        assert_eq!(removed, ["BURSAR_RESERVATION", "BURSAR_RESERVATION_SHARED"], "a share of whoever runs us");
    }
}
