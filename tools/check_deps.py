"""Checks licences, sources and duplicates of all dependencies against deny.toml, where cargo-deny is not installed: what it knows of these, and no more.

    python3 tools/check_deps.py        in the repository; says what is wrong and ends with 1
"""
import json
import re
import subprocess
import sys
from collections import defaultdict

try:
    import tomllib
except ImportError:  # Python before 3.11
    from pip._vendor import tomli as tomllib


def is_allowed(expression, allowed):
    """Whether an expression of SPDX can be met. The slash is an old way to write OR."""
    words = re.findall(r"[()]|[\w.+-]+(?: WITH [\w.+-]+)?", expression.replace("/", " OR "))
    python = {"AND": "and", "OR": "or", "(": "(", ")": ")"}
    return bool(words) and eval(" ".join(python.get(word, str(word in allowed)) for word in words))


def covers(spec, package):
    """Whether `name@version` of deny.toml, the version cut off anywhere, means a package."""
    name, _, version = spec.partition("@")
    return name == package["name"] and f"{package['version']}.".startswith(f"{version}." if version else "")


def main():
    deny = tomllib.load(open("deny.toml", "rb"))
    # All targets and features, without what the lock file alone names.
    metadata = json.loads(subprocess.check_output(["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]))
    used = {node["id"] for node in metadata["resolve"]["nodes"]}
    bought = [package for package in metadata["packages"] if package["source"] and package["id"] in used]
    skipped = [skip["crate"] for skip in deny["bans"]["skip"]]
    problems = [f"deny.toml names {spec}, which nothing needs" for spec in skipped if not any(covers(spec, package) for package in bought)]
    versions = defaultdict(list)
    for package in bought:
        label = f"{package['name']} {package['version']}"
        if not is_allowed(package["license"] or "", deny["licenses"]["allow"]):
            problems.append(f"{label}: its licence, {package['license']}, is not one of deny.toml")
        if package["source"].removeprefix("registry+") not in deny["sources"]["allow-registry"]:
            problems.append(f"{label}: comes from {package['source']}, which is not a source of deny.toml")
        if not any(covers(spec, package) for spec in skipped):
            versions[package["name"]].append(package["version"])
    problems += [f"{name}: {' and '.join(many)}; one is enough, or deny.toml names the other with a reason" for name, many in versions.items() if len(many) > 1]
    print(*problems, f"{len(bought)} dependencies: licences, sources and duplicates {'are not as deny.toml says' if problems else 'are well'}", sep="\n")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
