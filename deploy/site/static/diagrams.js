// Draws the diagrams of a page, in the colours of the page.
mermaid.initialize({
  startOnLoad: true,
  securityLevel: "strict",
  theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "default",
});
