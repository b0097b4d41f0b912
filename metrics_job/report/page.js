// Draws the charts that are described in #figures and gives their roles the colours of the theme in use.
(function () {
  "use strict";
  var themes = {
    light: {
      ink: "#1c1c1a", soft: "#5c5b57", line: "#e2e1dc", card: "#ffffff", rest: "#8f8d86",
      c: ["#2a78d6", "#1baf7a", "#b07800", "#008300", "#4a3aa7", "#e34948", "#d0538a", "#d9601f"],
      p: { p50: "#86b6ef", p99: "#2a78d6", "p99.9": "#104281" },
      heat: [[0, "#f0f5fc"], [0.25, "#b9d5f5"], [0.5, "#6da7ec"], [0.75, "#2a6fc4"], [1, "#0d366b"]]
    },
    dark: {
      ink: "#f0efea", soft: "#b3b1a9", line: "#383732", card: "#1e1e1c", rest: "#8f8d86",
      c: ["#4f97ea", "#27b886", "#d39a1e", "#3fae3f", "#a89ff0", "#ee7a78", "#e06c98", "#e57a44"],
      p: { p50: "#4c86c9", p99: "#6da7ec", "p99.9": "#dcebfd" },
      heat: [[0, "#22303f"], [0.25, "#1f4d80"], [0.5, "#2f7bd0"], [0.75, "#7db4f2"], [1, "#dcebfd"]]
    }
  };
  var figures = JSON.parse(document.getElementById("figures").textContent);
  var dark = window.matchMedia("(prefers-color-scheme: dark)");

  function colour(theme, role) {
    return theme.p[role] || (role[0] === "c" ? theme.c[Number(role.slice(1))] : theme.rest);
  }
  function trace(theme, given) {
    var made = Object.assign({}, given), role = given.meta.role;
    if (role === "heat") {
      made.colorscale = theme.heat;
      made.colorbar = Object.assign({}, given.colorbar, {
        outlinewidth: 0, tickfont: { color: theme.soft }, title: Object.assign({ font: { color: theme.soft } }, given.colorbar.title)
      });
    } else {
      made.line = { color: colour(theme, role), width: 2, dash: role === "rest" ? "dot" : "solid" };
      var dots = given.meta.dots;
      made.marker = { color: colour(theme, role), size: dots ? dots.map(function (one) { return 5 * one; }) : 5 };
    }
    return made;
  }
  var NARROW = 420, LEGEND = 18; // pixels: one name of a legend under the other, and how high each is
  function layout(theme, given, names, width) {
    var more = width < NARROW ? LEGEND * Math.max(0, names - 3) : 0;
    var axis = { gridcolor: theme.line, linecolor: theme.line, zerolinecolor: theme.soft, zerolinewidth: 1.5, automargin: true };
    return Object.assign({
      height: 260 + more, margin: { l: 10, r: 10, t: 10, b: 10 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: theme.soft, family: "system-ui, sans-serif", size: 12 },
      hoverlabel: { bgcolor: theme.card, bordercolor: theme.line, font: { color: theme.ink } },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: theme.ink } },
      showlegend: true
    }, given, {
      xaxis: Object.assign({}, axis, { showgrid: false }, given.xaxis),
      yaxis: Object.assign({}, axis, given.yaxis)
    });
  }
  var PAPER = 640; // pixels across a printed page's card
  function draw(theme, width) {
    Object.keys(figures).forEach(function (name) {
      var place = document.getElementById(name), figure = figures[name];
      var laid = layout(theme, figure.layout, figure.data.length, width || place.clientWidth);
      Plotly.react(place, figure.data.map(trace.bind(null, theme)), Object.assign(laid, width ? { width: width } : { autosize: true }),
        { displayModeBar: false, responsive: true });
    });
  }
  function now() { draw(dark.matches ? themes.dark : themes.light); }
  now();
  dark.addEventListener("change", now);
  window.addEventListener("beforeprint", function () { draw(themes.light, PAPER); });
  window.addEventListener("afterprint", now);
})();
