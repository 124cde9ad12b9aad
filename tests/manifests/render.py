"""A stand-in for `kubectl kustomize` on machines without kubectl, as far as validation needs it.

`render.py FOLDER` prints the resources that the folder's kustomization.yaml lists, and the
ConfigMaps that it generates from env files. Names' hashes, images and labels are not applied: the
schemas do not look at them. Whatever else a kustomization can say is refused, not ignored.

`render.py --check-listed FOLDER` prints nothing, and fails if the folder has a YAML file that is
not listed.
"""

import pathlib
import sys

import yaml

APPLIED = {"resources", "configMapGenerator"}
HARMLESS = {"apiVersion", "kind", "images", "labels"}


def refuse_all_but(known, mapping, where):
    unknown = sorted(set(mapping) - known)
    if unknown:
        sys.exit(f"render.py: {where}: {', '.join(unknown)}: install kubectl to render this")


def config_map(folder, generator):
    refuse_all_but({"name", "envs"}, generator, "configMapGenerator")
    entries = {}
    for env in generator["envs"]:
        for line in (folder / env).read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                name, equals, value = line.partition("=")
                if not equals:
                    sys.exit(f"render.py: {env}: not NAME=value: {line}")
                entries[name] = value
    metadata = {"name": generator["name"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": entries}


def main(arguments):
    only_listed = arguments[:1] == ["--check-listed"]
    folder = pathlib.Path(arguments[-1])
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    resources = kustomization["resources"]

    if only_listed:
        files = {path.name for path in folder.glob("*.y*ml")} - {"kustomization.yaml"}
        forgotten = sorted(files - set(resources))
        if forgotten:
            sys.exit(f"render.py: {folder}/kustomization.yaml does not list {', '.join(forgotten)}")
        return

    refuse_all_but(APPLIED | HARMLESS, kustomization, "kustomization.yaml")
    for name in resources:
        print(f"---\n{(folder / name).read_text()}")
    for generator in kustomization.get("configMapGenerator", []):
        print(f"---\n{yaml.safe_dump(config_map(folder, generator))}")


main(sys.argv[1:])
