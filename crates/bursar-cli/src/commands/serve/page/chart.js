// Memory over time, stacked by process or tenant, on a canvas that can be zoomed.

const KINDS = 10;
const MARGIN = { left: 64, right: 12, top: 14, bottom: 24 };

/** What a point of the chart is divided into, from the bottom up. */
function bandsOf(series, by) {
  const bands = series.parties.map((party) => ({
    key: `${party.pid ?? ""} ${party.name}`,
    label: party.pid === null ? printable(party.name) || "(none named)" : `${printable(party.name)} ${party.pid}`,
    values: party.bytes,
  }));
  const known = (at) => bands.reduce((sum, band) => sum + (band.values[at] ?? 0), 0);
  const whole = (at) => (by === "process" ? series.held[at] : series.held[at] + series.undrawn[at]);
  const rest = series.at_ms.map((_, at) => (series.held[at] === null ? null : Math.max(0, whole(at) - known(at))));
  if (rest.some((value) => value > 0)) bands.push({ key: "other", label: "other", values: rest, paint: "kind-rest" });
  if (by === "process") bands.push({ key: "undrawn", label: "set aside", values: series.undrawn, paint: "undrawn", isHatched: true });
  bands.push({ key: "unmanaged", label: "unmanaged", values: series.unmanaged, paint: "unmanaged", isHatched: true });
  return bands.filter((band) => band.values.some((value) => value > 0));
}

class Chart {
  constructor(moved) {
    Object.assign(this, { canvas: byId("chart"), tip: byId("tip"), moved, colours: new Map(), hidden: new Set() });
    Object.assign(this, { series: null, bands: [], by: "process", spanMs: 300000, window: null, cursor: null, brush: null });
    new Steering(this);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** The stretch that is shown, in milliseconds since 1970: one that was chosen, or the last until now. */
  range() {
    if (this.window) return this.window;
    const until = this.now ?? Date.now();
    return [until - this.spanMs, until];
  }

  setSeries(series, by) {
    [this.series, this.by] = [series, by];
    this.bands = series ? bandsOf(series, by) : [];
    for (const band of this.bands) this.paintOf(band);
    this.draw();
    this.showTip();
    this.showLegend();
  }

  /** The colour of a band; a party keeps the one that it had first. */
  paintOf(band) {
    if (band.paint) return band.paint;
    if (!this.colours.has(band.key)) this.colours.set(band.key, `kind-${this.colours.size % KINDS}`);
    return this.colours.get(band.key);
  }

  look(window) {
    if (window) {
      const [from, to] = window;
      const width = clamp(5000, to - from, 8 * 86400000);
      const until = Math.min((from + to) / 2 + width / 2, this.now ?? Date.now());
      this.window = [until - width, until];
    } else {
      this.window = null;
    }
    this.moved();
    this.draw();
  }

  zoom(factor, around) {
    const [from, to] = this.range();
    const at = around ?? (from + to) / 2;
    this.look([at - (at - from) * factor, at + (to - at) * factor]);
  }

  place() {
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    return { width, height, inner: width - MARGIN.left - MARGIN.right, tall: height - MARGIN.top - MARGIN.bottom };
  }

  /** The highest value of the axis: the device's memory, or more where more is taken. */
  most() {
    const sum = (at) => this.shown().reduce((all, band) => all + (band.values[at] ?? 0), 0);
    const totals = this.series.total.filter((value) => value !== null);
    return Math.max(1, ...totals, ...this.series.at_ms.map((_, at) => sum(at)));
  }

  shown() {
    return this.bands.filter((band) => !this.hidden.has(band.key));
  }

  draw() {
    const { width, height, inner, tall } = this.place();
    if (width < 50) return;
    const scale = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale)) this.canvas.width = Math.round(width * scale);
    if (this.canvas.height !== Math.round(height * scale)) this.canvas.height = Math.round(height * scale);
    const paper = this.canvas.getContext("2d");
    paper.setTransform(scale, 0, 0, scale, 0, 0);
    paper.clearRect(0, 0, width, height);
    paper.font = "12px system-ui, sans-serif";
    const [from, to] = this.range();
    const most = this.series ? this.most() : 1;
    const x = (at) => MARGIN.left + ((at - from) / (to - from)) * inner;
    const y = (value) => MARGIN.top + tall * (1 - value / (most * 1.03));
    this.drawAxes(paper, { x, y, from, to, most, width, height });
    if (!this.series) return this.drawNote(paper, "no history yet");
    paper.save();
    paper.beginPath();
    paper.rect(MARGIN.left, 0, inner, height);
    paper.clip();
    this.drawBands(paper, x, y);
    this.drawGaps(paper, x, tall);
    this.drawLimit(paper, x, y);
    this.drawEvents(paper, x, tall);
    this.drawCursor(paper, x, tall);
    paper.restore();
    const latest = this.series.at_ms.length - 1;
    const text = latest < 0 ? "no samples" : `${bytes(this.series.held[latest])} held of ${bytes(this.series.limit[latest])}`;
    this.canvas.setAttribute("aria-label", `Memory of ${this.series.device} by ${this.by}, ${moment(from)} to ${moment(to)}: ${text}`);
    Object.assign(this.canvas.dataset, { from: Math.round(from), to: Math.round(to), points: this.series.at_ms.length });
  }

  drawAxes(paper, { x, y, from, to, most, width, height }) {
    paper.strokeStyle = colour("grid");
    paper.fillStyle = colour("soft");
    paper.textAlign = "right";
    paper.textBaseline = "middle";
    const step = 2 ** Math.max(0, Math.ceil(Math.log2(most / 5)));
    for (let value = 0; value <= most && this.series; value += step) {
      paper.beginPath();
      paper.moveTo(MARGIN.left, Math.round(y(value)) + 0.5);
      paper.lineTo(width - MARGIN.right, Math.round(y(value)) + 0.5);
      paper.stroke();
      paper.fillText(tick(value), MARGIN.left - 8, y(value));
    }
    paper.textAlign = "center";
    paper.textBaseline = "alphabetic";
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800];
    const wanted = (to - from) / 1000 / Math.max(2, (width - 80) / 110);
    const seconds = steps.find((one) => one >= wanted) ?? 604800;
    const shift = new Date(from).getTimezoneOffset() * 60000;
    for (let at = Math.ceil((from - shift) / (seconds * 1000)) * seconds * 1000 + shift; at <= to; at += seconds * 1000) {
      paper.beginPath();
      paper.moveTo(Math.round(x(at)) + 0.5, height - MARGIN.bottom);
      paper.lineTo(Math.round(x(at)) + 0.5, height - MARGIN.bottom + 4);
      paper.stroke();
      const text = seconds >= 86400 ? moment(at).slice(5, 10) : clock(at, seconds < 60);
      if (x(at) > MARGIN.left + 14 && x(at) < width - 24) paper.fillText(text, x(at), height - 7);
    }
  }

  drawNote(paper, text) {
    const { width, height } = this.place();
    paper.textAlign = "center";
    paper.fillStyle = colour("soft");
    paper.fillText(text, width / 2, height / 2);
  }

  /** The moment up to which a sample counts: the next one, or as long as samples are apart where some are missing. */
  until(at) {
    const times = this.series.at_ms;
    if (at + 1 < times.length) {
      const typical = Math.max(this.step(at) * 3, 5000);
      return Math.min(times[at + 1], times[at] + typical);
    }
    return Math.max(times[at], Math.min(this.now ?? times[at], times[at] + 3000));
  }

  /** The distance between samples around one. */
  step(at) {
    const times = this.series.at_ms;
    const [low, high] = [Math.max(0, at - 4), Math.min(times.length - 1, at + 4)];
    return high > low ? (times[high] - times[low]) / (high - low) : 1000;
  }

  drawBands(paper, x, y) {
    const { at_ms } = this.series;
    const below = at_ms.map(() => 0);
    for (const band of this.shown()) {
      const paint = colour(this.paintOf(band));
      const path = new Path2D();
      at_ms.forEach((time, at) => {
        const value = band.values[at];
        if (!value) return;
        const [left, right] = [x(time), x(this.until(at))];
        const [top, bottom] = [y(below[at] + value), y(below[at])];
        path.rect(left, top, Math.max(right - left, 0.6) + 0.4, bottom - top);
        below[at] += value;
      });
      paper.fillStyle = band.isHatched ? hatch(paper, paint) : paint;
      paper.fill(path);
    }
  }

  /** Moments at which the ledger could not be read are gaps, and marked. */
  drawGaps(paper, x, tall) {
    const path = new Path2D();
    this.series.at_ms.forEach((time, at) => {
      if (this.series.held[at] === null) path.rect(x(time), MARGIN.top, Math.max(1, x(this.until(at)) - x(time)) + 0.4, tall);
    });
    paper.fillStyle = hatch(paper, colour("bad"));
    paper.globalAlpha = 0.35;
    paper.fill(path);
    paper.globalAlpha = 1;
  }

  drawLimit(paper, x, y) {
    paper.strokeStyle = colour("ink");
    paper.lineWidth = 1.25;
    paper.setLineDash([6, 4]);
    paper.beginPath();
    let isDown = false;
    this.series.at_ms.forEach((time, at) => {
      const limit = this.series.limit[at];
      if (limit === null) return (isDown = false);
      if (isDown) paper.lineTo(x(time), y(limit));
      else paper.moveTo(x(time), y(limit));
      isDown = true;
      paper.lineTo(x(this.until(at)), y(limit));
    });
    paper.stroke();
    paper.setLineDash([]);
    paper.lineWidth = 1;
  }

  /** Refusals as marks at the top, waiting requests as a line at the bottom. */
  drawEvents(paper, x, tall) {
    const { at_ms, refused, waiting } = this.series;
    paper.fillStyle = colour("bad");
    at_ms.forEach((time, at) => {
      const before = at > 0 ? refused[at - 1] : refused[at];
      if (before === null || refused[at] === null || refused[at] <= before) return;
      paper.beginPath();
      paper.moveTo(x(time) - 4, 2);
      paper.lineTo(x(time) + 4, 2);
      paper.lineTo(x(time), 10);
      paper.fill();
    });
    paper.fillStyle = colour("undrawn");
    at_ms.forEach((time, at) => {
      if (waiting[at] > 0) paper.fillRect(x(time), MARGIN.top + tall - 3, Math.max(1, x(this.until(at)) - x(time)) + 0.4, 3);
    });
  }

  drawCursor(paper, x, tall) {
    if (this.brush) {
      paper.fillStyle = colour("accent");
      paper.globalAlpha = 0.18;
      paper.fillRect(x(this.brush[0]), MARGIN.top, x(this.brush[1]) - x(this.brush[0]), tall);
      paper.globalAlpha = 1;
    }
    if (this.cursor === null) return;
    paper.strokeStyle = colour("ink");
    paper.beginPath();
    paper.moveTo(Math.round(x(this.cursor)) + 0.5, MARGIN.top);
    paper.lineTo(Math.round(x(this.cursor)) + 0.5, MARGIN.top + tall);
    paper.stroke();
  }

  /** The sample that counts at a moment, or -1. */
  sampleAt(time) {
    const times = this.series?.at_ms ?? [];
    let at = times.findLastIndex((one) => one <= time);
    if (at < 0 && times.length && times[0] - time < 2000) at = 0;
    return at >= 0 && time <= Math.max(this.until(at), times[at] + 1500) ? at : -1;
  }

  showTip() {
    const at = this.cursor === null ? -1 : this.sampleAt(this.cursor);
    this.tip.hidden = at < 0;
    if (at < 0) return;
    const list = make("dl");
    const add = (name, value) => list.append(make("dt", {}, name), make("dd", {}, value));
    if (this.series.held[at] === null) {
      add("ledger", "unreadable");
    } else {
      for (const band of this.shown().filter((one) => one.values[at] > 0).slice(0, 12)) add(band.label, bytes(band.values[at]));
      add("held", `${bytes(this.series.held[at])} of ${bytes(this.series.limit[at])}`);
      if (this.series.cached[at]) add("of that cached", bytes(this.series.cached[at]));
      if (this.series.waiting[at]) add("waiting", count(this.series.waiting[at]));
    }
    this.tip.replaceChildren(make("b", {}, moment(this.series.at_ms[at])), list);
    const { width, height, inner } = this.place();
    const [from, to] = this.range();
    const x = MARGIN.left + ((this.cursor - from) / (to - from)) * inner;
    const left = x + 14 + this.tip.offsetWidth < width ? x + 14 : x - 14 - this.tip.offsetWidth;
    this.tip.style.left = `${clamp(2, left, Math.max(2, width - this.tip.offsetWidth - 2))}px`;
    this.tip.style.top = `${clamp(2, 20, Math.max(2, height - this.tip.offsetHeight - 2))}px`;
  }

  /** The names of the bands with their last values; each can be taken out of the chart. */
  showLegend() {
    const host = byId("legend");
    const last = (this.series?.at_ms.length ?? 0) - 1;
    const old = new Map([...host.children].map((item) => [item.dataset.key, item]));
    const items = this.bands.map((band) => {
      let item = old.get(band.key);
      if (!item) {
        const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
        swatch.style.background = `var(--${this.paintOf(band)})`;
        const button = make("button", { type: "button" }, swatch, make("span"), make("b"));
        button.addEventListener("click", () => {
          this.hidden.delete(band.key) || this.hidden.add(band.key);
          this.showLegend();
          this.draw();
        });
        item = make("li", { "data-key": band.key }, button);
      }
      const [button] = item.children;
      button.setAttribute("aria-pressed", !this.hidden.has(band.key));
      say(button.children[1], band.label);
      say(button.children[2], bytes(band.values[last]));
      return item;
    });
    if (items.length !== host.children.length || items.some((item, at) => host.children[at] !== item)) host.replaceChildren(...items);
  }
}

/** A pattern of diagonal lines. */
function hatch(paper, paint) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const own = tile.getContext("2d");
  own.fillStyle = paint;
  own.globalAlpha = 0.28;
  own.fillRect(0, 0, 8, 8);
  own.globalAlpha = 1;
  own.strokeStyle = paint;
  own.lineWidth = 1.5;
  own.beginPath();
  for (const shift of [-8, 0, 8]) {
    own.moveTo(shift, 8);
    own.lineTo(shift + 8, 0);
  }
  own.stroke();
  return paper.createPattern(tile, "repeat");
}
