// Show a curve's value under the pointer.
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
    const chosen = () => { // if the browser forbids copying, select the command so that the reader can copy it
      getSelection().selectAllChildren(code);
      button.textContent = "chosen";
    };
    const copied = () => (button.textContent = "copied");
    navigator.clipboard ? navigator.clipboard.writeText(code.textContent).then(copied, chosen) : chosen();
  });
}

// All visible films start together, and start again when the last one has ended.
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const filmed = () => [...document.querySelectorAll(".films > figure:not([hidden]) > video")];
function begin() {
  for (const video of document.querySelectorAll(".films > figure > video")) video.pause();
  for (const video of filmed()) {
    video.currentTime = 0;
    if (!still) video.play().catch(() => {}); // a browser may wait for a click
  }
}
for (const video of document.querySelectorAll(".films > figure > video"))
  video.addEventListener("ended", () => filmed().every((other) => other.ended) && begin());
begin();
