// Where the resident memory of each process is: parts that add up to the whole.

/** Parts of the allocator, and the others as versions recorded them that did not know kinds: all in the order of the
 *  data, behind the whole and before what is not part of it; and what they mean. */
const PARTS = [
  { key: "tracked", name: "allocated during this trace" },
  {
    key: "before",
    name: "allocated before the attach, at most",
    hint: "Resident in the allocator's mappings at the attach; only the allocator could tell it from free memory",
  },
  { key: "slack", name: "free in the allocator, or its own data, at least" },
  { key: "stacks", name: "thread stacks" },
  {
    key: "files",
    name: "files",
    hint: "The program, libraries, mapped files, and what was written to private copies of them",
  },
  { key: "shared", name: "shared memory" },
  {
    key: "unexplained",
    name: "unexplained",
    hint: "Usually mapped by the program itself; --mmap traces that",
  },
];

/** Number of parts that are the allocator's. */
const OF_ALLOCATOR = 3;

/** Memory that is not resident, in the order of the data, and at last zeros in memory that is. */
const BESIDE = [
  "swapped out",
  "of page tables",
  "in pages of hugetlbfs",
  "in the kernel for its sockets",
  "in memory files without a name that it has open and not mapped",
  "of page cache in its cgroup",
  "of slab in its cgroup",
  "of socket buffers in its cgroup",
];

/** Whether a part is told by itself. */
const matters = (bytes, rss) => bytes > 0 && bytes >= Math.min(64 * 1024, rss / 1000);

class MemoryView {
  constructor(host, trace) {
    this.host = host;
    this.trace = trace;
  }

  /** Whether any moment has anything to show. */
  get hasAny() {
    return this.trace.moments.some(({ memory }) => memory.length > 0);
  }

  /** The last moment up to this one at which any memory was read; 0 if there is none. */
  #read(moment) {
    let at = Math.max(0, moment);
    while (at > 0 && this.trace.moments[at].memory.length === 0) at -= 1;
    return at;
  }

  update({ before, after, process }) {
    const { moments } = this.trace;
    const at = this.#read(after);
    const [now, earlier] = [moments[at], moments[this.#read(Math.min(before, at - 1))]];
    const rows = now.memory.filter((row) => process < 0 || row.process === process);
    if (rows.length === 0) {
      fill(this.host, element("p", { class: "empty" }, "No process was running, or its memory could not be read."));
      return;
    }
    const then = new Map(earlier.memory.map((row) => [row.process, row]));
    const compared = then.size > 0 ? `, and how it changed since ${earlier.time}` : "";
    const about = `Resident memory at ${now.time}${compared}. The parts add up to the whole.`;
    const cards = rows.map((row) => this.#process(row, then.get(row.process)));
    fill(this.host, element("p", {}, about), cards);
  }

  /** Parts of a process now, and before if that is known: by kind, or as they were recorded without kinds. */
  #parts(now, then) {
    const part = (each, at) => ({ ...each, bytes: now.parts[at + 1], before: then?.parts[at + 1] ?? 0 });
    if (now.kinds.length === 0) return PARTS.map(part);
    const [bytes, before] = [new Map(now.kinds), new Map(then?.kinds ?? [])];
    const names = now.names.map(([name, bytes], at) => [at > 0 ? ", " : null, foreign(name), ` ${size(bytes)}`]);
    const kinds = this.trace.data.memory_kinds.map((kind, number) => ({
      key: kind.part,
      name: kind.name,
      hint: kind.part === "shared" && names.length > 0 ? names : null,
      bytes: bytes.get(number) ?? 0,
      before: before.get(number) ?? 0,
    }));
    const [rss] = now.parts;
    const told = kinds.filter((kind) => matters(kind.bytes, rss) || matters(kind.before, rss));
    const small = kinds.filter((kind) => !told.includes(kind) && kind.bytes + kind.before > 0);
    const others = {
      key: "unexplained",
      name: "smaller parts",
      bytes: sumOf(small, (kind) => kind.bytes),
      before: sumOf(small, (kind) => kind.before),
    };
    return [...PARTS.slice(0, OF_ALLOCATOR).map(part), ...told, others];
  }

  /** Notes on memory that is not resident, and on zeros. */
  #beside({ beside, parts: [rss] }) {
    const notes = BESIDE.map((name, at) => [beside[at], `Plus ${size(beside[at])} ${name}.`]);
    const zeros = beside.at(-1);
    const about = `Of the allocator's memory, about ${size(zeros)} are zeros in huge pages: never used, or cleared.`;
    return [...notes, [zeros, about]].filter(([bytes]) => matters(bytes, rss)).map(([, note]) => note);
  }

  /** `then` is what the process had before, if that is known. */
  #process(now, then) {
    const { parts: all, error } = now;
    const [rss, notResident] = [all[0], all.at(-1)];
    const known = this.#parts(now, then).filter(({ bytes, before }) => bytes > 0 || before > 0);
    const names = ["Part", "Size", "Share", ...(then ? ["Change"] : [])];
    const heading = (name, at) => element("th", { scope: "col", class: at > 0 ? "number" : null }, name);
    const more = "allocated but not resident: never touched, or swapped out.";
    return element(
      "section",
      { class: "card" },
      element("h3", {}, foreign(this.trace.processName(now.process)), ` – ${size(rss)} resident`),
      shareBar(known.map(({ key, name, bytes }) => [bytes, key, name])),
      element(
        "table",
        { class: "facts" },
        element("thead", {}, element("tr", {}, names.map(heading))),
        element(
          "tbody",
          {},
          known.map((part) => this.#row(part, rss, error, then)),
          this.#row({ name: "resident in all", bytes: rss, before: then?.parts[0] }, rss, 0, then),
        ),
      ),
      notResident > 0 ? element("p", { class: "note" }, `Plus ${size(notResident)} ${more}`) : null,
      this.#beside(now).map((note) => element("p", { class: "note" }, note)),
    );
  }

  #row({ key, name, hint, bytes, before }, rss, error, then) {
    const about = key === "tracked" && error > 0 ? ` ± ${size(error)}` : "";
    const grown = bytes - before;
    const change = grown === 0 ? "–" : signed(size(grown), grown);
    return element(
      "tr",
      {},
      element(
        "th",
        { scope: "row" },
        key ? element("span", { class: `swatch ${key}` }) : null,
        name,
        hint ? element("small", {}, hint) : null,
      ),
      element("td", { class: "number", title: `${exact(bytes)} B` }, size(bytes), about),
      element("td", { class: "number" }, percent(bytes, rss)),
      then ? element("td", { class: "number", title: `${exact(grown)} B` }, change) : null,
    );
  }
}
