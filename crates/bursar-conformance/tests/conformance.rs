//! Every clause on every driver and every stack. A driver or a stack more is one line more.

use bursar_conformance::{DriverRow, Kind, Leaks, Opened, StackRow, trials};
use bursar_core::{Bytes, Stack, leaf};
use bursar_cuda::Cuda;
use bursar_memory::{GlobalDeviceBudget, Statistics};
use bursar_sim::Sim;
use libtest_mimic::Arguments;
use std::sync::Arc;

const LIMIT: Bytes = Bytes::mib(64);
const DIRECT: Kind = Kind {
    stream_ordered: false,
    limit: None,
};
const ASYNC: Kind = Kind {
    stream_ordered: true,
    limit: None,
};
const LIMITED_DIRECT: Kind = Kind {
    limit: Some(LIMIT),
    ..DIRECT
};
const LIMITED_ASYNC: Kind = Kind {
    limit: Some(LIMIT),
    ..ASYNC
};

fn budget() -> bursar_memory::BudgetLayer {
    GlobalDeviceBudget::of(LIMIT)
}

fn stacks() -> Vec<StackRow> {
    vec![
        StackRow::new("direct", DIRECT, || Stack::new().over(leaf::Direct)),
        StackRow::new("async", ASYNC, || Stack::new().over(leaf::Async)),
        StackRow::new("budget/direct", LIMITED_DIRECT, || {
            Stack::new().layer(budget()).over(leaf::Direct)
        }),
        StackRow::new("budget/async", LIMITED_ASYNC, || {
            Stack::new().layer(budget()).over(leaf::Async)
        }),
        StackRow::new("statistics/budget/async", LIMITED_ASYNC, || {
            Stack::new()
                .observe(Statistics::default())
                .layer(budget())
                .over(leaf::Async)
        }),
        StackRow::new("budget/budget/budget/async", LIMITED_ASYNC, || {
            let wider = || GlobalDeviceBudget::of(Bytes::gib(1));
            Stack::new()
                .layer(wider())
                .layer(budget())
                .layer(wider())
                .over(leaf::Async)
        }),
    ]
}

fn drivers() -> Vec<DriverRow> {
    vec![
        DriverRow {
            name: "sim",
            runs: 16,
            captures: true,
            open: |seed| Ok(simulated(Sim::seeded(seed))),
        },
        DriverRow {
            name: "sim-immediate",
            runs: 1,
            captures: true,
            open: |_| Ok(simulated(Sim::immediate())),
        },
        DriverRow {
            name: "cuda",
            runs: 1,
            captures: false,
            open: |_| cuda(),
        },
    ]
}

fn simulated(sim: Arc<Sim>) -> Opened {
    let (judge, recorder) = (sim.clone(), sim.clone());
    Opened {
        verdict: Box::new(move |leaks| {
            judge.check().map_err(|report| report.to_string())?;
            let left = judge.leaks();
            if left.is_empty() || leaks == Leaks::Allowed {
                Ok(())
            } else {
                Err(left.to_string())
            }
        }),
        set_capturing: Some(Box::new(move |device, stream, begin| {
            let done = if begin {
                recorder.begin_capture(device, stream)
            } else {
                recorder.end_capture(device, stream)
            };
            done.expect("a stream of the simulated device");
        })),
        ..Opened::new(sim)
    }
}

fn cuda() -> Result<Opened, String> {
    Ok(Opened::new(Cuda::load().map_err(|absent| absent.to_string())?))
}

fn main() {
    let table = bursar_conformance::table(&drivers(), &stacks(), &trials::all());
    libtest_mimic::run(&Arguments::from_args(), table).exit();
}
