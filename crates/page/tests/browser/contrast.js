// WCAG's contrast of every visible text with the colour behind it. Returns the texts below level AA.
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
// The colour behind an element. `null` = a picture, a gradient or an element beside it, which a script can't judge.
function behind(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    const style = getComputedStyle(at);
    if (style.backgroundImage !== "none") return null;
    const layer = colour(style.backgroundColor);
    if (layer[3] > 0) layers.push(layer);
    if (layer[3] === 1) break;
  }
  const root = getComputedStyle(document.documentElement).colorScheme.includes("dark") && matchMedia("(prefers-color-scheme: dark)").matches;
  return layers.reverse().reduce((below, layer) => over(layer, below), root ? [0, 0, 0] : [255, 255, 255]);
}
const faint = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const text = texts.currentNode.textContent.trim();
  const element = texts.currentNode.parentElement;
  if (!text || !element.checkVisibility() || element.closest("svg, [disabled], .dim")) continue;
  const style = getComputedStyle(element);
  const background = behind(element);
  if (!background) continue;
  const [lighter, darker] = [luminance(over(colour(style.color), background)), luminance(background)].sort((a, b) => b - a);
  const ratio = (lighter + 0.05) / (darker + 0.05);
  const size = parseFloat(style.fontSize);
  const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio < (isLarge ? 3 : 4.5)) faint.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
}
return faint;
