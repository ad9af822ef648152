"""Makes data/2026-01.csv and later/2026-02.csv, always the same: readings of pumps, and the state that a mechanic found."""
import csv
import pathlib
import random


def reading(chance):
    """Return a row. One state in 25 is wrong, because mechanics err."""
    hours = chance.randrange(9000)
    temperature = chance.gauss(60, 8) + hours / 600
    vibration = abs(chance.gauss(1.5, 0.5)) + max(0, hours - 4000) / 1500
    pressure = chance.gauss(6, 0.8)
    flow = 4 * pressure + chance.gauss(0, 3)
    state = "blocked" if flow < 3.5 * pressure else "worn" if vibration + (temperature - 60) / 20 > 3.5 else "fine"
    if chance.random() < 0.04:
        state = chance.choice(["blocked", "fine", "worn"])
    return [round(temperature, 1), round(vibration, 2), round(pressure, 2), round(flow, 1), hours, state]


def write(path, seed, rows):
    """Write a file of readings."""
    chance = random.Random(seed)
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as f:
        to = csv.writer(f, lineterminator="\n")
        to.writerow(["temperature", "vibration", "pressure", "flow", "hours", "state"])
        to.writerows(reading(chance) for _ in range(rows))


if __name__ == "__main__":
    write(pathlib.Path("data/2026-01.csv"), 1, 1200)
    write(pathlib.Path("later/2026-02.csv"), 2, 600)
