//! The metrics of a machine: every family, with its labels.
//!
//! The number of series is bounded by the tables of a ledger: 256 processes, each with a few kinds and its largest holders, and
//! the [`TENANTS_MAX`] tenants that have most; further tenants are added up under `(other)`. The guide lists every family,
//! and a test compares it with what is written here.

use super::{Exposition, ExpositionFormat, Family, MetricKind};
use crate::state::{DeviceState, LedgerState, ProcessState, State, TenantState};
use MetricKind::{Counter, Gauge, Histogram, Info};

/// The most tenants of a device that have series of their own.
const TENANTS_MAX: usize = 128;

/// The label value of tenants without a name.
const UNNAMED: &str = "(none)";

/// The label value of tenants beyond the bound.
const OTHER: &str = "(other)";

impl State {
    /// Returns the metrics of the machine in a format that scrapers read.
    ///
    /// ```
    /// use bursar::metrics::{ExpositionFormat, Sampler};
    ///
    /// let text = Sampler::without_driver("none here").sample().expose(ExpositionFormat::Text);
    /// assert!(text.contains("# TYPE bursar_build_info gauge\n"), "{text}");
    /// ```
    #[must_use]
    pub fn expose(&self, format: ExpositionFormat) -> String {
        let labels: Vec<String> = self.devices.iter().map(DeviceState::label).collect();
        let devices: Vec<Device<'_>> =
            self.devices.iter().zip(&labels).map(|(state, label)| Device { label, state }).collect();
        let mut text = Exposition::new(format);
        write_machine(&mut text, self);
        write_ledgers(&mut text, &devices);
        write_memory(&mut text, &devices);
        write_accounts(&mut text, &devices);
        write_tenants(&mut text, &devices);
        write_queue(&mut text, &devices);
        text.finish()
    }
}

/// A device with the label of all its series.
#[derive(Clone, Copy)]
struct Device<'a> {
    label: &'a str,
    state: &'a DeviceState,
}

impl<'a> Device<'a> {
    const fn labels(self) -> [(&'static str, &'a str); 2] {
        [("device", self.label), ("uuid", self.uuid())]
    }

    const fn uuid(self) -> &'a str {
        match self.state {
            DeviceState::Readable(ledger) => ledger.uuid.as_str(),
            DeviceState::Unreadable(ledger) => ledger.uuid.as_str(),
        }
    }

    /// Returns its labels and more.
    fn with<const N: usize>(self, more: [(&'a str, &'a str); N]) -> Vec<(&'a str, &'a str)> {
        self.labels().into_iter().chain(more).collect()
    }
}

/// Returns the devices whose ledger could be read.
fn readable<'a>(devices: &'a [Device<'a>]) -> impl Iterator<Item = (Device<'a>, &'a LedgerState)> {
    devices.iter().filter_map(|&device| Some((device, device.state.ledger()?)))
}

#[allow(clippy::cast_precision_loss, reason = "scrapers read numbers as floats")]
fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

fn write_machine(text: &mut Exposition, state: &State) {
    let mut build = text.family("bursar_build_info", Info, "The version of Bursar that is asked.");
    build.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    drop(build);
    let help = "When the ledgers and the driver were sampled, since 1970.";
    text.family("bursar_sample_timestamp_seconds", Gauge, help).sample(&[], seconds(state.at_ms));
    let help = "1 if the folder of ledgers can be listed, 0 if not.";
    let is_listed = u64::from(state.folder_error.is_none());
    text.family("bursar_ledger_folder_readable", Gauge, help).sample(&[], is_listed);
    let help = "The devices and ledgers beyond the first 64, which have no series.";
    text.family("bursar_devices_left_out", Gauge, help).sample(&[], state.left_out);
}

fn write_ledgers(text: &mut Exposition, devices: &[Device<'_>]) {
    let help = "1 if the ledger of the device can be read, 0 if not: then nothing else is known of it.";
    let mut family = text.family("bursar_ledger_readable", Gauge, help);
    for device in devices {
        family.sample(&device.labels(), u64::from(device.state.ledger().is_some()));
    }
    drop(family);
    let help = "1 for each ledger that cannot be read, with the reason.";
    let mut family = text.family("bursar_ledger_unreadable", Gauge, help);
    for device in devices {
        if let DeviceState::Unreadable(unreadable) = device.state {
            family.sample(&device.with([("reason", unreadable.reason.as_str())]), 1);
        }
    }
    drop(family);
    let mut family = text.family("bursar_device_info", Info, "The name of the device.");
    for (device, ledger) in readable(devices) {
        family.sample(&device.with([("name", &ledger.name)]), 1);
    }
}

fn write_memory(text: &mut Exposition, devices: &[Device<'_>]) {
    let help = "The memory of the device by what it is: held (through the ledger), undrawn (set aside and not held), \
        unmanaged (used outside the ledger) and free; together the whole, unless more is set aside than is left.";
    let mut family = text.family("bursar_device_memory_bytes", Gauge, help);
    for (device, ledger) in readable(devices) {
        let states = [
            ("held", ledger.held),
            ("undrawn", ledger.undrawn),
            ("unmanaged", ledger.unmanaged),
            ("free", ledger.free),
        ];
        for (state, bytes) in states {
            family.sample(&device.with([("state", state)]), bytes);
        }
    }
    drop(family);
    type Figure = fn(&LedgerState) -> Option<u64>;
    let figures: [(&str, &str, Figure); 4] = [
        ("bursar_device_size_bytes", "All memory of the device.", |ledger| Some(ledger.total)),
        ("bursar_device_limit_bytes", "The limit of what all may hold together.", |ledger| Some(ledger.limit)),
        (
            "bursar_device_cached_bytes",
            "Of what is held, the bytes that pools hold and nobody uses, of those processes that publish it.",
            |ledger| ledger.cached,
        ),
        ("bursar_device_driver_free_bytes", "The bytes that the driver could still allocate.", |ledger| {
            ledger.driver_free
        }),
    ];
    for (name, help, figure) in figures {
        let mut family = text.family(name, Gauge, help);
        for (device, ledger) in readable(devices) {
            if let Some(bytes) = figure(ledger) {
                family.sample(&device.labels(), bytes);
            }
        }
    }
}

/// Writes a family with samples for each process.
fn write_processes<'a>(
    text: &'a mut Exposition,
    devices: &'a [Device<'a>],
    pids: &'a [Vec<String>],
    (name, kind, help): (&'a str, MetricKind, &'a str),
    write: impl Fn(&mut Family<'a>, Vec<(&'a str, &'a str)>, &'a ProcessState),
) {
    let mut family = text.family(name, kind, help);
    for ((device, ledger), pids) in readable(devices).zip(pids) {
        for (process, pid) in ledger.processes.iter().zip(pids) {
            write(&mut family, device.with([("pid", pid), ("process", &process.name)]), process);
        }
    }
}

fn write_accounts(text: &mut Exposition, devices: &[Device<'_>]) {
    let pids = |ledger: &LedgerState| ledger.processes.iter().map(|process| process.pid.to_string()).collect();
    let pids: Vec<Vec<String>> = readable(devices).map(|(_, ledger)| pids(ledger)).collect();
    let help = "The memory of a process by kind: held, undrawn (set aside and not held) and, where it publishes them, live \
        (in blocks), cached (held by pools and used by nobody) and peak (the most that was live).";
    write_processes(text, devices, &pids, ("bursar_account_bytes", Gauge, help), |family, labels, process| {
        let published = process.usage.as_ref();
        let kinds = [
            ("held", Some(process.held)),
            ("undrawn", Some(process.undrawn)),
            ("live", published.map(|usage| usage.live)),
            ("cached", published.map(|usage| usage.cached)),
            ("peak", published.map(|usage| usage.peak)),
        ];
        for (kind, bytes) in kinds {
            if let Some(bytes) = bytes {
                family.sample(&[&labels[..], &[("kind", kind)]].concat(), bytes);
            }
        }
    });
    let help = "When the process opened the ledger, since 1970.";
    let about = ("bursar_account_start_timestamp_seconds", Gauge, help);
    write_processes(text, devices, &pids, about, |family, labels, process| {
        family.sample(&labels, seconds(process.since_ms));
    });
    let about = ("bursar_account_refusals_total", Counter, "The requests of the process that were refused.");
    write_processes(text, devices, &pids, about, |family, labels, process| {
        family.sample(&labels, process.refused);
    });
    let about = ("bursar_account_wait_seconds_total", Counter, "The time for which requests of the process waited.");
    write_processes(text, devices, &pids, about, |family, labels, process| {
        family.sample(&labels, seconds(process.waited_ms));
    });
    let about = ("bursar_holder_bytes", Gauge, "The live bytes of the process by tag, of its largest tags.");
    write_processes(text, devices, &pids, about, |family, labels, process| {
        for holder in process.usage.iter().flat_map(|usage| &usage.holders) {
            family.sample(&[&labels[..], &[("tag", &holder.tag)]].concat(), holder.live);
        }
    });
}

/// Returns the tenants of a ledger with the names of their series, those that have most first.
fn tenants(ledger: &LedgerState) -> Vec<(&str, &TenantState)> {
    let mut tenants: Vec<&TenantState> = ledger.tenants.iter().collect();
    tenants.sort_by_key(|tenant| (std::cmp::Reverse(tenant.charged), &tenant.name));
    let name = |at: usize, tenant: &'_ TenantState| -> Option<&'static str> {
        if at >= TENANTS_MAX { Some(OTHER) } else { tenant.name.is_empty().then_some(UNNAMED) }
    };
    let named = tenants.into_iter().enumerate();
    named.map(|(at, tenant)| (name(at, tenant).unwrap_or(&tenant.name), tenant)).collect()
}

fn write_tenants(text: &mut Exposition, devices: &[Device<'_>]) {
    let tenants: Vec<(Device<'_>, Vec<(&str, &TenantState)>)> =
        readable(devices).map(|(device, ledger)| (device, tenants(ledger))).collect();
    let help = "The memory of a tenant by kind: charged, guarantee and, where it has one, ceiling.";
    let mut family = text.family("bursar_tenant_bytes", Gauge, help);
    for (device, tenants) in &tenants {
        let total = device.state.ledger().map_or(0, |ledger| ledger.total);
        for &(name, tenant) in tenants {
            // A ceiling that the device does not have limits nobody: it is how a ledger says that there is none.
            let ceiling = (tenant.ceiling < total).then_some(tenant.ceiling);
            let kinds =
                [("charged", Some(tenant.charged)), ("guarantee", Some(tenant.guarantee)), ("ceiling", ceiling)];
            for (kind, bytes) in kinds.into_iter().filter_map(|(kind, bytes)| Some((kind, bytes?))) {
                family.sample(&device.with([("tenant", name), ("kind", kind)]), bytes);
            }
        }
    }
    drop(family);
    let help = "The requests for the tenant that were refused.";
    let mut family = text.family("bursar_tenant_refusals_total", Counter, help);
    for (device, tenants) in &tenants {
        for &(name, tenant) in tenants {
            family.sample(&device.with([("tenant", name)]), tenant.refused);
        }
    }
    drop(family);
    let help = "The time for which requests for the tenant waited.";
    let mut family = text.family("bursar_tenant_wait_seconds_total", Counter, help);
    for (device, tenants) in &tenants {
        for &(name, tenant) in tenants {
            family.sample(&device.with([("tenant", name)]), seconds(tenant.waited_ms));
        }
    }
}

fn write_queue(text: &mut Exposition, devices: &[Device<'_>]) {
    let mut family = text.family("bursar_queue_length", Gauge, "The requests that wait.");
    for (device, ledger) in readable(devices) {
        family.sample(&device.labels(), ledger.waiting.len() as u64);
    }
    drop(family);
    let mut family = text.family("bursar_queue_bytes", Gauge, "The bytes that requests wait for.");
    for (device, ledger) in readable(devices) {
        let bytes = ledger.waiting.iter().fold(0, |sum: u64, waiting| sum.saturating_add(waiting.bytes));
        family.sample(&device.labels(), bytes);
    }
    drop(family);
    let help = "When the request that waits longest was made, since 1970; absent where none waits.";
    let mut family = text.family("bursar_queue_oldest_timestamp_seconds", Gauge, help);
    for (device, ledger) in readable(devices) {
        if let Some(oldest) = ledger.waiting.iter().map(|waiting| waiting.since_ms).min() {
            family.sample(&device.labels(), seconds(oldest));
        }
    }
    drop(family);
    let help = "The requests that were refused since the ledger was made, by reason.";
    let mut family = text.family("bursar_refusals_total", Counter, help);
    for (device, ledger) in readable(devices) {
        for (reason, &count) in &ledger.refused {
            family.sample(&device.with([("reason", reason)]), count);
        }
    }
    drop(family);
    let help = "The time for which requests waited, whatever became of them.";
    let mut family = text.family("bursar_wait_seconds", Histogram, help);
    for (device, ledger) in readable(devices) {
        let waits = &ledger.waits;
        let buckets: Vec<(f64, u64)> = waits.buckets.iter().map(|bucket| (bucket.le_seconds, bucket.count)).collect();
        family.histogram(&device.labels(), &buckets, waits.count, waits.sum_seconds);
    }
}
