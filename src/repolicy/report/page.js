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

// Films in step: all visible films start together, and start again when the last one has ended.
const together = document.querySelector("#together");
const filmed = () => [...document.querySelectorAll("figure:not([hidden]) > video")];
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
let running = false;
function tell(now) {
  running = now;
  if (together) together.textContent = running ? "pause all" : "play all in step";
}
function begin() {
  for (const video of document.querySelectorAll("figure[hidden] > video")) video.pause();
  for (const video of filmed()) {
    video.currentTime = 0;
    video.play().catch(() => tell(filmed().some((other) => !other.paused))); // a browser may wait for a click
  }
  tell(true);
}
if (together && filmed().length) {
  together.hidden = false;
  together.addEventListener("click", () => {
    if (!running) return begin();
    tell(false);
    filmed().forEach((video) => video.pause());
  });
  for (const video of document.querySelectorAll("video")) {
    video.addEventListener("play", () => tell(true));
    video.addEventListener("pause", () => {
      if (filmed().every((other) => other.paused) && filmed().some((other) => !other.ended)) tell(false);
    });
    video.addEventListener("ended", () => running && filmed().every((other) => other.ended) && begin());
  }
  tell(false);
  if (!still) begin();
}

// A table that is wider than the screen shows a hint until the reader has scrolled to its end.
function cue(scroll) {
  const left = scroll.scrollWidth - scroll.clientWidth - scroll.scrollLeft;
  scroll.classList.toggle("more", left > 2);
  scroll.parentElement.querySelector(".cue").hidden = left <= 2;
}
const cues = () => document.querySelectorAll(".scroll").forEach(cue);
for (const scroll of document.querySelectorAll(".scroll")) scroll.addEventListener("scroll", () => cue(scroll));
addEventListener("resize", cues);
cues();
