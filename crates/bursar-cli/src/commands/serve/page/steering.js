// Moves the chart by wheel, pointer and keys.

class Steering {
  constructor(chart) {
    this.chart = chart;
    const on = (kind, act, options) => chart.canvas.addEventListener(kind, act, options);
    on("wheel", (event) => this.wheel(event), { passive: false });
    on("pointerdown", (event) => this.press(event));
    on("pointermove", (event) => this.move(event));
    on("pointerup", () => this.release());
    on("pointercancel", () => this.leave(true));
    on("pointerleave", () => this.leave(false));
    on("blur", () => this.leave(false));
    on("dblclick", () => chart.look(null));
    on("keydown", (event) => this.key(event));
  }

  /** The moment under a pointer. */
  under(event) {
    const [from, to] = this.chart.range();
    const box = this.chart.canvas.getBoundingClientRect();
    return from + clamp(0, (event.clientX - box.left - MARGIN.left) / this.chart.place().inner, 1) * (to - from);
  }

  wheel(event) {
    const [from, to] = this.chart.range();
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    event.preventDefault();
    if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
      const by = (sideways / this.chart.place().inner) * (to - from);
      return this.chart.look([from + by, to + by]);
    }
    const lines = event.deltaMode === 1 ? event.deltaY * 30 : event.deltaY;
    this.chart.zoom(2 ** (clamp(-300, lines, 300) / 150), this.under(event));
  }

  press(event) {
    if (event.button !== 0) return;
    this.pressed = { at: this.under(event), pixel: event.clientX };
    if (event.pointerType !== "touch") this.chart.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    const at = this.under(event);
    const isDrag = this.pressed && Math.abs(event.clientX - this.pressed.pixel) > 4;
    this.chart.brush = isDrag ? [this.pressed.at, at].sort((one, other) => one - other) : null;
    this.chart.cursor = at;
    this.chart.draw();
    this.chart.showTip();
  }

  release() {
    const { brush } = this.chart;
    [this.pressed, this.chart.brush] = [null, null];
    if (brush) this.chart.look(brush);
  }

  leave(isCancelled) {
    if (this.pressed && !isCancelled) return;
    [this.pressed, this.chart.brush, this.chart.cursor] = [null, null, null];
    this.chart.showTip();
    this.chart.draw();
  }

  key(event) {
    const { chart } = this;
    const [from, to] = chart.range();
    const width = to - from;
    const step = event.shiftKey ? width / 10 : Math.max(1000, width / chart.place().inner);
    const acts = {
      ArrowLeft: () => this.put(-step),
      ArrowRight: () => this.put(step),
      PageUp: () => chart.look([from - width / 2, to - width / 2]),
      PageDown: () => chart.look([from + width / 2, to + width / 2]),
      "+": () => chart.zoom(0.5),
      "=": () => chart.zoom(0.5),
      "-": () => chart.zoom(2),
      0: () => chart.look(null),
      Escape: () => chart.look(null),
    };
    const act = acts[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  /** Moves the read-out, and the chart along with it. */
  put(by) {
    const { chart } = this;
    const [from, to] = chart.range();
    const latest = chart.series?.at_ms.findLast((time) => time <= to) ?? to;
    chart.cursor = Math.min(chart.cursor === null ? Math.max(from, latest) : chart.cursor + by, chart.now ?? to);
    const out = Math.min(chart.cursor - from, 0) + Math.max(chart.cursor - to, 0);
    if (out !== 0) chart.look([from + out, to + out]);
    chart.draw();
    chart.showTip();
  }
}
