// What a title says of a mark or a figure, for those who have no pointer to rest on it: a tap shows
// it until the next tap.
const bubble = document.createElement("div");
bubble.className = "bubble";
bubble.setAttribute("role", "status");
bubble.hidden = true;

export function explain(of) {
  bubble.hidden = !of;
  if (!of) return;
  bubble.textContent = of.getAttribute("title");
  const at = of.getBoundingClientRect(), wide = Math.min(280, innerWidth - 24);
  bubble.style.width = wide + "px";
  bubble.style.left = Math.max(12, Math.min(at.left + at.width / 2 - wide / 2, innerWidth - wide - 12)) + "px";
  bubble.style.top = (at.bottom + 90 > innerHeight ? Math.max(8, at.top - 8 - bubble.offsetHeight) : at.bottom + 8) + "px";
}

document.body.append(bubble);
let touched = false;
document.addEventListener("pointerdown", (e) => { touched = e.pointerType === "touch"; }, true);
document.addEventListener("scroll", () => explain(null), true);
document.addEventListener("click", (e) => {
  if (!touched) return;
  const of = e.target.closest("[title]");
  // A link or a button does what it is for.
  explain(of && of.getAttribute("title") && !e.target.closest("a[href], button, summary, select, input, label") ? of : null);
});
