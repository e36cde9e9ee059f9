// Numbers for people, in the words of the text report; and elements of the page, which are made from text and nothing
// else.

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const GROUPED = new Intl.NumberFormat("en");
const SECOND = 1e9;

/** A size in the largest binary unit that leaves at least one; cut, not rounded, to one decimal. */
function size(bytes) {
  const amount = Math.abs(bytes);
  const sign = bytes < 0 ? "−" : "";
  let power = 0;
  while (power < UNITS.length && amount >= 1024 ** (power + 1)) power += 1;
  if (power === 0) return `${sign}${Math.round(amount)} B`;
  const tenths = Math.floor((amount * 10) / 1024 ** power);
  return `${sign}${(tenths / 10).toFixed(1)} ${UNITS[power - 1]}`;
}

/** All digits of a whole number. Beyond 2^53 a browser does not have them all, and that is said. */
function exact(number) {
  const digits = GROUPED.format(Math.abs(number));
  const about = Number.isSafeInteger(number) ? "" : "about ";
  return `${about}${number < 0 ? "−" : ""}${digits}`;
}

/** So many things, in the plural unless it is one. */
function counted(number, noun, plural = `${noun}s`) {
  return `${exact(number)} ${Math.abs(number) === 1 ? noun : plural}`;
}

/** With a plus sign if it grew. */
function signed(text, number) {
  return number > 0 ? `+${text}` : text;
}

/** `part` of `whole` in per cent; 100 or 0 only if it is exactly that. */
function percent(part, whole) {
  if (!(whole > 0) || part === 0) return "0%";
  if (part === whole) return "100%";
  const tenths = Math.floor((part / whole) * 1000);
  if (tenths === 0) return "<0.1%";
  return `${(Math.min(tenths, 999) / 10).toFixed(1)}%`;
}

/** An amount in the unit that was chosen. */
function amount(number, unit) {
  return unit === "bytes" ? size(number) : counted(number, "block");
}

/** The same with all digits. */
function exactAmount(number, unit) {
  return unit === "bytes" ? `${exact(number)} B` : counted(number, "block");
}

/** A time in at most two units. */
function duration(nanoseconds) {
  const seconds = nanoseconds / SECOND;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${(Math.floor(seconds * 10) / 10).toFixed(1).replace(/\.0$/, "")} s`;
  const whole = Math.floor(seconds);
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([number]) => number > 0);
  return parts
    .slice(first, first + 2)
    .filter(([number]) => number > 0)
    .map(([number, unit]) => `${number} ${unit}`)
    .join(" ");
}

/** What grew per second, in a time. */
function rate(number, nanoseconds, unit) {
  const each = nanoseconds > 0 ? (number * SECOND) / nanoseconds : 0;
  const text = unit === "bytes" ? size(each) : `${each < 0 ? "−" : ""}${Math.abs(each).toFixed(1)} blocks`;
  return `${signed(text, each)}/s`;
}

/** The day of a time in milliseconds since 1970, where the page is read. */
function calendarDay(time) {
  const date = new Date(time);
  const digits = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${digits(date.getMonth() + 1)}-${digits(date.getDate())}`;
}

/** File and line, as far as known. */
function sourcePlace(file, line) {
  return line ? `${file}:${line}` : file;
}

/** The sum of what a function says of each. */
function sumOf(list, of) {
  return list.reduce((sum, one) => sum + of(one), 0);
}

/** How many sites these are, given that some stand for many. */
function numberOfSites(sites) {
  return sumOf(sites, (site) => site.merged || 1);
}

/** Characters of a function's name that are shown as they are. */
const MAX_NAME = 64;

/** A long name without its template arguments and parameters, which are most of it. */
function brief(name) {
  // Rust's `<T as Trait>::method` begins with what it is about; operators are made of brackets.
  if (name.length <= MAX_NAME || /^<|operator/.test(name)) return name;
  let [text, depth] = ["", 0];
  for (const part of name.match(/\(anonymous namespace\)|\(\)|[^]/g)) {
    if ("<([".includes(part)) {
      if (depth === 0) text += `${part}…`;
      depth += 1;
    } else if (">)]".includes(part)) depth -= 1;
    if (depth < 0) return name;
    if (depth === 0) text += part;
  }
  return text;
}

/** The last part of a path, without the vDSO's brackets. */
function basename(path) {
  return path.slice(path.lastIndexOf("/") + 1).replace(/^\[|\]$/g, "") || path;
}

/** All of these but nothings, whatever lists they are in. */
function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** An element with attributes and children; what is not an element becomes text. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...present(children));
  return made;
}

/** The same for pictures. */
function shape(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Text that came from a process: letters of other scripts do not turn what is around them. */
function foreign(text, classes = "", title = null) {
  return element("bdi", { class: classes || null, title }, text);
}

/** A bar of parts, each a number, a colour and a name; as wide as their shares, which those who listen are told. */
function shareBar(parts) {
  const all = sumOf(parts, ([number]) => number);
  const some = parts.filter(([number]) => number > 0);
  const pieces = some.map(([number, key, name]) => {
    const piece = element("div", { class: `part ${key}`, title: `${name}: ${percent(number, all)}` });
    piece.style.flexGrow = number / all;
    return piece;
  });
  const label = some.map(([number, , name]) => `${name} ${percent(number, all)}`).join(", ");
  return element("div", { class: "parts", role: "img", "aria-label": label }, pieces);
}

/** Replaces what an element holds. */
function fill(parent, ...children) {
  parent.replaceChildren(...present(children));
}

const byId = (id) => document.getElementById(id);
