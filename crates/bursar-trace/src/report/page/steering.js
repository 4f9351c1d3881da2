// Moves a timeline by wheel, pointer, keys, and the fragment of the page's address.

class Steering {
  constructor(timeline) {
    this.timeline = timeline;
    const canvas = timeline.canvas;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => this.leave());
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", () => timeline.show(0, timeline.operations));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.leave());
  }

  /** The operation under a pointer, in the main drawing or in the strip. */
  under(event) {
    const place = this.timeline.layout();
    const box = this.timeline.canvas.getBoundingClientRect();
    const share = clamp(0, (event.clientX - box.left - place.left) / place.inner, 1);
    const { from, to, operations } = this.timeline;
    const isStrip = event.clientY - box.top > place.strip.top - 6;
    return { isStrip, pixel: event.clientX, operation: isStrip ? share * operations : from + share * (to - from) };
  }

  /** Zooms; where there is nothing left to zoom out of, the page scrolls as it would anywhere. */
  wheel(event) {
    const { timeline } = this;
    const { from, to, operations } = timeline;
    const sideways = event.shiftKey ? event.deltaY : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
      if (to - from >= operations) return;
      event.preventDefault();
      const by = (sideways / timeline.layout().inner) * (to - from);
      timeline.show(from + by, to + by);
      return;
    }
    if (event.deltaY > 0 && to - from >= operations) return;
    event.preventDefault();
    const lines = event.deltaMode === 1 ? event.deltaY * 30 : event.deltaY;
    timeline.zoom(2 ** (clamp(-300, lines, 300) / 150), this.under(event).operation);
    this.move(event);
  }

  press(event) {
    if (event.button !== 0) return;
    const at = this.under(event);
    this.pressed = at;
    this.timeline.canvas.setPointerCapture(event.pointerId);
    if (at.isStrip) this.centre(at.operation);
  }

  centre(operation) {
    const half = (this.timeline.to - this.timeline.from) / 2;
    this.timeline.show(operation - half, operation + half);
  }

  move(event) {
    const { timeline, pressed } = this;
    const at = this.under(event);
    if (pressed?.isStrip) {
      this.centre(at.operation);
    } else if (pressed) {
      const isDrag = Math.abs(at.pixel - pressed.pixel) > 4;
      timeline.brush = isDrag ? [pressed.operation, at.operation].sort((one, other) => one - other) : null;
      timeline.draw();
    } else {
      timeline.cursor = at.isStrip ? null : at.operation;
      timeline.draw();
      timeline.showValues(false);
    }
  }

  release() {
    const { timeline } = this;
    const brush = timeline.brush;
    [this.pressed, timeline.brush] = [null, null];
    if (brush) timeline.show(...brush);
  }

  leave() {
    const { timeline } = this;
    if (this.pressed) return;
    timeline.cursor = timeline.brush = null;
    timeline.showValues(false);
    timeline.draw();
  }

  key(event) {
    const { timeline } = this;
    const width = timeline.to - timeline.from;
    const pixel = width / timeline.layout().inner;
    const step = event.shiftKey ? width / 10 : Math.max(pixel, 1);
    const acts = {
      ArrowLeft: () => this.put(-step),
      ArrowRight: () => this.put(step),
      PageUp: () => timeline.show(timeline.from - width / 2, timeline.to - width / 2),
      PageDown: () => timeline.show(timeline.from + width / 2, timeline.to + width / 2),
      Home: () => timeline.show(0, width),
      End: () => timeline.show(timeline.operations - width, timeline.operations),
      "+": () => timeline.zoom(0.5),
      "=": () => timeline.zoom(0.5),
      "-": () => timeline.zoom(2),
      p: () => timeline.toPeak(),
      P: () => timeline.toPeak(),
      0: () => timeline.show(0, timeline.operations),
      Escape: () => timeline.show(0, timeline.operations),
    };
    const act = acts[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  /** Moves the read-out, and the drawing along with it. */
  put(by) {
    const { timeline } = this;
    const at = timeline.cursor === null ? (timeline.from + timeline.to) / 2 : timeline.cursor + by;
    timeline.cursor = clamp(0, at, timeline.operations - 1);
    const out = Math.min(timeline.cursor - timeline.from, 0) + Math.max(timeline.cursor + 1 - timeline.to, 0);
    if (out !== 0) timeline.show(timeline.from + out, timeline.to + out);
    timeline.draw();
    timeline.showValues(true);
  }

  /** Stores the range that is shown in the page's address, so that a link to it can be shared. */
  remember() {
    const { from, to, operations, number } = this.timeline;
    const part = to - from < operations ? `:${Math.floor(from)}-${Math.ceil(to)}` : "";
    clearTimeout(this.timer);
    this.timer = setTimeout(() => history.replaceState(null, "", `#trace-${number}${part}`), 200);
  }
}

/** Shows the range in the page's address: `#trace-0:1200-3400`. */
function follow(timelines) {
  const asked = /^#trace-(\d+):(\d+)-(\d+)$/.exec(location.hash);
  const timeline = asked && timelines[Number(asked[1])];
  if (!timeline) return;
  timeline.show(Number(asked[2]), Number(asked[3]));
  document.getElementById(`trace-${asked[1]}`).scrollIntoView();
}
