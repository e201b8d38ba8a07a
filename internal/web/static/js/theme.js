// Runs before anything is drawn, so that no page flashes in the other scheme. It
// is no module, as those wait.
(function () {
  var root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  function set() {
    var own = "";
    try { own = localStorage.getItem("mete.theme") || ""; } catch (e) { /* no storage: the system's */ }
    root.dataset.theme = own || (dark.matches ? "dark" : "light");
    dispatchEvent(new Event("mete-theme"));
  }
  window.meteTheme = set;
  dark.addEventListener("change", set);
  set();
  // What is drawn here never makes elements of text. A chart's library empties its
  // box by setting its text to nothing: that alone is allowed.
  if (window.trustedTypes) trustedTypes.createPolicy("default", { createHTML: function (s) { return s === "" ? "" : null; } });
})();
