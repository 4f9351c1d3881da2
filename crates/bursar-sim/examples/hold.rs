//! Holds memory of a named simulated device, as a program without a budget would: `hold 1x8GiB@name 2GiB` allocates on the
//! first device, prints that it has, and waits until its input ends.

use bursar_core::{Bytes, DeviceId, Driver};
use bursar_sim::Sim;
use std::error::Error;
use std::io::{Read, Write};

const USAGE: &str = "usage: hold 1x8GiB@name 2GiB";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [devices, bytes] = arguments.as_slice() else { return Err(USAGE.into()) };
    let (shape, name) = devices.split_once('@').ok_or(USAGE)?;
    let (count, size) = shape.split_once('x').ok_or(USAGE)?;
    let sim = Sim::builder().immediate().devices(count.parse()?, size.parse::<Bytes>()?).named(name).build();
    let held: Bytes = bytes.parse()?;
    sim.allocate(DeviceId(0), held.get())?;
    let mut out = std::io::stdout();
    writeln!(out, "holding {held} of {}", sim.facts(DeviceId(0))?.uuid)?;
    out.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
