// Everything that is known of one site: amounts, the whole stack, how it ended, ages, history.

/** Frames of a stack that are shown at once; of deeper ones, the middle has to be asked for. */
const FRAMES_AT_ONCE = 120;

/** What each class of ages is called, by its upper bound in nanoseconds; the oldest has none. */
function ageName(bounds, at) {
  if (bounds[at] === null) return `over ${duration(bounds[at - 1])}`;
  return at === 0 ? `under ${duration(bounds[0])}` : `${duration(bounds[at - 1])} – ${duration(bounds[at])}`;
}

function siteDetails(trace, site, state) {
  const { meaning, advice } = trace.explain(site);
  const end = element("strong", {}, `end: ${trace.ends[site.end].name}`);
  const why = site.end === 0 ? null : [endPlace(trace, site), ` – ${meaning}. ${advice}`];
  const { bytes, blocks } = site.lost;
  const lost = `Lost besides: ${counted(blocks, "block")}, ${size(bytes)}`;
  return element(
    "div",
    { class: "stack" },
    siteFacts(trace, site, state.after),
    siteHolders(trace, site),
    stackList(trace, site),
    element("p", {}, end, why),
    blocks > 0 || bytes > 0 ? element("p", {}, lost) : null,
    state.after === trace.last ? siteAges(trace, site) : null,
    siteHistory(trace, site, state),
  );
}

/** What the verdict of the last report says of a site's blocks. */
function verdictWords(trace, site) {
  const numbers = trace.verdicts.get(site.index) ?? [];
  const names = ["definitely lost", "indirectly lost", "still reachable", "unknown"];
  const parts = names.map((name, at) => [name, numbers[2 * at], numbers[2 * at + 1]]);
  const some = parts.filter(([, , blocks]) => blocks > 0);
  return some.map(([name, bytes, blocks]) => `${counted(blocks, "block")} (${size(bytes)}) ${name}`).join(", ");
}

/** Who holds a site's blocks, what would be lost with them, and their classes. */
function siteHolders(trace, site) {
  const lines = trace.held.get(site.index) ?? [];
  if (lines.length === 0) return null;
  return element("ul", { class: "held" }, lines.map((line) => element("li", {}, foreign(line))));
}

function endPlace(trace, { endModule, endAddress }) {
  if (!endAddress) return null;
  const name = trace.modules[endModule].name;
  return [" at ", foreign(name ? `${name}+0x${endAddress}` : `0x${endAddress}`)];
}

function siteFacts(trace, site, moment) {
  const of = (measure) => {
    const [bytes, blocks] = ["bytes", "blocks"].map((unit) => trace.number(site, moment, measure, unit));
    const error = measure === "young" ? 0 : trace.error(site, moment, measure, "bytes");
    const about = error > 0 ? ` ± ${size(Math.round(error))}` : "";
    return `${size(bytes)}${about} (${exact(bytes)} B) in ${counted(blocks, "block")}`;
  };
  const isYoung = trace.number(site, moment, "young", "blocks") > 0;
  const facts = [
    ["Outstanding", of("outstanding")],
    isYoung && ["Of these, young", of("young")],
    trace.verdicts.has(site.index) && ["Verdict", verdictWords(trace, site) || "nothing is outstanding"],
    trace.data.pinned && ["Pins", `${size(trace.pinned(site, "bytes"))} by ${counted(trace.pinned(site, "blocks"), "block")}`],
    trace.data.peak && ["At the peak", `${size(trace.peak(site, "bytes"))} in ${counted(trace.peak(site, "blocks"), "block")}`],
    ["Allocated", of("allocated")],
    ["By", foreign(trace.allocatorOf(site))],
    ["Process", foreign(trace.processName(site.process))],
    site.kind && ["Kind", site.kind.meaning],
    site.suppressedBy && ["Suppressed by", foreign(site.suppressedBy)],
    !site.isSuspect && !site.suppressedBy && ["Note", "no leak as far as can be told, or counted elsewhere"],
  ];
  const shown = facts.filter(Boolean).map(([name, value]) => {
    return element("div", {}, element("dt", {}, name), element("dd", {}, value));
  });
  return element("dl", { class: "facts" }, shown);
}

/** Frames, innermost first. */
function stackList(trace, site) {
  const leftOut = trace.leftOut.get(site.index);
  const numberOf = (at) => (leftOut && at >= leftOut.after ? at + leftOut.frames : at);
  const items = trace.framesOf(site).map((frame, at) => frameItem(trace, frame, numberOf(at)));
  if (leftOut) items.splice(leftOut.after, 0, element("li", { class: "cut" }, leftOut.name));
  const list = element("ol", { class: "frames" });
  if (items.length <= FRAMES_AT_ONCE) {
    list.append(...items);
    return list;
  }
  const half = FRAMES_AT_ONCE / 2;
  const hidden = items.slice(half, -half);
  const onclick = () => cut.replaceWith(...hidden);
  const isLeftOut = leftOut && hidden.includes(items[leftOut.after]);
  const text = isLeftOut
    ? `${counted(hidden.length - 1, "more frame")}: show all (besides, ${exact(leftOut.frames)} were left out)`
    : `${counted(hidden.length, "more frame")}: show all`;
  const button = element("button", { type: "button", onclick }, text);
  const cut = element("li", { class: "cut" }, button);
  list.append(...items.slice(0, half), cut, ...items.slice(-half));
  return list;
}

/** A frame with what was inlined into it, innermost first. */
function frameItem(trace, frame, at) {
  const module = trace.modules[frame.module];
  const way = FOUND_BY[frame.foundBy];
  const isException = way.startsWith("fp") && trace.data.unwind === "dwarf";
  const lines = [...frame.levels].reverse().flatMap(({ box, file, line }) => {
    const excerpt = sourceLines(trace, file, line);
    const { kind, name } = trace.boxes[box];
    const source = file ? [" ", foreign(sourcePlace(file, line), "file")] : null;
    if (kind === "inlined") {
      const text = foreign(name, "name", trace.exactName(name));
      return [element("div", { class: "inlined" }, text, " (inlined)", source), excerpt];
    }
    const own = element(
      "div",
      {},
      foreign(trace.frameName(frame), "name", trace.exactName(frame.name)),
      module.name ? [" ", element("bdi", { class: "module", title: module.path }, module.name)] : null,
      source,
      isException ? element("span", { class: "badge note" }, WAYS[way]) : null,
    );
    return [own, excerpt];
  });
  return element("li", { value: at }, lines);
}

/** Lines of source around a place, if they are known. */
function sourceLines(trace, file, line) {
  const excerpt = file ? trace.sources.get(`${file}:${line}`) : null;
  if (!excerpt) return null;
  const rows = excerpt.lines.map((text, at) => {
    const number = excerpt.first + at;
    return element(number === line ? "strong" : "span", {}, `${String(number).padStart(6)}  `, foreign(text), "\n");
  });
  const note = excerpt.isNewer ? element("em", {}, "the file is newer than the code\n") : null;
  return element("pre", { class: "source" }, note, rows);
}

function siteAges(trace, site) {
  const ages = trace.ages.get(site.index);
  if (!ages) return null;
  const bounds = trace.health.ages.map(([bound]) => bound);
  const classes = bounds.map((_, at) => {
    return { name: ageName(bounds, at), bytes: ages[2 * at], blocks: ages[2 * at + 1] };
  });
  const most = Math.max(...classes.map(({ blocks }) => blocks));
  const rows = classes
    .filter(({ blocks }) => blocks > 0)
    .map(({ name, bytes, blocks }) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, name),
        element("td", {}, element("meter", { min: 0, max: most, value: blocks })),
        element("td", { class: "number" }, counted(blocks, "block")),
        element("td", { class: "number" }, size(bytes)),
      ),
    );
  return element(
    "table",
    { class: "ages" },
    element("caption", {}, "Age of live blocks"),
    element("tbody", {}, rows),
  );
}

/** What the site held at each moment, as a line. */
function siteHistory(trace, site, { unit, after }) {
  if (trace.last < 3) return null;
  const numbers = trace.historyOf(site).map((row) => row[unit === "bytes" ? 0 : 1]);
  const most = Math.max(...numbers);
  const time = trace.moments[trace.last].elapsed_ns || 1;
  const points = numbers.map((number, at) => {
    const x = (trace.moments[at].elapsed_ns / time) * 300;
    return `${x.toFixed(1)},${(40 - (number / (most || 1)) * 38).toFixed(1)}`;
  });
  const text = `at most ${amount(most, unit)}, ${amount(numbers[after], unit)} at the moment that is shown`;
  const line = shape("polyline", { points: points.join(" "), class: "trend" });
  const picture = shape("svg", { viewBox: "0 0 300 42", preserveAspectRatio: "none", role: "img" }, line);
  picture.setAttribute("aria-label", text);
  const caption = element("figcaption", {}, `Outstanding over ${duration(time)}: ${text}`);
  return element("figure", { class: "trend" }, picture, caption);
}
