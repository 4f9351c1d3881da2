// Draws live and reserved bytes and fragmentation over the operations of a trace, all stacks in one drawing.

const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [4, 2]];
const GUTTER = { left: 66, right: 14, top: 14, between: 30, axis: 24, overview: 34 };

class Timeline {
  constructor(host, trace, number) {
    [this.host, this.trace, this.number] = [host, trace, number];
    this.operations = Math.max(...trace.runs.map((run) => run.operations), 1);
    this.least = Math.min(this.operations, 8);
    [this.from, this.to] = [0, this.operations];
    this.cursor = null;
    this.brush = null;
    this.isFitted = false;
    this.lines = this.makeLines();
    this.build();
    this.steering = new Steering(this);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  /** The lines to draw: live once, and again for a stack that refused allocations and so had less; reserved for each stack. */
  makeLines() {
    const [first] = this.trace.runs;
    const lines = [{ name: "live", run: first, key: "live", colour: "live", dash: [], isArea: true }];
    this.trace.runs.forEach((run, index) => {
      const style = { colour: `stack-${index % 5}`, dash: DASHES[index % 5] };
      if (index > 0 && !sameSpans(run.live, first.live)) {
        lines.push({ name: `live in ${run.stack}`, run, key: "live", ...style, dash: [1, 2] });
      }
      lines.push({ name: `reserved by ${run.stack}`, run, key: "reserved", ...style, isStack: true });
    });
    return lines.map((line) => ({ ...line, isShown: true }));
  }

  build() {
    const legend = make("ul", { class: "legend", "aria-label": "Lines, each can be hidden" });
    for (const line of this.lines) {
      const button = make("button", { type: "button", "aria-pressed": "true" }, sample(line), line.name);
      button.addEventListener("click", () => {
        line.isShown = !line.isShown;
        button.setAttribute("aria-pressed", String(line.isShown));
        this.draw();
      });
      legend.append(make("li", {}, button));
    }
    this.range = make("output", { class: "range" });
    const bar = make("div", { class: "bar" }, legend, make("span", { class: "push" }), this.range);
    const fit = make("button", { type: "button", "aria-pressed": "false", title: "Let the height show what varies" }, "Fit height");
    fit.addEventListener("click", () => {
      this.isFitted = !this.isFitted;
      fit.setAttribute("aria-pressed", String(this.isFitted));
      this.draw();
    });
    bar.append(fit);
    for (const [text, label, act] of [
      ["+", "Zoom in", () => this.zoom(0.5)],
      ["−", "Zoom out", () => this.zoom(2)],
      ["Peak", "Zoom to the peak", () => this.toPeak()],
      ["All", "Show all operations", () => this.show(0, this.operations)],
    ]) {
      const button = make("button", { type: "button", "aria-label": label, title: label }, text);
      button.addEventListener("click", act);
      bar.append(button);
    }
    const label = `Live and reserved memory and fragmentation of ${this.trace.name} over ${count(this.operations)} operations`;
    this.canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": label, "aria-describedby": `keys-${this.number}` });
    this.tip = make("div", { class: "tip", hidden: "" });
    this.said = make("div", { class: "skip", "aria-live": "polite" });
    this.plot = make("div", { class: "plot" }, this.canvas, this.tip);
    const [run] = this.trace.runs;
    const detail = run.per_point === 1
      ? "Every operation is drawn from its own values."
      : `Drawn from ${count(run.points)} points of ${count(run.per_point)} operations each: the lowest and the highest of each are kept, nothing is averaged.`;
    const keys = make("details", { class: "keys", id: `keys-${this.number}` }, make("summary", {}, "Moving around"));
    keys.append(
      "Scroll or drag to zoom, double-click for all; drag the strip below to move. With the drawing focused: ",
      ...["←", "→"].map((key) => make("kbd", {}, key)), " move the read-out (with Shift, further), ",
      ...["+", "−"].map((key) => make("kbd", {}, key)), " zoom, ",
      ...["Page Up", "Page Down"].map((key) => make("kbd", {}, key)), " move along, ",
      make("kbd", {}, "P"), " the peak, ", make("kbd", {}, "0"), " all.",
    );
    this.host.replaceChildren(bar, this.plot, this.said, make("p", { class: "note resolution" }, detail), keys);
  }

  /** The parts of the drawing, in CSS pixels. */
  layout() {
    const width = Math.max(this.plot.clientWidth, 200);
    const left = width < 520 ? 54 : GUTTER.left;
    const inner = width - left - GUTTER.right;
    const main = width < 520 ? 200 : clamp(240, width * 0.2, 380);
    const top = GUTTER.top;
    const low = { top: top + main + GUTTER.between, height: main * 0.3 };
    const strip = { top: low.top + low.height + GUTTER.axis + 10, height: GUTTER.overview };
    return { width, left, inner, main: { top, height: main }, low, strip, height: strip.top + strip.height + 10 };
  }

  /** Shows the operations from `from` up to `to`, as near as may be. */
  show(from, to) {
    const width = clamp(this.least, to - from, this.operations);
    this.from = clamp(0, from, this.operations - width);
    this.to = this.from + width;
    this.draw();
    this.steering.remember();
  }

  zoom(factor, around = this.cursor ?? (this.from + this.to) / 2) {
    const width = clamp(this.least, (this.to - this.from) * factor, this.operations);
    const share = (around - this.from) / (this.to - this.from);
    this.show(around - share * width, around + (1 - share) * width);
  }

  toPeak() {
    const { operation } = this.trace.runs[0].map;
    const width = Math.max(this.operations / 50, this.least);
    this.cursor = operation;
    this.show(operation - width / 2, operation + width / 2);
    this.showValues(true);
  }

  /** The extremes of `spans` for each pixel of `width`. */
  columns(run, spans, from, to, width) {
    const [low, high] = [new Float64Array(width), new Float64Array(width)];
    const step = (to - from) / width;
    for (let x = 0; x < width; x += 1) {
      const first = Math.min(Math.floor((from + x * step) / run.per_point), run.points - 1);
      const last = clamp(first, Math.ceil((from + (x + 1) * step) / run.per_point) - 1, run.points - 1);
      [low[x], high[x]] = [spans.low[first], spans.high[first]];
      for (let index = first + 1; index <= last; index += 1) {
        low[x] = Math.min(low[x], spans.low[index]);
        high[x] = Math.max(high[x], spans.high[index]);
      }
    }
    return { low, high };
  }

  draw() {
    const place = this.layout();
    const context = prepare(this.canvas, place.width, place.height);
    const width = Math.max(Math.floor(place.inner), 1);
    const shown = this.lines.filter((line) => line.isShown);
    const drawn = shown.map((line) => this.columns(line.run, line.run[line.key], this.from, this.to, width));
    const most = Math.max(1, ...drawn.map(({ high }) => high.reduce((one, other) => Math.max(one, other), 0)));
    const least = Math.min(most, ...drawn.map(({ low }) => low.reduce((one, other) => Math.min(one, other), Infinity)));
    const scale = makeScale(place.main, this.isFitted ? Math.max(0, least - (most - least) * 0.04) : 0, most);
    this.drawGrid(context, place, scale);
    shown.forEach((line, index) => this.drawLine(context, place, scale, line, drawn[index]));
    this.drawFragmentation(context, place, shown, width);
    this.drawRefusals(context, place, width);
    this.drawPeak(context, place);
    this.drawStrip(context, place, width);
    this.drawCursor(context, place);
    const last = Math.min(Math.ceil(this.to), this.operations) - 1;
    this.range.textContent = `operations ${count(Math.floor(this.from))} – ${count(last)} of ${count(this.operations)}${scale.least > 0 ? ", height not from 0" : ""}`;
    Object.assign(this.host.dataset, { from: Math.floor(this.from), to: Math.ceil(this.to) });
  }

  x(place, operation) {
    return place.left + ((operation - this.from) / (this.to - this.from)) * place.inner;
  }

  drawGrid(context, place, scale) {
    const { main, low, left, inner } = place;
    const step = binaryStep(scale.most - scale.least, 5);
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let value = Math.ceil(scale.least / step) * step; scale.y(value) >= main.top; value += step) {
      this.rule(context, left, scale.y(value), left + inner, scale.y(value));
      context.fillText(tick(value, step), left - 8, scale.y(value));
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    const across = decimalStep(this.to - this.from, Math.max(2, inner / 130));
    for (let value = Math.ceil(this.from / across) * across; value <= this.to; value += across) {
      const x = this.x(place, value);
      this.rule(context, x, main.top, x, main.top + main.height);
      this.rule(context, x, low.top, x, low.top + low.height);
      const half = context.measureText(count(value)).width / 2;
      context.fillText(count(value), clamp(left, x, left + inner - half), low.top + low.height + 7);
    }
  }

  rule(context, x1, y1, x2, y2) {
    context.strokeStyle = colour("grid");
    context.lineWidth = 1;
    context.setLineDash([]);
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x2, y2);
    context.stroke();
    context.fillStyle = colour("soft");
  }

  drawLine(context, place, { y, least }, line, { low, high }) {
    const trail = (values) => values.forEach((value, x) => context.lineTo(place.left + x + 0.5, y(value)));
    const between = (upper, lower, alpha) => {
      context.globalAlpha = alpha;
      context.beginPath();
      trail(upper);
      for (let x = lower.length - 1; x >= 0; x -= 1) context.lineTo(place.left + x + 0.5, y(lower[x]));
      context.fill();
      context.globalAlpha = 1;
    };
    context.fillStyle = context.strokeStyle = colour(line.colour);
    if (line.isArea) between(low, new Float64Array(low.length).fill(least), 0.34);
    between(high, low, line.isArea ? 0.16 : 0.2);
    context.lineWidth = line.isArea ? 1 : 1.5;
    context.setLineDash(line.dash);
    context.beginPath();
    trail(high);
    context.stroke();
    context.setLineDash([]);
  }

  drawFragmentation(context, place, shown, width) {
    const { low: area, left, inner } = place;
    const stacks = shown.filter((line) => line.isStack);
    const drawn = stacks.map((line) => this.columns(line.run, line.run.fragmentation, this.from, this.to, width));
    const highest = Math.max(100, ...drawn.map(({ high }) => high.reduce((one, other) => Math.max(one, other), 0)));
    const most = [100, 200, 500, 1000, 2000, 5000, 10000].find((limit) => limit >= highest) ?? 10000;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const scale = makeScale(area, 0, most);
    for (const value of [0, most / 2, most]) {
      this.rule(context, left, scale.y(value), left + inner, scale.y(value));
      context.fillText(`${value / 100} %`, left - 8, scale.y(value));
    }
    context.textAlign = "left";
    context.textBaseline = "bottom";
    context.fillText("fragmentation, 1 − live ÷ reserved", left, area.top - 4);
    stacks.forEach((line, index) => this.drawLine(context, place, scale, line, drawn[index]));
  }

  drawRefusals(context, place, width) {
    context.fillStyle = colour("warn");
    for (const run of this.trace.runs.filter((one) => one.refused.some((refused) => refused > 0))) {
      const marks = this.columns(run, { low: run.refused, high: run.refused }, this.from, this.to, width).high;
      marks.forEach((refused, x) => {
        if (refused === 0) return;
        context.beginPath();
        context.moveTo(place.left + x - 3.5, 2);
        context.lineTo(place.left + x + 4.5, 2);
        context.lineTo(place.left + x + 0.5, 9);
        context.fill();
      });
    }
  }

  drawPeak(context, place) {
    const { operation, live } = this.trace.runs[0].map;
    if (operation < this.from || operation > this.to) return;
    const x = this.x(place, operation);
    const text = `peak ${bytes(live)}`;
    context.strokeStyle = context.fillStyle = colour("ink");
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(x, place.main.top);
    context.lineTo(x, place.main.top + place.main.height);
    context.stroke();
    context.setLineDash([]);
    const isLeft = x + 8 + context.measureText(text).width > place.left + place.inner;
    context.textAlign = isLeft ? "right" : "left";
    context.textBaseline = "bottom";
    context.fillText(text, x + (isLeft ? -6 : 6), place.main.top + place.main.height - 6);
  }

  /** All operations, small, with the part that is shown above. */
  drawStrip(context, place, width) {
    const { strip, left, inner } = place;
    const [line] = this.lines;
    const all = this.columns(line.run, line.run.live, 0, this.operations, width);
    const most = all.high.reduce((one, other) => Math.max(one, other), 1);
    this.drawLine(context, place, makeScale(strip, 0, most), line, all);
    const at = (operation) => left + (operation / this.operations) * inner;
    const [from, to] = this.brush ?? [this.from, this.to];
    context.fillStyle = colour("paper");
    context.globalAlpha = 0.72;
    context.fillRect(left, strip.top, at(from) - left, strip.height);
    context.fillRect(at(to), strip.top, left + inner - at(to), strip.height);
    context.globalAlpha = 1;
    context.strokeStyle = colour("soft");
    context.lineWidth = 1;
    context.strokeRect(at(from), strip.top - 0.5, Math.max(at(to) - at(from), 2), strip.height + 1);
  }

  drawCursor(context, place) {
    if (this.brush) {
      const [from, to] = this.brush.map((operation) => this.x(place, operation));
      context.fillStyle = colour("accent");
      context.globalAlpha = 0.15;
      context.fillRect(from, place.main.top, to - from, place.low.top + place.low.height - place.main.top);
      context.globalAlpha = 1;
    }
    if (this.cursor === null || this.cursor < this.from || this.cursor > this.to) return;
    const x = this.x(place, this.cursor);
    context.strokeStyle = colour("soft");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, place.main.top);
    context.lineTo(x, place.low.top + place.low.height);
    context.stroke();
  }

  /** Shows the values under the cursor; announces them if it was moved by the keyboard. */
  showValues(isAnnounced) {
    if (this.cursor === null) {
      this.tip.hidden = true;
      return;
    }
    const place = this.layout();
    const step = (this.to - this.from) / Math.max(Math.floor(place.inner), 1);
    const pairs = [];
    let [first, last] = [Infinity, 0];
    const pick = (run, spans) => {
      const from = clamp(0, Math.floor(this.cursor / run.per_point), run.points - 1);
      const to = clamp(from, Math.ceil((this.cursor + step) / run.per_point) - 1, run.points - 1);
      [first, last] = [Math.min(first, from * run.per_point), Math.max(last, Math.min((to + 1) * run.per_point, run.operations) - 1)];
      const part = (values) => values.subarray(from, to + 1);
      return [Math.min(...part(spans.low)), Math.max(...part(spans.high))];
    };
    const sum = (run, values) => {
      const [from, to] = [Math.floor(first / run.per_point), Math.floor(last / run.per_point)];
      return values.subarray(from, to + 1).reduce((one, other) => one + other, 0);
    };
    for (const line of this.lines.filter((one) => one.isShown)) {
      pairs.push([line.name, span(...pick(line.run, line.run[line.key]), bytes)]);
      if (!line.isStack) continue;
      pairs.push(["— fragmentation", span(...pick(line.run, line.run.fragmentation), percent)]);
      pairs.push(["— driver calls", count(sum(line.run, line.run.calls))]);
      const refused = sum(line.run, line.run.refused);
      if (refused > 0) pairs.push(["— refused", count(refused)]);
    }
    if (pairs.length === 0) return;
    const title = first === last ? `operation ${count(first)}` : `operations ${count(first)} – ${count(last)}`;
    fillTip(this.tip, title, pairs);
    placeTip(this.tip, this.x(place, this.cursor), place.main.top + 12, place.width, place.height);
    if (isAnnounced) this.said.textContent = [title, ...pairs.map((pair) => pair.join(" "))].join(", ");
  }
}
