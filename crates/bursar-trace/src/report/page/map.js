// Draws the address space at the peak: rows of addresses, one below the other, with long empty ranges cut out.

const KINDS = 8;
const ROW = { height: 13, gap: 3, label: 128 };

/** Ways to colour the blocks: a class for each block, and a name and a colour for each class. */
function colourings(map) {
  const named = (names, of, prefix) => ({
    of: (block) => Math.min(of[block], KINDS),
    classes: [
      ...names.slice(0, KINDS).map((name, place) => ({ name: prefix + name, colour: `kind-${place}` })),
      ...(names.length > KINDS ? [{ name: `${count(names.length - KINDS)} others`, colour: "kind-rest" }] : []),
    ],
  });
  const stepped = (steps, value, name) => ({
    of: (block) => steps.findIndex((limit) => value(block) < limit),
    classes: steps.map((limit, place) => ({ name: name(steps[place - 1] ?? 0, limit), colour: `ramp-${place}` })),
  });
  const age = (block) => map.operation - map.born[block];
  const between = (shown, unit) => (low, high) =>
    low === 0 ? `under ${shown(high)}${unit}` : high === Infinity ? `${shown(low)}${unit} and more` : `${shown(low)} – ${shown(high)}${unit}`;
  const all = {};
  if (map.tags.length > 1 || map.tags[0] !== "untagged") all.tag = named(map.tags, map.tag, "");
  if (map.streams.length > 1) all.stream = named(map.streams, map.stream, "stream ");
  all.age = stepped([10, 100, 1000, 1e4, 1e5, Infinity], age, between(count, " operations"));
  all.size = stepped([2 ** 16, 2 ** 20, 2 ** 23, 2 ** 26, 2 ** 28, Infinity], (block) => map.asked[block], between(bytes, ""));
  return all;
}

/** The parts of the address space, in order: blocks and the gaps between them, each with its position in the drawing. */
class Stretch {
  constructor(map) {
    this.map = map;
    const gaps = [];
    let end = map.address[0] ?? 0;
    for (let block = 0; block < map.blocks; block += 1) {
      if (map.address[block] > end) gaps.push({ before: block, from: end, bytes: map.address[block] - end });
      end = Math.max(end, map.address[block] + map.granted[block]);
    }
    this.limit = this.cutFrom(gaps);
    this.cuts = gaps.filter((gap) => gap.bytes > this.limit && !this.isHeld(gap));
    this.cutBytes = this.cuts.reduce((sum, gap) => sum + gap.bytes, 0);
    const blockBytes = map.granted.reduce((sum, granted) => sum + granted, 0);
    const gapBytes = gaps.reduce((sum, gap) => sum + gap.bytes, 0) - this.cutBytes;
    this.cutWidth = Math.min((blockBytes + gapBytes) / 1200, (0.2 * (blockBytes + gapBytes)) / Math.max(this.cuts.length, 1));
    this.parts = this.place(gaps);
  }

  /** The longest gap that is drawn to scale: all drawn gaps together take a third of the room of the blocks. */
  cutFrom(gaps) {
    const lengths = gaps.map((gap) => gap.bytes).sort((one, other) => one - other);
    let [sum, limit] = [0, 2 ** 16];
    for (const length of lengths) {
      sum += length;
      if (sum > this.map.live / 3) break;
      limit = Math.max(limit, length);
    }
    return limit;
  }

  /** Returns whether all of a gap has memory behind it, as far as that is known. */
  isHeld({ from, bytes: length }) {
    const { map } = this;
    if (!map.is_known) return false;
    let [low, high] = [0, map.ranges];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (map.from[middle] <= from) low = middle + 1;
      else high = middle;
    }
    return low > 0 && map.from[low - 1] + map.bytes[low - 1] >= from + length;
  }

  place(gaps) {
    const { map } = this;
    const parts = [];
    let [at, gap] = [0, 0];
    for (let block = 0; block < map.blocks; block += 1) {
      if (gaps[gap]?.before === block) {
        const { from, bytes: length } = gaps[gap];
        const isCut = length > this.limit && !this.isHeld(gaps[gap]);
        const kind = isCut ? "cut" : this.isHeld(gaps[gap]) ? "held" : "gap";
        const width = isCut ? this.cutWidth : length;
        parts.push({ kind, start: at, width, from, bytes: length });
        at += width;
        gap += 1;
      }
      parts.push({ kind: "block", start: at, width: map.granted[block], from: map.address[block], bytes: map.granted[block], block });
      at += map.granted[block];
    }
    this.width = at;
    return parts;
  }

  /** Returns the part at a position of the drawing. */
  at(place) {
    let [low, high] = [0, this.parts.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.parts[middle].start <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

class MapView {
  constructor(run, group) {
    [this.run, this.group] = [run, group];
    this.stretch = new Stretch(run.map);
    this.colourings = colourings(run.map);
    this.chosen = null;
    const { map } = run;
    const label = `Addresses of ${count(map.blocks)} blocks at the peak in ${run.stack}; the arrow keys go from one to the next`;
    this.canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": label });
    this.tip = make("div", { class: "tip", hidden: "" });
    this.said = make("div", { class: "skip", "aria-live": "polite" });
    this.plot = make("div", { class: "plot" }, this.canvas, this.tip);
    const held = `${count(map.blocks + map.left_out[0])} blocks, ${bytes(map.live)} live, ${bytes(map.reserved)} reserved`;
    this.element = make("div", {}, make("h4", {}, run.stack, " ", make("span", {}, held)), this.plot, this.said, make("p", { class: "note" }, this.notes()));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.choose(null));
    this.canvas.addEventListener("blur", () => this.choose(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  notes() {
    const { map } = this.run;
    const { cuts, cutBytes, limit } = this.stretch;
    const notes = [];
    if (cuts.length > 0) {
      const many = cuts.length === 1 ? "One empty stretch" : `${count(cuts.length)} empty stretches`;
      notes.push(`${many} of more than ${bytes(limit)}, ${bytes(cutBytes)} of addresses in all, ${cuts.length === 1 ? "is" : "are"} cut out: two strokes stand there.`);
    }
    notes.push(map.is_known ? "Grey is held and free; hatched has no memory behind it." : "The stack does not tell what is behind the addresses between its blocks: they are hatched.");
    if (map.left_out[0] > 0) notes.push(`The ${count(map.left_out[0])} smallest blocks (${bytes(map.left_out[1])}) are left out.`);
    return notes.join(" ");
  }

  layout() {
    const width = Math.max(this.plot.clientWidth, 200);
    const left = width < 560 ? 8 : ROW.label;
    const rows = width < 560 ? 30 : clamp(12, Math.round(26000 / width), 32);
    const unit = 2 ** Math.max(0, Math.floor(Math.log2(Math.max(this.group.width / rows, 1))) - 3);
    const perRow = Math.ceil(this.group.width / rows / unit) * unit;
    const used = Math.max(1, Math.ceil(this.stretch.width / perRow - 1e-9));
    return { width, left, inner: width - left - 8, perRow, used, height: used * (ROW.height + ROW.gap) + 14 };
  }

  /** Calls `paint(x, y, width)` for each row that a part is drawn in. */
  eachPiece(place, part, paint) {
    const { perRow, inner, left } = place;
    const end = part.start + part.width;
    for (let row = Math.floor(part.start / perRow); row * perRow < end && row < place.used; row += 1) {
      const from = Math.max(part.start - row * perRow, 0);
      const to = Math.min(end - row * perRow, perRow);
      if (to > from) paint(left + (from / perRow) * inner, 8 + row * (ROW.height + ROW.gap), ((to - from) / perRow) * inner);
    }
  }

  draw() {
    const place = this.layout();
    const context = prepare(this.canvas, place.width, place.height);
    const colouring = this.colourings[this.group.colouring] ?? this.colourings.age;
    const colours = colouring.classes.map((one) => colour(one.colour));
    const { hatch, held, line } = { hatch: hatching(context), held: colour("held"), line: colour("soft") };
    for (const part of this.stretch.parts) {
      if (part.kind === "block") {
        const kind = colouring.of(part.block);
        context.globalAlpha = this.group.only === null || this.group.only === kind ? 1 : 0.12;
        context.fillStyle = colours[kind];
        this.eachPiece(place, part, (x, y, width) => context.fillRect(x, y, width > 3 ? width - 0.75 : width, ROW.height));
        context.globalAlpha = 1;
      } else if (part.kind === "cut") {
        this.eachPiece(place, part, (x, y, width) => notch(context, x + width / 2, y, line));
      } else {
        context.fillStyle = part.kind === "held" ? held : hatch;
        this.eachPiece(place, part, (x, y, width) => context.fillRect(x, y, width, ROW.height));
      }
    }
    this.drawLabels(context, place);
    if (this.chosen !== null) {
      context.strokeStyle = colour("ink");
      context.lineWidth = 2;
      this.eachPiece(place, this.stretch.parts[this.chosen], (x, y, width) => context.strokeRect(x - 1, y - 1, Math.max(width, 2) + 1, ROW.height + 2));
    }
  }

  drawLabels(context, place) {
    if (place.left < ROW.label || this.stretch.parts.length === 0) return;
    context.fillStyle = colour("soft");
    context.font = `11px ${colour("mono")}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let row = 0; row < place.used; row += 2) {
      const part = this.stretch.parts[this.stretch.at(row * place.perRow)];
      const into = part.kind === "cut" ? 0 : row * place.perRow - part.start;
      const text = `0x${Math.round(part.from + into).toString(16)}`;
      context.fillText(text, place.left - 8, 8 + row * (ROW.height + ROW.gap) + ROW.height / 2 + 1);
    }
  }

  point(event) {
    const place = this.layout();
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - 8 + ROW.gap / 2) / (ROW.height + ROW.gap));
    const share = (event.clientX - box.left - place.left) / place.inner;
    const at = (row + share) * place.perRow;
    const isInside = row >= 0 && row < place.used && share >= 0 && share <= 1 && at < this.stretch.width;
    this.choose(isInside ? this.stretch.at(at) : null, false);
    placeTip(this.tip, event.clientX - box.left, event.clientY - box.top, place.width, place.height + this.tip.offsetHeight);
  }

  choose(index, isAnnounced) {
    this.chosen = index;
    this.draw();
    if (index === null) {
      this.tip.hidden = true;
      return;
    }
    const [title, pairs] = this.describe(this.stretch.parts[index]);
    fillTip(this.tip, title, pairs);
    if (isAnnounced) this.said.textContent = [title, ...pairs.map((pair) => pair.join(" "))].join(", ");
  }

  describe(part) {
    const { map } = this.run;
    const address = ["from", `0x${part.from.toString(16)}`];
    if (part.kind === "cut") return [`${bytes(part.bytes)} of addresses, cut out`, [address]];
    if (part.kind === "held") return [`${bytes(part.bytes)} held and free`, [address]];
    if (part.kind === "gap") return [`${bytes(part.bytes)} ${map.is_known ? "partly without memory behind it" : "between blocks"}`, [address]];
    const { block } = part;
    return [`${bytes(map.asked[block])} ${map.tags[map.tag[block]]}`, [
      address,
      ["granted", bytes(map.granted[block])],
      ["stream", map.streams[map.stream[block]]],
      ["allocated by operation", count(map.born[block])],
      ["age at the peak", counted(map.operation - map.born[block], "operation")],
    ]];
  }

  key(event) {
    const { parts } = this.stretch;
    const current = this.chosen ?? 0;
    const far = event.shiftKey ? 20 : 1;
    const targets = { ArrowRight: current + far, ArrowDown: current + far, ArrowLeft: current - far, ArrowUp: current - far, Home: 0, End: parts.length - 1 };
    if (parts.length === 0 || !(event.key in targets) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.choose(this.chosen === null ? 0 : clamp(0, targets[event.key], parts.length - 1), true);
    const place = this.layout();
    this.eachPiece(place, parts[this.chosen], (x, y) => placeTip(this.tip, x, y + ROW.height, place.width, place.height + this.tip.offsetHeight));
  }
}

function hatching(context) {
  const tile = make("canvas", { width: "6", height: "6" });
  const brush = tile.getContext("2d");
  brush.strokeStyle = colour("hatch");
  brush.lineWidth = 1;
  for (const shift of [-6, 0, 6]) {
    brush.moveTo(shift, 6);
    brush.lineTo(shift + 6, 0);
  }
  brush.stroke();
  return context.createPattern(tile, "repeat");
}

function notch(context, x, y, line) {
  context.strokeStyle = line;
  context.lineWidth = 1.5;
  context.beginPath();
  for (const shift of [-2, 2]) {
    context.moveTo(x + shift - 2, y + ROW.height + 1);
    context.lineTo(x + shift + 2, y - 1);
  }
  context.stroke();
}

/** The maps of a trace, all stacks to the same scale. */
class Maps {
  constructor(host, trace) {
    [this.only, this.width] = [null, 1];
    this.views = trace.runs.map((run) => new MapView(run, this));
    this.width = Math.max(1, ...this.views.map((view) => view.stretch.width));
    const ways = Object.keys(this.views[0].colourings);
    this.colouring = ways[0];
    const choice = make("select", {}, ...ways.map((way) => make("option", { value: way }, way)));
    choice.addEventListener("change", () => {
      [this.colouring, this.only] = [choice.value, null];
      this.show();
    });
    this.legend = make("ul", { class: "legend", "aria-label": "Colours; press one to see its blocks alone" });
    const bar = make("div", { class: "bar" }, make("label", { class: "range" }, "Colour by ", choice), this.legend);
    host.replaceChildren(bar, make("div", { class: "grid" }, ...this.views.map((view) => view.element)));
    this.show();
  }

  show() {
    const { classes } = this.views[0].colourings[this.colouring];
    this.legend.replaceChildren(...classes.map((one, place) => {
      const swatch = make("span", { class: "swatch", style: `background:var(--${one.colour})` });
      const button = make("button", { type: "button", "aria-pressed": String(this.only === null || this.only === place) }, swatch, one.name);
      button.addEventListener("click", () => {
        this.only = this.only === place ? null : place;
        this.show();
        this.legend.children[place].firstChild.focus();
      });
      return make("li", {}, button);
    }));
    this.views.forEach((view) => view.draw());
  }
}
