#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes rendezvousd.dashboard.json, a dashboard for Grafana (9 and newer), from the list of panels below."""
import json
import pathlib

RUN = '{run=~"$run", principal=~"$principal"}'
# title, unit, width of 24, (expression, legend) ...; one expression with None: a figure
PANELS = [
    ("Running", "none", 4, ('sum(rendezvousd_jobs_running{instance=~"$instance"})', None)),
    ("Jobs that are not over", "none", 4, ('sum(rendezvousd_jobs{instance=~"$instance"})', None)),
    ("Nodes", "none", 4, ('sum(rendezvousd_nodes{instance=~"$instance"})', None)),
    ("Failed within a day", "none", 4, ('sum(increase(rendezvousd_jobs_failed_total{instance=~"$instance"}[1d]))', None)),
    ("Restarts within a day", "none", 4, ('sum(increase(rendezvousd_restarts_total{instance=~"$instance"}[1d]))', None)),
    ("Peers refused within a day", "none", 4, ('sum(increase(rendezvousd_peers_refused_total{instance=~"$instance"}[1d]))', None)),
    ("Loss", "none", 12, (f"rendezvousd_job_loss{RUN}", "{{run}}")),
    ("Accuracy", "percentunit", 12, (f"rendezvousd_job_accuracy{RUN}", "{{run}} training"), (f"rendezvousd_job_eval_accuracy{RUN}", "{{run}} evaluation")),
    ("Samples a second", "none", 12, (f"rendezvousd_job_images_per_second{RUN}", "{{run}}")),
    ("Step time of the slowest rank", "s", 12, (f"rendezvousd_job_step_seconds{RUN}", "{{run}}")),
    ("Steps done", "percentunit", 12, (f"rendezvousd_job_step{RUN} / rendezvousd_job_total_steps{RUN}", "{{run}}")),
    ("Time left", "s", 12, (f"rendezvousd_job_eta_seconds{RUN}", "{{run}}")),
    ("Restarts", "none", 12, (f"rendezvousd_job_restarts{RUN}", "{{run}}")),
    ("Since the last step", "s", 12, (f"rendezvousd_job_progress_age_seconds{RUN}", "{{run}}")),
    ("Ranks", "none", 12, (f"rendezvousd_job_ranks{RUN} * rendezvousd_job_running{RUN}", "{{run}}")),
    ("Rounds and joins a minute", "none", 12, ('60 * rate(rendezvousd_rounds_total{instance=~"$instance"}[5m])', "rounds {{instance}}"),
     ('60 * rate(rendezvousd_joins_total{instance=~"$instance"}[5m])', "joins {{instance}}")),
    ("How long a request may wait: 99 of 100", "s", 12, ('histogram_quantile(0.99, rate(rendezvousd_loop_seconds_bucket{instance=~"$instance"}[5m]))', "{{instance}}")),
    ("Memory of the daemon", "bytes", 12, ('process_resident_memory_bytes{instance=~"$instance", job="rendezvousd"}', "resident {{instance}}"),
     ('rendezvousd_memory_bytes{instance=~"$instance"}', "keys and buffers {{instance}}")),
]
SOURCE = {"type": "prometheus", "uid": "${source}"}


def panel(number, title, unit, width, x, y, targets):
    figure = targets[0][1] is None
    return {"id": number, "title": title, "type": "stat" if figure else "timeseries", "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": width, "h": 4 if figure else 8}, "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if figure else {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list"}},
            "targets": [{"refId": chr(65 + i), "datasource": SOURCE, "expr": expr, **({"legendFormat": legend} if legend else {})} for i, (expr, legend) in enumerate(targets)]}


def variable(name, metric):
    return {"name": name, "type": "query", "datasource": SOURCE, "query": f"label_values({metric}, {name})", "refresh": 2, "includeAll": True, "multi": True,
            "allValue": ".*", "current": {"text": "All", "value": "$__all"}}


def dashboard():
    panels, x, y = [], 0, 0
    for number, (title, unit, width, *targets) in enumerate(PANELS, 1):
        if x + width > 24:
            x, y = 0, y + panels[-1]["gridPos"]["h"]
        panels.append(panel(number, title, unit, width, x, y, targets))
        x += width
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Data source"}
    return {"title": "rendezvousd", "uid": "rendezvousd", "schemaVersion": 37, "editable": True, "refresh": "30s", "time": {"from": "now-6h", "to": "now"},
            "tags": ["crun"], "templating": {"list": [source, variable("instance", "rendezvousd_jobs"), variable("principal", "rendezvousd_job_running"),
                                                      variable("run", "rendezvousd_job_running")]}, "panels": panels}


if __name__ == "__main__":
    pathlib.Path(__file__).with_name("rendezvousd.dashboard.json").write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")
