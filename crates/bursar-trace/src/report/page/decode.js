// The data that the page carries: deflated columns of varints.

/** Reads columns in the order in which they were packed. */
class Columns {
  static async of(text) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Columns(new Uint8Array(await new Response(stream).arrayBuffer()));
  }

  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  number() {
    let [value, unit, byte] = [0, 1, 0];
    do {
      byte = this.bytes[this.at++];
      value += (byte & 0x7f) * unit;
      unit *= 128;
    } while (byte >= 0x80);
    return value;
  }

  column(length) {
    return Float64Array.from({ length }, () => this.number());
  }

  /** A column of differences between neighbours; odd ones are negative. */
  differences(length) {
    let value = 0;
    return Float64Array.from({ length }, () => {
      const folded = this.number();
      value += folded % 2 ? -(folded + 1) / 2 : folded / 2;
      return value;
    });
  }

  /** The lowest of each point, and how much higher the highest is. */
  spans(length) {
    const low = this.differences(length);
    const more = this.column(length);
    return { low, high: low.map((value, index) => value + more[index]) };
  }
}

async function decodeRun(run) {
  const series = await Columns.of(run.packed);
  run.live = series.spans(run.points);
  run.reserved = series.spans(run.points);
  run.fragmentation = series.spans(run.points);
  run.refused = series.column(run.points);
  run.calls = series.column(run.points);
  await decodeMap(run.map);
}

async function decodeMap(map) {
  const columns = await Columns.of(map.packed);
  const length = map.blocks;
  map.address = columns.differences(length);
  map.granted = columns.column(length);
  map.asked = columns.column(length);
  map.tag = columns.column(length);
  map.stream = columns.column(length);
  map.born = columns.column(length);
  map.from = columns.differences(map.ranges);
  map.bytes = columns.column(map.ranges);
}

const sameSpans = (one, other) =>
  one.low.length === other.low.length &&
  one.low.every((value, index) => value === other.low[index] && one.high[index] === other.high[index]);
