#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Makes tables (Markdown) and plots (SVG, by gnuplot) of what seeds.py measured.

A ratio of two configurations is taken work by work: within each repetition, then the median of the repetitions; then the geometric mean over works.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

import bench

PATHS = (("remote", ("to-guest", "from-guest")), ("local", ("guest",)))
BASE = ("per-port", True, "50", False)
AGAIN = ("per-port", True, "50", True)
MULTI = ("multi-worker", True, "50", False)
PER_CPU = ("per-cpu", True, "50", False)
UNPINNED = ("per-cpu", False, "50", False)
LEFT_ALONE = ("per-port", False, "50", False)  # S3's control group: threads of ports, left to the scheduler
OFF = ("per-cpu", True, "0", False)  # this and what it is compared with: table "windows"
OFF_AGAIN = ("per-cpu", True, "0", True)
WINDOWS = "windows"


def per_cpu_window(window):
    return ("per-cpu", True, window, False)


class Results:
    def __init__(self, data):
        self.data, self.guests, self.points, self.failed = data, data["guests"], {}, []
        for entry in data["points"]:
            c = entry["config"]
            if "failed" in entry:
                self.failed.append(entry)
                continue
            key = (entry["table"], c["guests"], (c["policy"], c["pin"], c["busy_poll"], c["again"]))
            point = entry["point"]
            point["efficiency"] = point["score"] / max(point["daemon_cpu"], 0.001)
            point["efficiency_machine"] = point["score"] / max(point["machine_cpu"], 0.001)
            self.points.setdefault(key, {}).setdefault(point["work"], {}).setdefault(entry["repetition"], []).append(point)

    def works(self, guests, config, wanted=lambda work: True, table="main"):
        return [w for w in self.points.get((table, guests, config), {}) if wanted(w)]

    def value(self, guests, config, work, field, table="main"):
        """Median of the repetitions; None if there are none."""
        repetitions = self.points.get((table, guests, config), {}).get(work, {})
        values = [p[field] for points in repetitions.values() for p in points]
        return statistics.median(values) if values else None

    def ratio(self, guests, config, base, work, field, table="main"):
        ours = self.points.get((table, guests, config), {}).get(work, {})
        theirs = self.points.get((table, guests, base), {}).get(work, {})
        ratios = [ours[r][0][field] / theirs[r][0][field] for r in ours if r in theirs and theirs[r][0][field] and ours[r][0][field]]
        return statistics.median(ratios) if ratios else None

    def mean_ratio(self, guests, config, base, field, wanted=lambda work: True, table="main"):
        """Geometric mean over works; 0 if nothing was measured."""
        ratios = [self.ratio(guests, config, base, w, field, table) for w in self.works(guests, config, wanted, table)]
        return bench.geometric_mean([r for r in ratios if r])


def on_path(name):
    paths = dict(PATHS)[name]
    return lambda work: work.split(",")[1] in paths


def is_rr(work, in_flight=None):
    parts = work.split(",")
    return parts[0] == "rr" and (in_flight is None or int(parts[3]) == in_flight)


def is_stream(work):
    return work.startswith("stream")


def per_cent(value):
    return f"{100 * value:.0f}" if value else "—"


def guests_label(path, n):
    """Among guests, one session needs two."""
    return f"{path} {2 if path == 'local' and n == 1 else n}"


# --- tables ------------------------------------------------------------------------------------------------------------------


def policy_table(r):
    rows, columns = [], (MULTI, PER_CPU, AGAIN)
    for path, _ in PATHS:
        for n in r.guests:
            row = [guests_label(path, n)]
            for config in columns:
                row.append(" / ".join(per_cent(r.mean_ratio(n, config, BASE, f, on_path(path))) for f in ("score", "efficiency", "efficiency_machine")))
            rows.append(row)
    total = ["all"]
    for config in columns:
        fields = []
        for field in ("score", "efficiency", "efficiency_machine"):
            means = [r.mean_ratio(n, config, BASE, field, on_path(path)) for path, _ in PATHS for n in r.guests]
            fields.append(per_cent(bench.geometric_mean(means)))
        total.append(" / ".join(fields))
    rows.append(total)
    return bench.table(["guests", "multi-worker", "per-cpu", "A/A: per-port again"], rows)


def latency_table(r):
    rows = []
    for path, _ in PATHS:
        for n in r.guests:
            for in_flight in (1, 16):
                works = r.works(n, PER_CPU, lambda w: on_path(path)(w) and is_rr(w, in_flight))
                if not works:
                    continue
                work = works[0]
                cells = []
                for config, table in ((BASE, "main"), (MULTI, "main"), (PER_CPU, "main"), (OFF, WINDOWS)):
                    values = [r.value(n, config, work, f, table) for f in ("p50_us", "p99_us", "p999_us")]
                    cells.append(" / ".join("—" if v is None else f"{v:.0f}" for v in values))
                rows.append([guests_label(path, n), f"{work.split(',')[2]} B x {in_flight}"] + cells)
    return bench.table(["guests", "frame x in flight", "per-port", "multi-worker", "per-cpu", "per-cpu, busy-poll 0"], rows)


def works_table(r, n):
    """Every work at one number of guests, in absolute figures."""
    rows = []
    for work in r.works(n, PER_CPU):
        row = [work]
        for config in (BASE, MULTI, PER_CPU):
            score, cpu, demand = (r.value(n, config, work, f) for f in ("score", "daemon_cpu", "ns_per_frame"))
            row.append("—" if score is None else f"{score / 1000:.1f} / {cpu:.0f} / {demand:.0f}")
        rows.append(row)
    return bench.table(["work", "per-port", "multi-worker", "per-cpu"], rows)


def pin_table(r):
    rows = []
    for path, _ in PATHS:
        for n in r.guests:
            row = [guests_label(path, n)]
            for wanted in (is_stream, is_rr):
                row += [per_cent(r.mean_ratio(n, PER_CPU, UNPINNED, f, lambda w: on_path(path)(w) and wanted(w))) for f in ("score", "ns_per_byte")]
            moved = migrations_a_second(r, n, UNPINNED)
            rows.append(row + ["—" if moved is None else f"{moved:.0f}"])
    return bench.table(["guests", "streams: throughput", "streams: CPU per byte", "request-response: rate", "request-response: CPU per byte",
                        "not pinned: its threads' moves between CPUs, a second"], rows)


def busy_poll_table(r, adaptive):
    rows = []
    for path, _ in PATHS:
        for n in r.guests:
            for name, wanted in (("request-response, 1 in flight", lambda w: is_rr(w, 1)), ("request-response, 16 in flight", lambda w: is_rr(w, 16)),
                                 ("streams", is_stream)):
                def chosen(work, wanted=wanted):
                    return on_path(path)(work) and wanted(work)
                row = [guests_label(path, n), name]
                for config in (PER_CPU, per_cpu_window("always"), per_cpu_window(adaptive)):
                    row.append(per_cent(r.mean_ratio(n, config, OFF, "score", chosen, WINDOWS)) + " / " +
                               per_cent(r.mean_ratio(n, config, OFF, "ns_per_byte", chosen, WINDOWS)))
                rows.append(row)
    return bench.table(["guests", "work", "50 us", "always", "adaptive"], rows)


def points_against_better(r, config):
    """[(ratio to the better of 0 and always, guests, work)], worst first."""
    found = []
    for n in r.guests:
        for work in r.works(n, config, table=WINDOWS):
            rivals = [r.ratio(n, config, per_cpu_window(w), work, "score", WINDOWS) for w in ("0", "always")]
            if all(rivals):
                found.append((min(rivals), n, work))
    return sorted(found)


WORK_KINDS = (("request-response, 1 in flight", lambda w: is_rr(w, 1)), ("request-response, 16 in flight", lambda w: is_rr(w, 16)), ("streams", is_stream))


def adaptive_groups(r, adaptive):
    """[(geometric mean of the ratio to the better of 0 and always as groups, guests, path, kind)], worst first: what single points lose in noise."""
    found = []
    for n in r.guests:
        for path, _ in PATHS:
            for name, wanted in WORK_KINDS:
                def chosen(work, path=path, wanted=wanted):
                    return on_path(path)(work) and wanted(work)
                rivals = [r.mean_ratio(n, per_cpu_window(adaptive), per_cpu_window(w), "score", chosen, WINDOWS) for w in ("0", "always")]
                if all(rivals):
                    found.append((min(rivals), guests_label(path, n), name))
    return sorted(found)


def noise_points(r):
    """How far single points are apart that should be one: busy-poll 0 measured twice. [ratio], sorted."""
    ratios = [r.ratio(n, OFF_AGAIN, OFF, work, "score", WINDOWS) for n in r.guests for work in r.works(n, OFF_AGAIN, table=WINDOWS)]
    return sorted(ratio for ratio in ratios if ratio)


def migrations_a_second(r, guests, config):
    values = [p.get("migrations") for works in r.points.get(("main", guests, config), {}).values() for ps in works.values() for p in ps]
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def symmetry_rows(r):
    rows, home, astray = [], 0, 0
    for (table, _, _), works in r.points.items():
        if table != "symmetry":
            continue
        for work, repetitions in works.items():
            points = [p for ps in repetitions.values() for p in ps]
            h, a = sum(p["home"] for p in points), sum(p["astray"] for p in points)
            home, astray = home + h, astray + a
            rows.append([work, f"{h + a}", f"{100 * h / max(h + a, 1):.3f} %", sum(p["reordered"] for p in points)])
    return rows, 100 * home / (home + astray) if home + astray else 0.0


# --- requirements --------------------------------------------------------------------------------------------------------------


def requirements(r, adaptive):
    rows, need = [], bench.requirement
    for n, score, efficiency in ((24, 1.41, 1.49), (12, 1.13, 1.29)):
        for path, _ in PATHS if n in r.guests else ():
            rows.append(need(f"{n} guests, {path}: per-cpu score to per-port", r.mean_ratio(n, PER_CPU, BASE, "score", on_path(path)), minimum=score))
            rows.append(need(f"{n} guests, {path}: efficiency (daemon's CPU)", r.mean_ratio(n, PER_CPU, BASE, "efficiency", on_path(path)),
                             minimum=efficiency))
    for n in (1, 4):
        for path, _ in PATHS if n in r.guests else ():
            for name, wanted in (("all", lambda w: True), ("request-response, 1 in flight", lambda w: is_rr(w, 1)), ("streams", is_stream)):
                def chosen(work, path=path, wanted=wanted):
                    return on_path(path)(work) and wanted(work)
                rows.append(need(f"{guests_label(path, n)} guests, {name}: per-cpu score to per-port", r.mean_ratio(n, PER_CPU, BASE, "score", chosen),
                                 minimum=1.0))
    throughput = [r.mean_ratio(n, PER_CPU, UNPINNED, "score", is_stream) for n in r.guests]
    rows.append(need("pinned to not pinned: throughput of streams, all numbers of guests", bench.geometric_mean(throughput), minimum=1.10))
    most = max(r.guests)
    rows.append(need(f"pinned to not pinned: CPU per byte of streams, {most} guests", r.mean_ratio(most, PER_CPU, UNPINNED, "ns_per_byte", is_stream),
                     maximum=0.5))
    for field, name, limits in (("score", "throughput", {"minimum": 1.10}), ("ns_per_byte", "CPU per byte", {"maximum": 0.5})):
        value = r.mean_ratio(most, PER_CPU, LEFT_ALONE, field, is_stream)
        if value:
            rows.append(need(f"per-cpu pinned to a thread a port left to the scheduler (S3's control): {name} of streams, {most} guests", value, **limits))
    if 1 in r.guests:
        for path, _ in PATHS:
            def session(work, path=path):
                return on_path(path)(work) and is_rr(work, 1)
            rows.append(need(f"busy-poll 50 to 0, one session {path}, 1 in flight", r.mean_ratio(1, PER_CPU, OFF, "score", session, WINDOWS),
                             minimum=1.27))
    points, groups, noise = points_against_better(r, per_cpu_window(adaptive)), adaptive_groups(r, adaptive), noise_points(r)
    if points:
        worst = points[0]
        reached = sum(p[0] >= 0.95 for p in points)
        control = f"; of busy-poll 0 measured twice, {sum(n >= 0.95 for n in noise)} of {len(noise)}, worst {noise[0]:.2f}" if noise else ""
        rows.append(need(f"adaptive to the better of 0 and always, every point ({reached} of {len(points)} reach it{control})", worst[0], minimum=0.95))
    if groups:
        worst = groups[0]
        reached = sum(g[0] >= 0.95 for g in groups)
        rows.append(need(f"the same by groups of alike works ({reached} of {len(groups)} reach it; worst: {worst[1]} guests, {worst[2]})", worst[0],
                         minimum=0.95))
    idle = [r.value(n, c, "idle", "daemon_cpu", "idle") for table, n, c in r.points if table == "idle"]
    if idle:
        rows.append(need("idle daemon, 24 guests, adaptive: % of one CPU", idle[0], maximum=1.0))
    crowded = ("per-port", True, adaptive, False)
    ratio = r.mean_ratio(4, crowded, ("per-port", True, "0", False), "score", table="overcommitted")
    rows.append(need("two workers on one CPU: adaptive to 0", ratio, minimum=0.95))
    rows.append(need("flow symmetry: frames that meet the worker of their other direction, %", symmetry_rows(r)[1], minimum=99.0, form="{:.3f}"))
    return rows


# --- plots ---------------------------------------------------------------------------------------------------------------------


GNUPLOT_HEAD = """set terminal svg size 900,420 dynamic background rgb 'white' font 'sans-serif,12'
set output '{output}'
set title '{title}'
set ylabel '{ylabel}'
set style data histograms
set style histogram clustered gap 1
set style fill solid 0.85 border -1
set boxwidth 0.9
set grid ytics lc rgb '#cccccc'
set key outside right top
set yrange [0:*]
set datafile missing '-'
"""


def bar_plot(directory, name, title, ylabel, columns, rows, line=None):
    """Clustered bars: rows = [(label, value of each column)]."""
    data, output = os.path.join(directory, name + ".dat"), os.path.join(directory, name + ".svg")
    lines = ["# " + " ".join(columns)] + ['"%s" %s' % (label, " ".join("-" if not v else f"{v:.4f}" for v in values)) for label, values in rows]
    bench.write(data, "\n".join(lines) + "\n")
    script = GNUPLOT_HEAD.format(output=output, title=title, ylabel=ylabel)
    parts = [f"'{data}' using {i + 2}:xtic(1) title '{column}'" for i, column in enumerate(columns)]
    if line:
        parts.append(f"{line} with lines lc rgb 'black' dt 2 notitle")
    subprocess.run(["gnuplot"], input=script + "plot " + ", ".join(parts) + "\n", text=True, check=True)
    return f"![{title}]({name}.svg)\n"


def plots(r, directory, adaptive):
    if not bench.have("gnuplot"):
        return "(No plots: gnuplot is not installed; scripts/install-deps.sh bench installs it.)\n"
    text = ""
    for field, name in (("score", "Score"), ("efficiency", "Efficiency (score per daemon CPU)")):
        rows = [(guests_label(path, n), [r.mean_ratio(n, c, BASE, field, on_path(path)) for c in (MULTI, PER_CPU, AGAIN)])
                for path, _ in PATHS for n in r.guests]
        text += bar_plot(directory, f"bench-seeds-{field}", f"{name} relative to per-port, geometric mean of all works", "ratio",
                         ["multi-worker", "per-cpu", "per-port again"], rows, line=1)
    rows = []
    for path, _ in PATHS:
        for n in r.guests:
            works = r.works(n, PER_CPU, lambda w: on_path(path)(w) and is_rr(w, 1))
            if works:
                rows.append((guests_label(path, n), [r.value(n, c, works[0], f) for c in (BASE, PER_CPU) for f in ("p50_us", "p99_us")]))
    text += bar_plot(directory, "bench-seeds-latency", "Request-response, 1 in flight, shortest frame: latency", "microseconds",
                     ["per-port p50", "per-port p99", "per-cpu p50", "per-cpu p99"], rows)
    rows = [(guests_label(path, n), [r.mean_ratio(n, c, OFF, "score", lambda w: on_path(path)(w) and is_rr(w, 1), WINDOWS)
                                     for c in (PER_CPU, per_cpu_window("always"), per_cpu_window(adaptive))]) for path, _ in PATHS for n in r.guests]
    text += bar_plot(directory, "bench-seeds-busy-poll", "Request-response, 1 in flight: rate relative to busy-poll 0", "ratio",
                     ["50 us", "always", "adaptive"], rows, line=1)
    rows = [(guests_label(path, n), [r.mean_ratio(n, PER_CPU, UNPINNED, f, lambda w: on_path(path)(w) and is_stream(w)) for f in ("score", "ns_per_byte")])
            for path, _ in PATHS for n in r.guests]
    text += bar_plot(directory, "bench-seeds-pinned", "Streams, pinned relative to not pinned", "ratio", ["throughput", "CPU per byte"], rows, line=1)
    return text


def report(r, directory):
    adaptive = "adaptive" if r.data["adaptive"] else "50"
    symmetry, _ = symmetry_rows(r)
    crowded = [[w or "50", per_cent(r.mean_ratio(4, ("per-port", True, w, False), ("per-port", True, "0", False), "score", table="overcommitted"))]
               for w in ("50", "always") + (("adaptive",) if r.data["adaptive"] else ())]
    crowded.append(["0, measured again", per_cent(r.mean_ratio(4, ("per-port", True, "0", True), ("per-port", True, "0", False), "score", table="overcommitted"))])
    seconds, turns = r.data["seconds"], r.data["turns"]
    text = "# The seeds' tables, measured\n\n" + r.data["surroundings"] + "\n"
    if r.data.get("kept"):
        text += r.data["kept"] + "\n"
    text += (f"Each point: median of {turns} interleaved turns of {seconds} s, all configurations that are compared within one daemon. Guests are processes with real vhost-user sessions, one thread a vCPU, "
             "blocking as guests do; the remote host is an AF_XDP sender behind a veth, on the same CPUs. All share what CPUs there are. Score: "
             "transactions or frames per second. Efficiency: score per CPU time of the daemon, and (third figure) of the whole machine. Ratios are geometric "
             "means over request-response (1/64/256/1024 B, 1 and 16 in flight) and streams (64 and 1500 B).\n\n")
    if r.data["quick"]:
        text += "**A quick run: fewer points, shorter. Not the tables' full measure.**\n\n"
    if not r.data["adaptive"]:
        text += "This build has no `busy-poll-us=adaptive` of its own: \"adaptive\" below is the default of 50 us, within which the window adapts.\n\n"
    text += "## What is to be reached here\n\n" + bench.table(bench.REQUIREMENT_HEADS, requirements(r, adaptive)) + "\n"
    text += "## Policies, in % of per-port (pinned, busy-poll 50): score / efficiency / efficiency by the machine's CPU\n\n" + policy_table(r) + "\n"
    text += plots(r, directory, adaptive) + "\n"
    text += "## Latency: p50 / p99 / p99.9 in microseconds\n\n" + latency_table(r) + "\n"
    text += "## Pinned, in % of not pinned (per-cpu, busy-poll 50)\n\n" + pin_table(r) + "\n"
    text += "## Busy polling (per-cpu, pinned), in % of busy-poll 0: score / daemon's CPU per byte\n\n" + busy_poll_table(r, adaptive) + "\n"
    text += "## Two workers on one CPU, score in % of busy-poll 0\n\n" + bench.table(["busy-poll", "score"], crowded) + "\n"
    text += "## Flow symmetry: guests with four queue pairs\n\n" + bench.table(["work", "frames", "on the pair of their other direction", "reordered"], symmetry) + "\n"
    for n in r.guests:
        text += f"## All works, {n} guests: score in thousands / daemon's CPU in % / its ns per frame\n\n" + works_table(r, n) + "\n"
    if r.failed:
        text += "## Not measured\n\n" + "".join(f"- {f['table']}, {f['config']}, repetition {f['repetition'] + 1}: {f['failed'].splitlines()[0]}\n"
                                               for f in r.failed) + "\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", default=os.path.join(bench.RESULTS, "seeds.json"), help="what seeds.py wrote")
    parser.add_argument("--directory", default=bench.RESULTS, help="where table and plots go (default build/bench)")
    options = parser.parse_args()
    with open(options.results, encoding="utf-8") as file:
        results = Results(json.load(file))
    os.makedirs(options.directory, exist_ok=True)
    text = report(results, options.directory)
    bench.write(os.path.join(options.directory, "bench-seeds.md"), text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
