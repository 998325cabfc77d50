// Two clips at a time; keys or buttons answer. Answers stay in this browser until they are saved as a file.
const asked = [...document.querySelectorAll(".pair")];
const told = document.querySelector("#told");
const id = document.querySelector("#ask").dataset.page;
const place = `repolicy-answers-${id}`;
let answers = {};
try {
  answers = JSON.parse(localStorage.getItem(place) || "{}");
} catch { /* a browser may keep nothing for a page from a disk */ }
let now = 0;
let began = performance.now();
const open = () => asked.findIndex((_, index) => !(index in answers));
function show(index) {
  now = index;
  began = performance.now();
  asked.forEach((pair, other) => {
    pair.hidden = other !== index;
    for (const video of pair.querySelectorAll("video")) {
      if (other !== index) {
        video.pause();
        continue;
      }
      video.currentTime = 0;
      video.play().catch(() => {}); // a browser may wait for a click
    }
  });
  const count = Object.keys(answers).length;
  told.textContent = index < 0 ? `All ${asked.length} are answered. Save them.` : `Pair ${index + 1} of ${asked.length}; ${count} answered`;
  for (const button of document.querySelectorAll("#keys button[data-answer]")) button.disabled = index < 0;
}
function keep() {
  try {
    localStorage.setItem(place, JSON.stringify(answers));
  } catch { /* the same */ }
}
function answer(which) {
  if (now < 0) return;
  answers[now] = { page: id, pair: Number(asked[now].dataset.pair), answer: which, seconds: (performance.now() - began) / 1000 };
  keep();
  show(open());
}
function back() {
  const last = Math.max(-1, ...Object.keys(answers).map(Number).filter((index) => now < 0 || index < now));
  if (last < 0) return;
  delete answers[last];
  keep();
  show(last);
}
function save() {
  if (!Object.keys(answers).length) {
    told.textContent = "Nothing is answered yet.";
    return;
  }
  const lines = Object.keys(answers).map(Number).sort((a, b) => a - b).map((index) => JSON.stringify(answers[index]) + "\n");
  const made = document.createElement("a");
  made.href = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
  made.download = `answers-${id}.jsonl`;
  made.click();
  told.textContent = `Saved as ${made.download}, for repolicy infer.`;
}
const keys = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "alike", ArrowDown: "unknown" };
addEventListener("keydown", (event) => {
  if (event.repeat || event.altKey || event.ctrlKey || event.metaKey) return; // a key that stays down, or the browser's own
  if (event.key in keys) answer(keys[event.key]);
  else if (event.key === "Backspace") back();
  else return;
  event.preventDefault();
});
for (const button of document.querySelectorAll("#keys button[data-answer]")) button.addEventListener("click", () => answer(button.dataset.answer));
document.querySelector("#back").addEventListener("click", back);
document.querySelector("#save").addEventListener("click", save);
for (const pair of asked) { // both begin together, again and again
  const both = [...pair.querySelectorAll("video")];
  for (const video of both) {
    video.addEventListener("ended", () => both.every((other) => other.ended) && both.forEach((other) => other.play().catch(() => {})));
    video.addEventListener("click", () => both.forEach((other) => other.play().catch(() => {})));
  }
}
show(open());
