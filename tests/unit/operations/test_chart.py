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
from ddmq.server.config import Configuration, ServeConfig, load_folder
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
    assert options["insecure"], "by default the network policy protects the ports"
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


def read_admin_names(manifests: dict[str, dict[str, Any]], pod: str) -> set[str]:
    (value,) = [
        entry["value"] for entry in read_container(manifests)["env"] if entry["name"] == "DDMQ__ADMIN_NAMES"
    ]
    return set(yaml.safe_load(value.replace("$(POD_NAME)", pod)))


def test_the_admin_port_answers_to_the_names_of_the_services_and_of_its_pod(
    manifests: dict[str, dict[str, Any]],
) -> None:
    service = manifests["Service"]["metadata"]["name"]
    hosts = (service, f"{service}-pods", f"{service}-0.{service}-pods")
    suffixes = ("", ".default", ".default.svc", ".default.svc.cluster.local")
    assert read_admin_names(manifests, f"{service}-0") == {
        f"{host}{suffix}" for host in hosts for suffix in suffixes
    }


def test_the_variables_of_the_container_are_settings_that_the_server_has(
    manifests: dict[str, dict[str, Any]],
) -> None:
    entries = {entry["name"]: entry.get("value", "10.0.0.7") for entry in read_container(manifests)["env"]}
    variables = {
        name: value.replace("$(POD_IP)", "10.0.0.7")
        for name, value in entries.items()
        if name.startswith("DDMQ")
    }
    assert "10.0.0.7:9713" in str(load_folder(None, variables))


def test_the_scrape_job_is_one_that_the_alert_rules_select() -> None:
    manifests = read_manifests((charts.MANIFESTS / "kafka.yaml").read_text())
    (endpoint,) = manifests["ServiceMonitor"]["spec"]["endpoints"]
    (job,) = [rule["replacement"] for rule in endpoint["relabelings"] if rule["targetLabel"] == "job"]
    rules = (charts.ROOT / "conf" / "prometheus" / "ddmq-alerts.yaml").read_text()
    patterns = set(re.findall(r'job=~"([^"]*)"', rules))
    assert patterns
    assert [pattern for pattern in patterns if not re.fullmatch(pattern, job)] == []


@pytest.mark.parametrize("release", charts.RELEASES)
def test_the_plain_manifests_were_rendered_from_this_chart_and_not_edited(release: str) -> None:
    first, second, manifests = (charts.MANIFESTS / f"{release}.yaml").read_text().split("\n", 2)
    assert f"{first}\n{second}\n" == charts.write_head(release, manifests), "run: make charts"


@pytest.mark.parametrize("release", charts.RELEASES)
def test_the_plain_manifests_refer_to_each_other(release: str) -> None:
    text = (charts.MANIFESTS / f"{release}.yaml").read_text()
    manifests = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    assert len(names) == len(manifests)
    (workload,) = [manifest["spec"] for manifest in manifests if manifest["kind"] == "StatefulSet"]
    template = workload["template"]
    pod_labels = template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert ("Service", workload["serviceName"]) in names
    assert workload["selector"]["matchLabels"].items() <= pod_labels
    for manifest in manifests:
        spec = manifest.get("spec", {})
        if manifest["kind"] == "Service":
            assert spec["selector"].items() <= pod_labels
            assert {port["targetPort"] for port in spec["ports"]} == ports
        if manifest["kind"] in ("NetworkPolicy", "PodDisruptionBudget"):
            selector = spec["podSelector" if manifest["kind"] == "NetworkPolicy" else "selector"]
            assert selector["matchLabels"].items() <= pod_labels
    volumes = [
        *template["spec"]["volumes"],
        *(claim["metadata"] for claim in workload["volumeClaimTemplates"]),
    ]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in volumes}
    for volume in volumes:
        assert "configMap" not in volume or ("ConfigMap", volume["configMap"]["name"]) in names


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


def load_rendered(manifests: dict[str, dict[str, Any]], folder: Path) -> Configuration:
    """Read the files of the config map as the server does, which is told this folder."""
    for name, text in manifests["ConfigMap"]["data"].items():
        (folder / name).write_text(text)
    return load_folder(folder, {})


def test_the_server_and_ddmq_doctor_read_which_backend_it_is_from_the_config_map(tmp_path: Path) -> None:
    manifests = read_manifests((charts.MANIFESTS / "kafka.yaml").read_text())
    backend = load_rendered(manifests, tmp_path).backend
    assert (backend.engine, backend.kafka.bootstrap) == ("kafka", "kafka-bootstrap:9092")


@needs_helm
@pytest.mark.parametrize("version", charts.VERSIONS)
def test_the_values_of_the_page_render_valid_manifests(version: str, tmp_path: Path) -> None:
    page = (charts.ROOT / "docs" / "kubernetes.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        values = tmp_path / f"{number}.yaml"
        values.write_text(block)
        assert charts.validate_manifests(charts.render_release(f"--values={values}"), version) == ""


@needs_helm
def test_custom_settings_of_the_backend_are_preserved(tmp_path: Path) -> None:
    text = charts.render_release(*KAFKA, "--set=config.backend.kafka.namespace=other")
    backend = load_rendered(read_manifests(text), tmp_path).backend
    assert (backend.engine, backend.kafka.namespace) == ("kafka", "other")
    assert backend.kafka.bootstrap == "broker:9092"


@needs_helm
def test_the_server_reads_the_files_of_the_documented_example(tmp_path: Path) -> None:
    lines = (charts.CHART / "values.yaml").read_text().splitlines()
    example = [line.removeprefix("# ") for line in lines if line.startswith(("# config:", "#   "))]
    (tmp_path / "values.yaml").write_text("\n".join(example))
    manifests = read_manifests(charts.render_release(f"--values={tmp_path / 'values.yaml'}"))
    (tmp_path / "conf").mkdir()
    configuration = load_rendered(manifests, tmp_path / "conf")
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
        pytest.param(
            ["--set=networkPolicy.clientsFrom[0].namespaceSelector.matchLabels.team=shop"], id="clients"
        ),
        pytest.param(["--set=nameOverride=mq"], id="another name"),
        pytest.param(["--set=topologySpreadConstraints[0].topologyKey=zone"], id="a spread over zones"),
        pytest.param([f"--set=image.digest=sha256:{'0' * 64}"], id="an image by its digest"),
    ],
)
@pytest.mark.parametrize("version", charts.VERSIONS)
def test_other_values_render_valid_manifests(options: list[str], version: str) -> None:
    assert charts.validate_manifests(charts.render_release(*options), version) == ""


VALUES = """
extraEnv: [{name: KAFKA_PASSWORD, valueFrom: {secretKeyRef: {name: kafka, key: password}}}]
env: {DDMQ_BACKEND__KAFKA__LIBRDKAFKA: '{"sasl.password": "$(KAFKA_PASSWORD)"}'}
extraVolumes: [{name: kafka-ca, secret: {secretName: kafka-ca}}]
extraVolumeMounts: [{name: kafka-ca, mountPath: /etc/kafka-ca, readOnly: true}]
topologySpreadConstraints:
  - {topologyKey: topology.kubernetes.io/zone}
  - {topologyKey: rack, maxSkew: 2, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}
networkPolicy:
  clientsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}}]
adminNames: [queue.example]
config: {ddmq: {admin_names: [mq.example], log_format: json}}
"""


@pytest.fixture
def extended(tmp_path: Path) -> str:
    """Return what the chart renders with volumes, variables, peers and names of the user's own."""
    (tmp_path / "values.yaml").write_text(VALUES)
    return charts.render_release(f"--values={tmp_path / 'values.yaml'}")


@needs_helm
@pytest.mark.parametrize("version", charts.VERSIONS)
def test_own_volumes_variables_and_peers_are_valid(extended: str, version: str) -> None:
    assert charts.validate_manifests(extended, version) == ""


@needs_helm
def test_own_volumes_and_variables_reach_the_container(extended: str) -> None:
    manifests = read_manifests(extended)
    container = read_container(manifests)
    names = [entry["name"] for entry in container["env"]]
    assert names.index("KAFKA_PASSWORD") < names.index(
        "DDMQ_BACKEND__KAFKA__LIBRDKAFKA"
    )  # which refers to it
    assert {"name": "kafka-ca", "mountPath": "/etc/kafka-ca", "readOnly": True} in container["volumeMounts"]
    volumes = manifests["StatefulSet"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "kafka-ca", "secret": {"secretName": "kafka-ca"}} in volumes


@needs_helm
def test_own_names_are_added_to_those_of_the_admin_port(extended: str) -> None:
    manifests = read_manifests(extended)
    assert read_admin_names(manifests, "queue-ddmq-0") > {"queue-ddmq", "queue.example", "mq.example"}
    assert yaml.safe_load(manifests["ConfigMap"]["data"]["ddmq.yaml"]) == {"log_format": "json"}


@needs_helm
def test_clients_of_another_namespace_reach_the_ports_of_clients_alone(extended: str) -> None:
    clients, servers = read_manifests(extended)["NetworkPolicy"]["spec"]["ingress"]
    shop = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}
    assert shop in clients["from"]
    assert shop not in servers["from"]


@needs_helm
def test_a_spread_constraint_counts_the_pods_of_the_release_unless_it_says_otherwise(extended: str) -> None:
    spec = read_manifests(extended)["StatefulSet"]["spec"]
    own, other = spec["template"]["spec"]["topologySpreadConstraints"]
    assert own == {
        "topologyKey": "topology.kubernetes.io/zone",
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": spec["selector"],
    }
    assert other == {
        "topologyKey": "rack",
        "maxSkew": 2,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"a": "b"}},
    }


@needs_helm
@pytest.mark.parametrize(
    ("option", "app", "name"),
    [
        ("--set=nameOverride=mq", "mq", "queue-mq"),
        ("--set=fullnameOverride=bus", "ddmq", "bus"),
        ("--set=nameOverride=queue", "queue", "queue"),
    ],
)
def test_a_name_of_the_users_own_is_the_name_of_everything(option: str, app: str, name: str) -> None:
    text = charts.render_release(option)
    manifests = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    assert {manifest["metadata"]["name"] for manifest in manifests} == {name, f"{name}-pods"}
    assert {manifest["metadata"]["labels"]["app.kubernetes.io/name"] for manifest in manifests} == {app}
    assert "queue-ddmq" not in text


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
        (["--set=env.DDMQ__ADMIN_NAMES=a"], "use adminNames"),
        (["--set=fullnameOverride=Bus"], "fullnameOverride"),
        (["--set=terminationGracePeriodSeconds=5"], "terminationGracePeriodSeconds"),
    ],
)
def test_an_invalid_value_is_rejected_with_its_reason(options: list[str], reason: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        charts.render_release(*options)
    assert reason in error.value.stderr
