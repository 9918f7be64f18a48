/* SPDX-License-Identifier: Apache-2.0
 *
 * chart.js - a chart over each table that has the columns "problem" and "ratio": one bar per row,
 * which can be filtered by words, sorted, and compared with one peer. The figures are those of the
 * table below it; nothing is loaded.
 */
(function () {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const ROW = 18, LEFT = 250, WIDTH = 720, MOST = 3;

  const number = text => {
    const found = text.replace(/\s/g, "").match(/^[\d.]+/);
    return found ? Number(found[0]) : NaN;
  };

  function element(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function control(name, label) {
    const made = document.createElement(name);
    made.setAttribute("aria-label", label);
    return made;
  }

  function draw(svg, rows, name) {
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${rows.length * ROW + 24}`);
    svg.setAttribute("aria-label", `time of ${name} over that of libattn, ${rows.length} problems`);
    const scale = (WIDTH - LEFT - 60) / MOST;
    const bottom = rows.length * ROW + 4;
    svg.append(element("line", {class: "one", x1: LEFT + scale, x2: LEFT + scale, y1: 0, y2: bottom}),
      element("text", {x: LEFT + scale, y: bottom + 14, "text-anchor": "middle"}, "equal"));
    rows.forEach((row, i) => {
      const group = element("g", {class: "row"});
      const width = Math.max(1, Math.min(row.ratio, MOST) * scale);
      group.append(
        element("title", {}, row.cells.map((cell, c) => `${row.heads[c]}: ${cell}`).join("\n")),
        element("text", {x: LEFT - 6, y: i * ROW + 13, "text-anchor": "end"}, row.cells[0]),
        element("rect", {x: LEFT, y: i * ROW + 3, width, height: ROW - 5,
          class: row.ratio >= 1 ? "faster" : "slower"}),
        element("text", {x: LEFT + width + 4, y: i * ROW + 13}, row.ratio.toFixed(2) + "×"));
      svg.append(group);
    });
  }

  function chart(table) {
    const heads = [...table.tHead.rows[0].cells].map(cell => cell.textContent.trim());
    const own = heads.indexOf("libattn"), best = heads.indexOf("ratio");
    if (heads[0] !== "problem" || best < 0 || own < 0) return;
    const lines = [...table.tBodies[0].rows].map(line =>
      [...line.cells].map(cell => cell.textContent.trim()));
    const peers = heads.map((head, i) => ({head, i})).filter(({head, i}) =>
      i !== own && i !== best && i > 0 && head !== "TFLOP/s" &&
      lines.some(cells => number(cells[i]) > 0));
    const box = document.createElement("div"), bar = document.createElement("div");
    box.className = "chart";
    bar.className = "chart-bar";
    const words = control("input", "filter problems"), peer = control("select", "peer"),
      order = control("select", "order"), svg = element("svg", {role: "img"});
    words.placeholder = "filter, e.g. D128 causal";
    peer.append(new Option("best peer", best), ...peers.map(({head, i}) => new Option(head, i)));
    order.append(new Option("order of the table", "0"), new Option("lowest ratio first", "1"));
    const show = () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      const column = Number(peer.value);
      const rows = lines.map(cells => ({heads, cells, ratio: column === best
        ? number(cells[best]) : number(cells[column]) / number(cells[own])}))
        .filter(row => row.ratio > 0 &&
          wanted.every(word => row.cells[0].toLowerCase().split(" ").includes(word)));
      if (order.value === "1") rows.sort((a, b) => a.ratio - b.ratio);
      draw(svg, rows, peer.selectedOptions[0].text);
    };
    [words, peer, order].forEach(input => input.addEventListener("input", show));
    bar.append(words, peer, order);
    box.append(bar, svg);
    (table.closest(".md-typeset__scrollwrap") || table).before(box);
    show();
  }

  document.addEventListener("DOMContentLoaded", () =>
    document.querySelectorAll("table").forEach(table => table.tHead && chart(table)));
})();
