//! An inference server: three models on one card, one pool under all of them, and a limit for each.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::prelude::*;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// The number of values for each token of a request.
const WIDTH: usize = 4096;

/// A model: its weights, and the device under a limit of its own.
struct Model {
    name: &'static str,
    gpu: Gpu,
    weights: DeviceBuffer<f32>,
}

impl Model {
    fn load(card: &Gpu, name: &'static str, limit: Bytes, weights: usize) -> bursar::Result<Self> {
        let gpu = card.under(&Quota::of(limit).named(name))?;
        let stream = gpu.streams().lease()?;
        let weights = gpu.buffer(weights, &stream, tag!("weights"))?;
        Ok(Self { name, gpu, weights })
    }

    /// Serves one request: up from pinned memory, through a kernel, and back into the same memory.
    fn infer(&self, stream: &StreamLease, tokens: usize, pinned: &PinnedPool) -> bursar::Result<f32> {
        let mut request = pinned.get(tokens * WIDTH * size_of::<f32>())?.typed::<f32>();
        request.fill(1.0);
        let mut hidden = self.gpu.buffer::<f32>(tokens * WIDTH, stream, tag!("hidden"))?;
        let mut scores = self.gpu.buffer::<f32>(tokens * tokens, stream, tag!("scores"))?;
        let sent = stream.submit(|work| work.copy_from_host(&mut hidden, request))?;
        stream.submit(|work| {
            let attend = work.kernel("attend").reads(&self.weights).writes(&mut hidden).writes(&mut scores);
            // On a card this launches the kernel; on a simulated one the declaration is all there is.
            attend.launch(|_stream, [_weights, _hidden, _scores]| Ok::<(), Error>(()))
        })?;
        let request = sent.wait()?;
        let reply = stream.submit(|work| work.read_back_into(&hidden, request))?;
        Ok(reply.wait()?[0])
    }

    /// Serves requests until there are no more. One that does not fit is refused, and the next one is served.
    fn serve(&self, requests: Receiver<usize>, pinned: &PinnedPool) -> bursar::Result<(u32, u32)> {
        let stream = self.gpu.streams().lease()?;
        let (mut served, mut refused) = (0, 0);
        for tokens in requests {
            match self.infer(&stream, tokens, pinned) {
                Ok(_) => served += 1,
                Err(error) if error.is_capacity() => {
                    refused += 1;
                    println!("{}, {tokens} tokens: {error}", self.name);
                }
                Err(error) => return Err(error),
            }
        }
        Ok((served, refused))
    }
}

fn main() -> bursar::Result<()> {
    let statistics = Statistics::default();
    let stack = Stack::new()
        .observe(statistics.clone())
        .layer(PagePool::default())
        .layer(GlobalDeviceBudget::fraction_of_total(0.9))
        .over(leaf::Frames);
    let card = Gpu::open(bursar::driver::cuda_or_simulated()?, DeviceId(0), &stack)?;
    let pinned = PinnedPool::near(&card)?;
    let models = [
        Model::load(&card, "chat", Bytes::gib(5), 1 << 30)?,
        Model::load(&card, "search", Bytes::mib(640), 1 << 27)?,
        Model::load(&card, "draft", Bytes::mib(160), 1 << 25)?,
    ];
    thread::scope(|scope| {
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for model in &models {
            let (client, requests) = sync_channel(4);
            servers.push((model.name, scope.spawn(|| model.serve(requests, &pinned))));
            clients.push(client);
        }
        for tokens in [64, 256, 1024, 4096] {
            clients.iter().for_each(|client| client.send(tokens).expect("its server runs"));
        }
        drop(clients);
        for (name, server) in servers {
            let (served, refused) = server.join().expect("no server panics")?;
            println!("{name}: {served} served, {refused} refused");
        }
        Ok::<(), Error>(())
    })?;
    println!("{}", statistics.report());
    Ok(())
}
