// The moments of the trace: how much was outstanding at each, and two sliders that choose what is shown and what it
// is compared with.

class Timeline {
  /** `on.change` is called with the two moments. */
  constructor(host, trace, on) {
    this.trace = trace;
    this.on = on;
    this.bars = host.querySelector(".bars");
    this.note = host.querySelector(".note");
    this.sliders = {};
    for (const which of ["before", "after"]) {
      const slider = host.querySelector(`input[name=${which}]`);
      // Of the same length, so that each moment is below its bar.
      slider.min = 0;
      slider.max = trace.last;
      slider.addEventListener("input", () => this.#moved(which));
      this.sliders[which] = { slider, text: host.querySelector(`output[for=${slider.id}]`) };
    }
    host.style.setProperty("--moments", trace.last);
    host.hidden = trace.last < 2;
    this.#draw();
  }

  /** What a moment is called. */
  name(moment) {
    if (moment === 0) return "attach";
    const { time, marked } = this.trace.moments[moment];
    return marked ? `${time} (marked)` : time;
  }

  #draw() {
    const bar = (_, moment) => {
      const choose = () => this.#choose(Math.max(1, moment));
      // The sliders do the same by keyboard.
      return element("div", { class: "bar", title: this.#title(moment), onclick: choose }, element("div"));
    };
    fill(this.bars, this.trace.moments.map(bar));
  }

  #choose(after) {
    const before = Math.min(Number(this.sliders.before.slider.value), after - 1);
    this.on.change({ before, after });
  }

  #title(moment) {
    const { all: [bytes, blocks], reason } = this.trace.moments[moment];
    const time = moment === 0 ? "" : `, ${duration(this.trace.moments[moment].elapsed_ns)} after the attach`;
    const because = reason ? `, reported because ${reason}` : "";
    return `${this.name(moment)}${time}: ${size(bytes)} in ${counted(blocks, "block")}${because}`;
  }

  /** Neither slider gets past the other. */
  #moved(which) {
    let before = Math.min(Number(this.sliders.before.slider.value), this.trace.last - 1);
    let after = Math.max(Number(this.sliders.after.slider.value), 1);
    if (before >= after && which === "before") after = before + 1;
    if (before >= after && which === "after") before = after - 1;
    this.on.change({ before, after });
  }

  update({ before, after, unit }) {
    const column = unit === "bytes" ? 0 : 1;
    const numbers = this.trace.moments.map(({ all }) => all[column]);
    const most = Math.max(...numbers, 1);
    for (const [moment, bar] of [...this.bars.children].entries()) {
      bar.firstChild.style.height = `${(numbers[moment] / most) * 100}%`;
      bar.classList.toggle("chosen", moment === after);
      bar.classList.toggle("compared", moment === before);
      bar.classList.toggle("between", moment > before && moment < after);
      bar.classList.toggle("marked", this.trace.moments[moment].marked);
    }
    for (const [which, moment] of [["before", before], ["after", after]]) {
      const { slider, text } = this.sliders[which];
      slider.value = moment;
      slider.setAttribute("aria-valuetext", this.#title(moment));
      text.textContent = this.name(moment);
    }
    const time = this.trace.moments[after].elapsed_ns - this.trace.moments[before].elapsed_ns;
    const grown = numbers[after] - numbers[before];
    const much = element("strong", {}, signed(amount(grown, unit), grown));
    fill(this.note, much, ` of all in ${duration(time)} (${rate(grown, time, unit)})`);
  }
}
