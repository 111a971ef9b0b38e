"""Prints, as JSON, the metrics of nodes and of the pods in a namespace, read with the client library.

usage: client.py NODE-SELECTOR NAMESPACE POD-SELECTOR
"""

import json
import sys

from kubernetes import client, config

API = ("metrics.k8s.io", "v1beta1")


def main(node_selector, namespace, pod_selector):
    config.load_kube_config()
    api = client.CustomObjectsApi()
    nodes = api.list_cluster_custom_object(*API, "nodes", label_selector=node_selector)
    pods = api.list_namespaced_custom_object(*API, namespace, "pods", label_selector=pod_selector)
    for i, pod in enumerate(pods["items"]):  # a GET, in place of the item of the list
        pods["items"][i] = api.get_namespaced_custom_object(*API, namespace, "pods", pod["metadata"]["name"])
    json.dump({"nodes": nodes["items"], "pods": pods["items"]}, sys.stdout)


main(*sys.argv[1:])
