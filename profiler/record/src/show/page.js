"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = id => document.getElementById(id);
  const time = ns => ns >= 1e9 ? (ns / 1e9).toFixed(2) + " s" : ns >= 1e6 ? (ns / 1e6).toFixed(1) + " ms"
    : ns >= 1e3 ? (ns / 1e3).toFixed(1) + " us" : ns.toFixed(0) + " ns";
  const said = (weight, which) => which === 0 ? String(weight) + " interrupts" : time(weight);

  // The flame graph: the root at the top, what it calls below.
  const flame = by("flame");
  let focus = [data.flame];
  const draw = () => {
    const which = Number(by("by").value);
    const wanted = by("search").value.trim().toLowerCase();
    const width = flame.clientWidth;
    const whole = data.flame[1][which];
    flame.textContent = "";
    let depth = 0, found = 0;
    const hit = name => wanted !== "" && name.toLowerCase().includes(wanted);
    const put = (path, left, wide, level, counted) => {
      const node = path[path.length - 1];
      const [name, weights, below] = node;
      if (wide < 0.5) return;
      depth = Math.max(depth, level + 1);
      const box = document.createElement("div");
      const kernel = name.endsWith("_[k]");
      const shown = kernel ? name.slice(0, -4) : name;
      const is = hit(name);
      if (is && !counted) found += weights[which];
      box.className = is ? "f" : kernel ? "k" : "";
      box.style.left = left + "px"; box.style.top = level * 18 + "px"; box.style.width = Math.max(wide, 1) + "px";
      if (wide > 24) box.textContent = shown;
      const share = whole > 0 ? (100 * weights[which] / whole).toFixed(1) : "0";
      box.title = shown + ": " + said(weights[which], which) + ", " + share + " %";
      box.onclick = () => { focus = path; by("detail").textContent = box.title; draw(); };
      flame.append(box);
      const alone = path.length < focus.length ? focus[path.length] : null;
      let at = left;
      for (const next of below) {
        if (alone !== null && next !== alone) continue;
        const part = alone !== null ? wide : weights[which] > 0 ? wide * next[1][which] / weights[which] : 0;
        put([...path, next], at, part, level + 1, counted || is);
        at += part;
      }
    };
    put([data.flame], 0, width, 0, false);
    flame.style.height = depth * 18 + "px";
    by("found").textContent = wanted === "" ? "" : said(found, which) + " in functions that match"
      + (whole > 0 ? ", " + (100 * found / whole).toFixed(1) + " %" : "");
  };
  by("by").onchange = draw;
  by("search").oninput = draw;
  by("whole").onclick = () => { focus = [data.flame]; draw(); };

  // CPUs as rows.
  const canvas = by("cpus");
  const lane = 26;
  const hatched = (to, style) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const on = tile.getContext("2d");
    on.strokeStyle = style.getPropertyValue("--soft");
    for (const x of [-8, 0, 8]) { on.moveTo(x, 8); on.lineTo(x + 8, 0); }
    on.stroke();
    return to.createPattern(tile, "repeat");
  };
  const line = () => {
    if (!canvas) return;
    const end = Math.max(1, ...data.timeline.map(one => one.end));
    const cpus = [...new Set(data.timeline.map(one => one.cpu))].sort((a, b) => a - b);
    const long = end / Math.pow(end / Math.min(end, 20000), Number(by("zoom").value) / 1000);
    const start = (end - long) * Number(by("from").value) / 1000;
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.parentElement.clientWidth, height = cpus.length * lane + 4;
    canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = height + "px";
    const to = canvas.getContext("2d");
    to.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const left = 50, room = width - left;
    to.font = "12px system-ui, sans-serif";
    cpus.forEach((cpu, row) => {
      to.fillStyle = style.getPropertyValue("--soft");
      to.fillText("CPU " + cpu, 0, row * lane + 16);
      to.fillStyle = style.getPropertyValue("--line");
      to.fillRect(left, row * lane + lane - 3, room, 1);
    });
    for (const one of data.timeline) {
      if (one.end < start || one.start > start + long) continue;
      const x = left + Math.max(0, (one.start - start) / long) * room;
      const wide = Math.max(1, (one.end - Math.max(one.start, start)) / long * room);
      const wait = one.kind === "wait", gap = one.kind === "gap";
      to.fillStyle = gap ? hatched(to, style) : style.getPropertyValue("--" + one.kind);
      to.fillRect(x, cpus.indexOf(one.cpu) * lane + (wait ? 12 : 2), Math.min(wide, left + room - x), gap ? 19 : wait ? 9 : 10);
    }
    by("span").textContent = time(start) + " to " + time(start + long) + " of the " + time(end) + " with most events";
    canvas.onclick = event => {
      const at = start + (event.offsetX - left) / room * long;
      const cpu = cpus[Math.floor(event.offsetY / lane)];
      const slack = long / room * 2;
      const one = data.timeline.find(one => one.cpu === cpu && one.start - slack <= at && at <= one.end + slack);
      by("slice").textContent = one ? one.what + " (" + one.program + "), " + time(one.end - one.start) : "";
    };
  };
  if (canvas) { by("zoom").oninput = line; by("from").oninput = line; }

  // Sites that are shown.
  const rows = [...document.querySelectorAll("#sites tbody tr")];
  const filter = () => {
    const words = by("filter").value.toLowerCase().split(/\s+/).filter(word => word !== "");
    let left = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      left += row.hidden ? 0 : 1;
    }
    by("shown").textContent = words.length > 0 ? left + " of " + rows.length : "";
  };
  by("filter").oninput = filter;

  draw();
  line();
  window.addEventListener("resize", () => { draw(); line(); });
})();
