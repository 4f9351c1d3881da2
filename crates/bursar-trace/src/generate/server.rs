//! Models that serve requests from one pool.

use super::writer::{LiveBlock, Writer};
use bursar_core::tag;

/// The bytes of a value, the tokens of a page of the key-value cache, the requests that a model serves at a time.
const VALUE: u64 = 2;
const PAGE_TOKENS: u64 = 16;
const REQUESTS_MAX: usize = 16;

/// A model with its weights, on a stream of its own.
struct Model {
    stream: u16,
    hidden: u64,
    /// The width of keys and values, which heads share.
    shared: u64,
    layers: u64,
    weights: Vec<LiveBlock>,
    requests: Vec<Request>,
}

struct Request {
    tokens: u64,
    tokens_at_end: u64,
    pages: Vec<LiveBlock>,
}

pub(super) fn write(writer: &mut Writer, models: u16, requests: u32) {
    let mut models: Vec<Model> = (0..models).map(|stream| Model::load(writer, stream)).collect();
    let mut waiting = requests;
    while waiting > 0 || models.iter().any(|model| !model.requests.is_empty()) {
        let picked = writer.random.index(models.len());
        let model = &mut models[picked];
        if waiting > 0 && writer.random.chance(8) && model.requests.len() < REQUESTS_MAX {
            waiting -= 1;
            model.admit(writer);
        } else if model.requests.is_empty() && writer.random.chance(256) {
            let stream = model.stream;
            model.unload(writer);
            *model = Model::load(writer, stream);
        }
        models.iter_mut().for_each(|model| model.decode(writer));
    }
    models.iter_mut().for_each(|model| model.unload(writer));
}

impl Model {
    fn load(writer: &mut Writer, stream: u16) -> Self {
        let (hidden, layers) = (writer.one_of([1024, 2048, 3072, 4096]), writer.between(8, 24));
        let shared = hidden / writer.one_of([1, 4, 8]);
        let feed = hidden * 11 / 4;
        let sizes = [hidden * (hidden + 2 * shared), hidden * hidden, 2 * hidden * feed, hidden * feed];
        let mut weights = vec![writer.allocate(stream, 32_000 * hidden * VALUE, tag!("weights"))];
        for values in (0..layers).flat_map(|_| sizes) {
            weights.push(writer.allocate(stream, values * VALUE, tag!("weights")));
        }
        Self { stream, hidden, shared, layers, weights, requests: Vec::new() }
    }

    fn unload(&mut self, writer: &mut Writer) {
        self.weights.drain(..).for_each(|block| writer.free_own(block));
    }

    fn page(&self, writer: &mut Writer) -> LiveBlock {
        let bytes = PAGE_TOKENS * 2 * self.shared * VALUE * self.layers;
        writer.allocate(self.stream, bytes, tag!("key-value page"))
    }

    /// Admits a request: allocates its pages and runs its prompt, layer by layer.
    fn admit(&mut self, writer: &mut Writer) {
        let tokens = writer.lognormal(400, 1.0, 16, 8192);
        let tokens_at_end = tokens + writer.lognormal(100, 0.8, 4, 1024);
        let pages = (0..tokens.div_ceil(PAGE_TOKENS)).map(|_| self.page(writer)).collect();
        let (stream, row) = (self.stream, tokens * self.hidden * VALUE);
        let mut passed = writer.allocate(stream, row, tag!("activations"));
        for _ in 0..self.layers {
            writer.pass(stream, tokens * (self.hidden + 2 * self.shared) * VALUE, tag!("projections"));
            let attended = writer.allocate(stream, row, tag!("activations"));
            writer.pass(stream, row * 11 / 2, tag!("feed-forward"));
            writer.free_own(std::mem::replace(&mut passed, attended));
        }
        writer.free_own(passed);
        self.requests.push(Request { tokens, tokens_at_end, pages });
    }

    /// Gives every request its next token, and frees the pages of those that are at their end.
    fn decode(&mut self, writer: &mut Writer) {
        if self.requests.is_empty() {
            return;
        }
        let (stream, batch) = (self.stream, self.requests.len() as u64);
        let context: u64 = self.requests.iter().map(|request| request.tokens).sum();
        let hidden = writer.allocate(stream, batch * self.hidden * VALUE, tag!("activations"));
        writer.pass(stream, context * 128, tag!("attention"));
        writer.pass(stream, batch * 32_000 * 4, tag!("logits"));
        writer.free_own(hidden);
        for mut request in std::mem::take(&mut self.requests) {
            request.tokens += 1;
            if request.tokens.div_ceil(PAGE_TOKENS) > request.pages.len() as u64 {
                let page = self.page(writer);
                request.pages.push(page);
            }
            if request.tokens == request.tokens_at_end {
                request.pages.into_iter().for_each(|page| writer.free_own(page));
            } else {
                self.requests.push(request);
            }
        }
    }
}
