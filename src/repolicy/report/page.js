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
