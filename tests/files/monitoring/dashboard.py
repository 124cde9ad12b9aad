"""Checks a Grafana dashboard, and prints its queries as a file of Prometheus rules, so that promtool can check
them too. The file is JSON, which is also YAML.

`dashboard.py FILE`
"""

import json
import re
import sys

WIDTH = 24
# Replacements for Grafana's own variables that a parser accepts.
VARIABLES = {
    "$__rate_interval": "5m",
    "$__range": "1h",
    "$namespace": ".*",
    "$job": "orderfree",
    "$instance": ".*",
}
# A data source named by the dashboard's variable exists on every Grafana.
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def fail(message):
    sys.exit(f"dashboard.py: {message}")


def expressions(dashboard):
    for panel in dashboard["panels"]:
        title = panel["title"]
        if panel["type"] == "row":
            continue
        if panel["datasource"] != SOURCE:
            fail(f"{title}: another data source than {SOURCE}")
        if not panel.get("description"):
            fail(f"{title}: no description")
        if "unit" not in panel["fieldConfig"]["defaults"]:
            fail(f"{title}: no unit")
        refs = [target["refId"] for target in panel["targets"]]
        if len(set(refs)) != len(refs) or not refs:
            fail(f"{title}: refIds {refs}")
        for target in panel["targets"]:
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            if not found:
                fail(f"variable {variable['name']}: not label_values(SERIES, LABEL)")
            yield found[1]


def check_places(panels):
    ids = [panel["id"] for panel in panels]
    if len(set(ids)) != len(ids):
        fail(f"ids are not unique: {ids}")
    taken = {}
    for panel in panels:
        place = panel["gridPos"]
        if place["x"] + place["w"] > WIDTH:
            fail(f"{panel['title']}: wider than the dashboard")
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if (x, y) in taken:
                    fail(f"{panel['title']} lies over {taken[x, y]}")
                taken[x, y] = panel["title"]


def main(name):
    with open(name) as file:
        dashboard = json.load(file)
    check_places(dashboard["panels"])
    rules = []
    for asked in expressions(dashboard):
        for variable, value in VARIABLES.items():
            asked = asked.replace(variable, value)
        if "$" in asked:
            fail(f"a variable that is not set: {asked}")
        rules.append({"record": f"panel:{len(rules)}", "expr": asked})
    print(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))


main(sys.argv[1])
