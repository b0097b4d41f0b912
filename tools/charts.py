"""Write conf/kubernetes/ from the Helm chart, and check all that it renders.

python tools/charts.py --install    puts helm, kubeconform and Kubernetes' schemas into .venv (needs Go)
python tools/charts.py              writes the plain manifests
python tools/charts.py --check      says whether they are so, and validates them with each supported version
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CHART = ROOT / "conf" / "helm" / "ddmq"
MANIFESTS = ROOT / "conf" / "kubernetes"
SCHEMAS = VENV / "kubernetes-json-schema"
GO_TOOLS = ("helm.sh/helm/v3/cmd/helm@v3.22.0", "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0")
SCHEMA_WHEEL = "kubernetes-validate==1.37.0"  # has the schemas of many versions, as kubeconform reads them
KINDS = (
    "configmap-v1",
    "networkpolicy-networking-v1",
    "poddisruptionbudget-policy-v1",
    "service-v1",
    "statefulset-apps-v1",
)
VERSIONS = ("1.27.0", "1.37.0")  # the oldest and the newest that the chart is checked with

RELEASES = {
    "file-log": [],
    "kafka": [
        "--set=backend=kafka",
        "--set=replicas=3",
        "--set=kafka.bootstrap=kafka-bootstrap:9092",
        "--set=serviceMonitor.enabled=true",
    ],
}


def install() -> None:
    """Install the pinned tools and schemas into .venv."""
    for tool in GO_TOOLS:
        subprocess.run(["go", "install", tool], env={**os.environ, "GOBIN": str(VENV / "bin")}, check=True)
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "-d", folder, SCHEMA_WHEEL]
        subprocess.run(download, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for version in VERSIONS:
                write_schemas(archive, version)


def write_schemas(archive: zipfile.ZipFile, version: str) -> None:
    """Write the schema of each kind that the chart uses, with its definitions in the same file."""
    folder = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict"
    definitions = json.loads(archive.read(f"{folder}/_definitions.json"))["$defs"]
    target = SCHEMAS / f"v{version}"
    target.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        text = archive.read(f"{folder}/{kind}.json").decode()
        schema = json.loads(re.sub(r'"[^"]*#/\$defs/', '"#/$defs/', text))
        del schema["$schema"], schema["$id"]  # kubeconform reads them as draft 4, under the file's name
        (target / f"{kind}.json").write_text(json.dumps({**schema, "$defs": definitions}), encoding="utf-8")


def find_tool(name: str) -> str | None:
    """Return the path of a tool in .venv or of the machine, or None."""
    return shutil.which(name, path=f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")


def render_release(*options: str) -> str:
    """Return the manifests of a release named queue. Raises CalledProcessError; stderr says what is wrong."""
    helm = find_tool("helm")
    assert helm is not None, "helm is missing; run: python tools/charts.py --install"
    command = [
        helm,
        "template",
        "queue",
        str(CHART),
        "--namespace=default",
        f"--kube-version={VERSIONS[-1]}",
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def validate_manifests(manifests: str, version: str) -> str:
    """Return what kubeconform reports about manifests for one version; empty if they are valid."""
    kubeconform = find_tool("kubeconform")
    assert kubeconform is not None, "kubeconform is missing; run: python tools/charts.py --install"
    schemas = f"{SCHEMAS}/{{{{.NormalizedKubernetesVersion}}}}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    # ServiceMonitor is a kind of the Prometheus operator, and has no schema in Kubernetes.
    command = [
        kubeconform, "-strict", "-kubernetes-version", version, "-schema-location", schemas,
        "-skip", "ServiceMonitor", "-",
    ]  # fmt: skip
    result = subprocess.run(command, input=manifests, capture_output=True, text=True, check=False)
    return result.stdout + result.stderr


def write_head(name: str, manifests: str) -> str:
    """Return the first lines of a release's file.

    Their digest is of the chart, the release's options and the manifests, so a test without Helm sees a chart
    that was edited and not rendered, and manifests that were edited by hand.
    """
    digest = hashlib.sha256()
    for file in sorted(path for path in CHART.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(CHART)}\0".encode() + file.read_bytes() + b"\0")
    digest.update("\0".join((*RELEASES[name], manifests)).encode())
    origin = "# Made from conf/helm/ddmq by: python tools/charts.py"
    return f"{origin}\n# Chart and manifests: {digest.hexdigest()}\n"


def main() -> int:
    """Do what the command line says."""
    if "--install" in sys.argv:
        install()
        return 0
    status = 0
    for name, options in RELEASES.items():
        manifests = render_release(*options)
        text = write_head(name, manifests) + manifests
        path = MANIFESTS / f"{name}.yaml"
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(ROOT)} is not what the chart renders; run: python tools/charts.py")
            status = 1
        for version in VERSIONS:
            if report := validate_manifests(manifests, version):
                print(f"{name}, Kubernetes {version}: {report}")
                status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
