// WCAG's contrast of every visible text with the colour behind it, and of every visible mark with what is beside it. Returns those below level AA.
const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
function colour(text) {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = text;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
}
const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3]));
const isDark = getComputedStyle(document.documentElement).colorScheme.includes("dark") && matchMedia("(prefers-color-scheme: dark)").matches;
// The colours of a pattern; none if the pattern is beside the text of its element. `null` = a picture that a script can't judge.
function patternOf(style) {
  if (style.backgroundImage === "none") return [];
  const isBeside = style.backgroundRepeat === "no-repeat" && parseFloat(style.backgroundSize) <= parseFloat(style.paddingLeft);
  if (isBeside) return [];
  if (style.backgroundImage.includes("url(")) return null;
  return style.backgroundImage.match(/(rgba?|color|hsla?|oklch|oklab|lab|lch)\([^()]*\)/g)?.map(colour) ?? null;
}
// The colours behind an element: one, and more where it stands on a pattern. `null` = it can't be told.
function behind(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    const style = getComputedStyle(at);
    const [layer, pattern] = [colour(style.backgroundColor), patternOf(style)];
    if (!pattern) return null;
    layers.push({ layer, pattern });
    if (layer[3] === 1) break;
  }
  let colours = [isDark ? [0, 0, 0] : [255, 255, 255]];
  for (const { layer, pattern } of layers.reverse()) {
    colours = colours.map((below) => over(layer, below));
    colours = colours.flatMap((below) => [below, ...pattern.map((stop) => over(stop, below))]);
  }
  return colours;
}
function contrast(one, other) {
  const [lighter, darker] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (lighter + 0.05) / (darker + 0.05);
}
const faint = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const text = texts.currentNode.textContent.trim();
  const element = texts.currentNode.parentElement;
  if (!text || !element.checkVisibility() || element.closest("svg, [disabled], .dim")) continue;
  const style = getComputedStyle(element);
  const backgrounds = behind(element);
  if (!backgrounds) continue;
  const ratio = Math.min(...backgrounds.map((background) => contrast(over(colour(style.color), background), background)));
  const size = parseFloat(style.fontSize);
  const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio < (isLarge ? 3 : 4.5)) faint.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
}
// Marks: by their filling or by their outline.
for (const mark of document.querySelectorAll(".sw, .tiles .c > *, .sl > :not(small), .legend .c > *, .bar rect")) {
  if (!mark.checkVisibility() || mark.closest(".dim") || !mark.getBoundingClientRect().width) continue;
  const beside = behind(mark.parentElement);
  if (!beside) continue;
  const style = getComputedStyle(mark);
  const isShape = mark instanceof SVGElement;
  const outline = isShape ? style.stroke : parseFloat(style.borderTopWidth) > 0 ? style.borderTopColor : "none";
  const filling = colour(isShape ? style.fill : style.backgroundColor);
  if (isShape) filling[3] *= Number(style.fillOpacity) * Number(style.opacity);
  const colours = outline === "none" ? [filling] : [filling, colour(outline)];
  const ratio = Math.max(...colours.map((one) => contrast(over(one, beside[0]), beside[0])));
  if (ratio < 3) faint.push(`mark ${mark.getAttribute("class")} in ${mark.parentElement.className.baseVal ?? mark.parentElement.className}: ${ratio.toFixed(2)}`);
}
return [...new Set(faint)];
