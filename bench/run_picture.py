#!/usr/bin/env python3
"""Extracts one chart of a report as an SVG file: run_picture.py REPORT.html OUT.svg [tokens/s|loss]. `optimus report RUN --out
REPORT.html` writes the report."""
import pathlib
import re
import sys


def main():
    report, out, label = pathlib.Path(sys.argv[1]).read_text(), pathlib.Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "tokens/s"
    found = re.search(rf'<svg viewBox="0 0 (\d+) (\d+)" role="img" aria-label="{re.escape(label)}">(.*?)</svg>', report, re.S)
    if not found:
        raise SystemExit(f"{sys.argv[1]} has no chart of {label}")
    width, height, inside = found.groups()
    colours = dict(re.findall(r"--(\w+): (#\w+);", report[:report.index("@media")]))
    style = re.search(r"<style>(.*?)</style>", report, re.S).group(1)
    used = {name for names in re.findall(r'class="([^"]+)"', inside) for name in names.split()}
    rules = "\n".join(rule.strip() for rule in re.findall(r"[^{}@;\n]+\{[^{}]*\}", style) if set(re.findall(r"\.([a-z]\w*)", rule.split("{")[0])) <= used and re.match(r"\s*(svg text|\.)", rule))
    for name, colour in colours.items():
        rules = rules.replace(f"var(--{name})", colour)
    out.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">\n<style>\n{rules}\n</style>\n'
                   f'<rect width="{width}" height="{height}" fill="{colours["card"]}"/>\n{inside}\n</svg>\n')


if __name__ == "__main__":
    main()
