"""Checks beyond Kubernetes' schemas: the parts of a training's pods fit each other, and fit the daemon.

Takes a file of manifests, as `kubectl kustomize` writes them.
"""

import re
import sys

import yaml

SECONDS_OF_AN_END = 10 + 600 + 15  # the defaults of --drain-timeout and --save-timeout, and what follows
GIB = 1 << 30
UNITS = {"Mi": 1 << 20, "Gi": GIB, "MiB": 1 << 20, "GiB": GIB}


def size_of(text):
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * UNITS[unit]


def faults_of_variables(container):
    """Variables may refer only to variables before them: Kubernetes does not expand other references."""
    known = set()
    for variable in container.get("env", []):
        for name in re.findall(r"\$\((\w+)\)", variable.get("value", "")):
            if name not in known:
                yield f"{variable['name']} names {name}, which is not before it"
        known.add(variable["name"])


def faults_of_mounts(container, volumes):
    for mount in container.get("volumeMounts", []):
        if mount["name"] not in volumes:
            yield f"{container['name']} mounts {mount['name']}, which there is not"


def is_of(selector, labels):
    """Returns true if a selector chooses pods with these labels by a label, instead of all pods."""
    chosen = selector.get("matchLabels")
    return bool(chosen) and chosen.items() <= labels.items()


def faults_of_selectors(kinds, labels):
    """Pods of others in the namespace are neither let in nor kept from being moved."""
    for budget in kinds["PodDisruptionBudget"]:
        if not is_of(budget["spec"]["selector"], labels):
            yield f"budget: want only the training's pods, got {budget['spec']['selector']}"
    for policy in kinds.get("NetworkPolicy", []):
        if not is_of(policy["spec"]["podSelector"], labels):
            yield f"policy: want only the training's pods, got {policy['spec']['podSelector']}"
        for rule in policy["spec"]["ingress"]:
            for peer in rule.get("from") or [{}]:
                if list(peer) != ["podSelector"] or not is_of(peer["podSelector"], labels):
                    yield f"the training's pods, and nobody else, are to be let in, got {peer}"


def volume_of(path, container):
    """The name of the volume that a path lies in."""
    names = [one["name"] for one in container["volumeMounts"] if f"{path}/".startswith(f"{one['mountPath']}/")]
    return names[0] if names else None


def faults_of_folders(kinds, training, environment):
    """A world has one folder of saves for all, and node 0 one of its own; both are there when pods are not."""
    spec = training["spec"]
    pod = spec["template"]["spec"]
    maker, daemon = pod["initContainers"]
    shared = {one["metadata"]["name"] for one in kinds.get("PersistentVolumeClaim", [])
              if one["spec"]["accessModes"] == ["ReadWriteMany"]}
    claims = {one["name"]: one.get("persistentVolumeClaim", {}).get("claimName") for one in pod["volumes"]}
    if claims.get(volume_of(environment["PARAMSHARD_SAVE_DIR"], daemon)) not in shared:
        yield "a world has one folder of saves, in a claim that all pods share"
    state = environment.get("PARAMSHARD_STATE_DIR")
    own = {one["metadata"]["name"] for one in spec["volumeClaimTemplates"]}
    if state is None or volume_of(state, daemon) not in own:
        yield f"node 0 is to have a state folder in a claim of its own, which outlives the pod, got {state}"
    for folder in filter(None, (environment["PARAMSHARD_SAVE_DIR"], state)):
        if folder not in maker["command"] or volume_of(folder, maker) != volume_of(folder, daemon):
            yield f"{folder} is to be made before the daemon starts"


def faults_of_restores(kinds, containers):
    """A node 0 in the place of a lost one leads all back to the save, where it is told to restore."""
    for container in containers:
        for variable in container.get("env", []):
            if variable["name"] != "PARAMSHARD_RESTORE":
                continue
            source = variable.get("valueFrom", {}).get("configMapKeyRef", {})
            if "value" in variable or not source.get("optional") or "ConfigMap" in kinds:
                yield f"in a world nobody restores unless a person says so, got {variable} in {container['name']}"


def faults_of_world(kinds, training, service, environment):
    pod = training["spec"]["template"]["spec"]
    daemon = pod["initContainers"][-1]
    port = service["spec"]["ports"][0]["port"]
    address = f"{training['metadata']['name']}-0.{service['metadata']['name']}:{port}"
    if environment["PARAMSHARD_CLUSTER_ADDRESS"] != address:
        yield f"node 0 is {address}, got {environment['PARAMSHARD_CLUSTER_ADDRESS']}"
    for name in ("CERT", "KEY", "CA"):
        file = environment.get(f"PARAMSHARD_TLS_{name}")
        if file is None or volume_of(file, daemon) is None:
            yield f"PARAMSHARD_TLS_{name} is to be in a volume, got {file}"
    if "NetworkPolicy" not in kinds:
        yield "a world's network is its own"
    yield from faults_of_folders(kinds, training, environment)
    yield from faults_of_restores(kinds, [*pod["initContainers"], *pod["containers"]])


def faults(documents):
    kinds = {}
    for document in documents:
        kinds.setdefault(document["kind"], []).append(document)
    (training,) = kinds["StatefulSet"]
    (service,) = kinds["Service"]
    spec = training["spec"]
    pod = spec["template"]["spec"]
    starters = [container["name"] for container in pod["initContainers"]]
    daemon = pod["initContainers"][-1]
    trainers = pod["containers"]
    environment = {one["name"]: one.get("value") for one in daemon["env"]}

    if starters != ["saves", "paramshardd"]:
        yield f"the folder of saves is to be there before the daemon starts, got {starters}"
    if daemon.get("restartPolicy") != "Always":
        yield "the daemon is no sidecar"
    if "livenessProbe" in daemon:
        yield "a daemon that is started again has lost its keeper"
    if not pod.get("shareProcessNamespace"):
        yield "daemon and trainers do not see each other's processes"
    if pod["terminationGracePeriodSeconds"] <= SECONDS_OF_AN_END:
        yield f"terminationGracePeriodSeconds: want more than {SECONDS_OF_AN_END}"
    if spec["serviceName"] != service["metadata"]["name"] or service["spec"]["clusterIP"] != "None":
        yield "the pods' names are not those of the headless service"
    if int(environment["PARAMSHARD_NODES"]) != spec["replicas"]:
        yield f"{environment['PARAMSHARD_NODES']} nodes in {spec['replicas']} pods"
    if spec["replicas"] > 1:
        yield from faults_of_world(kinds, training, service, environment)
    yield from faults_of_selectors(kinds, spec["template"]["metadata"]["labels"])
    if size_of(environment["PARAMSHARD_MEMORY_LIMIT"]) >= size_of(daemon["resources"]["limits"]["memory"]):
        yield "the daemon's own limit is to be below that of the container"

    claims = {claim["name"]: claim["resourceClaimTemplateName"] for claim in pod.get("resourceClaims") or []}
    templates = {one["metadata"]["name"]: one for one in kinds.get("ResourceClaimTemplate", [])}
    named = [[claim["name"] for claim in one["resources"].get("claims") or []] for one in [daemon, *trainers]]
    if any(names != list(claims) for names in named) or set(claims.values()) != set(templates):
        yield f"daemon and trainers name the same claim, got {named} of {claims}"
    devices = environment["PARAMSHARD_DEVICE"].split(",")
    for template in templates.values():
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        if request["exactly"]["count"] != len(devices):
            yield f"{request['exactly']['count']} GPUs are claimed, and {len(devices)} devices served"
    if devices[0].startswith("cuda") != bool(claims):
        yield f"{devices[0]} with the claims {list(claims)}"

    volumes = {one["name"] for one in pod["volumes"]}
    volumes |= {one["metadata"]["name"] for one in spec["volumeClaimTemplates"]}
    for container in [*pod["initContainers"], *trainers]:
        yield from faults_of_variables(container)
        yield from faults_of_mounts(container, volumes)
    folders = {dict((one["name"], one.get("value")) for one in c["env"]).get("PARAMSHARD_SOCKET_DIR")
               for c in [daemon, *trainers]}
    if len(folders) != 1:
        yield f"daemon and trainers look for sockets in the same folder, got {folders}"


with open(sys.argv[1], encoding="utf-8") as file:
    found = list(faults(yaml.safe_load_all(file)))
for fault in found:
    print(fault)
sys.exit(bool(found))
