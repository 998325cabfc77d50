// The sliders select a point: of all parts that belong to a point, only its own are shown. Points are numbered
// such that the last slider changes fastest.
const sliders = [...document.querySelectorAll(".slider input")];
const stops = (slider) => Number(slider.max) + 1;
function show(index) {
  let rest = index;
  for (const slider of [...sliders].reverse()) {
    slider.value = rest % stops(slider);
    rest = Math.floor(rest / stops(slider));
    const name = slider.dataset.names.split("|")[slider.value];
    slider.parentElement.querySelector("output").textContent = name;
    slider.setAttribute("aria-valuetext", name);
  }
  for (const part of document.querySelectorAll("[data-shown]")) part.hidden = part.dataset.shown !== String(index);
  for (const mark of document.querySelectorAll("[data-point]"))
    mark.classList.toggle("chosen", mark.dataset.point === String(index));
  begin();
}
const selected = () => sliders.reduce((index, slider) => index * stops(slider) + Number(slider.value), 0);
for (const slider of sliders) slider.addEventListener("input", () => show(selected()));
for (const mark of document.querySelectorAll("[data-point]"))
  mark.addEventListener("click", () => show(Number(mark.dataset.point)));
show(selected());
