// Sets the theme before the first paint: the one chosen here before, or else the system's.
(() => {
  const KEY = "lightspec-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try { return localStorage.getItem(KEY); } catch { return null; } // storage may be forbidden
  };
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new Event("themechange"));
  };
  const current = () => document.documentElement.dataset.theme;
  window.lightspecTheme = {
    current,
    toggle() {
      const theme = current() === "dark" ? "light" : "dark";
      try { localStorage.setItem(KEY, theme); } catch { /* it lasts as long as the page */ }
      apply(theme);
    },
  };
  apply(stored() ?? (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => stored() ?? apply(system.matches ? "dark" : "light"));
})();
