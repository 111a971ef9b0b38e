// Prints, as JSON, the metrics of all nodes and of the pods in a namespace, read with the client
// library, and the totals that the library's own "top" functions compute from them.
//
// usage: node client.mjs NAMESPACE
import { CoreV1Api, KubeConfig, Metrics, topPods } from '@kubernetes/client-node';

const namespace = process.argv[2];
const config = new KubeConfig();
config.loadFromDefault();
const metrics = new Metrics(config);
const nodes = await metrics.getNodeMetrics();
const pods = await metrics.getPodMetrics(namespace);
const api = config.makeApiClient(CoreV1Api);

const top = {};
for (const pod of await topPods(api, metrics, namespace)) {
  top[pod.Pod.metadata.name] = { cpu: Number(pod.CPU.CurrentUsage), memory: Number(pod.Memory.CurrentUsage) };
}
console.log(JSON.stringify({ nodes: nodes.items, pods: pods.items, top }));
