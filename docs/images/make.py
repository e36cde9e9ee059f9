#!/usr/bin/python3
"""Makes the pictures beside this file: traces tests/programs/services/orders.cpp twice, as a page for a browser and in the
live view. Needs root, g++ and chromium.

usage: docs/images/make.py MEMLEAK
"""

import collections
import fcntl
import html
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
import zlib

HERE = pathlib.Path(__file__).resolve().parent
SERVICES = HERE.parent.parent / "tests/programs/services"
COLUMNS, ROWS = 100, 26
# One character of the picture, in pixels.
WIDTH, HEIGHT, MARGIN = 8.4, 18, 14
BACKGROUND, FOREGROUND = "#16181d", "#d7dae0"
COLOURS = ["#3b3f46", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d7dae0"] + [
    "#8b919c", "#ff7b85", "#b5e890", "#ffd78c", "#7cc4ff", "#e08cf5", "#6fd5e0", "#ffffff"]


class Screen:
    """What a terminal shows: the few sequences that the view uses, and no others."""

    def __init__(self):
        self.cells = {}
        self.row = self.column = 0
        self.style = ()

    def feed(self, text):
        pattern = r"\x1b\[([?>]?)([0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>78]|(\r)|(\n)|([^\x00-\x1f])"
        for private, arguments, letter, back, down, character in re.findall(pattern, text):
            if character:
                self.cells[self.row, self.column] = character, self.style
                self.column += 1
            elif back:
                self.column = 0
            elif down:
                self.row += 1
            elif letter and not private:
                self.control(letter, [int(number or 0) for number in arguments.split(";")])

    def control(self, letter, numbers):
        if letter == "H":
            self.row, self.column = max(numbers[0], 1) - 1, max((numbers + [1])[1], 1) - 1
        elif letter == "C":
            self.column += max(numbers[0], 1)
        elif letter == "J":
            self.cells.clear()
        elif letter == "m":
            self.select(numbers)

    def select(self, numbers):
        style = dict(self.style)
        while numbers:
            number = numbers.pop(0)
            if number == 0:
                style = {}
            elif number in (1, 2, 7):
                style[number] = True
            elif number in (22, 27):
                style = {key: value for key, value in style.items() if key not in ((1, 2) if number == 22 else (7,))}
            elif number in (38, 48) and numbers[:1] == [5]:
                style[number] = COLOURS[numbers[1]] if numbers[1] < 16 else FOREGROUND
                numbers = numbers[2:]
            elif 30 <= number <= 37 or 90 <= number <= 97:
                style[38] = COLOURS[number - 30 if number < 40 else number - 82]
            elif number in (39, 49):
                style.pop(number - 1, None)
        self.style = tuple(style.items())

    def svg(self):
        width, height = COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + 2 * MARGIN
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
            f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">',
            f'<rect width="100%" height="100%" rx="6" fill="{BACKGROUND}"/>',
        ]
        for row in range(ROWS):
            column = 0
            while column < COLUMNS:
                first, (text, style) = column, self.cells.get((row, column), (" ", ()))
                column += 1
                while column < COLUMNS and self.cells.get((row, column), (" ", ()))[1] == style:
                    text += self.cells.get((row, column), (" ", ()))[0]
                    column += 1
                parts.append(self.run(row, first, text, dict(style)))
        return "\n".join(filter(None, parts)) + "\n</svg>\n"

    @staticmethod
    def run(row, column, text, style):
        fill, behind = style.get(38, FOREGROUND), style.get(48)
        if style.get(7):
            fill, behind = behind or BACKGROUND, fill
        x, y = MARGIN + column * WIDTH, MARGIN + row * HEIGHT
        parts = ""
        if behind:
            parts = f'<rect x="{x:.1f}" y="{y}" width="{len(text) * WIDTH:.1f}" height="{HEIGHT}" fill="{behind}"/>'
        if not text.strip():
            return parts
        extra = ' font-weight="bold"' if style.get(1) else ""
        extra += ' opacity="0.65"' if style.get(2) else ""
        length = len(text) * WIDTH
        return parts + (
            f'<text x="{x:.1f}" y="{y + 14}" textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs" '
            f'fill="{fill}"{extra}>{html.escape(text).replace(" ", "&#160;")}</text>'
        )


def shrink(path):
    """Writes a picture again with a palette of its 256 most frequent colours."""
    data = path.read_bytes()
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    channels = {2: 3, 6: 4}[kind]
    assert depth == 8
    at, packed = 8, b""
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + length] if name == b"IDAT" else b""
        at += length + 12
    raw, line = zlib.decompress(packed), width * channels
    pixels, before = [], bytearray(line)
    for row in range(height):
        way, now = raw[row * (line + 1)], bytearray(raw[row * (line + 1) + 1 : (row + 1) * (line + 1)])
        for i in range(line):
            left, above = (now[i - channels] if i >= channels else 0), before[i]
            corner = before[i - channels] if i >= channels else 0
            guess = left + above - corner
            paeth = min((left, above, corner), key=lambda value: abs(guess - value))
            now[i] = now[i] + (0, left, above, (left + above) // 2, paeth)[way] & 255
        pixels += [tuple(now[i : i + 3]) for i in range(0, line, channels)]
        before = now
    palette = [colour for colour, _ in collections.Counter(pixels).most_common(256)]
    number = {colour: at for at, colour in enumerate(palette)}
    for colour in set(pixels) - number.keys():
        number[colour] = min(range(len(palette)), key=lambda at: sum((a - b) ** 2 for a, b in zip(palette[at], colour)))
    rows = (b"\0" + bytes(number[pixel] for pixel in pixels[at : at + width]) for at in range(0, len(pixels), width))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)), (b"PLTE", bytes(sum(palette, ())))]
    chunks += [(b"IDAT", zlib.compress(b"".join(rows), 9)), (b"IEND", b"")]
    framed = (struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks)
    path.write_bytes(data[:8] + b"".join(framed))


def live_view(memleak, pid, seconds, begin):
    """The screen of `memleak live` after some seconds; the program begins its work once it is traced."""
    child, master = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="")
        os.execv(memleak, [memleak, "live", "-p", str(pid)])
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    seen, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        if begin and time.monotonic() > end - seconds + 3:
            begin = begin()
        if select.select([master], [], [], 0.1)[0]:
            seen += os.read(master, 1 << 16)
    os.write(master, b"q")
    try:
        while os.read(master, 1 << 16):
            pass
    except OSError:
        pass
    os.waitpid(child, 0)
    screen = Screen()
    screen.feed(seen.decode(errors="replace"))
    return screen


def main():
    memleak = os.path.realpath(sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        program = os.path.join(work, "orders")
        build = ["g++", "-O2", "-g", f"-fdebug-prefix-map={SERVICES}=/src/shop", "-o", program, SERVICES / "orders.cpp"]
        subprocess.run(build, check=True)

        def start():
            return subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0)

        orders, others = start(), start()
        try:
            page = os.path.join(work, "page.html")
            trace = subprocess.Popen([memleak, "-q", "-p", str(orders.pid), "--output", page, "2", "8"])
            time.sleep(3)
            orders.stdin.write(b"\n")
            trace.wait()
            chromium = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            chromium += ["--window-size=1280,1000", f"--user-data-dir={work}/profile", "--virtual-time-budget=3000"]
            chromium += [f"--screenshot={HERE / 'page.png'}", f"file://{page}"]
            subprocess.run(chromium, check=True, stderr=subprocess.DEVNULL)
            shrink(HERE / "page.png")
            screen = live_view(memleak, others.pid, 25, lambda: others.stdin.write(b"\n") and None)
            (HERE / "live.svg").write_text(screen.svg())
        finally:
            for program in orders, others:
                program.kill()
                program.wait()


main()
