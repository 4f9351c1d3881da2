//! Reads callgrind's output: the total of instructions, and the part that was spent in the simulated driver.

use std::collections::HashMap;

/// The part that the names of all functions of the simulated device have in common.
const DEVICE: &str = "bursar_sim::";

/// The further part that the names of driver calls have in common. They go through a vtable, so none is inlined.
const DRIVER: &str = "bursar_core::driver::Driver";

/// The instructions of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) instructions: u64,
    /// The instructions between the entry and the return of a driver call.
    pub(super) of_driver: u64,
}

impl Profile {
    /// Parses callgrind's format: `fn=` and `cfn=` name the caller and the callee, in full the first time and by number
    /// later; the line after `calls=` ends with the inclusive cost of the calls.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut names = HashMap::new();
        let (mut caller, mut callee, mut of_driver, mut total) = ("", "", 0, None);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("fn=") {
                caller = full(&mut names, name)?;
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee = full(&mut names, name)?;
            } else if line.starts_with("calls=") {
                let cost = number(lines.next().unwrap_or_default())?;
                if callee.contains(DRIVER) && callee.contains(DEVICE) && !caller.contains(DEVICE) {
                    of_driver += cost;
                }
            } else if line.starts_with("summary:") {
                total = Some(number(line)?);
            }
        }
        match total {
            Some(instructions) if instructions > 0 => Ok(Self { instructions, of_driver }),
            _ => Err("callgrind counted nothing: no function named `measured_…` was entered".into()),
        }
    }
}

/// Parses the last word of a line.
fn number(line: &str) -> Result<u64, String> {
    let word = line.rsplit(' ').next().unwrap_or_default();
    word.parse().map_err(|_| format!("callgrind's profile has `{line}` where a count was due"))
}

/// Returns the full name in `text`: `(3) name` defines number 3, and `(3)` refers to it.
fn full<'a>(names: &mut HashMap<&'a str, &'a str>, text: &'a str) -> Result<&'a str, String> {
    match text.split_once(") ") {
        Some((id, name)) => {
            names.insert(id, name);
            Ok(name)
        }
        None => {
            let known = names.get(text.trim_end_matches(')'));
            known
                .copied()
                .ok_or_else(|| format!("callgrind's profile uses the number {text} before it says whose it is"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
# callgrind format
events: Ir
summary: 1000

fn=(1) instructions::measured_pairs
3 100
cfn=(2) <bursar_core::leaf::Async as bursar_core::resource::DeviceMemoryResource>::allocate
calls=10 3
+2 900

fn=(2)
7 150
cfn=(3) bursar_sim::driver::<impl bursar_core::driver::Driver for bursar_sim::sim::Sim>::allocate_async
calls=10 7
* 600
cfn=(4) core::ptr::drop_in_place<dyn bursar_core::driver::Driver>
calls=1 7
* 50

fn=(3)
9 500
cfn=(5) bursar_sim::driver::<impl bursar_core::driver::Driver for bursar_sim::sim::Sim>::memory
calls=10 9
-4 100
";

    #[test]
    fn calls_into_the_driver_count_and_those_within_it_do_not_count_twice() {
        assert_eq!(Profile::parse(PROFILE), Ok(Profile { instructions: 1000, of_driver: 600 }));
    }

    #[test]
    fn a_profile_of_nothing_is_an_error() {
        let nothing = Profile::parse("events: Ir\nsummary: 0\n").unwrap_err();
        assert!(nothing.contains("counted nothing"), "{nothing}");
        assert!(Profile::parse("fn=(1)\n").unwrap_err().contains("(1)"));
        assert!(Profile::parse("calls=1 2\n3 many\n").unwrap_err().contains("`3 many`"));
    }
}
