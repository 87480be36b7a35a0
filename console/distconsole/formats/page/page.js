"use strict";
// Reads values off plots and the heat map, sorts and filters the ranks, and switches light and dark.
// It builds text with textContent alone: nothing of the run is ever taken for markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");

  const figure = (value) => {
    if (value === null || value === undefined) return "?";
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.01 || size >= 1e7)) return value.toPrecision(3);
    return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 1 : size >= 1 ? 3 : 5 });
  };
  const moment = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    const two = (number) => String(number).padStart(2, "0");
    const hours = Math.floor(whole / 3600);
    const rest = `${hours ? two(Math.floor(whole / 60) % 60) : Math.floor(whole / 60)}:${two(whole % 60)}`;
    return hours ? `${hours}:${rest}` : rest;
  };

  const say = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const left = Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8);
    const above = y - tip.offsetHeight - 12;
    tip.style.transform = `translate(${Math.max(8, left)}px, ${above > 8 ? above : y + 18}px)`;
  };
  const hush = (...marks) => {
    tip.hidden = true;
    for (const mark of marks) mark.hidden = true;
  };
  const mark = (box, name) => {
    const made = document.createElement("div");
    made.className = name;
    made.hidden = true;
    box.append(made);
    return made;
  };
  const nearest = (xs, wanted) => {
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < wanted) low = middle + 1; else high = middle;
    }
    return low > 0 && wanted - xs[low - 1] < xs[low] - wanted ? low - 1 : low;
  };

  for (const shown of document.querySelectorAll("[data-plot]")) {
    const plot = data.plots[Number(shown.dataset.plot)];
    const box = shown.querySelector(".box");
    const cursor = mark(box, "cursor");
    const [first, last] = plot.ends;
    const [means, lows, highs] = plot.y;
    let at = plot.x.length - 1;
    const point = (index) => {
      at = index;
      const area = box.getBoundingClientRect();
      const share = (plot.x[index] - first) / (last - first);
      cursor.style.left = `${100 * share}%`;
      cursor.hidden = false;
      const where = plot.over === "step" ? `step ${plot.x[index].toLocaleString("en")}` : moment(plot.x[index]);
      const unit = plot.unit ? ` ${plot.unit}` : "";
      const spread = lows[index] < highs[index] ? `\n${figure(lows[index])} to ${figure(highs[index])}` : "";
      say(`${where}\n${figure(means[index])}${unit}${spread}`, area.left + share * area.width, area.top + 30);
    };
    box.addEventListener("pointermove", (event) => {
      const area = box.getBoundingClientRect();
      point(nearest(plot.x, first + (last - first) * (event.clientX - area.left) / area.width));
    });
    box.addEventListener("pointerleave", () => hush(cursor));
    box.addEventListener("blur", () => hush(cursor));
    box.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      point(Math.max(0, Math.min(plot.x.length - 1, at + move)));
    });
  }

  const heat = document.querySelector(".heat");
  if (heat && data.heat) {
    const { ranks, per_row: perRow, columns, unit_ms: unit, begins, moment_seconds: length } = data.heat;
    const bytes = Uint8Array.from(atob(data.heat.cells), (letter) => letter.charCodeAt(0));
    const cells = new DataView(bytes.buffer);
    const rows = Math.ceil(ranks.length / perRow);
    const box = heat.querySelector(".box");
    const frame = mark(box, "cell");
    const read = (place, column) => {
      const value = cells.getUint16(2 * (place * columns + column), true);
      return value === 65535 ? null : value * unit;
    };
    const point = (row, column) => {
      let worst = null, whose = null;
      for (let place = row * perRow; place < Math.min(ranks.length, (row + 1) * perRow); place += 1) {
        const value = read(place, column);
        if (value !== null && (worst === null || value > worst)) [worst, whose] = [value, ranks[place]];
      }
      const from = begins + column * length;
      const when = `${moment(from)} to ${moment(from + length)}`;
      const several = perRow > 1 ? "slowest of its row: " : "";
      const text = worst === null
        ? `rank ${ranks[row * perRow]}: no step\n${when}` : `${several}rank ${whose}\n${figure(worst)} ms\n${when}`;
      frame.style.left = `${100 * column / columns}%`;
      frame.style.top = `${100 * row / rows}%`;
      frame.style.width = `${100 / columns}%`;
      frame.style.height = `${100 / rows}%`;
      frame.hidden = false;
      return text;
    };
    box.addEventListener("pointermove", (event) => {
      const area = box.getBoundingClientRect();
      const column = Math.floor(columns * (event.clientX - area.left) / area.width);
      const row = Math.floor(rows * (event.clientY - area.top) / area.height);
      if (column < 0 || row < 0 || column >= columns || row >= rows) return;
      say(point(row, column), event.clientX, event.clientY);
    });
    box.addEventListener("pointerleave", () => hush(frame));
  }

  const table = document.getElementById("ranks");
  if (table) {
    const body = table.tBodies[0];
    const lines = [...body.rows];
    const key = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const sort = (button) => {
      const column = Number(button.dataset.column);
      const head = button.closest("th");
      const numeric = head.classList.contains("n");
      const down = head.getAttribute("aria-sort") === "ascending"
        || (numeric && column > 0 && !head.hasAttribute("aria-sort"));
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const way = down ? -1 : 1;
      lines.sort((one, two) => {
        const [a, b] = [key(one, column), key(two, column)];
        if (a === "" || b === "") return (a === "") - (b === "");  // the unknown is always last
        return way * (numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true }));
      });
      body.append(...lines);
    };
    for (const button of table.tHead.querySelectorAll("button")) {
      button.addEventListener("click", () => sort(button));
    }
    const filter = document.getElementById("filter");
    const shown = document.getElementById("shown");
    filter.closest(".tools").hidden = lines.length < 9;
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const row of lines) {
        const [rank, host, state] = [0, 1, 3].map((cell) => row.cells[cell].textContent.toLowerCase());
        const fits = words.every((word) => rank === word || host.includes(word) || state.includes(word));
        row.hidden = !fits;
        count += fits;
      }
      shown.textContent = words.length ? `${count} of ${lines.length}` : "";
    });
  }

  const theme = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const label = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.hidden = false;
  label();
  system.addEventListener("change", label);
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    label();
  });
})();
