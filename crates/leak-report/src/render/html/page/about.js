// What the page says once: what was traced, and what to know of its numbers.

class About {
  constructor(trace) {
    this.trace = trace;
    const name = this.#target();
    document.title = `memleak: ${name}`;
    fill(byId("title"), "memleak: ", foreign(name));
    fill(byId("about"), this.#story());
    const item = (classes) => (text) => element("li", { class: classes }, foreign(text));
    const [warnings, notices] = [this.#warnings(), this.#notices()];
    fill(byId("notices"), warnings.map(item("notice warning")), notices.map(item("notice")));
  }

  #target() {
    const { data, processes } = this.trace;
    if (data.kernel !== null) return `Linux ${data.kernel}`;
    const [first] = processes;
    if (!first) return "no process";
    const more = processes.length + data.more_processes - 1;
    const others = more > 0 ? ` and ${counted(more, "more process", "more processes")}` : "";
    return `${first.comm} (${first.pid ?? "?"})${others}`;
  }

  /** How many reports, when, and how stacks were walked. */
  #story() {
    const { data, moments, last } = this.trace;
    const reports = moments.slice(1).filter(({ read_at_ms: time }) => time > 0).length + data.thinned;
    const { elapsed_ns: elapsed, read_at_ms: time, time: clock } = moments[last];
    const by = { dwarf: "by unwind tables", fp: "by frame pointers", kernel: "by the kernel" }[data.unwind];
    const when = time > 0 ? `${calendarDay(time)} ${clock}` : clock;
    const made = `${counted(reports, "report")} in ${duration(elapsed)}, the last at ${when}`;
    return `${made}; stacks ${by}; memleak ${data.memleak}`;
  }

  /** What makes the numbers less than all there is. */
  #warnings() {
    const { health, sites } = this.trace;
    if (!health) return [];
    const warnings = [...health.missing.map((line) => `Missing: ${line}.`), ...health.unseen];
    if (health.lost_blocks > 0 || health.lost_bytes > 0) {
      const lost = `${counted(health.lost_blocks, "block")}, ${size(health.lost_bytes)}`;
      warnings.push(`Lost: ${lost}, which are in none of these numbers.`);
    }
    if (sites.length === 0) warnings.push(`No allocation was recorded. Calls: ${health.calls[0] ?? "none"}`);
    return warnings;
  }

  /** What is summed up, left out, cut or estimated. */
  #notices() {
    const { data, health, sites, last } = this.trace;
    const notices = [...(health?.occasion ?? [])];
    const merged = sites.filter((site) => site.merged > 0);
    if (merged.length > 0) {
      const number = sumOf(merged, (site) => site.merged);
      const bytes = sumOf(merged, (site) => this.trace.number(site, last, "outstanding", "bytes"));
      notices.push(
        `${counted(number, "site")} with ${size(bytes)} outstanding are not among the ` +
          `${counted(data.limit, "largest", "largest")}: they are one box and one row, “other”. JSON has them all.`,
      );
    }
    if (data.thinned > 0) {
      const are = data.thinned === 1 ? "is" : "are";
      notices.push(
        `${counted(data.thinned, "moment")} of the trace ${are} left out, so that the others are spread over the ` +
          "whole time.",
      );
    }
    if (data.depth !== null) {
      notices.push(
        `Only the innermost ${counted(data.depth, "frame")} of each stack are kept (--perf-max-stack-depth); ` +
          "stacks with the same innermost frames are merged.",
      );
    }
    if (data.are_estimates) notices.push("Amounts are estimates from samples; ± is the standard error.");
    return notices;
  }
}
