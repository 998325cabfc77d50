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
