"""Renders every overlay of k8s/ with each choice of components that it offers, and checks the result by the
schemas of the given Kubernetes releases and by rules.py.

`kubernetes.py k8s 1.29 1.37`
"""

import functools
import itertools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

import jsonschema
import kubernetes_validate
import yaml

import rules
import sabotage

# A kustomization offers a component, and a config.env a variable, in a comment without a space.
OFFERED = re.compile(r"^ *#(- \.\./.*/components/(.*))$", re.MULTILINE)
OFFERED_VARIABLE = re.compile(r"^#((?:ORDERFREE|OTEL)_)", re.MULTILINE)

# Kinds that are not part of Kubernetes.
SCHEMAS = pathlib.Path(__file__).parent / "schemas"


def fail(words):
    sys.exit(f"manifests: {words}")


def offered(overlay):
    return [name for _, name in OFFERED.findall((overlay / "kustomization.yaml").read_text())]


def take(overlay, names):
    """Enables these components as README.md says: by removing the comment's sign."""
    file = overlay / "kustomization.yaml"

    def taken(match):
        return f"  {match[1]}" if match[2] in names else match[0]

    file.write_text(OFFERED.sub(taken, file.read_text()))


def used(folder, seen):
    """Every file that a kustomization reads, including itself."""
    if folder in seen:
        return
    seen.update({folder, folder / "kustomization.yaml"})
    text = OFFERED.sub(r"  \1", (folder / "kustomization.yaml").read_text())
    rest = [yaml.safe_load(text)]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            rest += value.values()
        elif isinstance(value, list):
            rest += value
        elif isinstance(value, str):
            # A file can have another name in a ConfigMap: `name=file`.
            path = (folder / value.rpartition("=")[2]).resolve()
            if (path / "kustomization.yaml").exists():
                used(path, seen)
            elif path.is_file():
                seen.add(path)


def check_nothing_is_forgotten(tree, overlays):
    seen = set()
    for overlay in overlays:
        used(overlay, seen)
    files = {path for path in tree.rglob("*") if path.is_file() and path.name != "README.md"}
    examples = {path for path in files if path.name.endswith(".example.yaml")}
    for path in sorted(files - seen - examples):
        fail(f"no overlay uses k8s/{path.relative_to(tree)}.")
    for path in sorted(examples & seen):
        fail(f"k8s/{path.relative_to(tree)} is an example, and must not be applied.")
    return sorted(examples)


def parse(text):
    return [resource for resource in yaml.safe_load_all(text) if resource]


def render(overlay):
    command = ["kubectl", "kustomize", str(overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # kubectl warns about fields that a later release will not understand.
    if done.returncode or done.stderr:
        fail(f"kubectl kustomize {overlay.name}: {done.stderr}")
    resources = parse(done.stdout)
    if not resources:
        fail(f"{overlay.name} rendered to nothing.")
    return resources


@functools.cache
def own_schema(kind, version):
    path = SCHEMAS / f"{kind.lower()}-{version}.json"
    if not path.exists():
        return None
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@functools.cache
def check_schema(text, versions):
    """Takes the text of one resource, so that a resource of several renderings is checked once."""
    resource = json.loads(text)
    group, _, version = resource["apiVersion"].rpartition("/")
    own = own_schema(resource["kind"], version) if "." in group else None
    try:
        if own is not None:
            own.validate(resource)
        else:
            for release in versions:
                # A kind without a schema is an error too.
                kubernetes_validate.validate(resource, release, strict=True)
    except jsonschema.ValidationError as error:
        where = ".".join(str(step) for step in error.path)
        fail(f"{rules.named(resource)}: {where}: {error.message}")
    except kubernetes_validate.SchemaNotFoundError as error:
        fail(error.message)


def check_schemas(resources, versions):
    for resource in resources:
        check_schema(json.dumps(resource, sort_keys=True), versions)


def check_rules(resources, examples, what):
    wrong = rules.wrong(resources, examples)
    for sentence in wrong:
        print(f"manifests: {what}: {sentence}", file=sys.stderr)
    if wrong:
        sys.exit(1)


def read_examples(files, versions):
    """The keys of each Secret, by the name of the Secret."""
    examples = {}
    for file in files:
        for secret in parse(file.read_text()):
            check_schemas([secret], versions)
            if secret["kind"] != "Secret" or "data" in secret:
                fail(f"{file.name}: an example is a Secret with stringData.")
            for key, text in secret["stringData"].items():
                if key.endswith(".toml"):
                    tomllib.loads(text)
            examples[secret["metadata"]["name"]] = secret["stringData"]
    return examples


def applied(tree, name, names):
    """The contents of a cluster with one overlay. If the overlay has no pods, it is combined with each overlay that
    has pods and the same components."""
    resources = render(tree / "overlays" / name)
    if any(rules.pods(resources)):
        yield resources
        return
    for other in sorted(tree.glob("overlays/*")):
        if other.name != name:
            take(other, names)
            yield [*resources, *render(other)]


def choices(names):
    return itertools.chain.from_iterable(
        itertools.combinations(names, count) for count in range(len(names) + 1)
    )


def check_as_they_are(tree, names, versions):
    """The overlays as an operator edited them: only these, with the components enabled there."""
    for name in names:
        if not (tree / "overlays" / name / "kustomization.yaml").exists():
            fail(f"there is no overlay {name} in k8s/overlays.")
    examples = read_examples(sorted(tree.rglob("*.example.yaml")), versions)
    resources = [one for name in names for one in render(tree / "overlays" / name)]
    check_schemas(resources, versions)
    check_rules(resources, examples, " + ".join(names))
    print(f"manifests: {' + '.join(names)}: valid for Kubernetes {', '.join(versions)}")


def main(source, versions, *names):
    versions = tuple(versions.split())
    if names:
        check_as_they_are(pathlib.Path(source).resolve(), names, versions)
        return
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work).resolve()
        tree = pathlib.Path(shutil.copytree(source, work / "k8s"))
        overlays = sorted(file.parent for file in tree.glob("overlays/*/kustomization.yaml"))
        files = check_nothing_is_forgotten(tree, overlays)
        examples = read_examples(files, versions)
        fullest = []
        for overlay in overlays:
            for names in choices(offered(overlay)):
                what = " + ".join((overlay.name, *names))
                copy = pathlib.Path(shutil.copytree(tree, work / what))
                take(copy / "overlays" / overlay.name, names)
                for resources in applied(copy, overlay.name, names):
                    check_schemas(resources, versions)
                    check_rules(resources, examples, what)
                    # Of two renderings with the same number of resources, the later one has more components.
                    fullest = max(resources, fullest, key=len)
                # Also with every variable that a comment offers.
                for config in copy.rglob("config.env"):
                    config.write_text(OFFERED_VARIABLE.sub(r"\1", config.read_text()))
                for resources in applied(copy, overlay.name, names):
                    check_rules(resources, examples, f"{what}, all variables")
                print(f"manifests: {what}: valid for Kubernetes {', '.join(versions)}")
    for name in sabotage.unseen(fullest, examples):
        fail(f"no rule sees {name}.")


main(*sys.argv[1:])
