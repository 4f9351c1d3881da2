//! The metrics of this process's own devices.

use MetricKind::Gauge;
use bursar_core::{AllocTag, Bytes, Holding, MemoryInfo, MemoryUsage, Survey};
use bursar_device::Gpu;
use bursar_metrics::{
    Exposition, ExpositionFormat, HttpStatus, MetricKind, ReadAccess, Request, Response, Server, ServerOptions,
};
use std::io;
use std::net::{TcpListener, ToSocketAddrs};

/// The most tags of a device that have series of their own; further ones are added up under `(other)`.
const TAGS_MAX: usize = 64;

/// Returns what the pools and limits of these devices hold in this process, in a format that scrapers read.
///
/// Tags are there where an observer counts them, as [`Statistics`](crate::Statistics) does: the 64 largest of each device.
///
/// ```
/// use bursar::metrics::{self, ExpositionFormat};
/// use bursar::prelude::*;
///
/// # fn main() -> bursar::Result<()> {
/// let budget = GlobalDeviceBudget::of(Bytes::gib(4));
/// let stack = Stack::new().observe(Statistics::default()).layer(PagePool::default()).layer(budget).over(leaf::Frames);
/// let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &stack)?;
/// let stream = gpu.streams().lease()?;
/// let _weights = gpu.buffer::<u8>(1 << 30, &stream, tag!("weights"))?;
///
/// let text = metrics::render([&gpu], ExpositionFormat::Text);
/// assert!(text.contains(r#",tag="weights"} 1073741824"#), "{text}");
/// # Ok(())
/// # }
/// ```
pub fn render<'a>(gpus: impl IntoIterator<Item = &'a Gpu>, format: ExpositionFormat) -> String {
    let devices: Vec<DeviceMetrics> = gpus.into_iter().map(DeviceMetrics::of).collect();
    let mut text = Exposition::new(format);
    write_memory(&mut text, &devices);
    write_limits(&mut text, &devices);
    write_tags(&mut text, &devices);
    text.finish()
}

/// Serves [`render`] of these devices at `/metrics` of an address, on a thread of its own, until the server is dropped. It keeps
/// the devices open.
///
/// Requests are bounded as those of `bursar serve` are, and a loopback address answers for no other host's name.
///
/// ```
/// use bursar::metrics;
/// use bursar::prelude::*;
/// use std::io::{Read, Write};
///
/// let stack = Stack::new().layer(PagePool::default()).over(leaf::Frames);
/// let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &stack)?;
/// let server = metrics::serve("127.0.0.1:0", &[gpu]).expect("an address that is free");
///
/// let mut scraper = std::net::TcpStream::connect(server.address()).expect("it listens");
/// scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
/// let mut answer = String::new();
/// scraper.read_to_string(&mut answer).expect("it answers");
/// assert!(answer.contains("# TYPE bursar_process_memory_bytes gauge\n"), "{answer}");
/// # Ok::<(), bursar::Error>(())
/// ```
pub fn serve(address: impl ToSocketAddrs, gpus: &[Gpu]) -> io::Result<Server> {
    let listener = TcpListener::bind(address)?;
    let access = ReadAccess::on(listener.local_addr()?);
    let gpus = gpus.to_vec();
    Server::start(listener, ServerOptions::default(), move |request| answer(&access, &gpus, request))
}

fn answer(access: &ReadAccess, gpus: &[Gpu], request: &Request) -> Response {
    if let Some(refused) = access.refuse(request) {
        return refused;
    }
    match request.path() {
        "/metrics" => {
            let accept: Vec<&str> = request.headers("accept").collect();
            let format = ExpositionFormat::accepted(&accept.join(","));
            let metrics = render(gpus, format).into_bytes();
            Response::new(HttpStatus::OK, format.content_type(), metrics).with_header("Vary", "Accept")
        }
        _ => Response::text(HttpStatus::NOT_FOUND, "there is nothing here; there is /metrics"),
    }
}

/// The figures of one device in this process.
struct DeviceMetrics {
    label: String,
    uuid: String,
    usage: Option<MemoryUsage>,
    outstanding: Bytes,
    memory: Option<MemoryInfo>,
    /// The limits on the way, each with what it allows and what is charged to it.
    limits: Vec<(String, Bytes, Bytes)>,
    holders: Vec<(String, Holding)>,
}

impl DeviceMetrics {
    fn of(gpu: &Gpu) -> Self {
        let context = gpu.context();
        let survey = Survey::of(|survey| gpu.memory().survey(survey));
        let limits = survey.limits().filter_map(|limit| {
            let (allowed, used) = limit.figures?;
            Some((limit.name.as_str().to_owned(), allowed, used))
        });
        let mut holders = context.sink().holders(gpu.id());
        holders.sort_by_key(|holding| std::cmp::Reverse(holding.bytes));
        let name = |(at, tag): (usize, AllocTag)| if at < TAGS_MAX { tag.to_string() } else { "(other)".to_owned() };
        Self {
            label: gpu.id().to_string(),
            uuid: gpu.facts().uuid.to_string(),
            usage: context.usage(),
            outstanding: gpu.memory().bytes_outstanding(),
            memory: gpu.memory_info().ok(),
            limits: limits.collect(),
            holders: holders.into_iter().enumerate().map(|(at, holding)| (name((at, holding.tag)), holding)).collect(),
        }
    }

    fn labels(&self) -> [(&'static str, &str); 2] {
        [("device", &self.label), ("uuid", &self.uuid)]
    }

    fn with<'a>(&'a self, name: &'static str, value: &'a str) -> [(&'static str, &'a str); 3] {
        let [device, uuid] = self.labels();
        [device, uuid, (name, value)]
    }
}

fn write_memory(text: &mut Exposition, devices: &[DeviceMetrics]) {
    let help = "The device memory that pools of this process hold: live (in blocks), cached (used by nobody) and pending \
        (freed, and perhaps still in use by work that has not run).";
    let mut family = text.family("bursar_process_memory_bytes", Gauge, help);
    for device in devices {
        if let Some(MemoryUsage { held, cached, pending, .. }) = device.usage {
            let live = held.saturating_sub(cached).saturating_sub(pending);
            for (state, bytes) in [("live", live), ("cached", cached), ("pending", pending)] {
                family.sample(&device.with("state", state), bytes.get());
            }
        }
    }
    drop(family);
    type Figure = fn(&DeviceMetrics) -> Option<Bytes>;
    let figures: [(&str, &str, Figure); 4] = [
        (
            "bursar_process_outstanding_bytes",
            "The bytes of blocks that are live, or freed and perhaps still in use.",
            |device| Some(device.outstanding),
        ),
        (
            "bursar_process_largest_free_run_bytes",
            "The most bytes that pools could grant in one piece from what they cache, where they know.",
            |device| device.usage?.largest_free_run,
        ),
        ("bursar_process_device_free_bytes", "The bytes that the driver could still allocate.", |device| {
            Some(device.memory?.free)
        }),
        ("bursar_process_device_size_bytes", "All memory of the device.", |device| Some(device.memory?.total)),
    ];
    for (name, help, figure) in figures {
        let mut family = text.family(name, Gauge, help);
        for device in devices {
            if let Some(bytes) = figure(device) {
                family.sample(&device.labels(), bytes.get());
            }
        }
    }
}

fn write_limits(text: &mut Exposition, devices: &[DeviceMetrics]) {
    type Figure = fn(&(String, Bytes, Bytes)) -> Bytes;
    let figures: [(&str, &str, Figure); 2] = [
        ("bursar_process_limit_bytes", "The limits that allocations of this process meet.", |limit| limit.1),
        ("bursar_process_charged_bytes", "The bytes that are charged to these limits.", |limit| limit.2),
    ];
    for (name, help, figure) in figures {
        let mut family = text.family(name, Gauge, help);
        for device in devices {
            for limit in &device.limits {
                family.sample(&device.with("limit", &limit.0), figure(limit).get());
            }
        }
    }
}

fn write_tags(text: &mut Exposition, devices: &[DeviceMetrics]) {
    let mut family = text.family("bursar_process_tag_bytes", Gauge, "The live bytes by tag, where an observer counts.");
    for device in devices {
        for (tag, holding) in &device.holders {
            family.sample(&device.with("tag", tag), holding.bytes.get());
        }
    }
    drop(family);
    let mut family =
        text.family("bursar_process_tag_blocks", Gauge, "The live blocks by tag, where an observer counts.");
    for device in devices {
        for (tag, holding) in &device.holders {
            family.sample(&device.with("tag", tag), holding.blocks);
        }
    }
}
