// A curve's value under the pointer.
for (const chart of document.querySelectorAll("svg[data-points]")) {
  const points = JSON.parse(chart.dataset.points);
  const dot = chart.querySelector(".dot");
  const output = chart.closest("figure").querySelector("output");
  const last = output.textContent;
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    const [px, py, step, value] = points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
    dot.setAttribute("cx", px);
    dot.setAttribute("cy", py);
    dot.removeAttribute("hidden");
    output.textContent = `${value} at ${step}`;
  });
  chart.addEventListener("pointerleave", () => {
    dot.setAttribute("hidden", "hidden");
    output.textContent = last;
  });
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", () => {
    const code = button.parentElement.querySelector("code");
    const chosen = () => { // where a page may not copy, the words are chosen and the reader does it
      getSelection().selectAllChildren(code);
      button.textContent = "chosen";
    };
    const copied = () => (button.textContent = "copied");
    navigator.clipboard ? navigator.clipboard.writeText(code.textContent).then(copied, chosen) : chosen();
  });
}
for (const video of document.querySelectorAll("video"))
  video.addEventListener("click", () => (video.paused ? video.play() : video.pause()));
