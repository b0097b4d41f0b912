"""The Helm chart and the plain manifests made from it agree with the server and with Kubernetes' schemas."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from ddmq.cli.root import root
from ddmq.server.config import ServeConfig, load_folder
from tools import charts

KAFKA = ["--set=backend=kafka", "--set=kafka.bootstrap=broker:9092"]
# The tools are Go programs that take minutes to build, so `make charts` installs them and runs these tests.
# The tests of the plain manifests, which are made from the chart, run everywhere.
needs_helm = pytest.mark.skipif(
    not (charts.find_tool("helm") and charts.find_tool("kubeconform") and charts.SCHEMAS.exists()),
    reason="helm, kubeconform or the schemas are missing; run: python tools/charts.py --install",
)


def read_manifests(text: str) -> dict[str, dict[str, Any]]:
    """Return the manifests of a release by their kinds; of two services the one with a cluster address."""
    manifests = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    return {manifest["kind"]: manifest for manifest in reversed(manifests)}


def read_container(manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (container,) = manifests["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.fixture(params=charts.RELEASES)
def manifests(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    return read_manifests(Path(charts.MANIFESTS / f"{request.param}.yaml").read_text())


def test_the_container_starts_the_server_with_options_that_it_has(
    manifests: dict[str, dict[str, Any]],
) -> None:
    serve = root.get_command(click.Context(root), "serve")
    assert serve is not None
    options = serve.make_context("serve", list(read_container(manifests)["args"])).params
    assert options["beyond_loopback"]
    assert str(options["config_dir"]) == "/etc/ddmq"


def test_the_ports_and_probes_are_those_of_the_server(manifests: dict[str, dict[str, Any]]) -> None:
    container = read_container(manifests)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"producer": 9613, "consumer": 9713, "admin": 9813}
    probes = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")
    }
    assert probes == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}


def test_a_pod_has_time_to_drain(manifests: dict[str, dict[str, Any]]) -> None:
    pod = manifests["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > ServeConfig().drain_ms / 1000 + 10


def test_the_admin_port_answers_to_the_names_of_the_services(manifests: dict[str, dict[str, Any]]) -> None:
    names = yaml.safe_load(manifests["ConfigMap"]["data"]["ddmq.yaml"])["admin_names"]
    service = manifests["Service"]["metadata"]["name"]
    assert {service, f"{service}.default.svc", f"{service}-pods.default.svc.cluster.local"} <= set(names)


def test_the_scrape_job_is_one_that_the_alert_rules_select() -> None:
    manifests = read_manifests((charts.MANIFESTS / "kafka.yaml").read_text())
    (endpoint,) = manifests["ServiceMonitor"]["spec"]["endpoints"]
    (job,) = [rule["replacement"] for rule in endpoint["relabelings"] if rule["targetLabel"] == "job"]
    rules = (charts.ROOT / "conf" / "prometheus" / "ddmq-alerts.yaml").read_text()
    patterns = set(re.findall(r'job=~"([^"]*)"', rules))
    assert patterns
    assert [pattern for pattern in patterns if not re.fullmatch(pattern, job)] == []


def test_only_labelled_pods_reach_the_ports_of_clients_and_no_other_pod_the_admin_port(
    manifests: dict[str, dict[str, Any]],
) -> None:
    clients, servers = manifests["NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for port in clients["ports"]] == ["producer", "consumer"]
    own_pods = {"podSelector": manifests["NetworkPolicy"]["spec"]["podSelector"]}
    assert servers["from"] == [own_pods]


@needs_helm
def test_the_plain_manifests_are_what_the_chart_renders_and_valid() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tools.charts", "--check"],
        cwd=charts.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


@needs_helm
def test_the_files_of_the_documented_example_are_what_the_server_reads(tmp_path: Path) -> None:
    lines = (charts.CHART / "values.yaml").read_text().splitlines()
    example = [line.removeprefix("# ") for line in lines if line.startswith(("# config:", "#   "))]
    (tmp_path / "values.yaml").write_text("\n".join(example))
    manifests = read_manifests(charts.render_release(f"--values={tmp_path / 'values.yaml'}"))
    (tmp_path / "conf").mkdir()
    for name, text in manifests["ConfigMap"]["data"].items():
        (tmp_path / "conf" / name).write_text(text)
    configuration = load_folder(tmp_path / "conf", {})
    assert "billing" in str(configuration)
    assert "orders" in str(configuration)


@needs_helm
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--set=config.topics.topics.orders.queues=8"], id="a topic"),
        pytest.param(["--set=config.ddmq.admin_names[0]=queue.example"], id="a name of the admin port"),
        pytest.param(["--set=env.DDMQ__LOG_FORMAT=json"], id="a setting by environment"),
        pytest.param([*KAFKA, "--set=replicas=2", "--set=persistence.enabled=false"], id="without volumes"),
        pytest.param(["--set=networkPolicy.enabled=false"], id="without a network policy"),
        pytest.param([f"--set=image.digest=sha256:{'0' * 64}"], id="an image by its digest"),
    ],
)
@pytest.mark.parametrize("version", charts.VERSIONS)
def test_other_values_render_valid_manifests(options: list[str], version: str) -> None:
    assert charts.validate_manifests(charts.render_release(*options), version) == ""


@needs_helm
def test_a_manifest_with_a_misspelt_field_is_not_valid() -> None:
    manifests = charts.render_release().replace("containerPort", "containerPrt")
    assert "containerPrt" in charts.validate_manifests(manifests, charts.VERSIONS[0])


@needs_helm
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--set=replicas=2"], "replicas must be 1 with backend file_log"),
        (["--set=persistence.enabled=false"], "a restart would lose all messages"),
        (["--set=backend=kafka"], "kafka.bootstrap is empty"),
        (["--set=backend=rabbit"], "backend"),
        (["--set=replica=1"], "replica"),
        (["--set=terminationGracePeriodSeconds=5"], "terminationGracePeriodSeconds"),
    ],
)
def test_a_wrong_value_is_rejected_with_its_reason(options: list[str], reason: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        charts.render_release(*options)
    assert reason in error.value.stderr
