// What the page is about: sites, their stacks, and what they had at each moment. Nothing here draws.
//
// The tables are those of `data.rs`; numbers refer to rows, and row 0 of texts, modules and nodes is "none".

/** What a site has at a moment, by its place in a row. Standard errors of blocks are in tenths. */
const COLUMN = {
  outstanding: { bytes: 0, blocks: 1, bytesError: 6, blocksError: 7 },
  allocated: { bytes: 2, blocks: 3, bytesError: 8, blocksError: 9 },
  young: { bytes: 4, blocks: 5 },
};
const EXACT_COLUMNS = 6;
const ALL_COLUMNS = 10;

/** How a frame was found, by number. */
const FOUND_BY = ["probe", "cfi", "fp", "kernel", "fp_generated", "python", "fp_uncertain"];

/** Replays of moments that are kept. */
const MAX_REPLAYED = 6;

/** The rows of a table, with their fields by name. */
function rowsOf({ columns, rows }) {
  return rows.map((row) => Object.fromEntries(columns.map((column, at) => [column, row[at]])));
}

class Trace {
  constructor(data) {
    this.data = data;
    this.health = data.health;
    this.width = data.are_estimates ? ALL_COLUMNS : EXACT_COLUMNS;
    this.processes = data.processes;
    this.ends = data.ends;
    this.modules = data.modules.map(([path, buildId]) => ({
      path: data.strings[path],
      name: path === 0 ? "" : basename(data.strings[path]),
      buildId,
    }));
    this.sites = rowsOf(data.sites).map((row, index) => this.#site(row, index));
    // Moment 0 is the attach: nothing was known then.
    const all = new Array(EXACT_COLUMNS).fill(0);
    const attach = { time: "", read_at_ms: 0, elapsed_ns: 0, marked: false, all, rows: [], memory: [] };
    this.moments = [attach, ...data.snapshots];
    /** By site: how many frames were left out of its stack, after which of its frames, and what to call them. */
    this.leftOut = new Map(
      data.left_out.map(([site, [after, frames]]) => [site, { after, frames, name: `[${counted(frames, "frame")} left out]` }]),
    );
    this.ages = new Map(data.ages);
    /** By site: score, bytes per second, and certainty, steadiness, kept and age spread in per cent. */
    this.suspicions = new Map(data.suspicions);
    /** By site: bytes and blocks that are definitely lost, indirectly lost, reachable and unknown, in the last report. */
    this.verdicts = new Map(data.verdicts);
    /** By site: bytes and blocks at the peak of the last report. */
    this.peaks = new Map(data.peaks);
    /** By site: bytes that its blocks pin, and how many of them pin any, in the last report. */
    this.pins = new Map(data.pins ?? []);
    /** By site: lines about who holds its blocks, and their classes, in the last report. */
    this.held = new Map(data.held);
    /** Chains that hold blocks of sites, in the last report. */
    this.holders = rowsOf(data.holders);
    /** Lines of source around places, by file and line. */
    this.sources = new Map(
      data.sources.map(([file, line, first, isNewer, lines]) => [`${file}:${line}`, { line, first, isNewer, lines }]),
    );
    const alone = this.sites.filter(({ merged }) => merged === 0);
    this.hasSeveralProcesses = new Set(alone.map(({ process }) => process)).size > 1;
    this.#nameFrames();
    this.#replayed = new Map();
  }

  #replayed;

  /** The last moment. */
  get last() {
    return this.moments.length - 1;
  }

  #site(row, index) {
    const { strings, kinds } = this.data;
    return {
      index,
      process: row.process,
      allocator: strings[row.allocator],
      kind: row.kind < 0 ? null : kinds[row.kind],
      end: row.end,
      endModule: row.end_module,
      endAddress: row.end_address,
      node: row.node,
      isSuspect: row.is_suspect,
      merged: row.merged,
      lost: { bytes: row.lost[0], blocks: row.lost[1] },
      suppressedBy: strings[row.rule],
      owner: { frame: row.owner[0], level: row.owner[1] },
    };
  }

  /**
   * Boxes are what flame graphs are made of: functions by name and module, so that all places in one are one.
   * Each frame has one for its function and one for each function inlined there, outermost first.
   */
  #nameFrames() {
    const { strings, exact } = this.data;
    this.exactNames = new Map();
    for (const [short, whole] of exact) {
      const known = this.exactNames.get(strings[short]);
      this.exactNames.set(strings[short], known ? `${known}\n${strings[whole]}` : strings[whole]);
    }
    this.boxes = [];
    this.boxNumbers = new Map();
    this.frames = rowsOf(this.data.frames).map((row) => {
      const { module, address, found_by: foundBy, offset, file, line, inlined } = row;
      const name = strings[row.function];
      const levels = [{ box: this.#function(name, module, false), file: strings[file], line }];
      for (const [function_, inlinedFile, inlinedLine] of [...inlined].reverse()) {
        levels.push({
          box: this.#function(strings[function_], module, true),
          file: strings[inlinedFile],
          line: inlinedLine,
        });
      }
      for (const { box, file: from } of levels) if (from) this.boxes[box].files.add(from);
      return { module, address, foundBy, name, offset, levels };
    });
  }

  #function(name, module, isInlined) {
    const nameless = module === 0 ? "[unknown]" : `[${this.modules[module].name}]`;
    return this.box(name || nameless, module, isInlined ? "inlined" : "function");
  }

  /** The number of a box. */
  box(name, module, kind) {
    const key = `${kind}\n${module}\n${name}`;
    let number = this.boxNumbers.get(key);
    if (number === undefined) {
      number = this.boxes.length;
      this.boxes.push({ name, module, kind, files: new Set() });
      this.boxNumbers.set(key, number);
    }
    return number;
  }

  /** Frames of a site, innermost first. */
  framesOf(site) {
    const frames = [];
    for (let node = site.node; node !== 0; node = this.data.callers[node]) {
      frames.push(this.frames[this.data.node_frames[node]]);
    }
    return frames;
  }

  /** The whole of a function's name, or of those that are the same in short; null if there is no more to it. */
  exactName(name) {
    return this.exactNames.get(name) ?? null;
  }

  /** The function that a site's memory is for: its name, module, file and line, and its frame from the innermost on. */
  ownerOf(site) {
    const frame = this.framesOf(site)[site.owner.frame];
    if (!frame) return { name: this.endMarker(site), module: 0, file: "", line: 0, at: 0 };
    // Levels are outermost first; the number of an inlined function is from the innermost on.
    const inlined = site.owner.level > 0 ? frame.levels.at(-site.owner.level) : null;
    const { box, file, line } = inlined ?? frame.levels[0];
    const name = inlined || frame.name ? this.boxes[box].name : this.frameName(frame);
    return { name, module: frame.module, file, line, at: site.owner.frame };
  }

  /** What a frame is called where it stands alone. */
  frameName({ name, offset, module, address }) {
    if (name) return offset === null ? name : `${name}+0x${offset.toString(16)}`;
    return module === 0 ? "[unknown]" : `${this.modules[module].name}+0x${address}`;
  }

  /** What the end of a site's stack means, and what can be done about it. */
  explain(site) {
    const { name, meaning, advice } = this.ends[site.end];
    const depth = this.framesOf(site).length + (this.leftOut.get(site.index)?.frames ?? 0);
    const isCut = name === "depth_limit" && depth === this.data.depth;
    if (!isCut) return { meaning, advice };
    return { meaning: "cut by --perf-max-stack-depth", advice: "" };
  }

  /** Why a stack is not complete, in a few words. */
  endMarker({ end, endModule }) {
    const cause = this.ends[end].name;
    return endModule === 0 ? `[${cause}]` : `[${cause} in ${this.modules[endModule].name}]`;
  }

  /** How a process is called. */
  processName(number) {
    const process = this.processes[number];
    if (!process || process.pid === null) return "several processes";
    if (this.data.kernel !== null) return "kernel";
    const ended = { exited: ", exited", exec: ", replaced by exec", left: ", no longer traced", out_of_memory: ", killed for lack of memory" }[process.ended] ?? "";
    return `${process.comm} (${process.pid}${ended})`;
  }

  /** What all sites had at a moment: rows of `width` numbers. */
  at(moment) {
    const known = this.#replayed.get(moment);
    if (known) return known;
    const columns = new Float64Array(this.sites.length * this.width);
    for (const { rows } of this.moments.slice(0, moment + 1)) {
      let site = 0;
      for (let at = 0; at < rows.length; at += this.width + 1) {
        site += rows[at];
        for (let column = 0; column < this.width; column += 1) {
          columns[site * this.width + column] = rows[at + 1 + column];
        }
      }
    }
    if (this.#replayed.size >= MAX_REPLAYED) this.#replayed.delete(this.#replayed.keys().next().value);
    this.#replayed.set(moment, columns);
    return columns;
  }

  /** Bytes and blocks that a site held at each moment: of one site, without a replay of all. */
  historyOf(site) {
    let held = [0, 0];
    return this.moments.map(({ rows }) => {
      for (let at = 0, other = 0; at < rows.length && other <= site.index; at += this.width + 1) {
        other += rows[at];
        if (other === site.index) held = [rows[at + 1], rows[at + 2]];
      }
      return held;
    });
  }

  /** One number of a site at a moment. */
  number(site, moment, measure, unit) {
    return this.at(moment)[site.index * this.width + COLUMN[measure][unit]];
  }

  /** The standard error of such a number; 0 where all is exact. */
  error(site, moment, measure, unit) {
    if (!this.data.are_estimates) return 0;
    const error = this.at(moment)[site.index * this.width + COLUMN[measure][`${unit}Error`]];
    return unit === "blocks" ? error / 10 : error;
  }

  /** What is shown of a site as outstanding at a moment. */
  outstanding(site, moment, unit, hideYoung) {
    const all = this.number(site, moment, "outstanding", unit);
    return hideYoung ? Math.max(0, all - this.number(site, moment, "young", unit)) : all;
  }

  /** What is definitely lost of a site, by the last report. */
  lost(site, unit) {
    return (this.verdicts.get(site.index) ?? [0, 0])[unit === "bytes" ? 0 : 1];
  }

  /** Free memory that the blocks of a site pin, or how many of them pin any, by the last report. */
  pinned(site, unit) {
    return (this.pins.get(site.index) ?? [0, 0])[unit === "bytes" ? 0 : 1];
  }

  /** What a site held at the peak, by the last report. */
  peak(site, unit) {
    return (this.peaks.get(site.index) ?? [0, 0])[unit === "bytes" ? 0 : 1];
  }

  /** Net growth between two moments. Young blocks count, as in the text report. */
  growth(site, before, after, unit) {
    return this.number(site, after, "outstanding", unit) - this.number(site, before, "outstanding", unit);
  }

  /** What each site has of what is to be shown. Growth can be negative. */
  values({ measure, unit, before, after, hideYoung }) {
    return Float64Array.from(this.sites, (site) => {
      if (measure === "growth") return this.growth(site, before, after, unit);
      if (measure === "allocated") return this.number(site, after, "allocated", unit);
      if (measure === "peak") return this.peak(site, unit);
      if (measure === "definitely-lost") return this.lost(site, unit);
      if (measure === "pinned") return this.pinned(site, unit);
      return this.outstanding(site, after, unit, hideYoung);
    });
  }

  /**
   * Variances of these, null where all is exact. Of growth it is the most that it can be: what stayed from one moment
   * to the other cancels out.
   */
  variances({ measure, unit, before, after }) {
    // Of amounts that only the last report has, the error is not known.
    const ofLast = ["definitely-lost", "peak", "pinned"];
    if (!this.data.are_estimates || ofLast.includes(measure)) return null;
    const of = (site, moment, which) => this.error(site, moment, which, unit) ** 2;
    return Float64Array.from(this.sites, (site) => {
      if (measure === "growth") return of(site, before, "outstanding") + of(site, after, "outstanding");
      return of(site, after, measure);
    });
  }

  /** How many stacks there are and how many walks made them, and how many of each are complete. */
  completeness() {
    const ends = this.health?.ends ?? [];
    const complete = ends.filter(([end]) => end === 0);
    const [stacks, walks] = [1, 2].map((column) => sumOf(ends, (row) => row[column]));
    const [completeStacks, completeWalks] = [1, 2].map((column) => sumOf(complete, (row) => row[column]));
    return { stacks, walks, complete: completeStacks, completeWalks };
  }

  /** Which sites are to be shown: 1 or 0 for each. `matches` is what a search found, if that is a filter. */
  select({ process, module, allocator, showAll }, matches) {
    const through = module > 0 ? this.#through(module) : null;
    return Uint8Array.from(this.sites, (site) => {
      if (!showAll && !site.isSuspect) return 0;
      if (process >= 0 && site.process !== process) return 0;
      if (allocator && this.allocatorOf(site) !== allocator) return 0;
      if (through && !through[site.node]) return 0;
      return !matches || matches[site.index] ? 1 : 0;
    });
  }

  /** The function that allocated, with what the mappings are for. */
  allocatorOf(site) {
    return site.kind ? `${site.allocator} (${site.kind.name})` : site.allocator;
  }

  /** By node, whether the module is in its stack. */
  #through(module) {
    const { callers, node_frames: frames } = this.data;
    const through = new Uint8Array(callers.length);
    for (let node = 1; node < callers.length; node += 1) {
      through[node] = through[callers[node]] || (this.frames[frames[node]].module === module ? 1 : 0);
    }
    return through;
  }

  /** How many modules each site comes through, by module: what all of its sites have of the values. */
  modulesBy(values) {
    const totals = new Float64Array(this.modules.length);
    const seen = new Int32Array(this.modules.length).fill(-1);
    for (const site of this.sites) {
      const value = Math.abs(values[site.index]);
      if (value === 0) continue;
      for (let node = site.node; node !== 0; node = this.data.callers[node]) {
        const { module } = this.frames[this.data.node_frames[node]];
        if (seen[module] !== site.index) totals[module] += value;
        seen[module] = site.index;
      }
    }
    return totals;
  }
}

/** What a search looks for: a text in any case, or the pattern between slashes. Null if for nothing. */
function matcher(query) {
  const text = query.trim();
  if (!text) return null;
  const pattern = /^\/(.+)\/$/.exec(text);
  if (pattern) {
    try {
      const expression = new RegExp(pattern[1], "i");
      return (candidate) => expression.test(candidate);
    } catch {
      // Half of a pattern, while it is typed, is a text.
    }
  }
  const wanted = text.toLowerCase();
  return (candidate) => candidate.toLowerCase().includes(wanted);
}
